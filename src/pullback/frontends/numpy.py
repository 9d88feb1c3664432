"""The functions on NumPy arrays: look the call up, allocate, launch.

A call is keyed by everything but addresses (shapes, strides, dtypes, options). The first call of a
kind binds, validates and lays out; a repeated one costs a look-up and the launch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.contract.errors import InvalidProblem, Unsupported
from pullback.cpu.pool import get_num_threads
from pullback.plan.function import Call, Function
from pullback.plan.launch import Launch, check_tensor
from pullback.plan.plan import Plan, remember
from pullback.plan.stream import Stream, Workspace
from pullback.tensor.adapters import NUMPY, family_of, numpy_address
from pullback.tensor.recycle import empty
from pullback.tensor.view import TensorRef

_CPU = Stream.cpu()
_READY: dict[Any, Ready] = {}


class Ready:
    """A call that has been validated: where each slot's address comes from, what to allocate."""

    __slots__ = ("launch", "plan", "returns", "single", "sources", "specs", "workspace")

    def __init__(self, call: Call, launch: Launch, plan: Plan[Any, Any]) -> None:
        self.plan, self.launch = plan, launch
        self.workspace = plan.workspace_size
        self.single = len(call.returns) == 1
        self.specs = tuple((spec.shape, spec.element.dtype) for spec in call.specs)
        self.returns = tuple(
            position
            for name in call.returns
            for position, slot in enumerate(plan.record.slots)
            if slot.name == name
        )
        self.sources = tuple(
            (position, view.origin, view.offset)
            for position, slot in enumerate(plan.record.slots)
            if isinstance(view := call.tensors.get(slot.name), TensorRef)
        )


def call(function: Function, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> Any:
    """Run `function` on NumPy arrays (or anything seen through NumPy)."""
    key = _key(function, args, options, out)
    try:
        ready = _READY.get(key)
    except TypeError:  # an unhashable argument: binding names it
        ready = None
    arguments = function.bind(args, options) if ready is None else None
    if ready is None:
        assert arguments is not None
        ready = remember(_READY, key, _prepare(function, arguments, out))
    outputs = _outputs(function, ready, out)
    addresses = [0] * len(ready.plan.record.slots)
    arrays: list[Any] = [None] * len(addresses)
    named = _named(function, args, options)
    for position, (name, field), offset in ready.sources:
        value = named[name]
        array = value if field is None else value.bundle[field]
        if type(array) is not np.ndarray:
            adapter = family_of(array)
            if adapter is not None and adapter.convert is not None:
                array = adapter.convert(array)
        arrays[position] = array
        addresses[position] = numpy_address(array) + offset
    for position, array in zip(ready.returns, outputs, strict=True):
        arrays[position] = array
        addresses[position] = numpy_address(array)
    ready.launch.check_addresses(addresses, arrays)
    scratch = (
        Workspace.of(empty((ready.workspace,), np.dtype(np.uint8)))
        if ready.workspace
        else (Workspace.NONE)
    )
    status = ready.launch.run(addresses, scratch.address, get_num_threads())
    if status[0]:
        ready.plan.fail(*status)
    if out is not None:
        return out
    return outputs[0] if ready.single else tuple(outputs)


def _named(function: Function, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(function.parameters, args, strict=False), **options)


def _key(function: Function, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> Any:
    parts: list[Any] = [function.name]
    for value in args:
        parts.append(_summary(value))
    for name, value in options.items():
        parts.append(name)
        parts.append(_summary(value))
    if out is not None:
        outs = out if type(out) is tuple else (out,)
        parts.append("out")
        parts.extend(_summary(array) for array in outs)
    return tuple(parts)


def _summary(value: Any) -> Any:
    if type(value) is np.ndarray:
        return value.shape, value.strides, value.dtype, value.flags.writeable
    bundle = getattr(value, "bundle_key", None)
    if bundle is not None:
        return bundle
    adapter = family_of(value)
    if adapter is None:
        return type(value), value
    if adapter.convert is not None:
        return type(value), NUMPY.key(adapter.convert(value))
    return adapter.key(value)


def _prepare(function: Function, arguments: dict[str, Any], out: Any) -> Ready:
    call = function.body(**function.views(arguments))
    plan = call.plan.select(_CPU, call.descriptor)
    record = plan.record
    tensors: list[Any] = [call.tensors.get(slot.name) for slot in record.slots]
    names = [slot.name for slot in record.slots]
    for view in tensors:
        if isinstance(view, TensorRef) and view.device != "cpu":
            raise Unsupported(function.name, "device", "cpu", view.device)
    outs = _given(function, call, out)
    for name, spec, array in zip(call.returns, call.specs, outs, strict=True):
        position = names.index(name)
        if array is None:
            array = np.empty(spec.shape, spec.element.dtype)
        else:
            view = TensorRef(array, op=function.name, argument="out")
            slot = record.slots[position]
            check_tensor(function.name, slot, call.descriptor, view, "cpu", argument="out")
        tensors[position] = array
    return Ready(call, plan.lay_out(tensors), plan)


def _given(function: Function, call: Call, out: Any) -> tuple[Any, ...]:
    count = len(call.returns)
    if out is None:
        return (None,) * count
    if count == 1:
        return (out,)
    if not isinstance(out, tuple) or len(out) != count:
        raise InvalidProblem(function.name, "out", f"a tuple of {count} arrays", repr(type(out)))
    return out


def _outputs(function: Function, ready: Ready, out: Any) -> Any:
    if out is None:
        return [empty(shape, dtype) for shape, dtype in ready.specs]
    return [out] if ready.single else list(out)
