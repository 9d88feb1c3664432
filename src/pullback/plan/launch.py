"""A plan bound to the layouts of its tensors: all checks that do not need an address are done."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from pullback.contract.element import cast_of, describe
from pullback.contract.errors import (
    BufferTooSmall,
    InvalidProblem,
    MisalignedOperand,
    Unsupported,
)
from pullback.contract.record import Slot
from pullback.cpu.block import NEEDS_CHECK, TENSORS, WORKSPACE
from pullback.tensor.adapters import torch_reach
from pullback.tensor.layout import share_an_element
from pullback.tensor.view import TensorRef, as_numpy, check_writable

if TYPE_CHECKING:
    from pullback.cpu.native_launch import NativeLaunch

Status = tuple[int, int, int]
Runner = Callable[[Sequence[int], int, int], Status]

NO_OFFSETS: Mapping[int, int] = MappingProxyType({})


def check_tensor(
    op: str, slot: Slot, desc: Any, view: TensorRef, device: str, argument: str = ""
) -> None:
    """Shape, dtype, device and, for outputs, memory that may be written."""
    name = argument or slot.name
    elements = slot.elements(desc.element)
    if view.element not in elements:
        wanted = " or ".join(kind.row.long_name for kind in elements)
        cast = cast_of(view.array, name, elements[-1].row.long_name)
        raise Unsupported(op, name, f"{wanted} ({cast})", describe(view.array))
    shape = slot.shape(desc)
    if view.shape != shape:
        raise InvalidProblem(op, name, f"of shape {shape}", f"shape {view.shape}")
    if view.device != device:
        raise Unsupported(op, name, f"on {device}, as the plan", f"a tensor on {view.device}")
    if slot.written:
        check_writable(view, op, name)


def index_elsewhere(op: str, argument: str, device: str, index: str = "cpu") -> Unsupported:
    """The error for a prepared index beside tensors on another device than its own."""
    expected = f"a tensor on {device} (a SegmentIndex serves tensors on {index})"
    return Unsupported(op, argument, expected, "a SegmentIndex")


Pair = tuple[int, int, int, int, int, int, bool]

# The workspace among positions: the word of a block that is at TENSORS + position.
LENT = WORKSPACE - TENSORS


@dataclass(frozen=True, slots=True)
class Rules:
    """What is left to check when only addresses change: (position, low bits that must be zero), and
    (output, its first byte and end, other tensor, its first byte and end, whether they may be one
    and the same) from their addresses; in `lent` the output is a workspace of so many bytes."""

    aligned: tuple[tuple[int, int], ...] = ()
    apart: tuple[Pair, ...] = ()
    lent: tuple[Pair, ...] = ()

    @staticmethod
    def of(slots: Sequence[Slot], views: Sequence[TensorRef | None], workspace: int) -> Rules:
        present = {i: view for i, view in enumerate(views) if view is not None and view.size}
        spans = {i: [end - view.address for end in view.bounds()] for i, view in present.items()}
        written = [i for i in spans if slots[i].written]
        held = {i: v for i, v in enumerate(views) if v is not None and (v.size or _may_shrink(v))}
        return Rules(
            tuple((i, view.element.itemsize - 1) for i, view in held.items()),
            # Each output against everything else; a pair of outputs is looked at once.
            tuple(
                (
                    *(out, spans[out][0], spans[out][1]),
                    *(other, spans[other][0], spans[other][1]),
                    slots[other].name in slots[out].in_place_of
                    and _walk(present[out]) == _walk(present[other]),
                )
                for out in written
                for other in spans
                if other != out and not (other in written and other < out)
            ),
            tuple(
                (LENT, 0, workspace, i, low, high, False)
                for i, (low, high) in spans.items()
                if workspace
            ),
        )


class Launch:
    """One (plan, layouts) pair, ready to run on any addresses. `names` are what errors call the
    tensors of the slots: for a function, its own arguments."""

    __slots__ = ("_names", "_native", "_op", "_rules", "_slots", "record", "runner")

    def __init__(
        self,
        slots: Sequence[Slot],
        op: str,
        rules: Rules,
        names: Sequence[str],
        runner: Runner | None = None,
        native: NativeLaunch | None = None,
    ) -> None:
        self._op, self._slots, self._rules, self._names = op, slots, rules, names
        self.runner, self._native = runner, native
        self.record: Any = None  # of a plan's run, for the call cache; False if there can be none

    def run(
        self, addresses: Sequence[int], arrays: Sequence[Any], workspace: int, threads: int
    ) -> Status:
        """The status word and the two words that explain it; `arrays` are for errors."""
        native = self._native
        if native is not None:
            status = native(workspace, threads, 0, addresses)
            if status[0] != NEEDS_CHECK:
                return status
        self.check_addresses(addresses, arrays)
        self._check_workspace(workspace, addresses, arrays)
        if native is not None:
            return native(workspace, threads, 1, addresses)
        assert self.runner is not None
        return self.runner(addresses, workspace, threads)

    def for_arrays(
        self, values: Sequence[Any], offsets: Mapping[int, int] = NO_OFFSETS
    ) -> NativeLaunch | None:
        """The same for the call cache, over arrays laid out like these and passed as objects; None
        where native code cannot read them."""
        return None if self._native is None else self._native.for_arrays(values, offsets)

    def check_addresses(self, addresses: Sequence[int], arrays: Sequence[Any]) -> None:
        """What validation is left when only addresses changed: memory that its library has not
        freed, alignment and aliasing."""
        for position, low_bits in self._rules.aligned:
            if not addresses[position]:
                name = self._names[position]
                low, high = TensorRef(arrays[position], op=self._op, argument=name).bounds()
                raise BufferTooSmall(self._op, name, high - low, 0)
            if addresses[position] & low_bits:
                raise MisalignedOperand(
                    self._op,
                    self._names[position],
                    f"at a multiple of {low_bits + 1} bytes",
                    f"address {addresses[position]:#x}",
                )
        for out, low, high, other, other_low, other_high, one in self._rules.apart:
            apart = addresses[other] - addresses[out]
            if one and apart == 0:
                continue
            if apart + other_low < high and low < apart + other_high:
                self._check_alias(out, other, arrays)

    def _check_workspace(
        self, workspace: int, addresses: Sequence[int], arrays: Sequence[Any]
    ) -> None:
        for _, low, high, other, other_low, other_high, _ in self._rules.lent:
            apart = addresses[other] - workspace
            near = apart + other_low < high and low < apart + other_high
            theirs = TensorRef(arrays[other]) if near else None
            if theirs and share_an_element(_bytes_at(workspace, high), _bytes_of(theirs)):
                raise InvalidProblem(
                    self._op,
                    "workspace",
                    f"memory apart from `{self._names[other]}`",
                    "memory that shares elements with it",
                )

    def _check_alias(self, out: int, other: int, arrays: Sequence[Any]) -> None:
        slot, rival = self._slots[out], self._slots[other]
        mine, theirs = TensorRef(arrays[out]), TensorRef(arrays[other])
        if share_an_element(_bytes_of(mine), _bytes_of(theirs)):
            allowed = " or exactly its buffer" if rival.name in slot.in_place_of else ""
            raise InvalidProblem(
                self._op,
                self._names[out],
                f"memory apart from `{self._names[other]}`{allowed}",
                "memory that shares elements with it",
            )


def _may_shrink(view: TensorRef) -> bool:
    """Whether a view without elements, such as one that was broadcast to none, is of a tensor that
    has some: its storage may be resized, and is then refused as any other."""
    return view.family == "torch" and torch_reach(view.array) > 0


def _walk(view: TensorRef) -> tuple[Any, ...]:
    """Where elements are, seen from the first; the stride of an axis of one says nothing."""
    strides = tuple(s for n, s in zip(view.extents, view.strides, strict=True) if n > 1)
    return view.shape, strides


def _bytes_of(view: TensorRef) -> np.ndarray[Any, Any]:
    array = as_numpy(view)
    return array.view(f"u{array.itemsize}")


def _bytes_at(address: int, count: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))
