"""How XLA runs a plan: a custom call to one native handler, whatever the plan.

The handler (cpu/xla.py) needs no Python. Two callbacks in Python stand beside it: `instantiate`,
when an executable is made or loaded from disk, finds the kernels it names; `explain`, when a kernel
reports a failure, words the error. What both need to know travels with the executable, as text.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from math import prod
from typing import Any, Final

import jax

from pullback.contract import errors
from pullback.contract.element import ElementKind
from pullback.contract.errors import KernelFailure, PullbackError
from pullback.contract.record import Failure, Slot, resolve
from pullback.cpu import xla
from pullback.cpu.block import DETAIL, STATUS, TENSORS, WORKSPACE
from pullback.cpu.kernel import source_hash
from pullback.cpu.xla_frame import API, ATTRIBUTES, EXTENSION, word
from pullback.plan.function import Call
from pullback.plan.stream import Stream
from pullback.tensor.view import TensorRef, TensorSpec

TARGET: Final = "pullback_native"  # of programs compiled in this process


@dataclass(frozen=True, slots=True)
class CustomCall:
    """A plan as XLA sees it.

    `operands` are arguments by origin, to be cast to `dtypes`. The results are `specs`, then the
    scratch memory if there is any. `aliases`: operands that are updated, and the results they
    become. `launch` and `about` are the attributes."""

    operands: tuple[Any, ...]
    dtypes: tuple[Any, ...]
    specs: tuple[TensorSpec, ...]
    workspace: int
    aliases: Mapping[int, int]
    launch: tuple[int, ...]
    about: str


def custom_call(op: str, call: Call, part: bool = False) -> CustomCall:
    """Lay out a call whose tensors have row-major memory, at addresses that are not known yet.
    `part`: its indices are those of one device, and so are positions in errors."""
    plan, desc = call.select(op, Stream.cpu()), call.descriptor
    slots = {slot.name: slot for slot in plan.record.slots}
    words = {name: TENSORS + position for position, name in enumerate(slots)}
    views = {
        name: _widened(view, slots[name], desc)
        for name, view in call.tensors.items()
        if isinstance(view, TensorRef)
    }
    dtypes = {view.origin: view.element.dtype for view in views.values()}
    operands, aliases = tuple(dtypes), {}
    places = [
        (words[name], operands.index(view.origin), view.offset, 0) for name, view in views.items()
    ]
    for result, (name, spec) in enumerate(zip(call.returns, call.specs, strict=True)):
        if name in views:
            aliases[operands.index(views[name].origin)] = result
        else:
            view = TensorRef(jax.ShapeDtypeStruct(spec.shape, spec.element.dtype))
            views[name] = call.as_slot(name, view)
        size = prod(spec.shape) * spec.element.itemsize
        places.append((words[name], len(operands) + result, 0, size))
    if plan.workspace_size:
        places.append((WORKSPACE, len(operands) + len(call.returns), 0, plan.workspace_size))
    program = plan.program([views.get(name) for name in slots], op)
    kernels = [
        (phase.kernel, phase.element or desc.element, phase.index or program.index)
        for phase in program.phases
    ]
    phases = [
        (xla.enrol(*kernel), *phase.extent)
        for phase, kernel in zip(program.phases, kernels, strict=True)
    ]
    block = (0,) * (TENSORS + len(slots)) + program.words
    return CustomCall(
        operands,
        tuple(dtypes.values()),
        call.specs,
        plan.workspace_size,
        aliases,
        (len(block), len(places), len(phases), *block, *chain(*places, *phases)),
        _text(op, kernels, plan.record.failures, desc, part),
    )


def _text(
    op: str, kernels: Sequence[Any], failures: Mapping[int, Failure], desc: Any, part: bool
) -> str:
    """What the callbacks below need to know."""
    of = " of the part on one device" if part else ""
    about = {
        "sources": source_hash(),
        "op": op,
        "kernels": [(kernel.name, element.name, index.name) for kernel, element, index in kernels],
        "failures": {
            status: (
                failure.error.__name__,
                failure.argument,
                failure.expected(desc),
                failure.got + of,
            )
            for status, failure in failures.items()
        },
    }
    return json.dumps(about)


def _widened(view: TensorRef, slot: Slot, desc: Any) -> TensorRef:
    """Positions are int64 in some plans, and int32 in JAX unless x64 is enabled: they get cast."""
    if view.element is ElementKind.I32 and slot.elements(desc.element) == (ElementKind.I64,):
        view = TensorRef(view)
        view.element = ElementKind.I64
    return view


# --- what XLA calls in Python ---------------------------------------------------------------------

# The last failures by their sentence: XLA carries text only, eager callers get the error itself.
_FAILURES: dict[str, PullbackError] = {}
_KEPT: Final = 64


def failure_behind(error: BaseException) -> PullbackError | None:
    """The error of ours whose sentence an error of XLA carries: the longest, since "position 1" is
    also the beginning of "position 10"."""
    text = str(error)
    found = [sentence for sentence in list(_FAILURES) if sentence in text]
    return _FAILURES.get(max(found, key=len)) if found else None


def _about(frame: int) -> Any:
    span = word(word(frame, ATTRIBUTES + 3), xla.ABOUT)
    return json.loads(ctypes.string_at(word(span, 0), word(span, 1)))


_ERROR_CREATE: Final = 6  # where XLA's table of functions has it
_INVALID_ARGUMENT: Final = 3


def _xla_error(frame: int, sentence: str) -> int:
    message = ctypes.create_string_buffer(sentence.encode())
    order = (ctypes.c_int64 * 4)(28, 0, ctypes.addressof(message), _INVALID_ARGUMENT)
    create = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(
        word(word(frame, API), _ERROR_CREATE)
    )
    return int(create(ctypes.addressof(order)))


def _explain(frame: int, block: int) -> int:
    status, position, value = (word(block, at) for at in (STATUS, DETAIL, DETAIL + 1))
    about = _about(frame)
    found = about["failures"].get(str(status))
    if status == xla.UNKNOWN_KERNEL:
        return _xla_error(frame, f"{about['op']}: its kernels are not loaded in this process")
    if found is None:
        failure: PullbackError = KernelFailure(about["op"], status)
    else:
        kind, argument, expected, got = found
        got = got.format(position=position, value=value)
        failure = getattr(errors, kind)(about["op"], argument, expected, got)
    while len(_FAILURES) >= _KEPT:
        _FAILURES.pop(next(iter(_FAILURES)), None)
    _FAILURES[str(failure)] = failure
    return _xla_error(frame, str(failure))


def _instantiate(frame: int) -> int:
    if word(frame, EXTENSION):  # only asks for the version, which the handler tells
        return 0
    about = _about(frame)
    if about["sources"] != source_hash():
        return _xla_error(
            frame, f"{about['op']}: this executable was made by another version of pullback"
        )
    for name, element, index in about["kernels"]:
        kinds = ElementKind[element], ElementKind[index]
        if not xla.enrolled(xla.kernel_key(name, *kinds)):
            xla.enrol(resolve(":".join(name.rsplit(".", 1))), *kinds)
    return 0


def _callback(function: Callable[..., int], arguments: int) -> Any:
    """A C function that never raises: ctypes would print the exception, and XLA see success."""

    def guarded(frame: int, *rest: int) -> int:
        try:
            return function(frame, *rest)
        except Exception as error:
            return _xla_error(frame, f"pullback: {type(error).__name__}: {error}")

    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * arguments)(guarded)


@cache
def handlers() -> tuple[Any, Any, int]:
    """Callbacks, which must stay alive: what words errors, what prepares kernels; and the address
    of the native handler."""
    explain, instantiate = _callback(_explain, 2), _callback(_instantiate, 1)
    address = xla.handler_address(ctypes.cast(explain, ctypes.c_void_p).value or 0)
    return explain, instantiate, address


@cache
def register() -> None:
    """Tell XLA of the handler, once."""
    _, instantiate, address = handlers()
    stages = {
        "instantiate": jax.ffi.pycapsule(ctypes.cast(instantiate, ctypes.c_void_p)),
        "execute": jax.ffi.pycapsule(ctypes.c_void_p(address)),
    }
    jax.ffi.register_ffi_target(TARGET, stages, platform="cpu", api_version=1)
