"""One adapter per array family, looked for only if its framework is already imported."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pullback.contract.element import FLOAT_NAMES, ElementKind, cast_of, describe, kind_of_dtype
from pullback.contract.errors import BufferTooSmall, MisalignedOperand, Unsupported
from pullback.internals.numpy import CAPSULE
from pullback.tensor.dlpack import from_dlpack
from pullback.tensor.layout import contiguous_strides, reach


@dataclass(frozen=True, slots=True)
class Facts:
    """All that validation and kernels need to know of an array."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element: ElementKind
    device: str
    writable: bool


@dataclass(frozen=True, slots=True)
class Adapter:
    """How one family of arrays is looked at.

    `key` is the cheap, hashable summary of everything but the address on which a validation
    depends; equal keys have equal facts, except for `address`."""

    family: str
    facts: Callable[[Any, str, str], Facts]
    key: Callable[[Any], tuple[Any, ...]]
    address: Callable[[Any], int]
    convert: Callable[[Any], Any] | None = None  # first, for what is looked at as something else


def _element(array: Any, op: str, argument: str) -> ElementKind:
    kind = kind_of_dtype(array.dtype)
    if kind is None:
        cast = cast_of(array, argument, "float32")
        raise Unsupported(
            op,
            argument,
            f"{FLOAT_NAMES} (or int32, int64 where it holds indices; {cast})",
            describe(array),
        )
    return kind


