"""Vectors, memory and elementary functions against NumPy, lane by lane."""

import ctypes
import mmap
import pickle
from collections.abc import Callable
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from numba import njit, types
from numba.core.errors import TypingError

from compiled import as_kernel
from pullback.cpu import memory as mem
from pullback.cpu import vector as vec
from pullback.cpu.emit import Vec

POINTER = {
    "f32": (mem.as_f32_pointer, np.dtype(np.float32)),
    "f64": (mem.as_f64_pointer, np.dtype(np.float64)),
    "f16": (mem.as_i16_pointer, np.dtype(np.float16)),
    "bf16": (mem.as_u16_pointer, np.dtype(ml_dtypes.bfloat16)),
    "i32": (mem.as_i32_pointer, np.dtype(np.int32)),
    "i64": (mem.as_i64_pointer, np.dtype(np.int64)),
}


def mapped(
    function: Callable, *inputs: np.ndarray, name: str, out: np.dtype | None = None
) -> np.ndarray:
    """function applied to blocks of 8 lanes of one or two arrays."""
    pointer, _ = POINTER[name]
    out_pointer = pointer if out is None else next(p for p, d in POINTER.values() if d == out)

    def one(a, o, n):
        p, q = pointer(a), out_pointer(o)
        for i in range(0, n, 8):
            mem.put(q, i, 1, function(mem.get(p, i, 1, 8)), False)

    def two(a, b, o, n):
        p, r, q = pointer(a), pointer(b), out_pointer(o)
        for i in range(0, n, 8):
            mem.put(q, i, 1, function(mem.get(p, i, 1, 8), mem.get(r, i, 1, 8)), False)

    result = np.empty(len(inputs[0]), out or inputs[0].dtype)
    run = as_kernel(one if len(inputs) == 1 else two)
    run(*(a.ctypes.data for a in inputs), result.ctypes.data, len(result))
    return result


def same(got: np.ndarray, expected: np.ndarray) -> bool:
    """Equal bits, except that any NaN equals any NaN."""
    nan = np.isnan(got.astype(np.float64)) & np.isnan(expected.astype(np.float64))
    codes = f"u{got.itemsize}"
    return bool(((got.view(codes) == expected.view(codes)) | nan).all())


# --- lanes and operators ------------------------------------------------------------------------

U = np.array([1.5, -2.0, np.nan, 0.0, -0.0, np.inf, 3.25, 1e-3] * 2, np.float32)
V = np.array([1.0, 5.0, 1.0, np.nan, 0.0, 2.0, 3.25, -np.inf] * 2, np.float32)
BINARY = {
    "add": (lambda u, v: u + v, lambda u, v: u + v),
    "subtract": (lambda u, v: u - v, lambda u, v: u - v),
    "multiply": (lambda u, v: u * v, lambda u, v: u * v),
    "divide": (lambda u, v: u / v, lambda u, v: u / v),
    "negate": (lambda u, v: -u, lambda u, v: -u),
    "scalars": (lambda u, v: 2 * u + v * 0.5 - 1, lambda u, v: 2 * u + v * np.float32(0.5) - 1),
    "maximum": (lambda u, v: vec.maximum(u, v), lambda u, v: np.where(u > v, u, v)),
    "minimum": (lambda u, v: vec.minimum(u, v), lambda u, v: np.where(u < v, u, v)),
    "not_le": (
        lambda u, v: vec.select(vec.not_le(u, v), u, 7),
        lambda u, v: np.where(u <= v, 7, u),
    ),
    "is_nan": (lambda u, v: vec.select(vec.is_nan(u), v, u), lambda u, v: np.where(u != u, v, u)),
    "less": (lambda u, v: vec.select(u < v, u, 7), lambda u, v: np.where(u < v, u, 7)),
    "differ": (lambda u, v: vec.select(u != v, u, 7), lambda u, v: np.where(u != v, u, 7)),
    "masks": (
        lambda u, v: vec.select((u > v) ^ ((u == v) | ~(u < 2)), u, 7),
        lambda u, v: np.where((u > v) ^ ((u == v) | ~(u < 2)), u, 7),
    ),
    "fma": (
        lambda u, v: vec.fma(u, v, u),
        lambda u, v: (u.astype("f8") * v + u).astype("f4"),
    ),
    "sqrt": (lambda u, v: vec.sqrt(u), lambda u, v: np.sqrt(u)),
    "absolute": (lambda u, v: vec.absolute(u), lambda u, v: abs(u)),
    "copysign": (lambda u, v: vec.copysign(u, v), lambda u, v: np.copysign(u, v)),
    "round_even": (lambda u, v: vec.round_even(u), lambda u, v: np.rint(u)),
    "floor": (lambda u, v: vec.floor(u), lambda u, v: np.floor(u)),
}


@pytest.mark.parametrize("name", BINARY)
def test_lanewise(name: str) -> None:
    function, reference = BINARY[name]
    with np.errstate(all="ignore"):
        expected = reference(U, V).astype(np.float32)
    assert same(mapped(njit(function), U, V, name="f32"), expected)


