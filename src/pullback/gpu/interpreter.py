"""Triton kernels on CPU memory, for laws and debugging: the same kernels that are compiled.

Triton's own interpreter is switched on for a whole process before Triton is imported, adds bf16 as
bit patterns, truncates f32 to bf16, and spends a Python call on every element of a scan. Here it is
switched on for one launch: device functions keep being `JITFunction`s and run as interpreted twins,
bf16 rounds to nearest even and its arithmetic raises, scans take log2(n) calls on whole arrays.
Most of its time goes to the descriptions of values: shapes are made once, equal types are known by
being the same, and nothing is computed for assertions that are off.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import triton.language as tl
from triton import knobs
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter as stock
from triton.runtime.jit import JITFunction

_LOCK = threading.RLock()  # the interpreter keeps its state in module globals
_TWINS: dict[Any, Callable[..., Any]] = {}


def interpret(kernel: JITFunction, grid: int, arguments: Mapping[str, Any]) -> None:
    """Run every program of a one-dimensional grid, one after another."""
    with _LOCK, interpreting(), np.errstate(all="ignore"):
        function = _twin(kernel.fn)
        given = {
            parameter.name: value if parameter.is_constexpr else stock._implicit_cvt(value)
            for parameter in kernel.params
            for value in (arguments[parameter.name],)
        }
        stock.interpreter_builder.set_grid_dim(grid, 1, 1)
        for program in range(grid):
            stock.interpreter_builder.set_grid_idx(program, 0, 0)
            function(**given)


def _twin(function: Any) -> Callable[..., Any]:
    """The interpreter's rewriting of a function, over a copy of its globals: it adds names."""
    if function not in _TWINS:
        names = dict(function.__globals__)
        clone = types.FunctionType(
            function.__code__, names, function.__name__, function.__defaults__, function.__closure__
        )
        clone.__kwdefaults__ = function.__kwdefaults__
        clone.__annotations__ = dict(function.__annotations__)
        clone.__module__ = function.__module__
        _TWINS[function] = stock.FunctionRewriter(clone).rewrite_ast()
    return _TWINS[function]


def _round_to_bf16(values: Any) -> Any:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
    quiet = ((bits >> np.uint32(16)) | np.uint32(0x40)).astype(np.uint16)
    return np.where(np.isnan(values), quiet, rounded)


def _convert_float(
    values: Any, source: Any, target: Any, mode: Any, _stock: Any = stock._convert_float
) -> Any:
    if source == tl.float32 and target == tl.bfloat16:
        return _round_to_bf16(np.asarray(values))
    if source == tl.bfloat16 and target == tl.float32:
        return np.asarray(values, np.uint16).astype(np.uint32) << np.uint32(16)
    return _stock(values, source, target, mode)


def _cast(
    self: Any, value: Any, kind: Any, _stock: Any = stock.InterpreterBuilder.cast_impl
) -> Any:
    """Between bf16 and f64 by way of f32, as the compiler does."""
    if {value.dtype.scalar, kind.scalar} == {tl.bfloat16, tl.float64}:
        value = _stock(self, value, tl.float32)
    return _stock(self, value, kind)


