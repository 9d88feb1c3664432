"""Borrowed views of foreign arrays: shape, element strides, element, device, address. Zero copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.contract.element import ElementKind
from pullback.contract.errors import InvalidProblem, MisalignedOperand, Unsupported
from pullback.tensor.adapters import adapter_of
from pullback.tensor.layout import overlaps_itself, reach


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What is known of a tensor before there is memory for it."""

    shape: tuple[int, ...]
    element: ElementKind


class TensorRef:
    """A read-only view of an array that somebody else owns, and that it keeps alive."""

    __slots__ = (
        "address",
        "array",
        "device",
        "element",
        "extents",
        "family",
        "offset",
        "origin",
        "shape",
        "strides",
        "writable",
    )

    def __init__(self, array: Any, *, op: str = "TensorRef", argument: str = "array") -> None:
        if isinstance(array, TensorRef):
            for name in TensorRef.__slots__:
                setattr(self, name, getattr(array, name))
            return
        adapter = adapter_of(array, op, argument)
        if adapter.convert is not None:
            array = adapter.convert(array)
        facts = adapter.facts(array, op, argument)
        size = facts.element.itemsize
        if facts.address % size and 0 not in facts.shape:
            raise MisalignedOperand(
                op, argument, f"at a multiple of {size} bytes", f"address {facts.address:#x}"
            )
        self.array = array
        self.address: int = facts.address
        self.shape: tuple[int, ...] = facts.shape
        self.strides: tuple[int, ...] = facts.strides
        # The shape that the strides belong to; another one than `shape` in a folded view.
        self.extents = facts.shape
        self.element: ElementKind = facts.element
        self.device: str = facts.device
        self.writable: bool = facts.writable
        self.family = adapter.family
        # Where a function's argument came from, so that a repeated call finds its address again.
        self.origin: Any = None
        self.offset = 0

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def relaid(
        self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0
    ) -> TensorRef:
        """The same memory under another shape and strides, starting `offset` elements further."""
        view = TensorRef(self)
        view.shape, view.extents, view.strides = shape, shape, strides
        view.offset = self.offset + offset * self.element.itemsize
        view.address = self.address + offset * self.element.itemsize
        return view

    def broadcast_to(self, shape: tuple[int, ...]) -> TensorRef:
        """The same memory, repeated by strides of zero; `shape` must be one it broadcasts to."""
        missing = len(shape) - len(self.shape)
        strides = (0,) * missing + tuple(
            0 if extent == 1 else stride
            for extent, stride in zip(self.shape, self.strides, strict=True)
        )
        return self.relaid(shape, strides)

    def axis_first(self, axis: int) -> TensorRef:
        """The same memory with one axis before all others."""
        order = (axis, *(k for k in range(len(self.shape)) if k != axis))
        return self.relaid(
            tuple(self.shape[k] for k in order), tuple(self.strides[k] for k in order)
        )

    def folded(self, shape: tuple[int, ...]) -> TensorRef:
        """The same memory, announced under a shape with as many elements in the same order: for
        plans of fixed rank, whose kernels walk the true extents."""
        view = TensorRef(self)
        view.shape = shape
        return view

    def bounds(self) -> tuple[int, int]:
        """First byte and one past the last byte that shape and strides reach."""
        low, high = reach(self.extents, self.strides)
        size = self.element.itemsize
        return self.address + low * size, self.address + high * size

    def numpy(self) -> np.ndarray[Any, Any]:
        """The same memory as a NumPy array (CPU only)."""
        return as_numpy(self)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(shape={self.shape}, strides={self.strides}, "
            f"element={self.element.name}, device={self.device!r})"
        )


class TensorMut(TensorRef):
    """A view to be written: refuses read-only memory and strides that overlap themselves."""

    __slots__ = ()

    def __init__(self, array: Any, *, op: str = "TensorMut", argument: str = "array") -> None:
        super().__init__(array, op=op, argument=argument)
        check_writable(self, op, argument)


def check_writable(view: TensorRef, op: str, argument: str) -> None:
    if not view.writable:
        raise InvalidProblem(op, argument, "writable memory", "a read-only array")
    if overlaps_itself(view.extents, view.strides):
        raise InvalidProblem(
            op,
            argument,
            "memory where every element has its own place",
            f"shape {view.extents} with element strides {view.strides}, which overlap themselves",
        )


class _Memory:
    """The NumPy array interface over raw memory."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def array_at(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], element: ElementKind
) -> np.ndarray[Any, Any]:
    """A NumPy array over memory that somebody else keeps alive."""
    if 0 in shape:
        return np.empty(shape, element.dtype)
    size = element.itemsize
    interface = {
        "shape": shape,
        "strides": tuple(stride * size for stride in strides),
        "typestr": f"<u{size}",
        "data": (address, False),
        "version": 3,
    }
    return np.asarray(_Memory(interface)).view(element.dtype)


def as_numpy(view: TensorRef) -> np.ndarray[Any, Any]:
    """A NumPy array over the memory of a CPU view, which must outlive it."""
    if isinstance(view.array, np.ndarray):
        return view.array
    if not view.address and view.size:
        raise Unsupported("TensorRef", "array", "in memory", "one that is only being traced")
    return array_at(view.address, view.extents, view.strides, view.element)