LANES = {
    "shift_up": (lambda v: vec.shift_up(v, -v, 3), lambda a: [*-a[5:], *a[:5]]),
    "shift_down": (lambda v: vec.shift_down(v, 0, 3), lambda a: [*a[3:], 0, 0, 0]),
    "reverse": (lambda v: vec.reverse(v), lambda a: a[::-1]),
    "broadcast": (lambda v: vec.broadcast_lane(v, -1), lambda a: a[[-1] * 8]),
    "lane": (lambda v: vec.like(v, vec.lane(v, 2)), lambda a: a[[2] * 8]),
    "lane_at": (lambda v: vec.like(v, vec.lane_at(v, vec.count(v > 5))), lambda a: a[[2] * 8]),
    "set_lane": (lambda v: vec.set_lane(v, 1, 9), lambda a: [a[0], 9, *a[2:]]),
    "halves": (lambda v: vec.join(vec.half(v, 1), vec.half(v, 0)), lambda a: [*a[4:], *a[:4]]),
    "iota": (lambda v: vec.iota(v), lambda a: np.arange(8)),
    "first": (lambda v: vec.select(vec.first_lanes(3, 8), v, 0), lambda a: [*a[:3], *[0] * 5]),
    "fold": (lambda v: vec.like(v, vec.reduce_add(v)), lambda a: [a.sum()] * 8),
    "most": (lambda v: vec.like(v, vec.reduce_max(v)), lambda a: [a.max()] * 8),
    "least": (lambda v: vec.like(v, vec.reduce_min(v)), lambda a: [a.min()] * 8),
    "bits": (lambda v: vec.like(v, vec.mask_bits(v > 5)), lambda a: [0b11000000] * 8),
    "any": (lambda v: vec.like(v, vec.any_lane(v > 6)), lambda a: [1] * 8),
    "none": (lambda v: vec.like(v, vec.any_lane(v > 7)), lambda a: [0] * 8),
    "all": (lambda v: vec.like(v, vec.all_lanes(v >= 0)), lambda a: [1] * 8),
    "not all": (lambda v: vec.like(v, vec.all_lanes(v > 0)), lambda a: [0] * 8),
}


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
@pytest.mark.parametrize("name", LANES)
def test_lanes(name: str, dtype: str) -> None:
    function, reference = LANES[name]
    a = np.arange(8).astype(POINTER[dtype][1])
    assert (mapped(njit(function), a, name=dtype) == np.array(reference(a), a.dtype)).all()


def test_integers() -> None:
    a = np.array([0, 1, -1, 2**31 - 1, -(2**31), 12345, -77, 8], np.int32)
    got = mapped(njit(lambda v: ((v >> 2) ^ (v << 3)) & ~(v | 4)), a, name="i32")
    assert (got == (((a >> 2) ^ (a << 3)) & ~(a | 4))).all()
    got = mapped(njit(lambda v: vec.shift_logical(v, 3)), a, name="i32")
    assert (got == (a.view(np.uint32) >> 3).view(np.int32)).all()
    wide = mapped(njit(lambda v: vec.to_i64(v) * 3), a, name="i32", out=np.dtype(np.int64))
    assert (wide == a.astype(np.int64) * 3).all()
    bits = mapped(njit(lambda v: vec.as_float(v)), a, name="i32", out=np.dtype(np.float32))
    assert same(bits, a.view(np.float32))


