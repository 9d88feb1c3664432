"""Fenchel-Young losses on the GPU: which steps they take. Classes are checked on the device, as
indices of segments are."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import Reproducibility
from pullback.gpu.program import (
    Arena,
    GpuProgram,
    Layout,
    Operand,
    Step,
    ceil_div,
    operands,
)
from pullback.gpu.sketch import Sample
from pullback.gpu.tile import wide
from pullback.ops.entmax.contract import ALPHAS, EntmaxKind, loss_alpha, row_shape
from pullback.ops.entmax.gpu_loss import loss_rows, loss_tiles
from pullback.ops.entmax.gpu_loss_back import loss_back
from pullback.ops.segment.gpu_groups import Groups, check_bytes
from pullback.ops.simplex.gpu import ACROSS, ALONG
from pullback.tensor.layout import AxisLoops, along_axis

CLASSES = 2  # the slot
OF_ROWS = ("classes", "loss", "dy")  # one number for each row
# By alpha, the maps that have kernels of their own.
KINDS = {1.0: "softmax", 1.5: "entmax15", 2.0: "sparsemax"}
# Of each element the relative distance of neighbours, twice, and the absolute one at 0: numbers
# nearer than that are not told apart. In f64 the root has rounding errors of its own.
DIGITS = {
    ElementKind.F16: (2.0**-9, 2.0**-24),
    ElementKind.BF16: (2.0**-6, 2.0**-133),
    ElementKind.F32: (2.0**-22, 2.0**-149),
    ElementKind.F64: (2.0**-49, 2.0**-50),
}


def _computed(desc: Any) -> ElementKind:
    """What a loss is computed in: those of f32 by exponentials in pairs of f32."""
    if desc.element is ElementKind.F32 and loss_alpha(desc) == 1:
        return ElementKind.F32
    return desc.element.accumulator


def _extent(desc: Any) -> int:
    shape: tuple[int, ...] = desc.input_shape
    return shape[desc.softmax_axis] if shape else 1


def _checked(desc: Any, classes: Any) -> Groups:
    """Classes, checked if there are any."""
    groups = Groups(prod(row_shape(desc)), _extent(desc), Arena(), [])
    if classes is not None:
        groups.check(Operand(CLASSES, classes.element), classes, strict=True, ascending=False)
    return groups


def _walked(desc: Any, views: dict[str, Any]) -> tuple[AxisLoops, dict[str, Any]]:
    """The walk along rows, and what kernels are told of tensors: those that are not given are None.
    What has one number for each row stays where it is."""
    rank, axis = len(desc.input_shape), desc.softmax_axis
    given = {name: view for name, view in views.items() if view is not None}
    walked = [name for name in given if name not in OF_ROWS]
    beside = [name for name in given if name in OF_ROWS]
    still = [
        (*given[n].strides[:axis], *(0,) * bool(rank), *given[n].strides[axis:]) for n in beside
    ]
    loops = along_axis(desc.input_shape, axis, [given[n].strides for n in walked], still)
    arguments: dict[str, Any] = dict(zip(views, operands(*views.values()), strict=True))
    for name in views:
        arguments |= {f"step_{name}": 0} if name not in OF_ROWS else {}
        arguments[f"strides_{name}"] = ()
    for number, name in enumerate((*walked, *beside)):
        arguments |= {f"step_{name}": loops.steps[number]} if name in walked else {}
        arguments[f"strides_{name}"] = loops.rest.strides[number]
    return loops, arguments


def _step(
    desc: Any, groups: Groups, views: dict[str, Any], kernels: Any, **more: Any
) -> GpuProgram:
    """One step: `kernels` are for rows held whole, and for rows in tiles."""
    rows = groups.count
    if rows:
        loops, arguments = _walked(desc, views)
        tile = (ACROSS if loops.columns else ALONG)[loops.extent]
        tiled = loops.extent > tile.block
        arguments |= {
            "gate": groups.status,
            "n": loops.extent,
            "rows": rows,
            "extents": loops.rest.extents,
            "LABELS": desc.labels,
            "FINE": _computed(desc) is desc.element is ElementKind.F32,
            "WIDE": wide(_computed(desc)),
            "R": tile.rows,
            "B": tile.block,
            **more,
        }
        if kernels[0] is kernels[1]:
            arguments["TILED"] = tiled
        full = sum(view is not None for name, view in views.items() if name not in OF_ROWS)
        size = (full * loops.extent + 1) * desc.element.itemsize
        size += classes_bytes(views) + 2 * tiled * loops.extent * desc.element.itemsize
        grid = ceil_div(rows, tile.rows)
        groups.steps.append(Step(kernels[tiled], grid, arguments, tile.warps, rows * size))
    return GpuProgram(tuple(groups.steps), groups.status)


def classes_bytes(views: dict[str, Any]) -> int:
    classes = views["classes"]
    return 0 if classes is None else classes.element.itemsize


def _loss(desc: Any, x: Any, target: Any, classes: Any, loss: Any, p: Any) -> GpuProgram:
    relative, absolute = DIGITS[desc.element]
    views = {"x": x, "target": target, "classes": classes, "loss": loss, "p": p}
    kind = {"KIND": KINDS[loss_alpha(desc)], "REL": relative, "ABS": absolute}
    return _step(desc, _checked(desc, classes), views, (loss_rows, loss_tiles), **kind)


def _backward(desc: Any, dy: Any, target: Any, classes: Any, p: Any, dx: Any) -> GpuProgram:
    views = {"dy": dy, "target": target, "classes": classes, "p": p, "dx": dx}
    groups = _checked(desc, classes)
    if not _extent(desc):
        return GpuProgram(tuple(groups.steps), groups.status)
    return _step(desc, groups, views, (loss_back, loss_back))


def _bytes(desc: Any) -> int:
    return check_bytes(prod(row_shape(desc))) if desc.labels else 0


def _guarantee(desc: Any) -> PrecisionGuarantee:
    return guarantee(_computed(desc), Reproducibility.RUN_TO_RUN)


_PROBLEMS = {
    "rows": ((4096, 1024), 1),
    "long rows": ((64, 1 << 20), 1),
    "rows of 4096": ((1024, 4096), 1),
    "columns": ((64, 64, 1024), 1),
}


def _samples(kinds: Sequence[EntmaxKind]) -> tuple[Sample, ...]:
    """Of all losses, with either target and with what else is written."""
    return tuple(
        Sample(
            f"{kind.value} {where}, {'classes' if labels else 'shares'}",
            {"kind": kind, "input_shape": shape, "softmax_axis": axis, "alpha": None}
            | {"labels": labels, "keep": keep},
        )
        for kind in kinds
        for where, (shape, axis) in _PROBLEMS.items()
        for labels, keep in ((True, False), (False, True))
    )


loss = Layout(_loss, _guarantee, _bytes, _samples(tuple(ALPHAS)))
loss_backward = Layout(_backward, _guarantee, _bytes, _samples((EntmaxKind.SPARSEMAX_LOSS,)))
