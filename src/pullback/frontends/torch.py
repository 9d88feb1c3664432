"""The functions on torch tensors: which way a call goes.

Without a gradient to record it goes from a key straight to the launch; with one, through an
`autograd.Function` around the same launch. Under torch.func or forward mode it goes through one
that these transforms understand. Everything else (torch.compile, torch.jit.trace, dispatch modes,
subclasses, tensors without memory) goes through the registered op, `torch.ops.pullback.<name>`.
What stands for a tensor without being one (a `torch.fx.Proxy`) decides itself what a call means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.autograd import profiler
from torch.autograd.graph import increment_version

from pullback.contract.errors import InvalidProblem
from pullback.frontends.torch_autograd import AutogradPlan, EagerFunction, transform
from pullback.frontends.torch_gpu import call_on_gpu, is_plain_gpu
from pullback.frontends.torch_launch import (
    FOREIGN,
    OVERRIDDEN,
    PLAIN,
    entry_of,
    insert,
    key_of,
    launch,
    summarise,
)
from pullback.frontends.torch_library import dispatch, override
from pullback.internals.torch import (
    forward_mode,
    functionalizing,
    modes,
    profiling,
    tracing,
    transforms,
    unwrap_if_dead,
)
from pullback.plan.function import Function


def call(function: Function, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> Any:
    """Run `function` on torch tensors."""
    if modes() or tracing():
        return dispatch(function, args, options, out)
    active = transforms()
    if active is not None and functionalizing(active):  # which has no rule for autograd.Function
        return dispatch(function, args, options, out)
    if active is not None or forward_mode():
        return transform(function, args, options, out)
    if profiling():  # the dispatcher names what it sees; it does not see this
        with profiler.record_function(f"pullback::{function.name}"):
            return _plain_call(function, args, options, out)
    return _plain_call(function, args, options, out)


def is_plain(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether a call on these tensors would go to the kernel, with nothing to record."""
    if modes() or tracing() or transforms() is not None or forward_mode():
        return False
    recording, given = torch.is_grad_enabled(), list(tensors)
    if is_plain_gpu(given):
        return True
    return all(type(t) in PLAIN and t.is_cpu and not (recording and t.requires_grad) for t in given)


def _plain_call(
    function: Function, args: tuple[Any, ...], options: dict[str, Any], out: Any
) -> Any:
    try:
        key, state = key_of(function, args, options)
        if out is not None:
            key.append(("out", type(out) is tuple))
            state |= summarise(out if type(out) is tuple else (out,), key)
    except RuntimeError:
        return _unwrapped(function, args, options, out)
    if state:
        if state >= OVERRIDDEN:
            return override(function, args, options, out)
        if state >= FOREIGN:
            if is_plain_gpu((*args, *options.values()), out):
                result = call_on_gpu(function, args, options, out)
                if out is not None or options.get("accumulate_into") is not None:
                    _touch(result)
                return result
            return dispatch(function, args, options, out)
        if torch.is_grad_enabled():
            return _recorded(key, function, args, options, out)
    entry = entry_of(key, function, args, options, out)
    result = entry.prepared.run(args, options, out, entry.look)
    if out is not None or "accumulate_into" in options:
        _touch(result)
    if "accumulate_into" not in options:
        insert(entry, function, args, options, out, _touch)
    return result


def _recorded(
    key: list[Any], function: Function, args: tuple[Any, ...], options: dict[str, Any], out: Any
) -> Any:
    """Run and record. What only depends on the key is worked out once."""
    if out is not None or options.get("accumulate_into") is not None:
        written = "accumulate_into" if out is None else "out"
        raise InvalidProblem(
            function.name, written, "None where a gradient is recorded", "a tensor to write into"
        )
    entry = entry_of(key, function, args, options, None)
    autograd = entry.autograd
    if autograd is None:
        autograd = entry.autograd = AutogradPlan(function, function.bind(args, options))
        entry.places = _places(function, autograd, len(args), options)
    record = insert(entry, function, args, options)
    if record is not None:
        record.recorder = _recorder(function, autograd)
    if autograd.extra:
        run = partial(launch, function, *args, **{**options, **autograd.extra})
    else:
        run = partial(entry.prepared.run, args, options, None, entry.look)
    values = (*args, *options.values()) if options else args
    tensors, others = entry.places
    given = {name: values[i] for name, i in others} if others else None
    return EagerFunction.apply((autograd, run, given), *[values[i] for i in tensors])


def _recorder(function: Function, autograd: AutogradPlan) -> Callable[..., Any]:
    """What runs and records calls that the cache holds: a function of all arguments, and of the
    `out` that is None."""
    places = {name: place for place, name in enumerate(function.parameters)}
    tensors = [places[name] for name in autograd.names]
    others = [(name, places[name]) for name in function.tensors if name not in autograd.shapes]
    extra = [(places[name], value) for name, value in autograd.extra.items()]

    def recorded(*passed: Any) -> Any:
        values = list(passed)
        for place, value in extra:
            values[place] = value
        given = {name: passed[place] for name, place in others} if others else None
        run = partial(_run_no_grad, function, values)
        return EagerFunction.apply((autograd, run, given), *[passed[place] for place in tensors])

    return recorded


def _run_no_grad(function: Function, values: list[Any]) -> Any:
    """Run where nothing is recorded."""
    result = function.lookup(*values)
    if result is None:
        given = dict(zip(function.parameters, values, strict=False))
        result = call(function, *function.as_called(given), None)
    return result


def _places(
    function: Function, autograd: AutogradPlan, count: int, options: dict[str, Any]
) -> tuple[list[int], list[tuple[str, int]]]:
    """Where among the arguments of a call of this kind its tensors are, and what stands in their
    place; what was left out is None to the rules anyway."""
    given = {name: i for i, name in enumerate((*function.parameters[:count], *options))}
    others = [(n, given[n]) for n in function.tensors if n in given and n not in autograd.shapes]
    return [given[name] for name in autograd.names], others


def _unwrapped(function: Function, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> Any:
    """Tensors without memory of their own: once a torch.func transform is over, its wrappers stand
    for what they wrapped; other wrappers are torch's to take apart."""
    bare = tuple(map(_bare, args))
    named = {name: _bare(value) for name, value in options.items()}
    old, new = (*args, *options.values()), (*bare, *named.values())
    if all(before is after for before, after in zip(old, new, strict=True)):
        function.views(function.bind(args, options))  # raises for those that are not dense
        return dispatch(function, args, options, out)
    return call(function, bare, named, out)


def _bare(value: Any) -> Any:
    return unwrap_if_dead(value) if isinstance(value, torch.Tensor) else value


def _touch(results: Any) -> None:
    """Tell autograd that these tensors were written to behind its back."""
    for tensor in results if isinstance(results, tuple) else (results,):
        if not tensor.is_inference():
            increment_version(tensor)
