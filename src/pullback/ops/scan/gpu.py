"""Scans on the GPU: which steps a scan takes. The kernels are in `gpu_kernels`.

Forward: one sweep; few long rows take three (states of chunks, joined, sweep from there), reading
the input twice. Backward: what the forward scan had at the tile borders first (from the saved y, or
by a sweep over x), then the same. Sums of f32 are carried in f64, of halves in f32; products and
logcumsumexp's gradient in f64, whatever the element.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import Reproducibility, ScanKind, TieRule
from pullback.gpu.program import (
    ALIGNMENT,
    EMPTY,
    ENOUGH_PROGRAMS,
    Arena,
    GpuProgram,
    Layout,
    Operand,
    Scratch,
    Step,
    Steps,
    Tile,
    ceil_div,
    operands,
)
from pullback.gpu.sketch import Sample
from pullback.gpu.tile import wide
from pullback.ops.scan.gpu_kernels import edges, sweep, sweep_back, thread
from pullback.tensor.layout import AxisLoops, along_axis

# Along the axis where its elements are neighbours, else across the rows, where those are.
ALONG = Steps(
    (16, Tile(64, 16, 4)),
    (64, Tile(16, 64, 4)),
    (128, Tile(8, 128, 4)),
    (256, Tile(4, 256, 4)),
    (None, Tile(1, 1024, 4)),
)
ACROSS = Steps((16, Tile(64, 16, 4)), (None, Tile(32, 32, 4)))
# Backwards hold more at a time.
ALONG_BACK = Steps(
    (16, Tile(32, 16, 4)), (64, Tile(8, 64, 4)), (128, Tile(4, 128, 4)), (None, Tile(1, 512, 4))
)
ACROSS_BACK = Steps((None, Tile(32, 32, 8)))
STATES = Tile(1, 512, 4)
SMALL = Tile(16, 64, 4)

# Shorter rows than this many tiles are not worth three passes.
CUT_FROM = 8

_KINDS = {
    ScanKind.CUMSUM: ("sum", 1),
    ScanKind.CUMPROD: ("product", 1),
    ScanKind.LOG_CUMSUM_EXP: ("logsum", 1),
    ScanKind.CUMMAX: ("", 1),
    ScanKind.CUMMIN: ("", -1),
}
_WINNERS = {TieRule.FIRST: "first", TieRule.LAST: "last"}


def _state(desc: Any) -> str:
    return _KINDS[desc.kind][0] or _WINNERS[desc.ties]


def _carried(desc: Any, backward: bool) -> ElementKind:
    """What states are carried in."""
    state = _state(desc)
    if state == "product" or (state == "logsum" and backward):
        return ElementKind.F64
    if state in ("first", "last") and not backward:  # only compared
        return desc.element if desc.element is ElementKind.F64 else ElementKind.F32
    return desc.element.accumulator


@dataclass(frozen=True)
class Cut:
    """How rows are cut: tiles along the axis, and chunks of tiles where rows are few and long."""

    rows: int
    extent: int
    tile: Tile

    @property
    def groups(self) -> int:
        return ceil_div(self.rows, self.tile.rows)

    @property
    def tiles(self) -> int:
        return ceil_div(self.extent, self.tile.block)

    @cached_property
    def chunk(self) -> int:
        """Tiles per chunk."""
        if self.groups >= ENOUGH_PROGRAMS or self.tiles < CUT_FROM:
            return max(self.tiles, 1)
        return ceil_div(self.tiles, ceil_div(2 * ENOUGH_PROGRAMS, self.groups))

    @property
    def chunks(self) -> int:
        return ceil_div(self.tiles, self.chunk)


_TABLES = {
    (False, False): ALONG,
    (False, True): ALONG_BACK,
    (True, False): ACROSS,
    (True, True): ACROSS_BACK,
}


def _cut(desc: Any, columns: bool, backward: bool) -> Cut:
    extent = desc.input_shape[desc.scan_axis] if desc.input_shape else 1
    rows = 1
    for axis, n in enumerate(desc.input_shape):
        rows *= 1 if axis == desc.scan_axis else n
    return Cut(rows, extent, _TABLES[columns, backward][extent])


class _Builder:
    """Collects the steps of one scan and the scratch they share."""

    def __init__(self, desc: Any, cut: Cut) -> None:
        self.desc, self.cut = desc, cut
        self.state, self.sign = _state(desc), _KINDS[desc.kind][1]
        self.steps: list[Step] = []
        self.arena = Arena()

    def other(self, carried: ElementKind) -> ElementKind:
        """The type of the second half of a state: positions of extrema."""
        if self.state not in ("first", "last"):
            return carried
        return ElementKind.I32 if self.cut.extent < 2**31 else ElementKind.I64

    def states(self, count: int, u: ElementKind, v: ElementKind) -> tuple[Scratch, Scratch]:
        return self.arena.take(u, self.cut.rows * count), self.arena.take(v, self.cut.rows * count)

    def add(self, kernel: Any, grid: int, reads: float, arguments: dict[str, Any]) -> None:
        """A step over tiles; `reads` counts passes over a tensor of the plan's element."""
        size = self.cut.rows * self.cut.extent * self.desc.element.itemsize
        tile = {"R": self.cut.tile.rows, "B": self.cut.tile.block}
        step = Step(kernel, grid, {**arguments, **tile}, self.cut.tile.warps, int(reads * size))
        self.steps.append(step)

    def join(self, us: Scratch, vs: Scratch, count: int, state: str) -> None:
        tile = SMALL if count <= SMALL.block else STATES
        arguments = {"us": us, "vs": vs, "rows": self.cut.rows, "count": count, "STATE": state}
        shape = {"R": tile.rows, "B": tile.block}
        grid = ceil_div(self.cut.rows, tile.rows)
        traffic = 2 * (us.count * us.element.itemsize + vs.count * vs.element.itemsize)
        self.steps.append(Step(thread, grid, {**arguments, **shape}, tile.warps, traffic))

    def edges(self, tensors: dict[str, Any], name: str, last: bool) -> Scratch:
        """The first or last element of every tile, in the order of the forward scan."""
        cut = self.cut
        taken = self.arena.take(self.desc.element, cut.rows * cut.tiles)
        arguments = {
            "source": tensors[name],
            "step": tensors[f"step_{name}"],
            "strides": tensors[f"strides_{name}"],
            "extents": tensors["extents"],
            "edge": taken,
            "HIGH": last != self.desc.reverse,
            "REVERSE": self.desc.reverse,
            "BLOCK": cut.tile.block,
            **self.extents,
            "R": SMALL.rows,
            "B": SMALL.block,
        }
        grid = ceil_div(cut.rows, SMALL.rows) * ceil_div(cut.tiles, SMALL.block)
        traffic = 2 * taken.count * taken.element.itemsize
        self.steps.append(Step(edges, grid, arguments, SMALL.warps, traffic))
        return taken

    @property
    def extents(self) -> dict[str, int]:
        return {"n": self.cut.extent, "rows": self.cut.rows, "tiles": self.cut.tiles}

    def whole(self) -> dict[str, int]:
        return {"chunks": self.cut.chunks, "chunk": self.cut.chunk}


