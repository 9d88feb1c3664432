"""entmax and the Fenchel-Young losses on the GPU: which steps they take. Classes are checked on the
device, as indices of segments are, and so are alphas of rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from pullback.contract.element import ElementKind
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import Reproducibility
from pullback.gpu.program import ALIGNMENT, GpuProgram, Layout, Operand, Scratch
from pullback.gpu.sketch import Sample, Sketch
from pullback.gpu.tile import wide
from pullback.ops.entmax.contract import ALPHAS, EntmaxKind, alpha_shape, loss_alpha, row_shape
from pullback.ops.entmax.gpu_kernels import (
    alpha_back,
    conclude_alphas,
    entmax_back,
    entmax_map,
    find_alphas,
)
from pullback.ops.entmax.gpu_loss import loss_rows, loss_tiles
from pullback.ops.entmax.gpu_loss_back import loss_back
from pullback.ops.entmax.gpu_walk import (
    PLAIN,
    POWERS,
    check_alphas,
    extent_of,
    given,
    groups_of,
    row_check_bytes,
    step_of,
)
from pullback.ops.lerp.gpu import sum_bytes, sum_steps
from pullback.ops.segment.gpu_groups import Groups, walk
from pullback.tensor.layout import contiguous_strides

CLASSES = 2  # the slot
BAD_ALPHA = 2  # the status word
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


# --- maps ---------------------------------------------------------------------------------------


def _program(groups: Groups) -> GpuProgram:
    return GpuProgram(tuple(groups.steps), groups.status)


def _beta(desc: Any, groups: Groups, slot: int, alpha: Any) -> dict[str, Any]:
    """Alpha as kernels take it: a number less 1, or a tensor, which is checked."""
    if alpha is None:
        return {"alpha": None, "beta": desc.alpha - 1.0}
    tensor = given(slot, alpha)
    assert tensor is not None
    check_alphas(desc, groups, tensor, (find_alphas, conclude_alphas), BAD_ALPHA)
    return {"alpha": tensor, "beta": 0.0}


def _forward(desc: Any, x: Any, alpha: Any, y: Any) -> GpuProgram:
    groups = groups_of(desc)
    known = _beta(desc, groups, 1, alpha)
    tensors = {"x": given(0, x), "alpha": known["alpha"], "y": given(2, y)}
    if groups.extent:
        step_of(desc, groups, tensors, (entmax_map, entmax_map), POWERS, beta=known["beta"])
    return _program(groups)


class _Source(NamedTuple):
    """What is summed to another shape."""

    operand: Scratch
    strides: tuple[int, ...]


def _whole(desc: Any) -> tuple[int, ...]:
    """The shape of what has one number for each row, with the axis."""
    return tuple(1 if k == desc.softmax_axis else n for k, n in enumerate(desc.input_shape))


def _backward(desc: Any, dy: Any, y: Any, alpha: Any, x: Any, dx: Any, dalpha: Any) -> GpuProgram:
    """dx may be the buffer of dy, so what else reads that comes first."""
    groups = groups_of(desc)
    known = _beta(desc, groups, 2, alpha)
    if alpha is not None:
        _alpha_steps(desc, groups, known["alpha"], dy, x, dalpha)
    tensors = {"dy": given(0, dy), "y": given(1, y), "alpha": known["alpha"], "dx": given(4, dx)}
    if groups.extent:
        step_of(desc, groups, tensors, (entmax_back, entmax_back), POWERS, beta=known["beta"])
    return _program(groups)


def _alpha_steps(desc: Any, groups: Groups, alpha: Any, dy: Any, x: Any, dalpha: Any) -> None:
    """The gradient of each row's alpha, summed to the shape that alpha had."""
    out, shape = Operand(5, dalpha.element), _whole(desc)
    strides = contiguous_strides(shape)
    if not groups.extent:
        groups.fill({"out": out, **walk("out", dalpha)}, 0.0)
        return
    each = groups.arena.take(ElementKind.F64, groups.count)
    found = (each, Sketch(shape, strides, ElementKind.F64))
    tensors = {"dy": given(0, dy), "alpha": alpha, "x": given(3, x), "out": found}
    step_of(desc, groups, tensors, (alpha_back, alpha_back), POWERS)
    source = _Source(each, strides)
    groups.steps += sum_steps(
        shape, ElementKind.F64, source, out, dalpha, groups.status, groups.arena
    )


# --- losses -------------------------------------------------------------------------------------


def _computed(desc: Any) -> ElementKind:
    """What a loss is computed in: f32 in pairs of f32."""
    if loss_alpha(desc) not in KINDS:
        return ElementKind.F64
    return desc.element if desc.element is ElementKind.F32 else desc.element.accumulator


def _checked(desc: Any, classes: Any) -> Groups:
    """Classes, checked if there are any."""
    groups = groups_of(desc)
    if classes is not None:
        groups.check(Operand(CLASSES, classes.element), classes, strict=True, ascending=False)
    return groups


