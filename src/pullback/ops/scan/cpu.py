"""Scans in Numba."""

from __future__ import annotations

from typing import Any

from pullback.cpu.kernel import kernel, pointer, words
from pullback.cpu.loops import axis_words, extent, offset, step
from pullback.cpu.memory import read_wide, write
from pullback.cpu.program import TENSORS, Phase, Program, grain_for
from pullback.tensor.layout import along_axis

WORDS = TENSORS + 3


@kernel
def cumsum_rows(task, lo, hi):
    x, y, w = pointer(task, TENSORS), pointer(task, TENSORS + 1), words(task, WORDS)
    for row in range(lo, hi):
        i, j = offset(w, 0, row), offset(w, 1, row)
        total = 0.0
        for k in range(extent(w)):
            total += read_wide(x, i + k * step(w, 0))
            write(y, j + k * step(w, 1), total)


def forward(desc: Any, x: Any, y: Any, indices: Any) -> Program:
    loops = along_axis(desc.input_shape, desc.scan_axis, [x.strides, y.strides])
    rows = loops.rest.count if loops.extent else 0
    phase = Phase(cumsum_rows, rows, grain_for(loops.extent * desc.element.itemsize * 2))
    return Program((phase,), axis_words(loops, desc.reverse))