_ABSENT: dict[str, Any] = {"indices": None, "step_i": 0, "strides_i": ()}
_NO_START = {"start_u": None, "start_v": None}
_NO_TOTAL = {"total_u": None, "total_v": None}


def _tensor(name: str, operand: Operand | None, loops: AxisLoops, number: int) -> dict[str, Any]:
    """A tensor's pointer, step and strides, as kernels name them."""
    short = "i" if name == "indices" else name
    return {
        name: operand,
        f"step_{short}": loops.steps[number],
        f"strides_{short}": loops.rest.strides[number],
    }


def _sweeps(
    build: _Builder, tensors: dict[str, Any], carried: ElementKind, reverse: bool, passes: float
) -> None:
    """One sweep, or three where rows are cut into chunks."""
    cut = build.cut
    other = build.other(carried)
    shared = {
        **tensors,
        **build.extents,
        **build.whole(),
        "STATE": build.state,
        "SIGN": build.sign,
        "REVERSE": reverse,
        "WIDE": wide(carried),
        "OTHER": wide(other),
    }
    start: dict[str, Any] = _NO_START
    grid = cut.groups * cut.chunks
    if cut.chunks > 1:
        us, vs = build.states(cut.chunks, carried, other)
        only_read = {**shared, **_ABSENT, "y": None, "step_y": 0, "strides_y": ()}
        totals = {"total_u": us, "total_v": vs}
        build.add(sweep, grid, 1, {**only_read, **_NO_START, **totals})
        build.join(us, vs, cut.chunks, build.state)
        start = {"start_u": us, "start_v": vs}
    build.add(sweep, grid, passes, {**shared, **start, **_NO_TOTAL})


def _forward(desc: Any, x: Any, y: Any, indices: Any) -> GpuProgram:
    given = [view for view in (x, y, indices) if view is not None]
    loops = along_axis(desc.input_shape, desc.scan_axis, [view.strides for view in given])
    cut = _cut(desc, loops.columns, False)
    if not cut.rows * cut.extent:
        return EMPTY
    names = zip(("x", "y", "indices"), operands(x, y, indices), strict=True)
    tensors = {**_ABSENT, "extents": loops.rest.extents}
    for number, (name, operand) in enumerate(pair for pair in names if pair[1] is not None):
        tensors.update(_tensor(name, operand, loops, number))
    build = _Builder(desc, cut)
    passes = 2 if indices is None else 2 + 8 / desc.element.itemsize
    _sweeps(build, tensors, _carried(desc, False), desc.reverse, passes)
    return GpuProgram(tuple(build.steps))


