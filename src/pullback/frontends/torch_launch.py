"""Plain CPU tensors straight to the kernel: keys, addresses, fresh tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch

from pullback.contract.element import TABLE
from pullback.contract.errors import BufferTooSmall, Unsupported
from pullback.contract.settings import SAFE
from pullback.cpu.buffer_pool import OutputAllocator
from pullback.cpu.dispatch_guard import DispatchGuard
from pullback.cpu.headers import DESCRIBERS, Describer
from pullback.frontends.prepared import PreparedCall, prepare_call
from pullback.internals.cpython import capsule_address
from pullback.internals.torch import empty_strided, plain_call_conditions
from pullback.plan.function import Function
from pullback.plan.plan import exact, remember
from pullback.plan.public import CACHEABLE
from pullback.tensor.adapters import PLAIN as VALUES
from pullback.tensor.adapters import numpy_address, overrides, torch_address
from pullback.tensor.layout import contiguous_strides
from pullback.tensor.view import TensorSpec

DTYPES = {kind: getattr(torch, row.long_name) for kind, row in TABLE.items()}
PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer))

# What a look at the arguments finds: nothing to record, a gradient, no plain CPU tensors, or what
# stands for a tensor and says itself what becomes of a call (`__torch_function__`).
NO_GRAD, NEEDS_GRAD, FOREIGN, OVERRIDDEN = 0, 1, 2, 4

# From here on (measured) memory used before beats what the C library has at hand.
_LARGE = 1 << 23
_BYTES = np.dtype(np.uint8)


class Entry:
    """What is known of a call by its key; all but `prepared` when a gradient is first recorded."""

    __slots__ = ("autograd", "look", "places", "prepared")

    def __init__(self, prepared: PreparedCall) -> None:
        self.prepared = prepared
        self.look = _part_address if prepared.takes_parts else _address
        self.autograd: Any = None
        self.places: Any = None


_ENTRIES: dict[Any, Entry] = {}


def summarise(values: Iterable[Any], key: list[Any]) -> int:
    """Add to a key everything but addresses, and say what kind of values these are. A RuntimeError
    of torch's for a tensor that is not dense, or a wrapper left over from a transform."""
    state = NO_GRAD
    for value in values:
        if type(value) in PLAIN:
            if not value.is_cpu or value.is_neg():
                return FOREIGN
            if not value.data_ptr() and value.numel():  # which raises for other wrappers
                return FOREIGN
            key += (type(value), value.shape, value.stride(), value.dtype)
            if value.requires_grad:
                state = NEEDS_GRAD
        elif isinstance(value, torch.Tensor):
            return FOREIGN
        elif type(value) not in VALUES and overrides(value):
            return OVERRIDDEN
        else:
            key += (type(value), getattr(value, "bundle_key", exact(value)))
    return state


