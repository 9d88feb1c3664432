"""Steps over rows of tensors, some of which have one number for each row."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from pullback.contract.element import ElementKind
from pullback.gpu.program import Arena, Operand, Scratch, Step, Steps, Tile, ceil_div
from pullback.ops.entmax.contract import row_shape
from pullback.ops.segment.gpu_groups import FLAT, STATUS_WORDS, Groups, check_bytes
from pullback.ops.simplex.gpu import ACROSS, ALONG
from pullback.tensor.layout import AxisLoops, along_axis, merge

# One number for each row.
OF_ROWS = ("classes", "loss", "grad", "alpha", "out")
# Along the axis, and across.
PLAIN = (ALONG, ACROSS)


def _halved(tiles: Steps) -> Steps:
    """As many warps for half the rows."""
    return Steps(
        *((limit, replace(tile, rows=ceil_div(tile.rows, 2))) for limit, tile in tiles.entries)
    )


# Powers of any alpha take more registers.
POWERS = (
    _halved(Steps(*ALONG.entries[:-2], (2048, Tile(1, 2048, 8)), (None, Tile(1, 1024, 8)))),
    _halved(ACROSS),
)

Given = tuple[Operand | Scratch, Any]  # a tensor, and its view


def given(slot: int, view: Any) -> Given | None:
    return None if view is None else (Operand(slot, view.element), view)


def extent_of(desc: Any) -> int:
    shape: tuple[int, ...] = desc.input_shape
    return shape[desc.softmax_axis] if shape else 1


def groups_of(desc: Any) -> Groups:
    """Collects steps, and what a check needs to know of rows."""
    return Groups(prod(row_shape(desc)), extent_of(desc), Arena(), [])


def _still(desc: Any, view: Any) -> tuple[int, ...]:
    """Strides that stay where they are along the axis."""
    strides, axis = tuple(view.strides), desc.softmax_axis
    if len(strides) == len(desc.input_shape):
        return strides
    return (*strides[:axis], 0, *strides[axis:])


def _strides_of(name: str) -> str:
    """What kernels call the strides of a tensor: no lanes run along those of one number a row."""
    return f"each_{name}" if name in OF_ROWS else f"strides_{name}"


def _walked(desc: Any, tensors: dict[str, Given | None]) -> tuple[AxisLoops, dict[str, Any]]:
    """The walk along rows, and what kernels are told of tensors; those not given are None."""
    views = {name: found[1] for name, found in tensors.items() if found is not None}
    walked = [name for name in views if name not in OF_ROWS]
    beside = [name for name in views if name in OF_ROWS]
    strides = [views[name].strides for name in walked]
    still = [_still(desc, views[name]) for name in beside]
    loops = along_axis(desc.input_shape, desc.softmax_axis, strides, still)
    arguments: dict[str, Any] = {}
    for name, found in tensors.items():
        arguments |= {name: None if found is None else found[0], _strides_of(name): ()}
        arguments |= {} if name in OF_ROWS else {f"step_{name}": 0}
    for number, name in enumerate((*walked, *beside)):
        arguments[_strides_of(name)] = loops.rest.strides[number]
        if name in walked:
            arguments[f"step_{name}"] = loops.steps[number]
    return loops, arguments


def step_of(
    desc: Any,
    groups: Groups,
    tensors: dict[str, Given | None],
    kernels: tuple[Any, Any],
    tiles: tuple[Steps, Steps] = PLAIN,
    **more: Any,
) -> None:
    """Add a step: `kernels` are for rows held whole, and for rows in tiles."""
    if not groups.count:
        return
    loops, arguments = _walked(desc, tensors)
    tile = tiles[loops.columns][loops.extent]
    tiled = loops.extent > tile.block
    arguments |= {"gate": groups.status, "n": loops.extent, "rows": groups.count, **more}
    arguments |= {"extents": loops.rest.extents, "R": tile.rows, "B": tile.block}
    if kernels[0] is kernels[1]:
        arguments["TILED"] = tiled
    size = 2 * tiled * loops.extent * desc.element.itemsize
    for name, found in tensors.items():
        if found is not None:
            size += found[0].element.itemsize * (1 if name in OF_ROWS else loops.extent)
    grid = ceil_div(groups.count, tile.rows)
    groups.steps.append(Step(kernels[tiled], grid, arguments, tile.warps, groups.count * size))


def check_alphas(
    desc: Any, groups: Groups, alpha: Given, kernels: tuple[Any, Any], code: int
) -> None:
    """Alphas of rows on the device."""
    rows, (operand, view) = groups.count, alpha
    if not rows or not groups.extent:
        return
    axis = desc.softmax_axis
    strides = tuple(view.strides)[:axis] + tuple(view.strides)[axis + 1 :]
    loops = merge(row_shape(desc), [strides], ordered=True)
    blocks = ceil_div(rows, FLAT.block)
    found = groups.arena.take(ElementKind.I64, blocks)
    groups.status = groups.arena.take(ElementKind.I64, STATUS_WORDS)
    where = {"alpha": operand, "extents": loops.extents, "strides": loops.strides[0]}
    size = operand.element.itemsize
    groups.flat(kernels[0], rows, size * rows, **where, found=found, rows=rows)
    findings = {"found": found, "status": groups.status, "rows": rows, "blocks": blocks}
    groups.flat(kernels[1], 1, 8 * blocks, **findings, CODE=code)


def row_check_bytes(desc: Any) -> int:
    return check_bytes(prod(row_shape(desc)))
