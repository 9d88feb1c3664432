"""What calls on one rank's part have in common in all frameworks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pullback
from pullback.contract.errors import Unsupported
from pullback.distributed.exact import exact
from pullback.distributed.forms import composed, forms, gradients
from pullback.distributed.routes import routed
from pullback.ops.sharding import Array, Form, Spread


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


def check_exact(function: Any, by: str, routes: bool) -> None:
    """Raise where `exact=True` cannot be kept: `routes` says whether rows can go to the rank that
    has their segment."""
    if function.name in composed():
        expected = "False: gradients of each rank's bags are rounded before they are summed"
        raise Unsupported(function.name, "exact", expected, "True")
    if by == "segments" and not routes:
        raise Unsupported(function.name, "by", "'rows' for exact=True in JAX", repr(by))


@cache
def form_of(function: Any, same_bits: bool, by: str = "rows") -> Form:
    """How one rank's part of a call is computed."""
    if by != "rows":
        return routed
    form = forms().get(function.name)
    if form is not None and (not same_bits or getattr(form, "exact", False)):
        return _or_exact(form)
    return exact


def _or_exact(form: Form) -> Form:
    def chosen(s: Spread, function: Any, arguments: Mapping[str, Any]) -> Any:
        found = form(s, function, arguments)
        return exact(s, function, arguments) if found is None else found

    return chosen
