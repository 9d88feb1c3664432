"""The record of a plan: everything the other packages derive from a family's contract."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from pullback.contract.element import FLOATS, INDICES, ElementKind, describe
from pullback.contract.errors import InvalidProblem, Unsupported
from pullback.contract.guarantee import PrecisionGuarantee
from pullback.contract.imports import resolve as resolve
from pullback.contract.kinds import BackendKind, OpCategory

MAX_RANK = 32


class Role(Enum):
    IN = "in"
    OUT = "out"
    ACCUMULATE = "accumulate"  # read and written


def _always(_: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor of a plan's args.

    `holds` lists the elements it may have; None means the descriptor's own element. `needed`
    says for which descriptors it must be given, `used` for which it is looked at if given.
    `in_place_of` names inputs whose very buffer this output may be.

    An argument may be a bundle, which holds several tensors: the slot of that name takes its part
    called `part`, slots that are `part_of` it take theirs, None where a plain array is given."""

    name: str
    shape: Callable[[Any], tuple[int, ...]]
    role: Role = Role.IN
    holds: tuple[ElementKind, ...] | None = None
    needed: Callable[[Any], bool] = _always
    used: Callable[[Any], bool] = _always
    in_place_of: tuple[str, ...] = ()
    why_needed: str = "given"
    part: str = ""
    part_of: str = ""

    @property
    def written(self) -> bool:
        return self.role is not Role.IN

    def elements(self, element: ElementKind) -> tuple[ElementKind, ...]:
        return (element,) if self.holds is None else self.holds


INDEX: tuple[ElementKind, ...] = INDICES


@dataclass(frozen=True, slots=True)
class Failure:
    """The error a kernel's status word stands for. `got` is a template over the two words beside
    the status: the position and the value it is about."""

    error: type[InvalidProblem]
    argument: str
    expected: Callable[[Any], str]
    got: str

    def raised(self, op: str, desc: Any, position: int, value: int) -> InvalidProblem:
        got = self.got.format(position=position, value=value)
        return self.error(op, self.argument, self.expected(desc), got)


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """One triple `X{Descriptor,Args,Plan}`: its vocabulary, its tensors, its promises.

    `backends` maps a backend to "module:function"; the function lays out a launch for a
    descriptor and the views of its tensors. `reference` is the oracle, `(descriptor, arrays by
    name) -> high-precision outputs by name`. `failures` explains the kernels' status words; `admit`
    raises for a bundle what a launch would find out about its parts."""

    name: str
    category: OpCategory
    direction: str
    descriptor: type
    slots: tuple[Slot, ...]
    kind: Callable[[Any], Enum]
    op: Callable[[Any], str]
    validate: Callable[[Any], None]
    guarantee: Callable[[Any], PrecisionGuarantee]
    backends: Mapping[BackendKind, str]
    reference: Callable[..., Mapping[str, Any]]
    aux: ElementKind | None = None
    workspace: Callable[[Any], int] = lambda _: 0
    failures: Mapping[int, Failure] = field(default_factory=dict)
    admit: Callable[[str, Any, Any], None] = lambda _op, _desc, _bundle: None

    def slot(self, name: str) -> Slot:
        return next(slot for slot in self.slots if slot.name == name)

    @property
    def outputs(self) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if slot.written)


# --- checks every descriptor shares -------------------------------------------------------------


def check_element(op: str, element: Any) -> None:
    if element not in FLOATS:
        names = ", ".join(kind.name for kind in FLOATS)
        raise Unsupported(op, "element", f"one of ElementKind {names}", repr(element))


def check_shape(op: str, argument: str, shape: Any) -> None:
    whole = isinstance(shape, tuple) and all(is_index(extent) for extent in shape)
    if not whole or any(extent < 0 for extent in shape):
        raise InvalidProblem(op, argument, "a tuple of integers >= 0", repr(shape))
    if len(shape) > MAX_RANK:
        raise Unsupported(op, argument, f"of rank {MAX_RANK} at most", f"rank {len(shape)}")


def check_extent(op: str, argument: str, extent: Any, each: int = 1) -> Any:
    """How many things of so many bytes there are; NumPy's integers as Python's, which never
    overflow."""
    if not is_index(extent) or extent < 0:
        raise InvalidProblem(op, argument, "an integer >= 0", repr(extent))
    if not isinstance(extent, int | np.integer):
        return extent  # a symbol
    if isinstance(each, int) and int(extent) * each > sys.maxsize:
        most = f"at most {sys.maxsize // each}, for memory to hold them"
        raise InvalidProblem(op, argument, most, repr(extent))
    return int(extent)


def check_axis(op: str, argument: str, axis: Any, rank: int) -> None:
    if not is_index(axis) or not 0 <= axis < max(rank, 1):
        raise InvalidProblem(op, argument, f"an axis in [0, {max(rank, 1)})", repr(axis))


def check_option(op: str, argument: str, value: Any, allowed: type[Enum]) -> None:
    if not isinstance(value, allowed):
        names = ", ".join(member.name for member in allowed)
        raise InvalidProblem(op, argument, f"one of {allowed.__name__} {names}", repr(value))


def check_kind(op: str, argument: str, value: Any, kind: type) -> None:
    """An argument that is one of our own objects."""
    if not isinstance(value, kind):
        raise InvalidProblem(op, argument, f"a {kind.__name__}", describe(value))


def check_flag(op: str, argument: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidProblem(op, argument, "True or False", repr(value))


def check_number(op: str, argument: str, value: Any) -> float:
    """A real number, as a double."""
    try:
        if is_number(value):
            return float(value)
    except OverflowError:
        raise InvalidProblem(op, argument, "a number that double holds", "a larger one") from None
    raise InvalidProblem(op, argument, "a number", repr(value))


def is_index(value: Any) -> bool:
    """A Python or NumPy integer, or a symbol for one; not a bool, and not an array of one."""
    return hasattr(type(value), "__index__") and is_number(value)


def is_number(value: Any) -> bool:
    """A real number of Python's or NumPy's, or a symbol for one; not a bool, and not an array."""
    if isinstance(value, bool | np.bool_ | np.complexfloating | np.flexible):
        return False
    real = hasattr(type(value), "__float__") or hasattr(type(value), "__index__")
    return real and (isinstance(value, np.generic) or not hasattr(type(value), "__array__"))
