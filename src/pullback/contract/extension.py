"""Scans that start from an initial value, are exclusive, or start anew at given borders.

Each is an inclusive scan again. In the order of the scan, of every piece of n elements:

    initial               of n + 1 elements, the initial value first; its result is left out
    initial, exclusive    of n elements: the initial value and all but the last
    exclusive             of n - 1 elements, all but the last; the first result is the identity

Tensors of *elements* (x, and its gradient) and of *results* (y, and what comes in for it) are moved
against each other accordingly. Whoever runs such a scan copies them to the *staged* shape: the
axis holds the scanned elements of all pieces, piece after piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from pullback.contract.errors import InvalidProblem, Unsupported
from pullback.contract.record import (
    INDEX,
    Failure,
    Role,
    Slot,
    check_extent,
    check_flag,
    check_shape,
)

Shape = tuple[int, ...]
ALIGNED = 64  # bytes between parts of a workspace


@dataclass(frozen=True, slots=True)
class Extension:
    """What `exclusive`, `initial_shape` and `num_pieces` of a descriptor mean for its tensors."""

    shape: Shape
    axis: int
    exclusive: bool
    initial: Shape | None
    pieces: int | None
    own: bool = False  # the scan itself knows what is exclusive and where to start

    @staticmethod
    def of(desc: Any, own: bool = False) -> Extension:
        return Extension(
            desc.input_shape or (1,),
            desc.scan_axis,
            desc.exclusive,
            desc.initial_shape,
            desc.num_pieces,
            own,
        )

    @property
    def is_plain(self) -> bool:
        return not self.exclusive and self.initial is None and self.pieces is None

    @property
    def moves(self) -> bool:
        """Whether elements are scanned at other places than their own."""
        return not self.own and (self.exclusive or self.initial is not None)

    @property
    def steps(self) -> int:
        return self.shape[self.axis]

    @property
    def count(self) -> int:
        """Of pieces."""
        return 1 if self.pieces is None else self.pieces

    @property
    def leads(self) -> int:
        """Elements before the first: the initial value."""
        return int(self.initial is not None)

    @property
    def result_leads(self) -> int:
        return int(self.initial is not None and not self.exclusive)

    @property
    def skipped(self) -> int:
        """First results that nothing is scanned for."""
        return int(self.exclusive and self.initial is None)

    @property
    def more(self) -> int:
        """How many elements of a piece are scanned beyond those it has."""
        return 0 if self.own else self.leads - int(self.exclusive)

    @property
    def rest(self) -> Shape:
        return self.shape[: self.axis] + self.shape[self.axis + 1 :]

    @property
    def lines(self) -> int:
        return prod(self.rest)

    @property
    def staged(self) -> Shape:
        """The shape that is scanned."""
        if self.own:
            extent = self.steps
        elif self.pieces is None:
            extent = max(self.steps + self.more, 0)
        else:
            extent = self.steps + self.pieces * max(self.more, 0)
        return (*self.shape[: self.axis], extent, *self.shape[self.axis + 1 :])

    @property
    def initial_full(self) -> Shape:
        """What the initial value broadcasts to: the pieces are in the place of the axis."""
        pieces = () if self.pieces is None else (self.pieces,)
        return self.shape[: self.axis] + pieces + self.shape[self.axis + 1 :]

    @property
    def sums_initial(self) -> bool:
        """Whether the gradient of the initial value has to be summed to its shape."""
        return self.initial is not None and self.initial != self.initial_full


def broadcasts(shape: Shape, to: Shape) -> bool:
    """Extents may be symbols of a tracer."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(n in (1, full) for n, full in pairs)


def check_extension(op: str, desc: Any) -> None:
    """What the fields of an extension may be; shape and axis are checked already."""
    check_flag(op, "exclusive", desc.exclusive)
    if desc.num_pieces is not None:
        check_extent(op, "num_pieces", desc.num_pieces)
    if desc.initial_shape is not None:
        check_shape(op, "initial", desc.initial_shape)
        full = Extension.of(desc).initial_full
        if not broadcasts(desc.initial_shape, full):
            raise InvalidProblem(
                op,
                "initial",
                f"of a shape that broadcasts to {full}, {_is_what(desc)}",
                f"shape {desc.initial_shape}",
            )


