"""exp and log: accuracy, special values, the same bits in every width and on every target."""

import hashlib
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from compiled import SSE, as_kernel, in_new_process
from pullback.cpu import elementary as el
from pullback.cpu import memory as mem
from pullback.cpu import vector as vec

POINTER = {np.float32: mem.as_f32_pointer, np.float64: mem.as_f64_pointer}
DTYPES = pytest.mark.parametrize("dtype", POINTER)


def applied(function: Callable, x: np.ndarray, lanes: int = 8) -> np.ndarray:
    """function over x in vectors of so many lanes, or by scalars if 0."""
    pointer = POINTER[x.dtype.type]
    if lanes:

        def run(a, b, n):
            p, q = pointer(a), pointer(b)
            for i in range(0, n, lanes):
                fill = mem.filled(p, 1, lanes)
                got = function(mem.get_first(p, i, 1, n - i, fill))
                mem.put_first(q, i, 1, n - i, got)
    else:

        def run(a, b, n):
            p, q = pointer(a), pointer(b)
            for i in range(n):
                mem.write(q, i, function(mem.read(p, i)))

    y = np.empty_like(x)
    as_kernel(run)(x.ctypes.data, y.ctypes.data, len(x))
    return y


def worst_ulp(got: np.ndarray, exact: np.ndarray) -> float:
    unit = np.spacing(np.abs(exact.astype(got.dtype)))
    return float(np.max(np.abs(got.astype(np.longdouble) - exact) / unit))


def arguments(function: Callable, dtype: type) -> np.ndarray:
    """Over the whole range, and close to the borders of the reduction."""
    rng, n = np.random.default_rng(0), 1 << 18
    span = (-103.0, 88.7) if dtype is np.float32 else (-744.0, 709.7)
    near = math.log(2) * (rng.integers(-80, 80, n) + 0.5) * (1 + rng.normal(0, 1e-3, n))
    x = np.concatenate([rng.uniform(*span, n), rng.uniform(-1, 1, n), near, rng.normal(0, 1e-5, n)])
    if function is el.log:
        x = np.concatenate([np.exp(x), 1 + rng.normal(0, 1e-4, n), np.sqrt(0.5) + near * 1e-4])
        tiny = np.finfo(dtype).smallest_subnormal
        x = np.maximum(np.abs(x.astype(dtype)), tiny)
    return x.astype(dtype)


@DTYPES
@pytest.mark.parametrize(("function", "reference"), [(el.exp, np.exp), (el.log, np.log)])
def test_accuracy(function: Callable, reference: Callable, dtype: type) -> None:
    x = arguments(function, dtype)
    exact = reference(x.astype(np.longdouble))
    assert worst_ulp(applied(function, x), exact) < 0.95


@DTYPES
def test_special_values(dtype: type) -> None:
    info, inf, nan = np.finfo(dtype), np.inf, np.nan
    overflow = np.nextafter(np.log(info.max), dtype(inf), dtype=dtype) * dtype(1.0001)
    least = dtype(np.log(info.smallest_subnormal.astype(np.longdouble)))
    x = np.array([0, -0.0, inf, -inf, nan, overflow, info.max, info.min, 2 * least, least], dtype)
    y = [1, 1, inf, 0, nan, inf, inf, 0, 0, info.smallest_subnormal]
    assert np.array_equal(applied(el.exp, x), np.array(y, dtype), equal_nan=True)
    x = np.array([0, -0.0, inf, -inf, nan, -1, -info.smallest_subnormal, 1], dtype)
    y = [-inf, -inf, inf, nan, nan, nan, nan, 0]
    assert np.array_equal(applied(el.log, x), np.array(y, dtype), equal_nan=True)


@DTYPES
@pytest.mark.parametrize("function", [el.exp, el.log])
def test_scalars_equal_lanes(function: Callable, dtype: type) -> None:
    x = arguments(function, dtype)[::97].copy()
    y = applied(function, x, 0)
    assert all(np.array_equal(applied(function, x, n), y) for n in (1, 4, 64))


@njit
def _by_parts(x):
    p, k = el.exp_parts(x)
    return el.scale_by_power(p, k)


@njit
def _power(x):
    return el.exp_parts(x)[1]


@njit
def _magnitude(x):
    return el.exp_parts(x)[0]


@njit
def _split(x):
    m, k = el.log_parts(x)
    return vec.select((m > 0.7) & (m < 1.4143), el.scale_by_power(m, k), 0)


@DTYPES
def test_parts(dtype: type) -> None:
    x = arguments(el.exp, dtype)
    assert np.array_equal(applied(_by_parts, x), applied(el.exp, x))
    ends = np.array([np.inf, -np.inf, np.nan, 1e30, -1e30, 0, 0, 0], dtype)
    assert np.array_equal(
        applied(_by_parts, ends), np.array([np.inf, 0, np.nan, np.inf, 0, 1, 1, 1]), equal_nan=True
    )
    far = np.random.default_rng(1).uniform(-1e5, 1e5, 4096).astype(dtype)
    k, p = applied(_power, far), applied(_magnitude, far)
    exact = np.exp(far.astype(np.longdouble) - k * np.log(np.longdouble(2)))
    assert (k == np.rint(k)).all()
    assert 0.7 < p.min() <= p.max() < 1.42
    assert worst_ulp(p, exact) < 1.0 + np.finfo(np.longdouble).eps * 1e5 / np.finfo(dtype).eps
    y = arguments(el.log, dtype)
    assert np.array_equal(applied(_split, y), y)


def digest() -> str:
    """The bits of both functions over many arguments."""
    results = [applied(f, arguments(f, t)[::7].copy()) for f in (el.exp, el.log) for t in POINTER]
    return hashlib.sha256(b"".join(r.tobytes() for r in results)).hexdigest()


def test_same_bits_without_avx_and_fma() -> None:
    code = "import test_elementary as t; print(t.digest())"
    assert in_new_process(code, **SSE) == digest()


CACHED = """
from numba import njit
from pullback.cpu.elementary import exp
from pullback.cpu.memory import as_i16_pointer, get, put

@njit("void(int64, int64)", cache=True)
def kernel(a, n):
    p = as_i16_pointer(a)
    for i in range(0, n, 16):
        put(p, i, 1, exp(get(p, i, 1, 16)), False)
"""


def test_kernels_are_found_again_in_the_disk_cache(tmp_path: Path) -> None:
    (tmp_path / "cached.py").write_text(CACHED)
    code = """
import cached, numpy as np
x = np.linspace(-2, 2, 64, dtype=np.float16)
y = x.copy()
cached.kernel(y.ctypes.data, 64)
assert np.allclose(y, np.exp(x), rtol=1e-3)
print(sum(cached.kernel.stats.cache_hits.values()))
"""
    runs = [
        in_new_process(code, tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache")) for _ in range(2)
    ]
    assert runs == ["0", "1"]
