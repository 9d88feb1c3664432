"""Named axes of JAX: one device's part of a call inside of shard_map, and its gradient.

Summaries are float64 whether or not JAX is set to have it: the setting is switched on for the trace
of these few operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from pullback import distributed
from pullback.contract.errors import InvalidProblem, Unsupported
from pullback.distributed.calls import Gradient, check_exact, form_of, recorded
from pullback.distributed.forms import composed, has_own_indices
from pullback.internals.jax import varying
from pullback.ops.axes import axes_of
from pullback.ops.sharding import INF, Spread, namespace

Array = Any


def _add_along_axis(x: Array, indices: Array, axis: int) -> Array:
    rows, places = jnp.moveaxis(x, axis, 0), jnp.moveaxis(indices, axis, 0)
    others = jnp.indices(rows.shape, sparse=True)[1:]
    return jnp.moveaxis(jnp.zeros_like(rows).at[(places, *others)].add(rows), 0, axis)


def _unique(x: Array) -> tuple[Array, Array]:
    found, places = jnp.unique(x, return_inverse=True, size=x.size)
    return found, places.reshape(-1).astype(x.dtype)


JAX = namespace(
    jnp,
    concatenate=jnp.concatenate,
    moveaxis=jnp.moveaxis,
    amax=jnp.max,
    sum=lambda x, axis, keepdims: jnp.sum(x, axis, keepdims=keepdims),
    add_along_axis=_add_along_axis,
    take_along_axis=jnp.take_along_axis,
    take=jnp.take,
    arange=lambda count, like: jnp.arange(count, dtype=like.dtype),
    unique=_unique,
    argmax=jnp.argmax,
    argsort=lambda x: jnp.argsort(x, stable=True),
)


class JaxRank(Spread):
    """One device along a named axis; all hold parts of the same extent."""

    xp = JAX
    fixed = True

    def __init__(
        self, name: Any, index: Any, by: str = "rows", alike: frozenset[str] | None = None
    ) -> None:
        self.name, self.index, self.by, self.alike = name, index, by, alike
        self.size, self.rank = lax.axis_size(name), lax.axis_index(name)

    def exchange(self, flat: Array) -> Array:
        return lax.all_gather(flat, self.name)

    def select(self, rank: int, after: bool, new: Array, old: Array) -> Array:
        return jnp.where(rank < self.rank if after else rank > self.rank, new, old)

    def own(self, gathered: Array) -> Array:
        return gathered[self.rank]

    def hide_own(self, gathered: Array) -> Array:
        at = jnp.arange(self.size) == self.rank
        return jnp.where(at.reshape(-1, *(1,) * (gathered.ndim - 1)), -INF, gathered)

    def enough(self, test: Array, yes: Callable[[], Array], no: Callable[[], Array]) -> Array:
        return lax.cond(test, yes, no)

    def agreed(self, name: str, own: bool, flags: Array) -> bool:
        return own  # parts are of one extent

    def gather_uneven(self, x: Array, widths: Array) -> Array:
        return lax.all_gather(x, self.name)

    def whole(self, x: Array, axis: int, widths: Array) -> Array:
        return lax.all_gather(x, self.name, axis=axis, tiled=True)

    def part(self, x: Array, axis: int, widths: Array, width: int) -> Array:
        return lax.dynamic_slice_in_dim(x, self.rank * width, width, axis)

    def swapped(self, x: Array) -> Array:
        return lax.all_to_all(x, self.name, 0, 0)

    def joined_ranks(self, x: Array) -> Array:
        return lax.all_gather(x, self.name)

    def distinct(self, values: Array, bound: int) -> tuple[Array, Array]:
        most = min(values.shape[0], bound + 1)
        found, places = jnp.unique(values, return_inverse=True, size=most, fill_value=bound)
        return found, places.reshape(-1)

    def stacked(self, rows: Array, counts: Any, fill: float) -> Array:
        return lax.all_gather(rows, self.name, tiled=True)

    def part_of_segments(self, x: Array, axis: int) -> Array:
        if self.by == "rows":
            return x
        width = x.shape[axis] // self.size
        return lax.dynamic_slice_in_dim(x, self.rank * width, width, axis)

    def all_segments(self, x: Array, axis: int) -> Array:
        return x if self.by == "rows" else lax.all_gather(x, self.name, axis=axis, tiled=True)

    def wide(self, x: Array) -> Array:
        return jnp.asarray(x).astype(jnp.float64)

    def working(self, x: Array) -> Array:
        return x.astype(jnp.float32 if self.is_half(x) else jnp.float64)

    def like(self, x: Array, model: Array) -> Array:
        return jnp.asarray(x).astype(model.dtype)

    def is_half(self, x: Array) -> bool:
        return bool(x.dtype.itemsize == 2)

    def is_wide(self, x: Array) -> bool:
        return bool(x.dtype == jnp.float64)

    def filled(self, shape: tuple[int, ...], value: float, like: Array) -> Array:
        return jnp.full(shape, value, jnp.float64)

    def largest_of(self, x: Array, count: int) -> Array:
        padding = jnp.full((*x.shape[:-1], max(count - x.shape[-1], 0)), -INF, x.dtype)
        ordered = jnp.sort(jnp.concatenate([x, padding], -1), -1)  # NaN last
        return ordered[..., ordered.shape[-1] - count :]

    def is_integer(self, x: Array) -> bool:
        return bool(jnp.issubdtype(x.dtype, jnp.integer))

    def steps(self, count: int, like: Array) -> Array:
        return jnp.arange(count, dtype=jnp.float64)

    def check_classes(self, op: str, target: Array, hits: Array, widths: Array) -> None:
        """A program cannot raise here: the loss of such a row is NaN."""

    def is_even(self, widths: Array) -> bool:
        return True

    def as_index(self, x: Array) -> Array:
        return x.astype(self.index)


def call(function: Any, arguments: dict[str, Any], over: Any, exact: bool, by: str) -> Any:
    """One device's part of a call; differentiable in reverse mode."""
    if by == "borders":
        expected = "'rows' or 'segments': how many segments begin on a device is decided by data"
        raise Unsupported(function.name, "by", expected, repr(by))
    if exact:
        check_exact(function, by, routes=False)
    try:
        lax.axis_size(over)
    except (NameError, TypeError, ValueError) as error:
        expected = "the name of an axis, inside of shard_map"
        raise InvalidProblem(function.name, "over", expected, repr(over)) from error
    rule = composed().get(function.name)
    if rule is not None:
        return rule(JAX, _Lookup(over), arguments)
    tensors = {n: t for n in function.tensors if hasattr(t := arguments[n], "shape")}
    others = {n: value for n, value in arguments.items() if n not in tensors}
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    axes = axes_of(function, shapes, others)
    alike = {n for n in tensors if axes is None or axes.along not in axes.arguments[n]}
    # What all devices have alike differs from here on, as far as types know: JAX sums gradients.
    if any(over in varying(tensor) for tensor in tensors.values()):
        tensors = {n: t if over in varying(t) else _spread(t, over) for n, t in tensors.items()}
    copied = by == "rows" and not has_own_indices(function)
    copied = copied and axes is not None and axes.along not in axes.result(0)
    results = _differentiable(function, (over, by, copied), exact, others, alike)(tensors)
    return results[0] if len(results) == 1 else results