def test_fold_order_is_by_halves() -> None:
    a = np.array([1e8, 1, -1e8, 1, 3, 1e-3, 7, 1e5], np.float32)
    tree = a
    while len(tree) > 1:
        tree = tree[: len(tree) // 2] + tree[len(tree) // 2 :]
    assert mapped(njit(lambda v: vec.like(v, vec.reduce_add(v))), a, name="f32")[0] == tree[0]


def test_nothing_is_contracted() -> None:
    a = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    assert same(mapped(njit(lambda v: v * v + v), a, name="f32"), a * a + a)


def test_types_are_picklable() -> None:
    kind = Vec(types.float32, 8)
    assert pickle.loads(pickle.dumps(kind)) == kind != Vec(types.float32, 16)


def test_types_do_not_mix() -> None:
    with pytest.raises(TypingError):
        mapped(njit(lambda v: v + vec.to_f64(v)), U, name="f32")


# --- memory -------------------------------------------------------------------------------------


@cache
def copier(name: str) -> Callable:
    pointer = POINTER[name][0]

    def copy(a, b, n, step_in, step_out, streaming):
        p, q, i = pointer(a), pointer(b), 0
        while i + 16 <= n:
            v = mem.get(p, i * step_in, step_in, 16)
            mem.put(q, i * step_out, step_out, v, streaming != 0)
            i += 16
        rest = mem.get_first(p, i * step_in, step_in, n - i, mem.filled(p, 7, 16))
        mem.put_first(q, i * step_out, step_out, n - i, rest)
        mem.fence()

    return as_kernel(copy)


@pytest.mark.parametrize("name", POINTER)
def test_strides_and_tails(name: str) -> None:
    dtype, copy = POINTER[name][1], copier(name)
    source = np.random.default_rng(1).integers(-100, 100, 400).astype(dtype)
    for step_in in (1, -1, 3, 0, -2):
        for step_out in (1, -1, 2, -3):
            for n in (0, 1, 5, 16, 37, 64):
                out, expected = np.zeros(400, dtype), np.zeros(400, dtype)
                copy(source[200:].ctypes.data, out[200:].ctypes.data, n, step_in, step_out, False)
                k = np.arange(n)
                expected[200 + k * step_out] = source[200 + k * step_in]
                assert (out == expected).all(), (step_in, step_out, n)


@pytest.mark.parametrize("name", POINTER)
def test_lanes_beyond_the_count_are_filled(name: str) -> None:
    pointer, dtype = POINTER[name]

    def with_sevens(a, b, n, step):
        p = pointer(a)
        mem.put(pointer(b), 0, 1, mem.get_first(p, 0, step, n, mem.filled(p, 7, 16)), False)

    source, run = np.arange(1, 81).astype(dtype), as_kernel(with_sevens)
    for step in (1, -1, 2):
        for n in range(17):
            out, k = np.zeros(16, dtype), np.arange(n)
            run(source[40:].ctypes.data, out.ctypes.data, n, step)
            assert (out[:n] == source[40 + k * step]).all(), (step, n)
            assert (out[n:] == dtype.type(7)).all(), (step, n)


@pytest.mark.parametrize("name", POINTER)
def test_streaming(name: str) -> None:
    dtype = POINTER[name][1]
    source = np.arange(64).astype(dtype)
    for step in (1, -1, 2):
        buffer = np.zeros(400, dtype)
        start = (-buffer.ctypes.data % 16) // dtype.itemsize + 128 - (step == -1)
        copier(name)(source.ctypes.data, buffer[start:].ctypes.data, 64, 1, step, True)
        assert (buffer[start + step * np.arange(64)] == source).all(), step
        assert np.count_nonzero(buffer) == 63, step


def test_tails_stay_inside() -> None:
    """A tail that ends at the last byte of a mapping, and one that begins at its first."""
    page = mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    area = mmap.mmap(-1, 3 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for guard in (base, base + 2 * page):
        assert libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) == 0
    for name in ("f32", "f64", "f16"):
        size, copy = POINTER[name][1].itemsize, copier(name)
        for n in (1, 7, 16, 19):
            last, first = base + 2 * page - n * size, base + page + (n - 1) * size
            copy(last, last, n, 1, 1, False)
            copy(first, first, n, -1, -1, False)
    libc.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(3 * page), 3)


@pytest.mark.parametrize("name", POINTER)
def test_counts_beyond_the_lanes_are_clipped(name: str) -> None:
    pointer, dtype = POINTER[name]

    def first_eight(a, b):
        p, q = pointer(a), pointer(b)
        v = mem.get_first(p, 0, 1, 1000, mem.filled(p, 0, 8))
        mem.put_first(q, 0, 1, 1000, v)

    source, out = np.arange(1, 33).astype(dtype), np.zeros(32, dtype)
    as_kernel(first_eight)(source.ctypes.data, out.ctypes.data)
    assert (out[:8] == source[:8]).all()
    assert not out[8:].astype(np.float64).any()


def test_wide_loads_round_once_on_the_way_back() -> None:
    def thirds(a, b, n):
        p, q = mem.as_f32_pointer(a), mem.as_f32_pointer(b)
        mem.put(q, 0, 1, mem.get_wide(p, 0, 1, 8) / 3, False)
        tail = mem.get_first_wide(p, 8, 1, n - 9, mem.filled_wide(p, 0, 8)) / 3
        mem.put_first(q, 8, 1, n - 9, tail)
        mem.write(q, n - 1, mem.read_wide(p, n - 1) / 3)

    a = np.arange(1, 14).astype(np.float32)
    out = np.zeros_like(a)
    as_kernel(thirds)(a.ctypes.data, out.ctypes.data, len(a))
    assert (out == (a.astype(np.float64) / 3).astype(np.float32)).all()


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_compress_store(name: str) -> None:
    pointer, dtype = POINTER[name]

    def keep(a, b, n, above, count):
        p, q, kept = pointer(a), pointer(b), 0
        for i in range(0, n, 16):
            v = mem.get(p, i, 1, 16)
            kept += mem.compress_store(q, kept, v, v > above)
        mem.write(mem.as_i64_pointer(count), 0, kept)

    run, kept = as_kernel(keep), np.zeros(1, np.int64)
    a = np.random.default_rng(2).standard_normal(256).astype(dtype)
    for threshold in (-9, -1, 0, 2, 9):
        out = np.zeros_like(a)
        run(a.ctypes.data, out.ctypes.data, len(a), threshold, kept.ctypes.data)
        n = kept[0]
        assert n == (a > threshold).sum()
        assert (out[:n] == a[a > threshold]).all()
        assert not out[n:].any()


def test_rounding_twice_is_refused() -> None:
    @njit
    def twice(a):
        mem.write(mem.as_u16_pointer(a), 0, 1.5)

    with pytest.raises(TypingError):
        twice.compile("void(int64)")
