"""What calls on one rank's part have in common in all frameworks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pullback
from pullback.contract.errors import Unsupported
from pullback.distributed.forms import forms, gradients
from pullback.distributed.routes import routed
from pullback.ops.axes import axes_of
from pullback.ops.sharding import Array, Form, Spread, State


class Gradient:
    """Which function gives the gradient of another, and what it is called with."""

    def __init__(self, function: Any) -> None:
        self.forward = function
        name, self.renamed = gradients().get(function.name, (f"{function.name}_backward", {}))
        self.function = getattr(pullback, name).function

    def arguments(self, gradient: Array, result: Array, given: Mapping[str, Any]) -> dict[str, Any]:
        """Tensors of the gradient that the function does not have are its result."""
        first, *names = self.function.parameters
        known = {self.renamed.get(name, name): value for name, value in given.items()}
        found = {first: gradient}
        for name in names:
            if name in known:
                found[name] = known[name]
            elif name in self.function.tensors and name not in self.function.defaults:
                found[name] = result
        return {**self.function.defaults, **known, **found}

    def names(self, given: Mapping[str, Any]) -> list[str]:
        """Arguments that it gives the gradients of, in order."""
        forward = self.forward
        floats = [n for n in forward.tensors if n not in forward.indices]
        order = sorted(floats, key=lambda n: n not in self.renamed)  # renamed ones lead
        return [name for name in order if hasattr(given[name], "shape")]


def recorded(function: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Options under which a function gives a second result, which its gradient needs in the place
    of the first, unless they are set."""
    rule = function.calculus.records
    extra = rule(arguments) if rule else {}
    return {name: value for name, value in extra.items() if arguments[name] != value}


@cache
def form_of(function: Any, exact: bool, by: str = "rows") -> Form:
    """How one rank's part of a call is computed."""
    if by != "rows":
        return routed
    form = forms().get(function.name)
    if form is not None and (not exact or getattr(form, "exact", False)):
        return _or_gathered(form)
    return _gathered


def _or_gathered(form: Form) -> Form:
    def chosen(s: Spread, function: Any, arguments: Mapping[str, Any]) -> Any:
        found = form(s, function, arguments)
        return _gathered(s, function, arguments) if found is None else found

    return chosen


def _gathered(
    s: Spread, function: Any, arguments: Mapping[str, Any]
) -> tuple[tuple[Array, ...], State]:
    """The call on whole arrays, and this rank's part of the results: the bits of one machine."""
    given = {name: value for name, value in arguments.items() if name in function.parameters}
    tensors = {n: t for n in function.tensors if hasattr(t := given[n], "shape")}
    options = {n: value for n, value in given.items() if n not in tensors}
    axes = axes_of(function, {n: tuple(t.shape) for n, t in tensors.items()}, options)
    if axes is None or not axes.along:
        expected = "of rank 1 at least, in parts along an axis"
        raise Unsupported(function.name, "over", expected, "others")
    names = axes.arguments
    places = {n: names[n].index(axes.along) for n in tensors if axes.along in names[n]}
    width = tensors[next(iter(places))].shape[next(iter(places.values()))]
    (widths,) = s.gather(s.filled((), float(width), next(iter(tensors.values()))))
    for name, at in places.items():
        given[name] = s.whole(tensors[name], at, widths)
    results = function(**given)
    several = results if isinstance(results, tuple) else (results,)
    return tuple(
        s.part(result, axes.result(i).index(axes.along), widths, width)
        if axes.along in axes.result(i)
        else result
        for i, result in enumerate(several)
    ), ()