def _element_strides(
    byte_strides: tuple[int, ...], shape: tuple[int, ...], itemsize: int, op: str, argument: str
) -> tuple[int, ...]:
    if any(s % itemsize and n > 1 for s, n in zip(byte_strides, shape, strict=True)):
        raise MisalignedOperand(
            op, argument, f"strided in multiples of {itemsize} bytes", f"strides {byte_strides}"
        )
    return tuple(stride // itemsize for stride in byte_strides)


# --- NumPy ----------------------------------------------------------------------------------


def _data_offset() -> int | None:
    """Where CPython's ndarray object keeps its data pointer: reading it there costs a fifth of
    `array.ctypes.data`. None where this interpreter lays objects out differently."""
    probe = np.empty(3)
    offset = object.__basicsize__
    for array in (probe, probe[1:], np.empty((2, 2), np.float32)):
        if ctypes.c_size_t.from_address(id(array) + offset).value != array.ctypes.data:
            return None
    return offset


_OFFSET = _data_offset() if sys.implementation.name == "cpython" else None
_WORD_AT = ctypes.c_size_t.from_address


def _fast_address(array: Any) -> int:
    return _WORD_AT(id(array) + _OFFSET).value  # type: ignore[operator]


def _plain_address(array: Any) -> int:
    return int(array.ctypes.data)


numpy_address: Callable[[Any], int] = _plain_address if _OFFSET is None else _fast_address


def _numpy_key(array: Any) -> tuple[Any, ...]:
    return array.shape, array.strides, array.dtype, array.flags.writeable


# Arrays with owners of these types cannot reach beyond them: NumPy itself checked, or the library
# that made them. The exception is what `as_strided` makes, whose owner is a stand-in: the owner of
# the owner of any view of it. The same for native code: their identities, and zeros.
SAFE_OWNERS: set[type] = set()
OWNERS: Final = (ctypes.c_int64 * 32)()


def _trust(*kinds: type) -> None:
    for kind in kinds:
        if kind not in SAFE_OWNERS and len(SAFE_OWNERS) + 1 < len(OWNERS):
            OWNERS[len(SAFE_OWNERS)] = id(kind)
            SAFE_OWNERS.add(kind)


_trust(np.ndarray, type(None), bytes, bytearray, memoryview, mmap.mmap, CAPSULE)


def is_inside_owner(array: Any) -> bool:
    """Whether the types of its owners say that an array keeps to their memory."""
    kind = type(array.base)
    return kind in SAFE_OWNERS and (kind is not np.ndarray or type(array.base.base) in SAFE_OWNERS)


def check_inside_owner(array: Any, op: str, argument: str) -> None:
    """A view made with strange strides may reach beyond the array it was made from."""
    owner, link = None, array.base
    outer = link.base if type(link) is np.ndarray else link
    if family_of(outer) in (TORCH, JAX):
        _trust(type(outer))
        return
    while link is not None:  # to the last array: what it was made from in turn, NumPy checked
        owner = link if isinstance(link, np.ndarray) else owner
        link = getattr(link, "base", None)
    if owner is None:
        return
    low, high = np.lib.array_utils.byte_bounds(array)
    owner_low, owner_high = np.lib.array_utils.byte_bounds(owner)
    if array.size and not (owner_low <= low and high <= owner_high):
        raise BufferTooSmall(
            op, argument, max(high, owner_high) - min(low, owner_low), owner.nbytes
        )


def _numpy_facts(array: Any, op: str, argument: str) -> Facts:
    element = _element(array, op, argument)
    strides = _element_strides(array.strides, array.shape, array.itemsize, op, argument)
    if not is_inside_owner(array):
        check_inside_owner(array, op, argument)
    return Facts(
        numpy_address(array), array.shape, strides, element, "cpu", bool(array.flags.writeable)
    )


NUMPY = Adapter("numpy", _numpy_facts, _numpy_key, numpy_address)


# --- PyTorch --------------------------------------------------------------------------------


def _torch_key(tensor: Any) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.is_neg()


def _torch_address(tensor: Any) -> int:
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    if fake is not None and isinstance(tensor, fake.FakeTensor):  # which warns that it has none
        return 0
    try:
        return int(tensor.data_ptr())
    except RuntimeError:  # a tensor that torch traces: it has a shape and no memory
        return 0


def check_dense(value: Any, op: str, argument: str) -> None:
    """A nested tensor has no shape to ask for."""
    if getattr(value, "is_nested", False):
        raise Unsupported(op, argument, "a dense (strided) tensor", "a nested tensor")


def torch_reach(tensor: Any) -> int:
    """Bytes from the first element of a tensor to the end of its last."""
    return reach(tensor.shape, tensor.stride())[1] * int(tensor.itemsize)


def torch_address(tensor: Any, needed: int | None = None) -> int:
    """Where a tensor begins; 0 if its storage has fewer bytes from there on than shape and strides
    reach: `untyped_storage().resize_` shortens it under the tensors made of it."""
    needed = torch_reach(tensor) if needed is None else needed
    address, storage = int(tensor.data_ptr()), tensor.untyped_storage()
    inside = 0 <= address - storage.data_ptr() <= storage.nbytes() - needed
    return address if inside or not needed else 0


def check_storage(tensor: Any, address: int, high: int, op: str, argument: str) -> None:
    """Whether the storage of a tensor holds the memory from an address to `high`."""
    storage = tensor.untyped_storage()
    begin, size = storage.data_ptr(), storage.nbytes()
    if high > address and not begin <= address <= high <= begin + size:
        inside = begin <= address <= begin + size  # else it is elsewhere by now
        raise BufferTooSmall(op, argument, high - (begin if inside else address), size)


def _torch_facts(tensor: Any, op: str, argument: str) -> Facts:
    element = _element(tensor, op, argument)
    if str(tensor.layout) != "torch.strided":
        raise Unsupported(op, argument, "a dense (strided) tensor", f"layout {tensor.layout}")
    if is_traced(tensor):  # the trace would keep this tensor as a constant
        expected = "outside of torch.jit.trace (functions of tensors can be traced)"
        raise Unsupported(op, argument, expected, "a tensor that is traced")
    if tensor.is_neg():
        raise Unsupported(op, argument, "in memory as it is (x.resolve_neg())", "a negative view")
    address = _torch_address(tensor)
    if address:
        check_storage(tensor, address, address + torch_reach(tensor), op, argument)
    return Facts(
        address,
        tuple(tensor.shape),
        tensor.stride(),
        element,
        str(tensor.device),
        True,
    )


TORCH = Adapter("torch", _torch_facts, _torch_key, torch_address)


# --- everything else is looked at through NumPy -------------------------------------------------


def _through_numpy(convert: Callable[[Any], Any], family: str) -> Adapter:
    return Adapter(family, _numpy_facts, _numpy_key, numpy_address, convert)


def _scalar(value: Any) -> Any:
    """A NumPy scalar, which nothing can write to, as the array of rank 0 that it is."""
    array = np.asarray(value)
    array.flags.writeable = False
    return array


SCALAR = _through_numpy(_scalar, "numpy")
JAX = _through_numpy(np.asarray, "jax")
DLPACK = _through_numpy(from_dlpack, "numpy")


def _traced_facts(value: Any, op: str, argument: str) -> Facts:
    """What JAX knows of an array while it traces: all but the memory, which will be row-major."""
    shape = tuple(value.shape)
    element = _element(value, op, argument)
    return Facts(0, shape, contiguous_strides(shape), element, "cpu", True)


def _traced_address(value: Any) -> int:
    raise Unsupported(
        "plan", "array", "in memory (functions, not plans, can be traced)", repr(value)
    )


TRACED = Adapter("jax", _traced_facts, lambda value: (value.shape, value.dtype), _traced_address)


def is_traced(array: Any) -> bool:
    """Whether what an array holds must not be looked at, because a program is made of what is done
    to it: JAX has nothing there, torch.jit.trace would keep what it has for all later inputs."""
    adapter = family_of(array)
    return adapter is TRACED or (adapter is TORCH and bool(sys.modules["torch"]._C._is_tracing()))


def overrides(value: Any) -> bool:
    """Whether this stands for a tensor, is none, and says itself what a call on it means: proxies
    of torch.fx do."""
    return hasattr(type(value), "__torch_function__") and family_of(value) is None


def _foreign(kind: type) -> Adapter | None:
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and issubclass(kind, torch.Tensor):
        return TORCH
    if jax is not None and issubclass(kind, jax.Array):
        return JAX
    if jax is not None and issubclass(kind, jax.core.Tracer | jax.ShapeDtypeStruct):
        return TRACED
    return DLPACK if hasattr(kind, "__dlpack__") else None


_KNOWN: dict[type, Adapter] = {np.ndarray: NUMPY}


# Types of values that are never arrays, which saves looking.
PLAIN = frozenset((bool, int, float, str, type(None)))


def family_of(array: Any) -> Adapter | None:
    """The adapter of an array, or None for a value that is not an array."""
    kind = type(array)
    adapter = _KNOWN.get(kind)
    if adapter is None and kind not in PLAIN:
        if issubclass(kind, np.ma.MaskedArray):
            return None  # kernels would look behind the mask
        if issubclass(kind, np.ndarray):
            adapter = NUMPY
        elif issubclass(kind, np.generic):
            adapter = SCALAR
        else:
            adapter = _foreign(kind)
        if adapter is not None:
            _KNOWN[kind] = adapter
    return adapter


def adapter_of(array: Any, op: str, argument: str) -> Adapter:
    adapter = family_of(array)
    if adapter is None:
        raise Unsupported(
            op,
            argument,
            "a NumPy array, a torch tensor, a JAX array or anything with __dlpack__",
            f"a {type(array).__name__}",
        )
    if adapter is TORCH:
        check_dense(array, op, argument)
    return adapter