def _backward(desc: Any, dy: Any, dx: Any, x: Any, y: Any) -> GpuProgram:
    given = [view for view in (dy, dx, x, y) if view is not None]
    loops = along_axis(desc.input_shape, desc.scan_axis, [view.strides for view in given])
    cut = _cut(desc, loops.columns, desc.kind is not ScanKind.CUMSUM)
    if not cut.rows * cut.extent:
        return EMPTY
    tensors = {"extents": loops.rest.extents, **_tensor("y", None, loops, 0)}
    names = zip(("dy", "dx", "x", "y"), operands(dy, dx, x, y), strict=True)
    for number, (name, operand) in enumerate(pair for pair in names if pair[1] is not None):
        tensors.update(_tensor(name, operand, loops, number))
    build = _Builder(desc, cut)
    if desc.kind is ScanKind.CUMSUM:
        renamed = {
            key.replace("dy", "x").replace("dx", "y"): v
            for key, v in tensors.items()
            if "d" in key or key == "extents"
        }
        _sweeps(build, {**_ABSENT, **renamed}, _carried(desc, True), not desc.reverse, 2)
        return GpuProgram(tuple(build.steps))
    _sweeps_back(build, tensors, len(given))
    return GpuProgram(tuple(build.steps))


def _sweeps_back(build: _Builder, tensors: dict[str, Any], passes: int) -> None:
    """What the forward had at the tile borders, then one sweep back, or three."""
    desc, cut = build.desc, build.cut
    carried = _carried(desc, True)
    other = build.other(carried)
    shared = {
        **tensors,
        **_past(build, tensors, carried, other),
        **build.extents,
        **build.whole(),
        "KIND": build.state,
        "SIGN": build.sign,
        "REVERSE": desc.reverse,
        "WIDE": wide(carried),
        "OTHER": wide(other),
    }
    start: dict[str, Any] = _NO_START
    grid = cut.groups * cut.chunks
    if cut.chunks > 1:
        us, vs = build.states(cut.chunks, carried, carried)
        build.add(
            sweep_back, grid, passes - 1, {**shared, **_NO_START, "total_u": us, "total_v": vs}
        )
        build.join(us, vs, cut.chunks, "keep" if build.state in ("first", "last") else "linear")
        start = {"start_u": us, "start_v": vs}
    build.add(sweep_back, grid, passes, {**shared, **start, **_NO_TOTAL})


def _past(
    build: _Builder, tensors: dict[str, Any], carried: ElementKind, other: ElementKind
) -> dict[str, Any]:
    """What tiles need of their neighbours, in scratch; nothing where there is one tile."""
    cut, desc = build.cut, build.desc
    if cut.tiles == 1:
        return {"before_u": None, "before_v": None, "after": None}
    saved = tensors["y"] is not None
    after = build.edges(tensors, "y" if saved and build.state == "logsum" else "x", False)
    if saved:
        before = build.edges(tensors, "y", True)
        return {"before_u": before, "before_v": before, "after": after}
    us, vs = build.states(cut.tiles, carried, other)
    arguments = {k: tensors[k] for k in ("x", "step_x", "extents", "strides_x")}
    arguments |= {**_ABSENT, "y": None, "step_y": 0, "strides_y": (), **build.extents, **_NO_START}
    arguments |= {"total_u": us, "total_v": vs, "chunks": cut.tiles, "chunk": 1}
    arguments |= {"STATE": build.state, "SIGN": build.sign, "REVERSE": desc.reverse}
    arguments |= {"WIDE": wide(carried), "OTHER": wide(other)}
    build.add(sweep, cut.groups * cut.tiles, 1, arguments)
    build.join(us, vs, cut.tiles, build.state)
    return {"before_u": us, "before_v": vs, "after": after}


# --- what plans ask -----------------------------------------------------------------------------


def _bytes(desc: Any, backward: bool) -> int:
    """Scratch for either orientation, so that it follows from the descriptor alone."""
    needs = []
    for columns in (False, True):
        back = backward and desc.kind is not ScanKind.CUMSUM
        cut = _cut(desc, columns, back)
        states = cut.chunks if cut.chunks > 1 else 0
        borders = cut.tiles if back and cut.tiles > 1 else 0
        if states + borders:
            needs.append(cut.rows * (16 * (states + borders) + 8 * borders) + 6 * ALIGNMENT)
    return max(needs, default=0)


def _guarantee(desc: Any, backward: bool) -> PrecisionGuarantee:
    exact = desc.kind in (ScanKind.CUMMAX, ScanKind.CUMMIN) and not backward
    level = Reproducibility.ANY_MACHINE if exact else Reproducibility.RUN_TO_RUN
    return guarantee(_carried(desc, backward), level)


def _samples() -> tuple[Sample, ...]:
    """Rows, columns, and one row that is cut into chunks."""
    problems = {"rows": ((4096, 4096), 1), "columns": ((64, 512, 512), 1), "row": ((1 << 24,), 0)}
    found = []
    for kind in ScanKind:
        if kind is ScanKind.CUMMIN:
            continue  # cummax with another sign
        for where, (shape, axis) in problems.items():
            options = {"kind": kind, "input_shape": shape, "scan_axis": axis}
            given = ("indices",) if where == "rows" else ()
            found.append(Sample(f"{kind.value} {where}", options, given))
    return tuple(found)


forward = Layout(
    _forward, lambda desc: _guarantee(desc, False), lambda desc: _bytes(desc, False), _samples()
)
backward = Layout(
    _backward, lambda desc: _guarantee(desc, True), lambda desc: _bytes(desc, True), _samples()
)
