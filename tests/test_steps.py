"""The steps that exponentials and logarithms are made of, on every half and on every f32.

A step is what a kernel does with a vector. It is compared with the system's function of the next
wider type, whose error is a thousandth of what the narrower one can show.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from numba import njit

from compiled import as_kernel
from pullback.cpu import elementary as el
from pullback.cpu import memory as mem
from pullback.cpu import vector as vec
from pullback.ops.scan import cpu_exponentials as scan
from pullback.ops.simplex import cpu_exponential as simplex

LANES = 16
INF = math.inf
LN2, LN2_REST = math.log(2), 2.3190468138462996e-17  # log 2, and what that lacks
POINTER = {np.float32: mem.as_f32_pointer, np.float64: mem.as_f64_pointer}
WIDER = {np.float32: np.float64, np.float64: np.longdouble}


@dataclass(frozen=True)
class Step:
    """`run` gives parts m and k of a result m·2^k; compared is m with `exact(x, k)`, for the x of
    `domain`. The bound is in units of the last place of m."""

    run: Callable
    exact: Callable[[np.ndarray, np.ndarray], np.ndarray]
    domain: tuple[float, float]
    bound: float
    compute: type = np.float32


def _exp(x: np.ndarray, k: np.ndarray) -> np.ndarray:
    """e^x·2^-k"""
    return np.exp((x - k * LN2) - k * LN2_REST)


def _log(x: np.ndarray, k: np.ndarray) -> np.ndarray:
    return np.log(x)


def _drifting(x: np.ndarray, k: np.ndarray) -> np.ndarray:
    """What the short form for bf16 computes, by its own definition."""
    return np.exp(x + np.rint(x * simplex.LOG2_E) * simplex.LN2_BEYOND_F32)


def _alone(function: Callable) -> Callable:
    @njit
    def run(x):
        return function(x), vec.like(x, 0)

    return run


def _scaled(pointer: Callable) -> Callable:
    @njit
    def run(x):
        zero = vec.like(x, 0)
        y = simplex.scaled_exp(pointer(0), x, simplex.bias_of(zero), simplex.floor_of(zero))
        return y, zero

    return run


@njit
def _relative(x):
    return scan.relative(x, vec.like(x, 0)), vec.like(x, 0)


@njit
def _logarithm(x):
    return scan.logarithm(vec.to_f64(x), vec.like(x, 0)), vec.like(x, 0)


@njit
def _by_parts(x):
    p, k = el.exp_parts(x)
    return el.scale_by_power(p, k), vec.like(x, 0)


@njit
def _or_flushed(x):
    p, k = el.exp_parts_within(x)
    return el.scale_or_flush(p, k), vec.like(x, 0)


F64 = np.float64
EVERY, NORMAL_EXP, FAR = (-INF, INF), (-87.0, 88.0), (-(2.0**20), 2.0**20)
NORMAL = (2.0**-126, 3.4e38)
STEPS = {
    "exp": Step(_alone(el.exp), _exp, EVERY, 1.0),
    "exp in f64": Step(_alone(el.exp), _exp, EVERY, 1.0, F64),
    "exp by parts": Step(_by_parts, _exp, EVERY, 1.0),
    "exp or nothing": Step(_or_flushed, _exp, NORMAL_EXP, 1.0),
    "log": Step(_alone(el.log), _log, EVERY, 1.0),
    "log in f64": Step(_alone(el.log), _log, EVERY, 1.0, F64),
    "parts of exp": Step(njit(lambda x: el.exp_parts(x)), _exp, FAR, 1.0),
    "scans: pair": Step(njit(lambda x: scan.pair(x)), _exp, FAR, 1.1),
    "scans: pair in f64": Step(njit(lambda x: scan.pair(x)), _exp, NORMAL_EXP, 1.1, F64),
    "scans: exp": Step(_relative, _exp, (-79.0, 88.0), 1.1),
    "scans: exp in f64": Step(_relative, _exp, NORMAL_EXP, 1.1, F64),
    "scans: log": Step(_logarithm, _log, NORMAL, 2.0),
    "scans: log in f64": Step(_logarithm, _log, NORMAL, 2.0, F64),
    "simplex: exp of an f16": Step(_scaled(mem.as_i16_pointer), _exp, NORMAL_EXP, 1.1),
    "simplex: exp of a bf16": Step(_scaled(mem.as_u16_pointer), _drifting, NORMAL_EXP, 2.0**7),
    "simplex: exp of an f64": Step(_scaled(mem.as_f64_pointer), _exp, NORMAL_EXP, 1.1, F64),
}


def _native(step: Step) -> Callable[..., None]:
    run, pointer = step.run, POINTER[step.compute]

    def over(a, b, c, n):
        p, q, r = pointer(a), pointer(b), pointer(c)
        for i in range(0, n, LANES):
            m, k = run(mem.get(p, i, 1, LANES))
            mem.put(q, i, 1, m, False)
            mem.put(r, i, 1, k, False)

    return as_kernel(over)


def _worst(step: Step, native: Callable[..., None], x: np.ndarray) -> tuple[float, float]:
    """The largest error, and where it is. Infinities and NaN must be as they should."""
    low, high = step.domain
    inside = (x >= low) & (x <= high)
    x = x[inside | np.isnan(x)] if low == -INF else x[inside]
    if not len(x):
        return 0.0, 0.0
    with np.errstate(all="ignore"):
        x = np.resize(x, -(-len(x) // LANES) * LANES).astype(step.compute)
        m, k = np.empty_like(x), np.empty_like(x)
        native(x.ctypes.data, m.ctypes.data, k.ctypes.data, len(x))
        wide = WIDER[step.compute]
        exact = step.exact(x.astype(wide), k.astype(wide))
        rounded = exact.astype(step.compute)
        error = np.abs(m.astype(wide) - exact) / np.spacing(np.abs(rounded))
        same = (m == rounded) | (np.isnan(m) & np.isnan(rounded))
        error = np.where(np.isfinite(rounded) & ~np.isnan(m), error, np.where(same, 0, INF))
    at = int(np.argmax(error))
    return float(error[at]), float(x[at])


def _every_half() -> np.ndarray:
    codes = np.arange(1 << 16, dtype=np.uint16)
    both = (codes.view(np.float16), codes.view(ml_dtypes.bfloat16))
    return np.concatenate([half.astype(np.float32) for half in both])


@pytest.mark.parametrize("name", STEPS)
def test_every_half(name: str) -> None:
    step = STEPS[name]
    worst, at = _worst(step, _native(step), _every_half())
    assert worst <= step.bound, f"{name}: {worst:.3f} ulp at {at}"


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, step in STEPS.items() if step.compute is np.float32])
def test_every_f32(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Takes minutes a step."""
    step, chunk = STEPS[name], 1 << 22
    native, worst = _native(step), (0.0, 0.0)
    for begin in range(0, 1 << 32, chunk):
        codes = np.arange(begin, begin + chunk, dtype=np.uint64).astype(np.uint32)
        worst = max(worst, _worst(step, native, codes.view(np.float32)))
    with capsys.disabled():
        print(f"{name}: at most {worst[0]:.4f} ulp over all f32, at {worst[1]!r}")
    assert worst[0] <= step.bound