def _options(desc: Any, computed: ElementKind) -> dict[str, Any]:
    fine = computed is desc.element is ElementKind.F32
    return {"LABELS": desc.labels, "FINE": fine, "WIDE": wide(computed)}


def _loss(desc: Any, x: Any, target: Any, classes: Any, loss: Any, p: Any) -> GpuProgram:
    groups, kind = _checked(desc, classes), KINDS.get(loss_alpha(desc), "entmax")
    tensors = {"x": given(0, x), "target": given(1, target), "classes": given(2, classes)}
    tensors |= {"loss": given(3, loss), "p": given(4, p)}
    relative, absolute = DIGITS[desc.element]
    known = {"beta": loss_alpha(desc) - 1.0, "KIND": kind, "REL": relative, "ABS": absolute}
    options, tiles = _options(desc, _computed(desc)), POWERS if kind == "entmax" else PLAIN
    step_of(desc, groups, tensors, (loss_rows, loss_tiles), tiles, **known, **options)
    return _program(groups)


def _loss_backward(desc: Any, dy: Any, target: Any, classes: Any, p: Any, dx: Any) -> GpuProgram:
    groups = _checked(desc, classes)
    tensors = {"grad": given(0, dy), "target": given(1, target), "classes": given(2, classes)}
    tensors |= {"p": given(3, p), "dx": given(4, dx)}
    # A difference of f32 is made up for what rounding takes: no map is computed.
    computed = desc.element if desc.element is ElementKind.F32 else desc.element.accumulator
    if extent_of(desc):
        step_of(desc, groups, tensors, (loss_back, loss_back), **_options(desc, computed))
    return _program(groups)


# --- what plans ask -----------------------------------------------------------------------------


def _bytes(desc: Any) -> int:
    return row_check_bytes(desc) if desc.alpha is None else 0


def _backward_bytes(desc: Any) -> int:
    """A check, the gradient of each row's alpha, and the parts of its sums."""
    if desc.alpha is not None:
        return 0
    shape = alpha_shape(desc)
    each = 8 * prod(row_shape(desc)) + ALIGNMENT
    return row_check_bytes(desc) + each + sum_bytes(_whole(desc), shape)


def _loss_bytes(desc: Any) -> int:
    return row_check_bytes(desc) if desc.labels else 0


def _promise(_: Any) -> PrecisionGuarantee:
    return guarantee(ElementKind.F64, Reproducibility.RUN_TO_RUN)


def _guarantee(desc: Any) -> PrecisionGuarantee:
    return guarantee(_computed(desc), Reproducibility.RUN_TO_RUN)


_PROBLEMS = {
    "rows": ((4096, 1024), 1),
    "long rows": ((64, 1 << 20), 1),
    "columns": ((64, 64, 1024), 1),
}
# All tiles: for those that take most registers.
_TILES = {
    **{f"rows of {n}": ((4096, n), 1) for n in (16, 64, 128, 256, 2048, 4096)},
    **{f"columns of {n}": ((64, n, 1024), 1) for n in (16, 128, 200)},
}


def _losses(kinds: Sequence[EntmaxKind]) -> tuple[Sample, ...]:
    """Of all losses, with either target and with what else is written."""
    found = []
    for kind in kinds:
        for labels, keep in ((True, False), (False, True)):
            heavy = keep and kind is not EntmaxKind.SPARSEMAX_LOSS
            alpha = None if kind in ALPHAS else 1.3
            for where, (shape, axis) in {**_PROBLEMS, **(_TILES if heavy else {})}.items():
                title = f"{kind.value} {where}, {'classes' if labels else 'shares'}"
                options = {"kind": kind, "input_shape": shape, "softmax_axis": axis}
                options |= {"alpha": alpha, "labels": labels, "keep": keep}
                found.append(Sample(title, options))
    return tuple(found)


_NUMBER, _ALPHAS = (
    tuple(
        Sample(f"{where}{more}", {"input_shape": shape, "softmax_axis": axis, "alpha": alpha})
        for where, (shape, axis) in problems.items()
    )
    for alpha, more, problems in (
        (1.3, "", _PROBLEMS),
        (None, ", alpha of rows", {**_PROBLEMS, **_TILES}),
    )
)

forward = Layout(_forward, _promise, _bytes, (*_NUMBER, *_ALPHAS))
backward = Layout(_backward, _promise, _backward_bytes, (*_NUMBER, *_ALPHAS))
loss = Layout(_loss, _guarantee, _loss_bytes, _losses((*ALPHAS, EntmaxKind.ENTMAX_LOSS)))
loss_backward = Layout(
    _loss_backward, _guarantee, _loss_bytes, _losses((EntmaxKind.SPARSEMAX_LOSS,))
)
