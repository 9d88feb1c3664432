"""Calls that have been validated: what every front end does between a key and a launch.

A front end keys a call by everything but addresses (shapes, strides, dtypes, options). The first
call of a kind binds, validates and lays out; a repeated one fetches addresses and launches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from pullback.contract.element import describe
from pullback.contract.errors import InvalidProblem, Unsupported
from pullback.contract.record import Slot
from pullback.cpu.buffer_pool import OutputAllocator
from pullback.cpu.call_cache import CallCache
from pullback.cpu.call_record import (
    NOWHERE,
    STACK_BYTES,
    CallRecord,
    Fresh,
    function_record,
    is_comparable,
)
from pullback.cpu.dispatch_guard import DispatchGuard
from pullback.cpu.pool import get_num_threads
from pullback.plan.function import Call, Function
from pullback.plan.launch import Launch, Status, check_tensor
from pullback.plan.plan import Plan
from pullback.plan.stream import Stream
from pullback.tensor.adapters import numpy_address, torch_reach
from pullback.tensor.view import TensorRef, TensorSpec

_CPU = Stream.cpu()
_BYTES = np.dtype(np.uint8)

# How a front end finds the address of an array that must have so many bytes (0 if it has fewer, or
# is None), and what allocates a result of some kind.
Look = Callable[[Any, int], int]
AllocatorOf = Callable[[TensorSpec], Callable[[], Any]]


class PreparedCall:
    """Where each slot's address comes from, what to allocate, what to launch.

    Equal keys have equal positional counts and option names, so a source is an index into the
    positional arguments followed by those options that are arrays. A result is a fresh array, or
    the source that is updated in place."""

    __slots__ = (
        "_blank",
        "_fresh",
        "_launch",
        "_named",
        "_names",
        "_offsets",
        "_op",
        "_plan",
        "_reaches",
        "_record",
        "_results",
        "_scratch",
        "_sources",
        "_unread",
        "_workspace",
        "takes_parts",
    )

    def __init__(
        self,
        op: str,
        call: Call,
        launch: Launch,
        plan: Plan[Any, Any],
        positional: Sequence[str],
        arrays: Collection[str],
        allocator_of: AllocatorOf,
        reaches: Sequence[int],
    ) -> None:
        self._op, self._plan, self._launch, self._reaches = op, plan, launch, reaches
        self._record: Any = None
        self._workspace = plan.workspace_size
        self._scratch = OutputAllocator((self._workspace,), _BYTES)
        names = [slot.name for slot in plan.record.slots]
        self._blank: list[Any] = [None] * len(names)
        views = [(i, v) for i, n in enumerate(names) if (v := call.tensors.get(n)) is not None]
        origins = [(i, v.origin, v.offset) for i, v in views if isinstance(v, TensorRef)]
        self._named = tuple({name for _, (name, _), _ in origins} - set(positional))
        self._names = (*positional, *self._named)
        places = {name: place for place, name in enumerate(self._names)}
        self._sources = tuple((i, places[name], part) for i, (name, part), _ in origins)
        # Arrays that are passed to no slot: only a key tells their shapes.
        self._unread = set(arrays) - {name for _, (name, _), _ in origins}
        self.takes_parts = any(part is not None for _, _, part in self._sources)
        self._offsets = tuple((i, offset) for i, _, offset in origins if offset)
        self._results = tuple(map(names.index, call.returns))
        self._fresh = tuple(
            (names.index(name), allocator_of(spec))
            for name, spec in zip(call.returns, call.specs, strict=True)
            if name not in call.tensors
        )

    def run(
        self,
        args: Sequence[Any],
        options: Mapping[str, Any],
        out: Any,
        look: Look,
    ) -> Any:
        """Fetch addresses, check them, launch; the result as the function returns it."""
        values = (*args, *[options[name] for name in self._named]) if self._named else args
        arrays = self._arrays(values, out)
        addresses = list(map(look, arrays, self._reaches))
        for position, offset in self._offsets:
            if addresses[position]:
                addresses[position] += offset
        scratch = self._scratch() if self._workspace else None  # held until the run is over
        address = 0 if scratch is None else numpy_address(scratch)
        status = self._launch.run(addresses, arrays, address, get_num_threads())
        return self._finish(status, arrays, out)

    def insert(
        self,
        function: Function,
        values: Sequence[Any],
        guard: DispatchGuard | None = None,
        written: Callable[[Any], Any] | None = None,
    ) -> CallRecord | None:
        """Have the function's call cache repeat such calls (`out` is the last value, and `written`
        is called with it); None where native code cannot."""
        if self._record is None or self.takes_parts:  # the record is of this very bundle
            self._record = self._record_of(function.parameters, values, guard) or False
            if self._record and written is not None:
                self._record.written = written
        if self._record:
            _cache_of(function).insert(self._record)
        return self._record or None

    def _record_of(
        self, parameters: Sequence[str], values: Sequence[Any], guard: DispatchGuard | None
    ) -> CallRecord | None:
        if not all(map(is_comparable, values)):
            return None
        out = values[-1]
        named = dict(zip(parameters, values, strict=False))
        arrays = self._arrays([named[name] for name in self._names], out)
        for position, _, part in self._sources:
            if part is not None and arrays[position] is not None:
                arrays[position] = numpy_address(arrays[position])
        launch = self._launch.for_arrays(arrays, dict(self._offsets))
        if launch is None:
            return None
        # A tuple takes the places of its items too; fresh arrays come last.
        widths = [1 + len(value) if type(value) is tuple else 1 for value in values]
        starts = list(accumulate(widths, initial=0))
        places = dict(zip(parameters, starts, strict=False))
        sources = [NOWHERE] * len(self._blank)
        for position, place, part in self._sources:
            if part is None:
                sources[position] = places[self._names[place]]
        given = starts[-2]
        first = starts[-1] if out is None else given + (type(out) is tuple)
        for number, (position, _) in enumerate(self._fresh):
            sources[position] = first + number
        fresh = (
            [Fresh(allocate, position) for position, allocate in self._fresh] if out is None else []
        )
        results = [sources[i] for i in self._results] if out is None else [given]
        scratch = NOWHERE
        if self._workspace > STACK_BYTES:
            scratch = starts[-1] + len(fresh)
            fresh.append(Fresh(self._scratch))
        unread = [parameters.index(name) for name in self._unread]
        return function_record(launch, values, unread, fresh, results, sources, scratch, guard)

    def _arrays(self, values: Sequence[Any], out: Any) -> list[Any]:
        """The array of each slot: an argument, part of one, a result given, or a fresh one."""
        arrays = self._blank.copy()
        for position, place, part in self._sources:
            arrays[position] = values[place] if part is None else values[place].bundle[part]
        if out is None:
            for position, allocate in self._fresh:
                arrays[position] = allocate()
        else:
            outs = out if type(out) is tuple else (out,)
            for (position, _), array in zip(self._fresh, outs, strict=True):
                arrays[position] = array
        return arrays

    def _finish(self, status: Status, arrays: list[Any], out: Any) -> Any:
        if status[0]:
            self._plan.fail(*status, op=self._op)
        if out is not None:
            return out
        if len(self._results) == 1:
            return arrays[self._results[0]]
        return tuple([arrays[position] for position in self._results])


_CACHES: dict[Function, CallCache] = {}


def _cache_of(function: Function) -> CallCache:
    cache = _CACHES.get(function)
    if cache is None:
        cache = _CACHES.setdefault(function, CallCache())
        function.lookup = cache.lookup
    return cache


def prepare_call(
    function: Function,
    args: Sequence[Any],
    options: Mapping[str, Any],
    out: Any,
    allocator_of: AllocatorOf,
) -> PreparedCall:
    """Bind and validate a call, and lay it out for the layouts of its arrays."""
    op = function.name
    views = function.views(function.bind(tuple(args), options))
    call = function.body(**views)
    plan = call.select(op, _CPU)
    slots = plan.record.slots
    tensors: list[Any] = [call.tensors.get(slot.name) for slot in slots]
    for view in tensors:
        if isinstance(view, TensorRef) and view.device != "cpu":
            raise Unsupported(op, "device", "cpu", view.device)
    names = [slot.name for slot in slots]
    family = next((v.family for v in views.values() if isinstance(v, TensorRef)), "numpy")
    for name, spec, array in zip(call.returns, call.specs, _given(op, call, out), strict=True):
        if name not in call.tensors:
            position = names.index(name)
            tensors[position] = _result(op, slots[position], call, spec, array, family)
    positional = function.parameters[: len(args)]
    arrays = [name for name, view in views.items() if isinstance(view, TensorRef)]
    launch = plan.lay_out(tensors, op, _argument_names(call, names))
    reaches = [_reach(view) for view in tensors]
    return PreparedCall(op, call, launch, plan, positional, arrays, allocator_of, reaches)


def _argument_names(call: Call, slots: Sequence[str]) -> list[str]:
    """What the caller calls the tensors of the slots: arguments, and `out` for results."""
    count = len(call.returns)
    names = {name: "out" if count == 1 else f"out[{i}]" for i, name in enumerate(call.returns)}
    for name, view in call.tensors.items():
        if isinstance(view, TensorRef) and view.origin is not None:
            names[name] = view.origin[0]
    return [names.get(name, name) for name in slots]


def _reach(view: Any) -> int:
    """Bytes that the array of a view must have, if it may lose some later."""
    return torch_reach(view.array) if view is not None and view.family == "torch" else 0


def _result(
    op: str, slot: Slot, call: Call, spec: TensorSpec, array: Any, family: str
) -> TensorRef:
    """A view of the array given for a result, or of one laid out as a fresh one will be."""
    if array is None:
        view = TensorRef(np.empty(spec.shape, spec.element.dtype))
    else:
        view = TensorRef(array, op=op, argument="out")
        if view.family != family:
            raise Unsupported(op, "out", f"a {family} array, as the others", view.family)
        if view.shape != spec.shape:
            raise InvalidProblem(op, "out", f"of shape {spec.shape}", f"shape {view.shape}")
    view = call.as_slot(slot.name, view)
    check_tensor(op, slot, call.descriptor, view, "cpu", argument="out")
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
        got = f"a tuple of {len(out)}" if isinstance(out, tuple) else describe(out)
        raise InvalidProblem(op, "out", f"a tuple of {count} arrays", got)
    if any(array is None for array in out):
        raise InvalidProblem(op, "out", f"a tuple of {count} arrays", "None among them")
    return out
