"""The functions on JAX arrays, traced or not.

Arrays in hand go through one compiled call per function and set of options; tracers meet the
primitive itself, and with it whatever JAX is about to do: jit, grad, vmap, shard_map.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax import numpy as jnp

from pullback.arrival import after_import
from pullback.contract.element import INDICES, describe, kind_of_dtype
from pullback.contract.errors import PullbackError, Unsupported
from pullback.frontends import jax_entry
from pullback.frontends.jax_primitive import call_p
from pullback.frontends.jax_site import Origin, Site, typed
from pullback.frontends.jax_target import failure_behind, register
from pullback.plan.function import Function
from pullback.plan.plan import remember
from pullback.tensor.adapters import PLAIN, family_of

Array = Any
canonical = jax.dtypes.canonicalize_dtype

_CALLS: dict[Any, Compiled] = {}


def call(function: Function, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> Any:
    """Run `function` on JAX arrays."""
    if out is not None:
        raise Unsupported(function.name, "out", "None, since JAX arrays are immutable", "an array")
    arrays: list[Array] = []
    key = (
        function,
        *[_part(value, arrays) for value in args],
        *[(name, _part(value, arrays)) for name, value in options.items()],
    )
    try:
        compiled = _CALLS.get(key)
    except (TypeError, ValueError):  # an unhashable argument, which the function names
        _site(function, args, options).call(arrays)
        raise
    if compiled is None:
        compiled = remember(_CALLS, key, _compiled(_site(function, args, options)))
    arrays = [_joined(array) if isinstance(array, np.ndarray) else array for array in arrays]
    for array in arrays:
        if isinstance(array, jax.core.Tracer):
            results = call_p.bind(*_varying_alike(arrays), site=compiled.site)
            break
    else:
        results = compiled(*arrays)
    return results[0] if len(results) == 1 else tuple(results)


def _part(value: Any, arrays: list[Array]) -> Any:
    """A value's part of a key; arrays are set aside, and the tables of a bundle."""
    if type(value) in PLAIN:
        return typed(value)
    adapter = family_of(value)
    if adapter is not None and not isinstance(value, np.generic):
        arrays.append(value)
        return (adapter.family, value.dtype) if isinstance(value, np.ndarray) else adapter.family
    if hasattr(value, "bundle"):
        arrays += _tables(value).values()
    return typed(value)


def _site(function: Function, args: tuple[Any, ...], options: dict[str, Any]) -> Site:
    others = function.bind(args, options)
    given = dict(zip(function.parameters, args, strict=False), **options)
    operands: list[Origin] = []
    for name, value in given.items():
        adapter = family_of(value)
        # A NumPy scalar is a number, like Python's.
        if adapter is not None and not isinstance(value, np.generic):
            if adapter.family != "jax" and not _may_join(value):
                expected = "a jax array, as the others"
                raise Unsupported(function.name, name, expected, describe(value))
            operands.append((name, None))
            del others[name]
        elif hasattr(value, "bundle"):
            tables = _tables(value)
            operands += [(name, part) for part in tables]
            models = {part: jax.ShapeDtypeStruct(t.shape, t.dtype) for part, t in tables.items()}
            others[name] = replace(value, **models)
    return Site(function, tuple(operands), others)


def _may_join(value: Any) -> bool:
    """A NumPy array among JAX arrays is one of them, if it need not be cast for that; indices are
    whatever integers JAX has."""
    kind = kind_of_dtype(value.dtype) if isinstance(value, np.ndarray) else None
    return kind is not None and (kind in INDICES or canonical(value.dtype) == value.dtype)


def _joined(array: Array) -> Array:
    """A NumPy array as JAX's. An id outside of JAX's integers must not wrap into range."""
    if array.dtype.kind == "i" and canonical(array.dtype) != array.dtype:
        limits = np.iinfo(canonical(array.dtype))
        array = np.clip(array, limits.min, limits.max)
    return jnp.asarray(array)


_TABLES: WeakKeyDictionary[Any, dict[tuple[str, bool], Array]] = WeakKeyDictionary()


def _tables(bundle: Any) -> dict[str, Array]:
    """The arrays of a bundle, on JAX's side; they get there once."""
    known, wide = _TABLES.setdefault(bundle, {}), jax.config.jax_enable_x64
    found = {}
    for part, table in bundle.bundle.items():
        if table is None:
            continue
        if isinstance(table, np.ndarray):
            if (part, wide) not in known:
                with jax.ensure_compile_time_eval():  # not a value of whatever is traced now
                    known[part, wide] = _joined(table)
            table = known[part, wide]
        found[part] = table
    return found


def _varying_alike(arrays: list[Array]) -> list[Array]:
    """Inside shard_map: operands that are the same on all devices join those that are not."""
    axes = [_varying(array) for array in arrays]
    union = frozenset().union(*axes)
    return [
        jax.lax.pcast(array, tuple(union - own), to="varying") if union - own else array
        for array, own in zip(arrays, axes, strict=True)
    ]


def _varying(array: Array) -> frozenset[str]:
    kind = getattr(jax.typeof(array), "manual_axis_type", None)
    return getattr(kind, "varying", frozenset())


# --- arrays in hand -------------------------------------------------------------------------------


class Compiled:
    """A call compiled by JAX, with its failures raised as the errors they are."""

    def __init__(self, site: Site) -> None:
        self.site, self._fallible = site, False
        self._jitted = jax.jit(self._trace)

    def _trace(self, *arrays: Array) -> list[Array]:
        record = self.site.call(arrays).plan.record
        self._fallible = bool(record.failures)
        return call_p.bind(*arrays, site=self.site)  # type: ignore[no-any-return]

    def __call__(self, *arrays: Array) -> Sequence[Array]:
        if jax.config.jax_disable_jit:
            with jax.disable_jit(False):
                return self(*arrays)
        try:
            results: Sequence[Array] = self._jitted(*arrays)
            # JAX does not wait for results. What may fail has to: the error belongs to this call,
            # unless that is part of something larger, as constants in the body of a loop are.
            if self._fallible and not isinstance(results[0], jax.core.Tracer):
                results[0].block_until_ready()
            return results
        except (jax.errors.JaxRuntimeError, ValueError) as error:  # the latter from the second on
            ours = failure_behind(error)
            if ours is None or isinstance(error, PullbackError):
                raise
            raise copy(ours) from None


@lru_cache(maxsize=4096)
def _compiled(site: Site) -> Compiled:
    return Compiled(site)


def _call(*arrays: Array, site: Site) -> Sequence[Array]:
    return _compiled(site)(*arrays)


call_p.def_impl(_call)

# From here on XLA can run executables with our calls in them, also those it loads from disk.
register()
jax_entry.register()
after_import("jax.experimental.jet", partial(import_module, "pullback.frontends.jax_jet"))