def check_not_stateful(op: str, desc: Any, where: str) -> None:
    """For a backend whose scans carry no state from run to run."""
    if desc.stateful:
        raise Unsupported(op, "stateful", f"False on {where}; on the CPU it may be given", "True")


def _is_what(desc: Any) -> str:
    if desc.num_pieces is None:
        return "the scanned shape without the axis"
    return "the scanned shape with the number of pieces in place of the axis"


@dataclass(frozen=True, slots=True)
class Staged:
    """How a tensor of a scan takes part in an extended one.

    `results`: it has a value for each result, not for each element. `first` stands before its own
    where an initial value does (None: that value itself), `end` where nothing is scanned for an
    output. `gives`: what it has for the initial value is the gradient of that. `over` names an
    input whose memory it may have while it is staged. `index`: it holds positions."""

    name: str
    results: bool = False
    written: bool = False
    first: float | None = None
    end: float = 0.0
    gives: bool = False
    over: str = ""
    index: bool = False


BORDERS, INITIAL, INNER = "offsets", "initial", "inner"
TOTAL = ""  # how much it is


def arena(
    extension: Extension,
    tensors: Sequence[Staged],
    itemsize: int,
    inner: int = 0,
    summed: Sequence[str] = (),
) -> dict[str, int]:
    """Where parts of the workspace begin, by name: the borders of pieces, staged tensors, outputs
    that are still to be summed (the name and a star), what the scan itself needs."""
    elements = prod(extension.staged)
    # What the scan itself needs comes first: it is not told where.
    sizes: dict[str, int] = {INNER: inner} if inner else {}
    if extension.pieces is not None:
        sizes[BORDERS] = 8 * (extension.pieces + 1)
    for tensor in tensors:
        staged = extension.moves or (tensor.index and not extension.own)
        if not tensor.over and (staged or tensor.name in summed):
            sizes[tensor.name] = elements * (8 if tensor.index else itemsize)
        if tensor.name in summed and extension.moves:
            sizes[f"{tensor.name}*"] = prod(extension.shape) * itemsize
    if extension.sums_initial and any(tensor.gives for tensor in tensors):
        sizes[INITIAL] = prod(extension.initial_full) * itemsize
    at, found = 0, {}
    for name, size in sizes.items():
        found[name] = at
        at += -(-size // ALIGNED) * ALIGNED
    for tensor in tensors:
        if tensor.over in found:
            found[tensor.name] = found[tensor.over]
    # A workspace begins anywhere: the bytes to the first aligned one count.
    return {**found, TOTAL: at + ALIGNED if at else 0}


# --- slots of plans -------------------------------------------------------------------------------


def _initial(desc: Any) -> tuple[int, ...]:
    return desc.initial_shape or ()


def _has_initial(desc: Any) -> bool:
    return desc.initial_shape is not None


def _has_pieces(desc: Any) -> bool:
    return desc.num_pieces is not None


INITIAL_VALUE = Slot("initial", _initial, needed=_has_initial, used=_has_initial)
OFFSETS = Slot(
    "offsets",
    lambda desc: ((desc.num_pieces or 0) + 1,),
    holds=INDEX,
    needed=_has_pieces,
    used=_has_pieces,
)
D_INITIAL = Slot("d_initial", _initial, Role.OUT, needed=_has_initial, used=_has_initial)
# What a kernel finds wrong, by its status.
FAILURES = {
    1: Failure(
        InvalidProblem,
        "offsets",
        lambda desc: (
            f"borders from 0 to {(desc.input_shape or (1,))[desc.scan_axis]} that never decrease"
        ),
        "{value} at position {position}",
    )
}
