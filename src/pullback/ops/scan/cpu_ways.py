"""Scans that are not on the engine (cpu/scan): which kernel a plan runs, and over which lines.

These are logcumsumexp and its backward. `cpu_logsumexp` and the `_backward` module hold the
kernels; beside them stand `_recomputed`, where no y is kept, and `_chained` kernels, whose threads
share a line. The mathematics of log-sum-exp is in `cpu_exponents`, `cpu_decays` and
`cpu_decay_pairs`.

The steps of a line lie in vectors, eight under each other (`cpu_columns`, walked in `cpu_groups`).
Short lines are turned to lie so, in panels (`cpu_panels`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.kinds import ScanKind
from pullback.cpu.chain import LINK_WORDS, TENSORS_WALKED
from pullback.cpu.kernel import Kernel
from pullback.cpu.loops import axis_words
from pullback.cpu.program import BYTES_PER_CHUNK, Phase, Program, grain_for, streams
from pullback.cpu.scan_words import MOST_TENSORS
from pullback.cpu.sweep import AXIS
from pullback.ops.scan.cpu_panels import APART, AT_ONCE, MOST, ROOM, panel_lines
from pullback.tensor.layout import AxisLoops, along_axis

VECTOR_BYTES = 32
K = ScanKind
# Steps of a line, at most: longer ones are as fast by themselves, or do not fit.
SHORT, STRIDED = 50, 512
# Fewer lines are shared by threads, if they are this long and the kernel knows how.
FEW_LINES, LONG = 16, 1 << 16
FEWEST = 32  # lines for which it pays to turn them


@dataclass(frozen=True)
class Way:
    """The kernels of a scan and how they walk: `along` the axis, or `across` it, a strip of lines
    at a time."""

    along: Kernel
    across: Kernel
    vectors: int = 256  # in a strip
    lines: int = 0  # in a strip, where a kernel has room for so many only
    against: bool = False  # the scan's direction
    chained: Kernel | None = None  # threads share a line,
    chunk: int = 0  # this long a part at a time,
    links: int = 1  # and hand so many links' words to the next,
    whole_rows: bool = False  # across, too, lines of memory are written at once
    short: int = SHORT  # lines of so many steps or fewer go across in panels,
    strided: int = STRIDED  # of so many where one steps over memory
    runs: int = 0  # at most so many runs of items, where an item leads on to the memory of the next

    def strip(self, element: ElementKind) -> int:
        return self.lines or self.vectors * (VECTOR_BYTES // element.accumulator.itemsize)


_ALONE = {"short": 0, "strided": 0}  # a kernel that knows no panels


def _way(room: ModuleType, name: str, **traits: Any) -> Way:
    return Way(getattr(room, f"{name}_along"), getattr(room, f"{name}_across"), **traits)


# The way forward, and ways backward by whether y is read.
Ways = tuple[dict[Any, Way], dict[Any, Way]]


def _log_sums() -> Ways:
    from pullback.ops.scan import cpu_logsumexp as sums
    from pullback.ops.scan import cpu_logsumexp_backward as kept
    from pullback.ops.scan import cpu_logsumexp_chained as shared
    from pullback.ops.scan import cpu_logsumexp_recomputed as recomputed

    traits: dict[str, Any] = {
        "whole_rows": True,
        "chunk": shared.CHUNK,
        "links": shared.LINKS,
        "runs": 256,
    }
    along, back = shared.logcumsumexp_chained, shared.logcumsumexp_backward_chained
    return {None: _way(sums, "logcumsumexp", vectors=128, chained=along, **traits)}, {
        True: _way(kept, "logcumsumexp_backward", against=True, chained=back, **traits),
        False: _way(recomputed, "logcumsumexp_recomputed", lines=recomputed.SIDE, **_ALONE),
    }


_OF = {
    K.LOG_CUMSUM_EXP: _log_sums,
}


@cache
def _ways(kind: ScanKind) -> Ways:
    """The kernels of a kind are imported when the first of them is needed."""
    return _OF[kind]()


def forward(desc: Any, x: Any, y: Any) -> Program:
    return _program(desc, [x, y, None], _ways(desc.kind)[0][None])


def backward(desc: Any, dy: Any, dx: Any, x: Any, y: Any) -> Program:
    _, ways = _ways(desc.kind)
    return _program(desc, [dy, dx, x, y], ways[y is not None])


def _most_lines(n: int) -> int:
    """Of n steps, that fit a room: the more go together, the more of what is fetched is used."""
    return min(MOST, (ROOM // (n + AT_ONCE) - APART) // AT_ONCE * AT_ONCE)


def _is_straight(loops: AxisLoops) -> bool:
    return all(abs(step) == 1 for step in loops.steps)


def _short(loops: AxisLoops, way: Way) -> int:
    """Of how many steps lines may be to go in panels."""
    return way.short if _is_straight(loops) else way.strided


def _program(desc: Any, views: list[Any], way: Way) -> Program:
    present = next(v for v in views if v is not None)
    strides = [(v or present).strides for v in views]
    strides += [present.strides] * (TENSORS_WALKED - len(strides))
    loops = along_axis(desc.input_shape, desc.scan_axis, strides)
    n, lines = loops.extent, loops.rest.count
    short = _short(loops, way)
    in_panels = not loops.columns and 0 < n <= short and lines >= FEWEST
    columns = strip = 1
    items, links = lines if n else 0, 0
    kernel = way.across if loops.columns or in_panels else way.along
    if in_panels:
        widest = panel_lines(n) if _is_straight(loops) else _most_lines(n)
        columns = strip = min(widest, way.strip(desc.element))
        items = -(-lines // strip)
    elif loops.columns:
        columns, strip = loops.rest.extents[-1], way.strip(desc.element)
        items = lines // columns * -(-columns // strip) if n and columns else 0
    elif way.chained and desc.num_pieces is None and 0 < lines < FEW_LINES and n >= LONG:
        kernel = way.chained
        items, strip, links = lines * -(-n // way.chunk), lines, lines * way.links
    tensors = sum(v is not None for v in views)
    size = n * min(strip, columns) * desc.element.itemsize * tensors
    run = items // way.runs if way.runs else 0
    grain = 1 if links else max(grain_for(size, BYTES_PER_CHUNK << in_panels), run)
    phase = Phase(kernel, items, grain)
    # Across, a line of memory is written in several pieces: they must meet in the cache.
    at_once = way.whole_rows or not loops.columns
    words = (
        *(0,) * (1 + MOST_TENSORS - len(views)),
        0 if in_panels else columns,
        strip,
        int(at_once and streams(n * lines * desc.element.itemsize)),
        0,
        0,
        *axis_words(loops, desc.reverse != way.against),
        *(0,) * (LINK_WORDS * links),
    )
    return Program((phase,), words, axis=AXIS)