class _Lookup:
    """Rows of a table that is in parts by rows."""

    def __init__(self, over: Any) -> None:
        self.over = over

    def __call__(self, table: Array, indices: Array, **options: Any) -> Array:
        return distributed.embedding(table, indices, over=self.over, **options)

    def rows(self, table: Array) -> int:
        return int(table.shape[0]) * int(lax.axis_size(self.over))


def part_of(function: Any, arguments: dict[str, Any], over: Any) -> Any:
    """One device's part of a call where XLA has partitioned it."""
    alike = _without_along(function, arguments)
    with jax.enable_x64(True):
        rank = JaxRank(over, jnp.int64, alike=alike)
        return form_of(function, False)(rank, function, arguments)[0]


def _without_along(function: Any, arguments: dict[str, Any]) -> frozenset[str]:
    """Tensors that all devices have alike."""
    tensors = {n: t for n in function.tensors if hasattr(t := arguments[n], "shape")}
    others = {n: value for n, value in arguments.items() if n not in tensors}
    axes = axes_of(function, {n: tuple(t.shape) for n, t in tensors.items()}, others)
    return frozenset(n for n in tensors if axes is None or axes.along not in axes.arguments[n])


def _spread(x: Array, name: Any) -> Array:
    return lax.pcast(x, (name,), to="varying") if hasattr(lax, "pcast") else lax.pvary(x, (name,))


def _differentiable(
    function: Any,
    place: tuple[Any, str, bool],
    exact: bool,
    others: dict[str, Any],
    alike: set[str],
) -> Any:
    over, by, copied = place
    index = jnp.int64 if jax.config.jax_enable_x64 else jnp.int32

    def run(function: Any, arguments: dict[str, Any]) -> Any:
        with jax.enable_x64(True):
            return form_of(function, exact)(JaxRank(over, index, by), function, arguments)

    def summed(gradient: Array) -> Array:
        """Of a result that all devices have alike, the gradient of all its copies."""
        return lax.psum(gradient, over) if copied else gradient

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def call(tensors: dict[str, Array]) -> Any:
        return run(function, {**others, **tensors})[0]

    def forward(tensors: dict[str, Array]) -> Any:
        arguments = {**others, **tensors}
        extra = recorded(function, arguments)
        results, kept = run(function, {**arguments, **extra})
        return results[:1] if extra else results, (tensors, results[1 if extra else 0], kept)

    def backward(saved: Any, gradients: Any) -> Any:
        tensors, result, kept = saved
        how = Gradient(function)
        given = how.arguments(summed(gradients[0]), result, {**others, **tensors})
        results, _ = run(how.function, {**given, "kept": kept})
        found = dict(zip(how.names({**others, **tensors}), results, strict=False))
        for name in alike & found.keys():  # once, since JAX sums over devices
            found[name] = jnp.where(lax.axis_index(over) == 0, found[name], 0)
        return ({name: found.get(name, jnp.zeros_like(x)) for name, x in tensors.items()},)

    call.defvjp(forward, backward)
    return call
