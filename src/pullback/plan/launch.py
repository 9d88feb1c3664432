"""A plan bound to the layouts of its tensors: all checks that do not need an address are done."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pullback.contract.element import describe
from pullback.contract.errors import InvalidProblem, MisalignedOperand, Unsupported
from pullback.contract.record import PlanRecord, Slot
from pullback.cpu.block import TENSORS, WORKSPACE
from pullback.cpu.pool import entry
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
        cast = f"{name}.astype({elements[-1].row.long_name!r})"
        raise Unsupported(op, name, f"{wanted} ({cast} casts)", describe(view.array))
    shape = slot.shape(desc)
    if view.shape != shape:
        raise InvalidProblem(op, name, f"of shape {shape}", f"shape {view.shape}")
    if view.device != device:
        raise Unsupported(op, name, f"on {device}, as the plan", f"a tensor on {view.device}")
    if slot.written:
        check_writable(view, op, name)


class Launch:
    """One (plan, layouts) pair, ready to run on any addresses: `run(addresses, workspace, threads)`
    gives the status word and the two words that explain it."""

    __slots__ = ("_alignment", "_op", "_pairs", "_slots", "run")

    def __init__(
        self, record: PlanRecord, op: str, views: Sequence[TensorRef | None], runner: Runner
    ) -> None:
        self._op, self._slots, self.run = op, record.slots, runner
        present = [(i, view) for i, view in enumerate(views) if view is not None and view.size]
        self._alignment = tuple((i, view.element.itemsize - 1) for i, view in present)
        spans = {i: [end - view.address for end in view.bounds()] for i, view in present}
        written = [i for i in spans if record.slots[i].written]
        # Each output against everything else; a pair of outputs is looked at once.
        self._pairs = tuple(
            (out, *spans[out], other, *spans[other])
            for out in written
            for other in spans
            if other != out and not (other in written and other < out)
        )

    def check_addresses(self, addresses: Sequence[int], arrays: Sequence[Any]) -> None:
        """What validation is left when only addresses changed: alignment and aliasing."""
        for position, low_bits in self._alignment:
            if addresses[position] & low_bits:
                raise MisalignedOperand(
                    self._op,
                    self._slots[position].name,
                    f"at a multiple of {low_bits + 1} bytes",
                    f"address {addresses[position]:#x}",
                )
        for out, low, high, other, other_low, other_high in self._pairs:
            apart = addresses[other] - addresses[out]
            if apart + other_low < high and low < apart + other_high:
                self._check_alias(out, other, arrays)

    def _check_alias(self, out: int, other: int, arrays: Sequence[Any]) -> None:
        slot, rival = self._slots[out], self._slots[other]
        mine, theirs = TensorRef(arrays[out]), TensorRef(arrays[other])
        if _walk(mine) == _walk(theirs) and rival.name in slot.in_place_of:
            return
        if share_an_element(_bytes_of(mine), _bytes_of(theirs)):
            allowed = " or exactly its buffer" if rival.name in slot.in_place_of else ""
            raise InvalidProblem(
                self._op,
                slot.name,
                f"memory apart from `{rival.name}`{allowed}",
                "memory that shares elements with it",
            )


def _walk(view: TensorRef) -> tuple[Any, ...]:
    """Where a view's elements are; the stride of an axis of one says nothing."""
    strides = tuple(s for n, s in zip(view.extents, view.strides, strict=True) if n > 1)
    return view.address, view.shape, strides


def _bytes_of(view: TensorRef) -> np.ndarray[Any, Any]:
    array = as_numpy(view)
    return array.view(f"u{array.itemsize}")


class NativeRunner:
    """Runs a program of Numba kernels on the thread pool.

    A launch needs a block of its own to tell kernels where the tensors are, for they write to it.
    Blocks are used again: to make one takes as long as to run a small kernel. A list hands them out
    without a lock, and a block that nobody returns is only memory."""

    __slots__ = ("_execute", "_fill", "_idle", "_phases", "_program", "_start", "_template")

    def __init__(self, program: Any, element: Any, slots: int) -> None:
        from pullback.cpu.program import encode

        words = tuple(encode(program.phases, element, program.index))
        self._program = (ctypes.c_int64 * len(words))(*words)
        self._start, self._phases = ctypes.addressof(self._program), len(program.phases)
        block = (0,) * (TENSORS + slots) + program.words
        self._template = struct.pack(f"{len(block)}q", *block)
        self._fill = struct.Struct(f"{1 + slots}q").pack_into
        self._idle: list[tuple[memoryview, int]] = []
        self._execute = entry()

    def __call__(self, addresses: Sequence[int], workspace: int, threads: int) -> Status:
        try:
            block, at = self._idle.pop()
        except IndexError:
            memory = (ctypes.c_char * len(self._template))()
            block, at = memoryview(memory).cast("B"), ctypes.addressof(memory)
        block[:] = self._template
        self._fill(block, 8 * WORKSPACE, workspace, *addresses)
        status = self._execute(self._start, self._phases, at, threads)
        details = struct.unpack_from("2q", block, 8) if status else (0, 0)
        self._idle.append((block, at))
        return status, *details
