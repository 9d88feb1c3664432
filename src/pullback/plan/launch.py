"""A plan bound to the layouts of its tensors: all checks that do not need an address are done."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.contract.element import cast_of, describe
from pullback.contract.errors import (
    BufferTooSmall,
    InvalidProblem,
    MisalignedOperand,
    Unsupported,
)
from pullback.contract.imports import imported, resolve
from pullback.contract.record import Slot
from pullback.cpu.block import TENSORS, UNSURE, WORKSPACE
from pullback.tensor.layout import share_an_element
from pullback.tensor.view import TensorRef, as_numpy, check_writable

Status = tuple[int, int, int]
Runner = Callable[[Sequence[int], int, int], Status]


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


def index_elsewhere(op: str, argument: str, device: str) -> Unsupported:
    """The error for a prepared index beside tensors that are not on the CPU."""
    expected = f"a tensor on {device} (a SegmentIndex serves tensors on cpu)"
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
        return Rules(
            tuple((i, view.element.itemsize - 1) for i, view in present.items()),
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


NO_RULES = Rules()
UNUSED = object()  # in place of an argument that a plan does not look at


class Launch:
    """One (plan, layouts) pair, ready to run on any addresses. `names` are what errors call the
    tensors of the slots: for a function, its own arguments."""

    __slots__ = ("_door", "_names", "_native", "_op", "_rules", "_slots", "runner")

    def __init__(
        self, slots: Sequence[Slot], op: str, rules: Rules, runner: Runner, names: Sequence[str]
    ) -> None:
        self._op, self._slots, self._rules, self.runner = op, slots, rules, runner
        self._names = names
        self._native = runner if isinstance(runner, NativeRunner) else None
        self._door: Any = None

    def run(
        self, addresses: Sequence[int], arrays: Sequence[Any], workspace: int, threads: int
    ) -> Status:
        """The status word and the two words that explain it; `arrays` are for errors."""
        if self._native is not None:
            status: Status = self._native.begin(workspace, threads, 0, addresses)
            if status[0] != UNSURE:
                return status
        self.check_addresses(addresses, arrays)
        self._check_workspace(workspace, addresses, arrays)
        return self.runner(addresses, workspace, threads)

    def door(self, values: Sequence[Any]) -> Any:
        """The first one opened for such arrays."""
        if self._door is None:
            self._door = self.open(values, {})
        return self._door

    def open(self, values: Sequence[Any], offsets: Mapping[int, int]) -> Any:
        """How native code lets in arrays like these, passed by their identity: a function of
        (workspace, threads, 0, identities); False where only Python knows them. An array may begin
        some bytes before what the kernel is to see: `offsets`, by position. A number is an address
        that is the same every time."""
        return (self._native and self._native.door(values, offsets)) or False

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


def _walk(view: TensorRef) -> tuple[Any, ...]:
    """Where elements are, seen from the first; the stride of an axis of one says nothing."""
    strides = tuple(s for n, s in zip(view.extents, view.strides, strict=True) if n > 1)
    return view.shape, strides


def _bytes_of(view: TensorRef) -> np.ndarray[Any, Any]:
    array = as_numpy(view)
    return array.view(f"u{array.itemsize}")


def _bytes_at(address: int, count: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))


class NativeRunner:
    """Runs a program of Numba kernels on the thread pool. `begin(workspace, threads, sure,
    addresses)` looks at the rules first unless it is sure, and if one is broken says UNSURE."""

    __slots__ = ("_block", "_program", "_rules", "_words", "begin")

    def __init__(self, program: Any, element: Any, slots: int, rules: Rules = NO_RULES) -> None:
        encode, door = resolve("pullback.cpu.program:encode"), imported("pullback.cpu.door")
        words = tuple(encode(program.phases, element, program.index))
        self._words = (ctypes.c_int64 * len(words))(*words)
        self._program = (ctypes.addressof(self._words), len(program.phases))
        self._block = (0,) * (TENSORS + slots) + program.words
        self._rules = rules
        self.begin = self._open([door.slot_words(door.ADDRESS)] * slots, False, ())

    def __call__(self, addresses: Sequence[int], workspace: int, threads: int) -> Status:
        return self.begin(workspace, threads, 1, addresses)  # type: ignore[no-any-return]

    def door(self, values: Sequence[Any], offsets: Mapping[int, int]) -> Any:
        """`begin` for arrays like these, passed by their identity; None where only Python knows
        them. It says STRANGE of others."""
        door = imported("pullback.cpu.door")
        unused = door.slot_words(door.IGNORED)
        slots = [
            unused if value is UNUSED else door.slot_of(value, offsets.get(i, 0))
            for i, value in enumerate(values)
        ]
        known = [slot for slot in slots if slot is not None]
        if len(known) < len(slots):
            return None
        short = sum(getattr(value, "nbytes", 0) for value in values) <= door.SHORT_BYTES
        return self._open(known, short, [getattr(value, "dtype", None) for value in values])

    def _open(self, slots: Sequence[Sequence[int]], short: bool, dtypes: Sequence[Any]) -> Any:
        rules, kept = self._rules, (self._words, dtypes)
        aligned = [(TENSORS + i, low_bits) for i, low_bits in rules.aligned]
        pairs = [
            (TENSORS + out, low, high, TENSORS + other, *rest)
            for out, low, high, other, *rest in (*rules.apart, *rules.lent)
        ]
        make = resolve("pullback.cpu.door:Door")
        return make(self._program, slots, self._block, aligned, pairs, short, kept)
