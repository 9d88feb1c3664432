"""Numbers as kernels take them, so that few compilations serve all shapes.

Triton compiles a kernel anew for every choice of its numbers that are 1 or divide by 16; wide loads
follow from what it learns there. Here the host decides once for a launch: ALIGNED, the elements in
16 bytes if everything that an address follows from divides by them, or 1. It is the first of the
numbers of every tuple of extents and of every step, as a constant; `gpu.tile` reads it there and
states it to the compiler. All other numbers are made alike: in tuples they come times 16, scalars
are named in `do_not_specialize`, and a stride or step of 1 is no number at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import triton.language as tl

from pullback.gpu.program import ALIGNMENT, Operand, Scratch, Step

UNIT = 16  # what Triton asks numbers to divide by


def launched(step: Step) -> dict[str, Any]:
    """The arguments of a step as its kernel takes them."""
    aligned = _aligned(step.arguments)
    return {name: _told(name, value, aligned) for name, value in step.arguments.items()}


def _told(name: str, value: Any, aligned: int) -> Any:
    if name.startswith("step_"):
        if value == 1:
            return ()
        own = 1 if value % aligned else aligned
        return tl.constexpr(own), value // own * UNIT
    if not isinstance(value, tuple):
        return value
    if not value and not name.startswith(("factor", "inner")):
        value = (1 if _are_extents(name) else 0,)  # no loop is one of one element
    if _are_extents(name):
        return tl.constexpr(aligned), *(extent * UNIT for extent in value)
    return tuple(None if stride == 1 else stride // aligned * UNIT for stride in value)


def _are_extents(name: str) -> bool:
    return name == "inner" or name.endswith(("extents", "columns"))


def _aligned(arguments: Mapping[str, Any]) -> int:
    """How many elements are 16 bytes, if every number that is read as one of them divides by it."""
    memory = [v for v in arguments.values() if isinstance(v, Operand | Scratch)]
    wanted = ALIGNMENT // min((value.element.itemsize for value in memory), default=ALIGNMENT)
    return wanted if all(number % wanted == 0 for number in _numbers(arguments)) else 1


def _numbers(arguments: Mapping[str, Any]) -> Iterator[int]:
    """Strides and steps but 1, what lanes run along, and extents whose remainder is an offset."""
    along = False
    for name, value in arguments.items():
        if name.startswith("step_"):
            along = along or value == 1
            if abs(value) != 1:
                yield value
        elif isinstance(value, tuple) and not _are_extents(name):
            yield from (stride for stride in value if stride != 1)
            if value[-1:] == (1,) and (len(value) > 1 or name.startswith(("strides", "inner"))):
                yield arguments[_extents_of(name)][-1]
    if along and "n" in arguments:
        yield arguments["n"]
    if "columns" in arguments:
        yield arguments["columns"]
    if "count" in arguments and not arguments.keys() & {"P", "R", "L"}:
        yield arguments["count"]  # lanes side by side, not rows of a tile


def _extents_of(strides: str) -> str:
    """The loops that strides belong to, by name."""
    if strides.startswith("strides"):
        return "extents"
    if strides.startswith("inner"):
        return "inner"
    owner, kind = strides.rsplit("_", 1)
    loops = "extents" if kind == "strides" else "columns"
    return f"{'out' if owner == 'index' else owner}_{loops}"
