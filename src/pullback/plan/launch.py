"""A plan bound to the layouts of its tensors: all checks that do not need an address are done."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from pullback.contract.element import describe
from pullback.contract.errors import InvalidProblem, MisalignedOperand, Unsupported
from pullback.contract.record import PlanRecord, Slot
from pullback.tensor.layout import share_an_element
from pullback.tensor.view import TensorRef, as_numpy, check_writable


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
    """One (plan, layouts) pair, ready to run on any addresses."""

    __slots__ = ("_alignment", "_op", "_pairs", "_runner", "_slots", "_spans")

    def __init__(
        self, record: PlanRecord, op: str, views: Sequence[TensorRef | None], runner: Any
    ) -> None:
        self._op, self._slots, self._runner = op, record.slots, runner
        self._alignment = tuple(view.element.itemsize if view else 1 for view in views)
        self._spans = tuple(
            (view.bounds()[0] - view.address, view.bounds()[1] - view.address) if view else (0, 0)
            for view in views
        )
        present = [i for i, view in enumerate(views) if view is not None and view.size]
        written = [i for i in present if record.slots[i].written]
        # Each output against everything else; a pair of outputs is looked at once.
        self._pairs = tuple(
            (out, other)
            for out in written
            for other in present
            if other != out and not (other in written and other < out)
        )

    def check_addresses(self, addresses: Sequence[int], arrays: Sequence[Any]) -> None:
        """What validation is left when only addresses changed: alignment and aliasing."""
        for address, size, slot in zip(addresses, self._alignment, self._slots, strict=True):
            if address % size:
                raise MisalignedOperand(
                    self._op, slot.name, f"at a multiple of {size} bytes", f"address {address:#x}"
                )
        spans = self._spans
        for out, other in self._pairs:
            if (
                addresses[out] + spans[out][0] < addresses[other] + spans[other][1]
                and addresses[other] + spans[other][0] < addresses[out] + spans[out][1]
            ):
                self._check_alias(out, other, arrays)

    def _check_alias(self, out: int, other: int, arrays: Sequence[Any]) -> None:
        slot, rival = self._slots[out], self._slots[other]
        mine, theirs = TensorRef(arrays[out]), TensorRef(arrays[other])
        same = (mine.address, mine.shape, mine.strides) == (
            theirs.address,
            theirs.shape,
            theirs.strides,
        )
        if same and rival.name in slot.in_place_of:
            return
        if share_an_element(_bytes_of(mine), _bytes_of(theirs)):
            allowed = " or exactly its buffer" if rival.name in slot.in_place_of else ""
            raise InvalidProblem(
                self._op,
                slot.name,
                f"memory apart from `{rival.name}`{allowed}",
                "memory that shares elements with it",
            )

    @property
    def program(self) -> Any:
        """The program of kernels this launch runs, for front ends that run it themselves."""
        return self._runner.program

    def run(self, addresses: Sequence[int], workspace: int, threads: int) -> tuple[int, int, int]:
        """Launch; the status word and the two words that explain it."""
        return self._runner(addresses, workspace, threads)  # type: ignore[no-any-return]


def _bytes_of(view: TensorRef) -> np.ndarray[Any, Any]:
    array = as_numpy(view)
    return array.view(f"u{array.itemsize}")


class NativeRunner:
    """Runs a program of Numba kernels on the thread pool."""

    __slots__ = ("_block", "_program", "_template", "_words", "program")

    def __init__(self, program: Any, element: Any, slots: int) -> None:
        from pullback.cpu.program import TENSORS, encode

        self.program = program
        words = tuple(encode(program.phases, element, program.index))
        self._program = (ctypes.c_int64 * len(words))(*words)
        self._words = (ctypes.addressof(self._program), len(program.phases))
        block = (0,) * (TENSORS + slots) + program.words
        self._block = ctypes.c_int64 * len(block)
        self._template = bytes(self._block(*block))

    def __call__(
        self, addresses: Sequence[int], workspace: int, threads: int
    ) -> tuple[int, int, int]:
        from pullback.cpu.pool import run

        block = self._block.from_buffer_copy(self._template)
        block[3] = workspace
        block[4 : 4 + len(addresses)] = addresses  # type: ignore[call-overload]
        status = run(*self._words, ctypes.addressof(block), threads)
        return status, block[1], block[2]
