"""Runs a program: on a GPU through Triton's launcher, on the CPU in Triton's interpreter.

A launch goes to the current stream of the framework. Nothing waits, and nothing is allocated but
for the scratch of the framework's sort. What a program's check finds goes to a table on the device
that is read later (`gpu/errors.py`); the interpreter reads it at once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from pullback.contract.element import ElementKind
from pullback.contract.errors import KernelFailure
from pullback.gpu.arguments import launched
from pullback.gpu.device import arch
from pullback.gpu.errors import Fail, table_of
from pullback.gpu.interpreter import interpret
from pullback.gpu.program import GpuProgram, Operand, Scratch, Sort, Step
from pullback.gpu.tuning import warps_of

Status = tuple[int, int, int]
Executor = Callable[[Step, Mapping[str, Any]], None]


def _interpreted(step: Step, arguments: Mapping[str, Any]) -> None:
    interpret(step.kernel, step.grid, arguments)


_EXECUTOR: ContextVar[Executor] = ContextVar("executor", default=_interpreted)


@contextmanager
def executing(executor: Executor) -> Iterator[None]:
    """Launches on the CPU go to another executor than Triton's interpreter meanwhile."""
    token = _EXECUTOR.set(executor)
    try:
        yield
    finally:
        _EXECUTOR.reset(token)


_REGISTERS, _LANES, _MOST = 1 << 16, 32, 255  # of an NVIDIA multiprocessor, a warp, a thread


def options(warps: int, arch: str) -> dict[str, Any]:
    """How Triton compiles a kernel. No contraction: kernels round where their source says, as on
    the CPU. Left to itself, NVIDIA's assembler spills a word or two to let more warps in: here a
    thread may have whatever registers there are."""
    chosen: dict[str, Any] = {"num_warps": warps, "enable_fp_fusion": False}
    if arch.startswith("sm_"):
        chosen["maxnreg"] = min(_MOST, _REGISTERS // (_LANES * warps))
    return chosen


class Pointer(ctypes.c_void_p):
    """An address; with a dtype, which its subclasses have, all that Triton asks of a tensor."""

    def data_ptr(self) -> int:
        return self.value or 0


@cache
def pointer_to(element: ElementKind) -> type[Pointer]:
    """What makes pointers to an element, without a call of Python's."""
    name = element.row.long_name
    return type(f"{name}_pointer", (Pointer,), {"dtype": name})


# Where the address of a pointer begins: in a slot of the plan, which counts from 0, in the
# workspace, or in what a check writes.
_WORKSPACE, _STATUS = -1, -2


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A step with all that does not depend on addresses: what launches it, its arguments, and of
    its pointers name, type, where they begin and bytes from there."""

    step: Step | Sort
    launch: Any
    arguments: dict[str, Any]
    pointers: tuple[tuple[str, type[Pointer], int, int], ...]


class _Memory:
    """The array interface over device memory."""

    def __init__(self, address: int, scratch: Scratch) -> None:
        self.__cuda_array_interface__ = {
            "shape": (scratch.count,),
            "typestr": scratch.element.dtype.str,
            "data": (address, False),
            "version": 3,
        }


def _unexplained(status: int, position: int, value: int) -> None:
    raise KernelFailure("check", status)


class TritonRunner:
    """A program bound to a device; "cpu" means the interpreter, for laws and debugging. `warps` of
    the steps are what tuning changes."""

    __slots__ = ("_arch", "_device", "_errors", "_fail", "_prepared", "_program", "warps")

    def __init__(self, program: GpuProgram, device: str, fail: Fail = _unexplained) -> None:
        self._program, self._device, self._fail = program, device, fail
        deferred = device != "cpu" and program.status is not None
        self._errors = table_of(device) if deferred else None
        self._arch = "" if device == "cpu" else arch(device)
        self.warps = [
            warps_of(step, self._arch) if isinstance(step, Step) and self._arch else 0
            for step in program.steps
        ]
        self._prepared = tuple(map(self._prepare, program.steps))

    def _prepare(self, step: Step | Sort) -> _Prepared:
        if isinstance(step, Sort):
            return _Prepared(step, None, {}, ())
        fixed = {} if self._device == "cpu" else options(step.warps, self._arch)
        pointers = []
        for name, value in step.arguments.items():
            if isinstance(value, Operand):
                offset = value.offset * value.element.itemsize
                pointers.append((name, pointer_to(value.element), value.position, offset))
            elif isinstance(value, Scratch):
                where = _STATUS if value is self._program.status else _WORKSPACE
                pointers.append((name, pointer_to(value.element), where, value.offset))
        launch = None if self._device == "cpu" else step.kernel[step.grid,]
        return _Prepared(step, launch, {**launched(step), **fixed}, tuple(pointers))

    @property
    def steps(self) -> tuple[Step | Sort, ...]:
        return self._program.steps

    def __call__(self, addresses: Sequence[int], workspace: int, threads: int) -> Status:
        if self._device == "cpu":
            return self._run(addresses, workspace)
        import torch

        with torch.cuda.device(self._device):
            return self._run(addresses, workspace)

    def _run(self, addresses: Sequence[int], workspace: int) -> Status:
        errors, words = 0, self._program.status
        if self._errors is not None:
            errors = self._errors.take(self._fail, self._capturing())
        for prepared, warps in zip(self._prepared, self.warps, strict=True):
            step, launch = prepared.step, prepared.launch
            if isinstance(step, Sort):
                self._sort(step, workspace)
                continue
            arguments = prepared.arguments.copy()
            for name, pointer, where, offset in prepared.pointers:
                if where >= 0:
                    arguments[name] = pointer(addresses[where] + offset)
                elif where == _STATUS and errors:
                    arguments[name] = pointer(errors)
                else:
                    arguments[name] = pointer(workspace + offset)
            if launch is None:
                _EXECUTOR.get()(step, arguments)
            elif warps == step.warps:
                launch(**arguments)
            else:
                launch(**{**arguments, **options(warps, self._arch)})
        if words is None or errors:
            return 0, 0, 0
        status, position, value = self._tensor(words, workspace).tolist()
        return status, position, value

    def _capturing(self) -> bool:
        """Inside a captured graph nothing can be raised: its slot is read after replays."""
        import torch

        return bool(torch.cuda.is_current_stream_capturing())

    def _sort(self, step: Sort, workspace: int) -> None:
        import torch

        keys, values, order = (
            self._tensor(part, workspace) for part in (step.keys, step.sorted, step.order)
        )
        torch.sort(keys, stable=True, out=(values, order))

    def _tensor(self, scratch: Scratch, workspace: int) -> Any:
        import torch

        address = workspace + scratch.offset
        if self._device != "cpu":
            return torch.as_tensor(_Memory(address, scratch), device=self._device)
        from pullback.tensor.view import array_at

        array = array_at(address, (scratch.count,), (1,), scratch.element)
        return torch.from_numpy(np.asarray(array))
