"""Scans on the GPU: which steps a scan takes. The kernels are in `gpu_kernels`.

Forward: one sweep; few long rows take three (states of chunks, joined, sweep from there), reading
the input twice. Backward: what the forward scan had at the tile borders first (from the saved y, or
by a sweep over x), then the same. Sums of f32 are carried in f64, of halves in f32; products and
logcumsumexp's gradient in f64, whatever the element.
"""

from __future__ import annotations

from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.extension import check_not_stateful
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import Reproducibility, ScanKind, TieRule
from pullback.gpu.program import Arena, GpuProgram, Layout, Step
from pullback.gpu.sketch import Sample
from pullback.gpu.tile import wide
from pullback.ops.scan.contract import staged, staged_backward
from pullback.ops.scan.gpu_back_kernels import sweep_back
from pullback.ops.scan.gpu_cut import (
    NO_START,
    NO_TOTAL,
    Builder,
    Given,
    Pieces,
    cut_of,
    scratch_bytes,
    tensor_arguments,
)
from pullback.ops.scan.gpu_extended import extended, extended_bytes
from pullback.ops.scan.gpu_kernels import sweep
from pullback.tensor.layout import along_axis

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


_ABSENT: dict[str, Any] = {"indices": None, "step_i": 0, "strides_i": ()}


def _sweeps(
    build: Builder, tensors: dict[str, Any], carried: ElementKind, reverse: bool, passes: float
) -> None:
    """One sweep, or three where rows are cut into chunks."""
    cut = build.cut
    other = build.other(carried)
    shared = {
        **tensors,
        **build.pieces.arguments,
        **build.extents,
        **build.whole(),
        "STATE": build.state,
        "SIGN": _KINDS[build.desc.kind][1],
        "REVERSE": reverse,
        "WIDE": wide(carried),
        "OTHER": wide(other),
    }
    start: dict[str, Any] = NO_START
    grid = cut.groups * cut.chunks
    if cut.chunks > 1:
        totals = build.totals(cut.chunks, carried, other)
        only_read = {**shared, **_ABSENT, "y": None, "step_y": 0, "strides_y": ()}
        build.add(sweep, grid, 1, {**only_read, **NO_START, **totals})
        start = build.join(totals, cut.chunks, build.state)
    build.add(sweep, grid, passes, {**shared, **start, **NO_TOTAL})


def _begin(
    desc: Any, given: dict[str, Given], back: bool, arena: Arena, pieces: Pieces
) -> tuple[Builder, dict[str, Any]]:
    """A builder, and the tensors and loops as kernels name them."""
    strides = [tensor.strides for tensor in given.values()]
    loops = along_axis(desc.input_shape, desc.scan_axis, strides)
    tensors: dict[str, Any] = {"extents": loops.rest.extents}
    for number, (name, tensor) in enumerate(given.items()):
        tensors.update(tensor_arguments(name, tensor.operand, loops, number))
    return Builder(desc, cut_of(desc, loops.columns, back), _state(desc), arena, pieces), tensors


def _forward(desc: Any, given: dict[str, Given], arena: Arena, pieces: Pieces) -> list[Step]:
    build, tensors = _begin(desc, given, False, arena, pieces)
    passes = 2 if "indices" not in given else 2 + 8 / desc.element.itemsize
    _sweeps(build, {**_ABSENT, **tensors}, _carried(desc, False), desc.reverse, passes)
    return build.steps


def _backward(desc: Any, given: dict[str, Given], arena: Arena, pieces: Pieces) -> list[Step]:
    build, tensors = _begin(desc, given, desc.kind is not ScanKind.CUMSUM, arena, pieces)
    absent = {"y": None, "step_y": 0, "strides_y": tensors["strides_dy"]}
    tensors = {**absent, **tensors}
    if desc.kind is ScanKind.CUMSUM:
        renamed = {
            key.replace("dy", "x").replace("dx", "y"): v
            for key, v in tensors.items()
            if "d" in key or key == "extents"
        }
        _sweeps(build, {**_ABSENT, **renamed}, _carried(desc, True), not desc.reverse, 2)
        return build.steps
    _sweeps_back(build, tensors, len(given))
    return build.steps


