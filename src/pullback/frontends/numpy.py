"""The functions on NumPy arrays, and on anything that is looked at through NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.contract.errors import BufferTooSmall
from pullback.frontends.ready import Ready, prepare
from pullback.plan.function import Function
from pullback.plan.plan import remember
from pullback.tensor.adapters import (
    NUMPY,
    SAFE_OWNERS,
    check_inside_owner,
    family_of,
    numpy_address,
)
from pullback.tensor.recycle import empty
from pullback.tensor.view import TensorSpec

_READY: dict[Any, Ready] = {}


def call(function: Function, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> Any:
    """Run `function` on NumPy arrays (or anything seen through NumPy)."""
    key = _key(function, args, options, out)
    try:
        ready = _READY.get(key)
    except TypeError:  # an unhashable argument: binding names it
        ready = None
    if ready is None:
        ready = remember(_READY, key, prepare(function, args, options, out, _layout))
    return ready.run(args, options, out, _look, empty)


def _layout(spec: TensorSpec) -> tuple[Any, ...]:
    return spec.shape, spec.element.dtype


def _look(array: Any) -> tuple[Any, int]:
    if type(array) is not np.ndarray:
        adapter = family_of(array)
        if adapter is not None and adapter.convert is not None:
            array = adapter.convert(array)
    return array, numpy_address(array)


def _key(function: Function, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> Any:
    parts: list[Any] = [function.name, *map(_summary, args)]
    for name, value in options.items():
        parts.append(name)
        parts.append(_summary(value))
    if out is not None:
        outs = out if type(out) is tuple else (out,)
        parts.append("out")
        parts.extend(_summary(array) for array in outs)
    return tuple(parts)


def _summary(value: Any) -> Any:
    if type(value) is np.ndarray:
        if type(value.base) not in SAFE_OWNERS and not _is_inside(value):
            return object()  # equal to nothing, so that it is validated, and refused, every time
        return value.shape, value.strides, value.dtype, value.flags.writeable
    bundle = getattr(value, "bundle_key", None)
    if bundle is not None:
        return bundle
    adapter = family_of(value)
    if adapter is None:
        return type(value), value
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
