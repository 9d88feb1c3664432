"""Calls that have been validated: what every front end does between a key and a launch.

A front end keys a call by everything but addresses (shapes, strides, dtypes, options). The first
call of a kind binds, validates and lays out; a repeated one fetches addresses and launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pullback.contract.errors import InvalidProblem, Unsupported
from pullback.contract.record import Slot
from pullback.cpu.pool import get_num_threads
from pullback.plan.function import Call, Function
from pullback.plan.launch import Launch, check_tensor
from pullback.plan.plan import Plan
from pullback.plan.stream import Stream, Workspace
from pullback.tensor.recycle import empty as scratch
from pullback.tensor.view import TensorRef, TensorSpec

_CPU = Stream.cpu()
_BYTES = np.dtype(np.uint8)

# How a front end looks at an array (the array to keep alive, its address), and how it makes one:
# `layout` gives what `empty` is called with.
Look = Callable[[Any], tuple[Any, int]]
Layout = Callable[[TensorSpec], tuple[Any, ...]]
Empty = Callable[..., Any]


class Ready:
    """Where each slot's address comes from, what to allocate, what to launch.

    Equal keys have equal positional counts and option names, so a source is an index into the
    positional arguments followed by those options that are arrays. A result is a fresh array, or
    the source that is updated in place."""

    __slots__ = ("_blank", "_launch", "_named", "_op", "_plan", "_results", "_sources", "single")

    def __init__(
        self,
        op: str,
        call: Call,
        launch: Launch,
        plan: Plan[Any, Any],
        positional: Sequence[str],
        layout: Layout,
    ) -> None:
        self._op, self._plan, self._launch = op, plan, launch
        self.single = len(call.returns) == 1
        names = [slot.name for slot in plan.record.slots]
        self._blank: list[Any] = [0] * len(names)
        views = [(i, v) for i, n in enumerate(names) if (v := call.tensors.get(n)) is not None]
        origins = [(i, v.origin, v.offset) for i, v in views if isinstance(v, TensorRef)]
        self._named = tuple({name for _, (name, _), _ in origins} - set(positional))
        places = {name: place for place, name in enumerate((*positional, *self._named))}
        self._sources = tuple(
            (i, places[name], part, offset) for i, (name, part), offset in origins
        )
        self._results = tuple(
            (names.index(name), None if name in call.tensors else layout(spec))
            for name, spec in zip(call.returns, call.specs, strict=True)
        )

    def run(
        self, args: Sequence[Any], options: Mapping[str, Any], out: Any, look: Look, empty: Empty
    ) -> Any:
        """Fetch addresses, check them, launch; the result as the function returns it."""
        addresses, arrays = self._blank.copy(), self._blank.copy()
        values = (*args, *[options[name] for name in self._named]) if self._named else args
        for position, place, part, offset in self._sources:
            array = values[place]
            array, address = look(array if part is None else array.bundle[part])
            arrays[position], addresses[position] = array, address + offset
        outs = out if type(out) is tuple else (out,) * len(self._results)
        for (position, fresh), array in zip(self._results, outs, strict=True):
            if fresh is not None:
                array = empty(*fresh) if array is None else array
                arrays[position], addresses[position] = look(array)
        self._launch.check_addresses(addresses, arrays)
        size = self._plan.workspace_size
        workspace = Workspace.of(scratch((size,), _BYTES)) if size else Workspace.NONE
        status = self._launch.run(addresses, workspace.address, get_num_threads())
        if status[0]:
            self._plan.fail(*status, op=self._op)
        if out is not None:
            return out
        results = tuple([arrays[position] for position, _ in self._results])
        return results[0] if self.single else results


def prepare(
    function: Function,
    args: Sequence[Any],
    options: Mapping[str, Any],
    out: Any,
    layout: Layout,
) -> Ready:
    """Bind and validate a call, and lay it out for the layouts of its arrays."""
    op = function.name
    call = function.body(**function.views(function.bind(tuple(args), options)))
    plan = call.plan.select(_CPU, call.descriptor)
    slots = plan.record.slots
    tensors: list[Any] = [call.tensors.get(slot.name) for slot in slots]
    for view in tensors:
        if isinstance(view, TensorRef) and view.device != "cpu":
            raise Unsupported(op, "device", "cpu", view.device)
    names = [slot.name for slot in slots]
    for name, spec, array in zip(call.returns, call.specs, _given(op, call, out), strict=True):
        if name not in call.tensors:
            position = names.index(name)
            tensors[position] = _result(op, slots[position], call.descriptor, spec, array)
    positional = function.parameters[: len(args)]
    return Ready(op, call, plan.lay_out(tensors, op), plan, positional, layout)


def _result(op: str, slot: Slot, desc: Any, spec: TensorSpec, array: Any) -> TensorRef:
    """A view of the array given for a result, or of one laid out as a fresh one will be."""
    if array is None:
        view = TensorRef(np.empty(spec.shape, spec.element.dtype))
    else:
        view = TensorRef(array, op=op, argument="out")
        if view.shape != spec.shape:
            raise InvalidProblem(op, "out", f"of shape {spec.shape}", f"shape {view.shape}")
    view = view.folded(slot.shape(desc))
    check_tensor(op, slot, desc, view, "cpu", argument="out")
    return view


def _given(op: str, call: Call, out: Any) -> tuple[Any, ...]:
    count = len(call.returns)
    if out is None:
        return (None,) * count
    if any(name in call.tensors for name in call.returns):
        raise InvalidProblem(op, "out", "None where an argument is updated in place", "an array")
    if count == 1:
        return (out,)
    if not isinstance(out, tuple) or len(out) != count:
        raise InvalidProblem(op, "out", f"a tuple of {count} arrays", repr(type(out)))
    return out