def _sweeps_back(build: Builder, tensors: dict[str, Any], passes: int) -> None:
    """What the forward had at the tile borders, then one sweep back, or three."""
    desc, cut = build.desc, build.cut
    carried = _carried(desc, True)
    other = build.other(carried)
    shared = {
        **tensors,
        **_past(build, tensors, carried, other),
        **build.pieces.arguments,
        **build.extents,
        **build.whole(),
        "KIND": build.state,
        "SIGN": _KINDS[build.desc.kind][1],
        "REVERSE": desc.reverse,
        "WIDE": wide(carried),
        "OTHER": wide(other),
    }
    start: dict[str, Any] = NO_START
    grid = cut.groups * cut.chunks
    if cut.chunks > 1:
        totals = build.totals(cut.chunks, carried, carried)
        build.add(sweep_back, grid, passes - 1, {**shared, **NO_START, **totals})
        state = "keep" if build.state in ("first", "last") else "linear"
        start = build.join(totals, cut.chunks, state)
    build.add(sweep_back, grid, passes, {**shared, **start, **NO_TOTAL})


def _past(
    build: Builder, tensors: dict[str, Any], carried: ElementKind, other: ElementKind
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
    if build.state in ("first", "last"):
        carried = _carried(desc, False)
    totals = build.totals(cut.tiles, carried, other)
    arguments = {k: tensors[k] for k in ("x", "step_x", "extents", "strides_x")}
    arguments |= {**_ABSENT, "y": None, "step_y": 0, "strides_y": (), **build.extents, **NO_START}
    arguments |= {**build.pieces.arguments, **totals, "chunks": cut.tiles, "chunk": 1}
    arguments |= {"STATE": build.state, "SIGN": _KINDS[build.desc.kind][1], "REVERSE": desc.reverse}
    arguments |= {"WIDE": wide(carried), "OTHER": wide(other)}
    build.add(sweep, cut.groups * cut.tiles, 1, arguments)
    joined = build.join(totals, cut.tiles, build.state)
    return {"before_u": joined["start_u"], "before_v": joined["start_v"], "after": after}


# --- what plans ask -----------------------------------------------------------------------------


def _guarantee(desc: Any, backward: bool) -> PrecisionGuarantee:
    check_not_stateful(f"{desc.kind.value}{'_backward' * backward}", desc, "a GPU")
    exact = desc.kind in (ScanKind.CUMMAX, ScanKind.CUMMIN) and not backward
    level = Reproducibility.ANY_MACHINE if exact else Reproducibility.RUN_TO_RUN
    return guarantee(_carried(desc, backward), level)


def _samples(backward: bool) -> tuple[Sample, ...]:
    """Rows, columns, and one row that is cut into chunks; cummin is cummax with another sign."""
    problems = {"rows": ((4096, 4096), 1), "columns": ((64, 512, 512), 1), "row": ((1 << 24,), 0)}
    # Sums and products are the same code but for one instruction.
    plain = {"row": ScanKind.CUMSUM if backward else ScanKind.CUMPROD, "columns": None}
    if backward:
        plain["columns"] = ScanKind.CUMSUM
    found = []
    for kind in ScanKind:
        for where, (shape, axis) in problems.items():
            if kind not in (ScanKind.CUMMIN, plain.get(where)):
                options = {"kind": kind, "input_shape": shape, "scan_axis": axis}
                given = ("indices",) if where == "rows" else ()
                found.append(Sample(f"{kind.value} {where}", options, given))
    pieces: dict[str, Any] = {"exclusive": True, "initial_shape": (), "num_pieces": 100}
    for kind in ScanKind:
        if kind is not ScanKind.CUMMIN:
            options = {**pieces, "kind": kind, "input_shape": (4096, 4096), "scan_axis": 1}
            given = ("indices",) if kind is ScanKind.CUMMAX else ()
            found.append(Sample(f"{kind.value} pieces", options, given))
    return tuple(found)


def _lay_out(
    desc: Any, x: Any, y: Any, indices: Any, initial: Any, offsets: Any, *_: None
) -> GpuProgram:
    tensors = tuple(zip(staged(desc), (x, y, indices), strict=True))
    return extended(desc, _forward, tensors, initial, offsets)


def _lay_out_back(
    desc: Any, dy: Any, dx: Any, x: Any, y: Any, initial: Any, offsets: Any, d_initial: Any
) -> GpuProgram:
    tensors = tuple(zip(staged_backward(desc), (dy, dx, x, y), strict=True))
    ahead = desc.kind is not ScanKind.CUMSUM  # a cumsum of dy the other way, without what was
    return extended(desc, _backward, tensors, initial, offsets, d_initial, ahead=ahead)


forward = Layout(
    _lay_out,
    lambda desc: _guarantee(desc, False),
    lambda desc: extended_bytes(desc, staged(desc), lambda plain: scratch_bytes(plain, False)),
    _samples(False),
)
backward = Layout(
    _lay_out_back,
    lambda desc: _guarantee(desc, True),
    lambda desc: extended_bytes(
        desc,
        staged_backward(desc),
        lambda plain: scratch_bytes(plain, desc.kind is not ScanKind.CUMSUM),
    ),
    _samples(True),
)
