"""Where work runs, and the scratch memory a caller lends it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pullback.contract.errors import InvalidProblem
from pullback.contract.record import is_index, resolve
from pullback.tensor.adapters import check_storage
from pullback.tensor.view import TensorRef


@dataclass(frozen=True, slots=True)
class Stream:
    """A device, and on the CPU how many threads: None follows `set_num_threads` at run time."""

    device: str
    threads: int | None = None
    handle: int | None = None

    @staticmethod
    def cpu(threads: int | None = None) -> Stream:
        if threads is not None and (not is_index(threads) or threads < 1):
            raise InvalidProblem("Stream.cpu", "threads", "an integer >= 1 or None", repr(threads))
        return Stream("cpu", None if threads is None else min(int(threads), sys.maxsize))

    @staticmethod
    def cuda(device: int = 0, handle: int | None = None) -> Stream:
        """A CUDA or ROCm device; `handle` is a raw stream, None the framework's current one."""
        if not is_index(device) or device < 0:
            raise InvalidProblem("Stream.cuda", "device", "an integer >= 0", repr(device))
        return Stream(f"cuda:{int(device)}", handle=handle)

    @staticmethod
    def current(array: Any) -> Stream:
        """The stream on which the array's framework would run now."""
        return Stream(TensorRef(array, op="Stream.current").device)


class Workspace:
    """Scratch memory for one run. The caller owns it and may reuse it for the next."""

    __slots__ = ("address", "buffer", "nbytes")
    NONE: ClassVar[Workspace]

    def __init__(self, buffer: Any, address: int, nbytes: int) -> None:
        self.buffer, self.address, self.nbytes = buffer, address, nbytes

    @staticmethod
    def of(buffer: Any) -> Workspace:
        """Lend any writable contiguous buffer: an array, a bytearray, a torch tensor."""
        if hasattr(buffer, "data_ptr"):
            address, nbytes = int(buffer.data_ptr()), buffer.numel() * buffer.element_size()
            if not buffer.is_contiguous() or (nbytes and not address):
                got = "one without memory" if buffer.is_contiguous() else "a strided tensor"
                raise InvalidProblem("Workspace.of", "buffer", "a contiguous buffer of bytes", got)
            check_storage(buffer, address, address + nbytes, "Workspace.of", "buffer")
            return Workspace(buffer, address, nbytes)
        try:
            memory = memoryview(buffer).cast("B")
            array = np.frombuffer(memory, np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            raise InvalidProblem(
                "Workspace.of", "buffer", "a contiguous buffer of bytes", f"{error}"
            ) from None
        if memory.readonly:
            raise InvalidProblem("Workspace.of", "buffer", "writable memory", "a read-only buffer")
        return Workspace(array, array.ctypes.data if array.size else 0, array.size)

    @staticmethod
    def allocate(plan: Any) -> Workspace:
        """Fresh memory on the plan's device, just enough for it."""
        if not plan.workspace_size:
            return Workspace.NONE
        if plan.device == "cpu":
            return Workspace.of(np.empty(plan.workspace_size, np.uint8))
        scratch = resolve("pullback.gpu.device:scratch")(plan.workspace_size, plan.device)
        return Workspace.of(scratch)

    def __repr__(self) -> str:
        return f"Workspace({self.nbytes} bytes)"


Workspace.NONE = Workspace(None, 0, 0)