def key_of(
    function: Function, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[list[Any], int]:
    """The key of a call, and what kind of values it has."""
    key: list[Any] = [function]
    state = summarise(args, key)
    if options:
        key.extend(options)
        state |= summarise(options.values(), key)
    return key, state


def entry_of(
    key: list[Any], function: Function, args: tuple[Any, ...], options: dict[str, Any], out: Any
) -> Entry:
    """The entry of a call, made and validated if it is new."""
    found = tuple(key)
    try:
        entry = _ENTRIES.get(found)
    except (TypeError, ValueError):  # an unhashable argument: binding names it
        entry = None
    if entry is None:
        prepared = prepare_call(function, args, options, out, _allocator_of)
        entry = remember(_ENTRIES, found, Entry(prepared))
    return entry


def launch(function: Function, *args: Any, **options: Any) -> Any:
    """Run on CPU tensors and record nothing: the kernel of the registered ops."""
    given = {name: _plain(value) for name, value in function.bind(args, options).items()}
    args, options = function.as_called(given)
    key, state = key_of(function, args, options)
    if state >= FOREIGN:
        for name, value in given.items():
            tensor = isinstance(value, torch.Tensor) and value.is_cpu and value.numel()
            if tensor and not value.data_ptr():
                raise BufferTooSmall(function.name, name, value.nbytes, 0)
        raise Unsupported(function.name, "arguments", "dense tensors on the cpu", "others")
    entry = entry_of(key, function, args, options, None)
    result = entry.prepared.run(args, options, None, entry.look)
    if "accumulate_into" not in options:
        insert(entry, function, args, options)
    return result


def _plain(value: Any) -> Any:
    """A tensor of a subclass as the tensor it is: only then does a key describe it."""
    if isinstance(value, torch.Tensor) and type(value) not in PLAIN:
        return value.as_subclass(torch.Tensor)
    return value


def _part_address(array: Any, needed: int) -> int:
    """The address of a tensor, or of an array that is part of a SegmentIndex."""
    return numpy_address(array) if type(array) is np.ndarray else _address(array, needed)


def _slow_address(tensor: Any, needed: int) -> int:
    """The address of a tensor, where native code cannot look."""
    return 0 if tensor is None else torch_address(tensor, needed)


def _allocator_of(spec: TensorSpec) -> Callable[[], torch.Tensor]:
    """What makes fresh contiguous tensors that own their memory."""
    shape, dtype = tuple(map(int, spec.shape)), DTYPES[spec.element]
    strides, size = contiguous_strides(shape), prod(shape) * spec.element.itemsize
    if size < _LARGE:
        return partial(empty_strided, shape, strides, dtype)

    pooled = OutputAllocator((size,), _BYTES)

    def large() -> torch.Tensor:
        storage = torch.frombuffer(pooled(), dtype=torch.uint8).untyped_storage()
        return torch.empty(0, dtype=dtype).set_(storage, 0, shape, strides)

    return large


# --- call caches --------------------------------------------------------------------------------

# In a DLPackExchangeAPI: version, an older table, an allocator, from and to a managed tensor, then
# what describes a tensor.
_DESCRIBE = 8 * 5

_LOOK_AT = 8  # words of a tensor and of a storage, which both are longer

_address: Callable[[Any, int], int] = _slow_address


def _places(address: int, words: int, value: int) -> set[int]:
    """The words from an address on that hold this value."""
    found = (ctypes.c_int64 * words).from_address(address)
    return {place for place, word in enumerate(found) if word == value}


def storage_words() -> tuple[int, int, int, int] | None:
    """Where this torch keeps the storage of a tensor, see headers.py: the words that hold in all of
    these tensors what torch says of them. None if there are none, or several that agree.

    Looked at in a thread of its own: modes and transforms belong to a thread, and one that is
    active in the first call of a process would make these tensors, too."""
    try:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_storage_words).result()
    except RuntimeError:  # no thread can be started
        return None


def _storage_words() -> tuple[int, int, int, int] | None:
    buffer = torch.frombuffer(bytearray(1111), dtype=torch.uint8)
    resized = torch.empty(700, dtype=torch.float64)
    resized.untyped_storage().resize_(1234)
    graded = torch.ones(5, requires_grad=True)
    many = torch.empty(37, 41)
    probes = [buffer, buffer[7:30], resized, graded, torch.nn.Parameter(many), many.T[3:, 2:]]
    objects = torch.Tensor.__basicsize__ // 8
    found: list[set[int]] = []
    for tensor in probes:
        body, storage = tensor._cdata, tensor.untyped_storage()
        seen = (
            _places(id(tensor), objects, body),
            _places(body, _LOOK_AT, storage._cdata),
            _places(storage._cdata, _LOOK_AT, storage.data_ptr()),
            _places(storage._cdata, _LOOK_AT, storage.nbytes()),
        )
        found = [a & b for a, b in zip(found, seen, strict=True)] if found else list(seen)
    if any(len(places) != 1 for places in found):
        return None
    body, owner, memory, size = (places.pop() for places in found)
    return body, owner, memory, size


def _dispatch_guard() -> DispatchGuard | None:
    """Have call caches hold plain tensors, where this torch describes them to native code."""
    global _address
    if SAFE:
        return None
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    storage, conditions = storage_words(), plain_call_conditions()
    if capsule is None or storage is None or conditions is None:
        return None
    api = capsule_address(capsule, b"dlpack_exchange_api")
    major = ctypes.c_uint32.from_address(api).value
    describe = ctypes.c_int64.from_address(api + _DESCRIBE).value
    if major != 1 or not describe:
        return None
    describer = Describer(describe, storage)
    DESCRIBERS.update(dict.fromkeys(PLAIN, describer))
    _address = describer.address_in_storage
    CACHEABLE.update(PLAIN)
    return DispatchGuard(
        torch.Tensor.is_neg,
        "requires_grad",
        torch.is_grad_enabled,
        *conditions,
    )


_GUARD = _dispatch_guard()


def insert(
    entry: Entry,
    function: Function,
    args: tuple[Any, ...],
    options: dict[str, Any],
    out: Any = None,
    written: Callable[[Any], Any] | None = None,
) -> Any:
    """Insert a call that writes to none of its arguments but `out` into the function's cache;
    `written` is called with that whenever it was written."""
    if _GUARD is None:
        return None
    values = (*function.values(args, options), out)
    return entry.prepared.insert(function, values, _GUARD, None if out is None else written)
