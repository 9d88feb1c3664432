"""A call without its arrays: what JAX keeps of it while it transforms a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import jax
from jax import numpy as jnp

from pullback.contract.errors import Unsupported
from pullback.ops.calculus import Calculus, asked
from pullback.plan.function import Call, Function
from pullback.plan.plan import exact
from pullback.plan.stream import Stream
from pullback.tensor.adapters import PLAIN

Array = Any

# Where an array stands among the arguments: a name, and a part's name if that one is a bundle.
Origin = tuple[str, str | None]


def _linked(value: Array, function: Callable[[Array], Array], x: Array) -> Array:
    """`value`, with the derivative of function at x."""

    @jax.custom_jvp  # type: ignore[untyped-decorator]
    def linked(x: Array, value: Array) -> Array:
        return value

    @linked.defjvp  # type: ignore[untyped-decorator]
    def _(primals: Any, tangents: Any) -> Any:
        return primals[1], jax.jvp(function, primals[:1], tangents[:1])[1]

    return linked(x, value)


def _add_along_axis(x: Array, indices: Array, axis: int) -> Array:
    rows, places = jnp.moveaxis(x, axis, 0), jnp.moveaxis(indices, axis, 0)
    others = jnp.indices(rows.shape, sparse=True)[1:]
    return jnp.moveaxis(jnp.zeros_like(rows).at[(places, *others)].add(rows), 0, axis)


def _pieces(offsets: Array, n: int) -> Array:
    return jnp.searchsorted(offsets[1:], jnp.arange(n, dtype=offsets.dtype), side="right")


ARRAYS = SimpleNamespace(
    exp=jnp.exp,
    expm1=jnp.expm1,
    log=jnp.log,
    sqrt=jnp.sqrt,
    where=jnp.where,
    sum=lambda x, axis, keepdims: jnp.sum(x, axis, keepdims=keepdims),
    full_like=jnp.full_like,
    broadcast_to=jnp.broadcast_to,
    concatenate=jnp.concatenate,
    moveaxis=jnp.moveaxis,
    take=jnp.take,
    take_along_axis=jnp.take_along_axis,
    add_along_axis=_add_along_axis,
    arange=lambda n, like: jnp.arange(n),
    pieces=_pieces,
    argsort=jnp.argsort,
    ids=lambda ids: getattr(ids, "ids", ids),
    constant=jax.lax.stop_gradient,
    linked=_linked,
)


def typed(value: Any) -> Any:
    """A value as part of a key: 1, 1.0 and True differ there, as do the two zeros."""
    kind = type(value)
    if kind in PLAIN:
        return kind, exact(value)
    return getattr(value, "bundle_key", (kind, value))


@dataclass(frozen=True)
class Site:
    """The function, which arguments are arrays, and the others. A bundle stands among the others
    as a model of itself; its parts are arrays."""

    function: Function
    operands: tuple[Origin, ...]
    others: Mapping[str, Any] = field(compare=False)
    key: tuple[Any, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        key = tuple((name, typed(value)) for name, value in self.others.items())
        object.__setattr__(self, "key", key)

    def __repr__(self) -> str:
        return self.function.name

    @property
    def calculus(self) -> Calculus:
        return self.function.calculus  # type: ignore[no-any-return]

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that are no tensors."""
        tensors = self.function.tensors
        return {name: value for name, value in self.others.items() if name not in tensors}

    def given(self, **options: Any) -> Site:
        """The same call under other options."""
        return replace(self, others={**self.others, **options})

    def is_float(self, origin: Origin) -> bool:
        """Whether it may be one: "either" is decided by the call."""
        return origin[0] not in self.function.indices

    def may_index(self, origin: Origin) -> bool:
        return origin[0] in self.function.indices | self.function.either

    def arguments(self, arrays: Mapping[Origin, Array]) -> dict[str, Any]:
        """The arguments by name, with these arrays in their places."""
        named, parts = dict(self.others), dict[str, dict[str, Array]]()
        for (name, part), array in arrays.items():
            if part is None:
                named[name] = array
            else:
                parts.setdefault(name, {})[part] = array
        for name, bundle in parts.items():
            named[name] = replace(self.others[name], **bundle)
        return named

    def call(self, arrays: Sequence[Any]) -> Call:
        """What the function asks of a plan, for arrays of which only shape and dtype matter."""
        for (name, _), array in zip(self.operands, arrays, strict=True):
            if not all(isinstance(extent, int) for extent in array.shape):
                expected = "of a fixed shape, which kernels are laid out for (export one by one)"
                raise Unsupported(self.function.name, name, expected, f"shape {array.shape}")
        types = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
        named = self.arguments(dict(zip(self.operands, types, strict=True)))
        call = self.function.body(**self.function.views(named))
        call.select(self.function.name, Stream.cpu())  # a bad descriptor is found while tracing
        return call

    def apply(
        self,
        rule: Callable[..., Any] | None,
        *leading: Any,
        arrays: Mapping[Origin, Array],
        **more: Any,
    ) -> Any:
        """Call a rule of the calculus with what it asks for by name."""
        assert rule is not None
        # JAX lets NumPy arrays through as tangents and cotangents; to us they are another family.
        leading, arrays = jax.tree.map(jnp.asarray, (leading, dict(arrays)))
        available = {**self.arguments(arrays), "options": self.options, **more}
        return rule(ARRAYS, *leading, **{name: available.get(name) for name in asked(rule)})
