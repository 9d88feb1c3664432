"""f16 and bf16: every code in, every code's neighbourhood out, by the machine and by integer code.

What is expected follows from the formats' definition, by integers; NumPy and ml_dtypes, which know
the formats on their own, are asked about all f32 there are.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from numba import njit

from compiled import SSE, as_kernel, in_new_process
from pullback.cpu import memory as mem

SOFT = {"PULLBACK_SOFT_F16": "1"}
# How codes are loaded, bits of the fraction, and the exponent of the smallest normal number.
FORMATS = {"f16": (mem.as_i16_pointer, 10, -14), "bf16": (mem.as_u16_pointer, 7, -126)}
DTYPE = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
CODES = np.arange(1 << 16, dtype=np.uint16)
LANES = 16


@njit
def _by_lanes(p, q, n):
    for i in range(0, n, LANES):
        mem.put(q, i, 1, mem.get(p, i, 1, LANES), False)


@njit
def _one_by_one(p, q, n):
    for i in range(n):
        mem.write(q, i, mem.read(p, i))


def _decoder(name: str, run: Callable = _by_lanes) -> Callable[[np.ndarray], np.ndarray]:
    pointer = FORMATS[name][0]
    native = as_kernel(lambda a, b, n: run(pointer(a), mem.as_f32_pointer(b), n))
    return lambda codes: _filled(native, codes, np.float32)


def _encoder(name: str, run: Callable = _by_lanes) -> Callable[[np.ndarray], np.ndarray]:
    pointer = FORMATS[name][0]
    native = as_kernel(lambda a, b, n: run(mem.as_f32_pointer(a), pointer(b), n))
    return lambda x: _filled(native, x, np.uint16)


def _filled(native: Callable, source: np.ndarray, dtype: type) -> np.ndarray:
    assert len(source) % LANES == 0
    out = np.empty(len(source), dtype)
    native(source.ctypes.data, out.ctypes.data, len(source))
    return out


def _is_nan(codes: np.ndarray, name: str) -> np.ndarray:
    """The exponent is full, and the fraction is not zero."""
    return (codes & 0x7FFF) > _infinity(name)


def _infinity(name: str) -> int:
    return 0x7FFF >> FORMATS[name][1] << FORMATS[name][1]


def _values(codes: np.ndarray, name: str) -> np.ndarray:
    """What finite codes stand for, in f64. The code of infinity counts as the next power of two."""
    _, bits, least = FORMATS[name]
    size = (codes & 0x7FFF).astype(np.int64)
    exponent, fraction = size >> bits, size & ((1 << bits) - 1)
    whole = fraction + (np.minimum(exponent, 1) << bits)
    sign = np.where(codes >> 15, -1.0, 1.0)
    return sign * np.ldexp(whole.astype(np.float64), np.maximum(exponent, 1) - 1 + least - bits)


def check_every_code(name: str) -> None:
    infinite = np.equal(CODES & 0x7FFF, _infinity(name))
    expected = np.where(infinite, np.copysign(np.inf, _values(CODES, name)), _values(CODES, name))
    nan = _is_nan(CODES, name)
    for run in (_by_lanes, _one_by_one):
        decoded = _decoder(name, run)(CODES)
        assert (np.isnan(decoded) == nan).all()
        assert (np.signbit(decoded) == (CODES >> 15 == 1)).all()
        assert (decoded[~nan].astype(np.float64) == expected[~nan]).all()
        back = _encoder(name, run)(decoded)
        quiet = np.where(nan, CODES | 1 << (FORMATS[name][1] - 1), CODES)
        assert (back == quiet).all()


def check_rounding(name: str) -> None:
    """From each code to the next: just above the first, just below the middle, the middle, just
    above it, just below the second. The middle goes to the even one."""
    lower = CODES[np.less(CODES & 0x7FFF, _infinity(name))]
    upper = lower + 1
    even = np.where(lower & 1, upper, lower)
    a, b = _values(lower, name).astype(np.float32), _values(upper, name)
    with np.errstate(over="ignore"):
        middle = ((_values(lower, name) + b) / 2).astype(np.float32)
        b = b.astype(np.float32)
        expected = [
            (np.nextafter(a, middle), lower),
            (np.nextafter(middle, a), lower),
            (middle, even),
            (np.nextafter(middle, b), upper),
            (np.nextafter(b, middle), upper),
        ]
    for run in (_by_lanes, _one_by_one):
        encode = _encoder(name, run)
        for x, code in expected:
            assert (encode(x) == code).all()


def check_nan_payloads(name: str) -> None:
    """A NaN stays one, of its sign, with what there is room for of its fraction, and quiet."""
    bits = FORMATS[name][1]
    x = (np.arange(1 << 15, dtype=np.uint32) * 0xFFFB | 0x7F800001) & 0x7FFFFFFF
    x = np.concatenate([x, x | 1 << 31]).astype(np.uint32)
    fraction = (x & 0x7FFFFF) >> (23 - bits) | 1 << (bits - 1)
    codes = (x >> 31 << 15) | _infinity(name) | fraction
    assert (_encoder(name)(x.view(np.float32)) == codes).all()


CHECKS = (check_every_code, check_rounding, check_nan_payloads)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", FORMATS)
def test_conversion(check: Callable, name: str) -> None:
    check(name)


@pytest.mark.parametrize("env", [SOFT, SSE], ids=["asked for", "no f16c"])
def test_conversion_by_integers(env: dict[str, str]) -> None:
    code = "import test_float16 as t; [check(name) for check in t.CHECKS for name in t.FORMATS]"
    in_new_process(code, **env)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_every_f32(name: str) -> None:
    """As NumPy and ml_dtypes round it. Takes minutes."""
    encode, chunk = _encoder(name), 1 << 24
    for begin in range(0, 1 << 32, chunk):
        x = np.arange(begin, begin + chunk, dtype=np.uint64).astype(np.uint32).view(np.float32)
        with np.errstate(all="ignore"):
            expected = x.astype(DTYPE[name]).view(np.uint16)
        got = encode(x)
        nan = np.isnan(x)
        assert ((got == expected) | nan).all()
        assert (_is_nan(got, name) == nan).all()
        assert ((got >> 15 == 1) == np.signbit(x)).all()
