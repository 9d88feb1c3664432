"""The functions on NumPy arrays, and on anything that is looked at through NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.contract.errors import BufferTooSmall
from pullback.cpu.buffer_pool import OutputAllocator
from pullback.frontends.prepared import PreparedCall, prepare_call
from pullback.plan.function import FRONT_ENDS, Function
from pullback.plan.plan import exact, remember
from pullback.tensor.adapters import (
    JAX,
    NUMPY,
    TRACED,
    check_inside_owner,
    family_of,
    is_inside_owner,
    numpy_address,
)
from pullback.tensor.view import TensorSpec

_PREPARED: dict[Any, PreparedCall] = {}


def call(function: Function, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> Any:
    """Run `function` on NumPy arrays (or anything seen through NumPy), and insert the call into its
    cache, which repeats the next one like it."""
    key = _key(function, args, options, out)
    try:
        prepared = _PREPARED.get(key)
    except (TypeError, ValueError):  # an unhashable argument: binding names it
        prepared = None
    if prepared is None and any(family_of(v) in (JAX, TRACED) for v in (*args, *options.values())):
        return FRONT_ENDS["jax"]()(function, args, options, out)  # NumPy arrays among JAX's
    if prepared is None:
        prepared = remember(
            _PREPARED, key, prepare_call(function, args, options, out, _allocator_of)
        )
    seen = {name: _seen(value) for name, value in options.items()}
    into = tuple(map(_seen, out)) if type(out) is tuple else _seen(out)
    result = prepared.run(tuple(map(_seen, args)), seen, into, _address)
    prepared.insert(function, (*function.values(args, options), out))
    return result if out is None else out


def _allocator_of(spec: TensorSpec) -> Callable[[], Any]:
    return OutputAllocator(spec.shape, spec.element.dtype)


def _address(array: Any, _: int) -> int:
    return 0 if array is None else numpy_address(array)


def _seen(value: Any) -> Any:
    """An array of another library as NumPy sees it."""
    adapter = None if type(value) is np.ndarray else family_of(value)
    return value if adapter is None or adapter.convert is None else adapter.convert(value)


def _key(function: Function, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> Any:
    parts: list[Any] = [function, *map(_summary, args)]
    for name, value in options.items():
        parts.append(name)
        parts.append(_summary(value))
    if out is not None:
        outs = out if type(out) is tuple else (out,)
        parts.append(("out", type(out) is tuple))
        parts.extend(_summary(array) for array in outs)
    return tuple(parts)


def _summary(value: Any) -> Any:
    if type(value) is np.ndarray:
        if not (is_inside_owner(value) or _is_inside(value)):
            return object()  # equal to nothing, so that it is validated, and refused, every time
        return value.shape, value.strides, value.dtype, value.flags.writeable
    bundle = getattr(value, "bundle_key", None)
    if bundle is not None:
        return bundle
    adapter = family_of(value)
    if adapter is None or isinstance(value, np.generic):  # which may be an option
        return type(value), exact(value)
    if adapter.convert is not None:
        return type(value), NUMPY.key(adapter.convert(value))
    return adapter.key(value)


def _is_inside(array: Any) -> bool:
    """Whether a view keeps to the array it was made from."""
    try:
        check_inside_owner(array, "", "")
    except BufferTooSmall:
        return False
    return True