def _refusing_bf16(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
    def checked(self: Any, *args: Any, **options: Any) -> Any:
        for value in () if np.where in args else args:  # a choice of bit patterns is fine
            if isinstance(value, stock.TensorHandle) and value.dtype.scalar == tl.bfloat16:
                raise TypeError(f"{name} on bf16 would work on bit patterns: widen it first")
        return operation(self, *args, **options)

    return checked


def _splat(self: Any, kind: Any, value: Any) -> Any:
    """A block of one value, in the type of its data: stock spreads a comparison as integers."""
    data = np.full(kind.shape, value.data.flat[0], value.data.dtype)
    return stock.TensorHandle(data, kind.scalar)


def _scan(self: Any, inputs: Any) -> list[Any]:
    """A scan in log2(n) steps of whole arrays."""
    axis = self.axis % inputs[0].handle.data.ndim
    parts = [value.handle.data for value in inputs]
    kinds = [value.dtype for value in inputs]
    extent = parts[0].shape[axis]
    places = np.arange(extent).reshape([-1 if d == axis else 1 for d in range(parts[0].ndim)])
    step = 1
    while step < extent:
        # Blocks stay powers of two: everything is combined, and the head then kept.
        before = [
            self.to_tensor(np.roll(p, step, axis), k) for p, k in zip(parts, kinds, strict=True)
        ]
        after = [self.to_tensor(p, k) for p, k in zip(parts, kinds, strict=True)]
        joined = self.combine_fn.fn(*before, *after)
        joined = joined if isinstance(joined, tuple) else (joined,)
        parts = [
            np.where(places < step, part, value.handle.data).astype(part.dtype)
            for part, value in zip(parts, joined, strict=True)
        ]
        step *= 2
    return [self.to_tensor(part, kind) for part, kind in zip(parts, kinds, strict=True)]


def _reduce(self: Any, inputs: Any) -> list[Any]:
    """A reduction in log2(n) steps of whole arrays."""
    inputs, axis = self.unravel(inputs, self.axis)
    parts = [value.handle.data for value in inputs]
    kinds = [value.dtype for value in inputs]
    while (extent := parts[0].shape[axis]) > 1:
        even, odd = (
            [
                self.to_tensor(np.take(p, range(i, extent, 2), axis), k)
                for p, k in zip(parts, kinds, strict=True)
            ]
            for i in (0, 1)
        )
        joined = self.combine_fn.fn(*even, *odd)
        joined = joined if isinstance(joined, tuple) else (joined,)
        parts = [np.asarray(v.handle.data, p.dtype) for p, v in zip(parts, joined, strict=True)]
    if not self.keep_dims:
        parts = [np.squeeze(part, axis) for part in parts]
    return [self.to_tensor(p if p.ndim else p.item(), k) for p, k in zip(parts, kinds, strict=True)]


class _Shape(tl.tuple):
    """The shape of a block type, with what follows from it: how it reads, and what its tensors
    show. There is one for each extent, so equal shapes are the same object."""

    def __init__(self, extent: tuple[int, ...]) -> None:
        super().__init__(extent)
        self.numel = tl.core.validate_block_shape(self)
        self.text = str(self)
        self.shown = tl.tuple([tl.constexpr(n) for n in extent])
        self.shown_numel = tl.constexpr(self.numel)


_shape = functools.cache(_Shape)
_NO_SHAPE = tl.tuple([])
_ONE = tl.constexpr(1)


def _block_type(self: Any, element: Any, shape: Any, _stock: Any = tl.block_type.__init__) -> None:
    if not shape:
        _stock(self, element, shape)  # raises
    if not isinstance(shape, _Shape):
        shape = _shape(tuple(tl.core._unwrap_if_constexpr(n) for n in shape))
    self.element_ty, self.shape, self.numel = element, shape, shape.numel
    self.name = f"<{shape.text}, {element}>"


def _tensor(self: Any, handle: Any, kind: Any) -> None:
    self.handle, self.type, self.dtype = handle, kind, kind.scalar
    if kind.is_block():
        self.shape, self.numel = kind.shape.shown, kind.shape.shown_numel
    else:
        self.shape, self.numel = _NO_SHAPE, _ONE


def _same(self: Any, other: Any, _stock: Any = tl.dtype.__eq__) -> Any:
    return self is other or _stock(self, other)


_NUMPY: dict[str, Any] = {}


def _np_dtype(kind: Any, _stock: Any = stock._get_np_dtype) -> Any:
    """Stock makes a table of all types to look one up."""
    scalar = kind.scalar
    if scalar.name not in _NUMPY:
        _NUMPY[scalar.name] = _stock(scalar)
    return _NUMPY[scalar.name]


def _broadcast(
    self: Any, left: Any, right: Any, _stock: Any = TritonSemantic.broadcast_impl_value
) -> Any:
    """Nothing is to be done for blocks of one shape, or for scalars."""
    if left.shape is right.shape:
        return left, right
    return _stock(self, left, right)


_LANGUAGE = types.FunctionType((lambda: None).__code__, {"tl": tl, "core": tl.core})
# Whether sums of integers overflow is computed for assertions, which are only made when debugging.
_UNASSERTED = dataclasses.replace(stock.InterpreterOptions(), sanitize_overflow=False)
_ARITHMETIC = ("binary_op", "unary_op", "ternary_op", "create_fma", "create_dot")


@contextlib.contextmanager
def interpreting() -> Iterator[None]:
    """Patch Triton for the time of a launch, and leave no trace."""
    saved: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        saved.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, value)

    builder = stock.InterpreterBuilder
    with knobs.runtime.scope():
        knobs.runtime.interpret = True
        put(JITFunction, "__call__", lambda self, *args, **kw: _twin(self.fn)(*args, **kw))
        put(stock, "_convert_float", _convert_float)
        for name in _ARITHMETIC:
            if name in builder.__dict__:
                put(builder, name, _refusing_bf16(name, builder.__dict__[name]))
        put(stock, "_get_np_dtype", _np_dtype)
        put(tl.dtype, "__eq__", _same)
        put(tl.block_type, "__init__", _block_type)
        put(tl.tensor, "__init__", _tensor)
        put(TritonSemantic, "broadcast_impl_value", _broadcast)
        put(stock.interpreter_builder, "options", _UNASSERTED)
        put(builder, "create_splat", _splat)
        put(builder, "cast_impl", _cast)
        put(stock.ScanOps, "generic_scan", _scan)
        put(stock.ReduceOps, "generic_reduce", _reduce)
        scope = stock._patch_lang(_LANGUAGE)
        try:
            yield
        finally:
            scope.restore()
            for owner, name, value in reversed(saved):
                setattr(owner, name, value)
