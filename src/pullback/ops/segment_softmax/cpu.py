"""Softmax within segments in Numba: which phases a plan runs, and where their tables live."""

from __future__ import annotations

from typing import Any

from pullback.cpu.program import Program
from pullback.ops.segment.cpu_grouping import group_tables, spread_out
from pullback.ops.segment_softmax import cpu_gradients as gradients
from pullback.ops.segment_softmax import cpu_maps as maps
from pullback.ops.segment_softmax.contract import SegmentSoftmaxKind
from pullback.ops.segment_softmax.cpu_maps import PARTS

# Kernels, and what rows in no segment hold.
_FORWARD = {
    SegmentSoftmaxKind.SOFTMAX: (maps.SOFTMAX, 0.0),
    SegmentSoftmaxKind.LOG_SOFTMAX: (maps.LOG_SOFTMAX, float("-inf")),
}
_BACKWARD = {
    SegmentSoftmaxKind.SOFTMAX: gradients.SOFTMAX,
    SegmentSoftmaxKind.LOG_SOFTMAX: gradients.LOG_SOFTMAX,
}


def workspace(desc: Any) -> int:
    return group_tables(desc, max(PARTS, gradients.PARTS), desc.ascending)[0].bytes


def forward(desc: Any, *views: Any) -> Program:
    return spread_out(desc, PARTS, desc.ascending, *_FORWARD[desc.kind], views, {})


def backward(desc: Any, *views: Any) -> Program:
    kernels = _BACKWARD[desc.kind]
    return spread_out(desc, gradients.PARTS, desc.ascending, kernels, 0.0, views, {})
