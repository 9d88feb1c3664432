"""The loops over the tensors of segments and embeddings: their positions, and the columns of each.

Apart from the words of the kernels, which do not depend on what a tensor is."""

from __future__ import annotations

from collections.abc import Sequence

from pullback.tensor.layout import AxisLoops, Loops, Shape, Strides, contiguous_strides, merge
from pullback.tensor.view import TensorRef


def _together(shape: Shape, layouts: Sequence[tuple[Shape, Strides]]) -> list[Strides]:
    """Strides along `shape` of tensors that have these axes, or one axis (or none, of one position)
    for all of them."""
    pieces = contiguous_strides(shape)
    return [
        strides if extents == shape else tuple(sum(strides) * piece for piece in pieces)
        for extents, strides in layouts
    ]


def _three(views: Sequence[TensorRef]) -> list[TensorRef]:
    """Source, target and saved input: what a plan has not is filled up with what it has."""
    return [*views, *list(views[-1:]) * (3 - len(views))]


def column_loops(views: Sequence[TensorRef]) -> AxisLoops:
    """The loops over all axes but the first: the innermost as the axis, the others around it."""
    views = _three(views)
    layouts = [(view.extents[1:], view.strides[1:]) for view in views]
    shape = max((extents for extents, _ in layouts), key=len, default=())
    loops = merge(shape, _together(shape, layouts))
    if not loops.extents:
        return AxisLoops(1, (1,) * len(views), loops, False)
    outer = Loops(loops.extents[:-1], tuple(s[:-1] for s in loops.strides))
    return AxisLoops(loops.extents[-1], tuple(s[-1] for s in loops.strides), outer, False)


def last_axis(views: Sequence[TensorRef]) -> AxisLoops:
    """Columns that are the last axis of every tensor."""
    views = _three(views)
    none = Loops((), ((),) * len(views))
    return AxisLoops(views[0].extents[-1], tuple(view.strides[-1] for view in views), none, False)


def row_loops(*layouts: tuple[Shape, Strides]) -> Loops:
    """The loops over positions, in their order: extents and strides of each tensor's row axes."""
    shape = max((extents for extents, _ in layouts), key=len)
    return merge(shape, _together(shape, layouts), ordered=True)


def first_axis(view: TensorRef) -> tuple[Shape, Strides]:
    return view.extents[:1], view.strides[:1]


def all_but_last(view: TensorRef) -> tuple[Shape, Strides]:
    return view.extents[:-1], view.strides[:-1]


def all_axes(view: TensorRef) -> tuple[Shape, Strides]:
    return view.extents, view.strides
