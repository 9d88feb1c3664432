"""Taylor coefficients of the functions, for `jax.experimental.jet`.

Along a path x(t) = x + t·x1 + t²·x2 + … the coefficients of f(x(t)) are its derivatives at t = 0,
divided by factorials. They are found in forward mode, one level for each order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax import numpy as jnp
from jax.experimental import jet

from pullback.frontends.jax_primitive import Derivative, call_p, tangent_p
from pullback.frontends.jax_site import Site

Array = Any
Terms = list[Array]


def _path(point: Array, terms: Sequence[Array], t: Array) -> Array:
    if not jnp.issubdtype(jnp.result_type(point), jnp.floating):
        return point
    higher = jnp.zeros_like(point)
    for term in reversed(terms):
        higher = t.astype(term.dtype) * (term + higher)
    return point + higher


def _slope(function: Callable[[Array], Any], t: Array) -> Any:
    return jax.jvp(function, (t,), (jnp.ones_like(t),))[1]


def _coefficients(
    function: Callable[..., list[Array]], points: Sequence[Array], series: Sequence[Terms]
) -> tuple[list[Array], list[Terms]]:
    """Results at a point, and the terms of each. Those of integers are zero."""

    def along(t: Array) -> list[Array]:
        return function(*(_path(p, s, t) for p, s in zip(points, series, strict=True)))

    values, start, factorial = function(*points), jnp.zeros(()), 1.0
    terms: list[Terms] = [[] for _ in values]
    derivative: Callable[[Array], Any] = along
    for order in range(1, len(series[0]) + 1):
        derivative, factorial = partial(_slope, derivative), factorial * order
        for value, found, slope in zip(values, terms, derivative(start), strict=True):
            floats = jnp.issubdtype(value.dtype, jnp.floating)
            found.append(slope / factorial if floats else jnp.zeros_like(value))
    return values, terms


def _call(
    points: Sequence[Array], series: Sequence[Terms], *, site: Site
) -> tuple[list[Array], list[Terms]]:
    return _coefficients(partial(call_p.bind, site=site), points, series)


def _tangent(
    points: Sequence[Array], series: Sequence[Terms], *, derivative: Derivative
) -> tuple[Array, Terms]:
    values, terms = _coefficients(lambda *x: [derivative.push(*x)], points, series)
    return values[0], terms[0]


jet.jet_rules[call_p] = _call
jet.jet_rules[tangent_p] = _tangent
