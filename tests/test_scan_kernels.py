"""Scan kernels as such: vector code, CPUs without F16C, lines shared by threads, one NaN."""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback
from pullback.contract.element import ElementKind
from pullback.cpu.scan_program import SHORT
from pullback.cpu.walks import CHUNK
from pullback.ops.scan import cpu_cumsum

OLD_CPU = {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": "+sse4.2"}
SCAN_OF_HALVES = """
import hashlib, numpy as np, pullback
x = np.random.default_rng(3).standard_normal((3, 301)).astype(np.float16)
print(hashlib.sha256(pullback.cumsum(x).tobytes()).hexdigest())
"""


def _columns(x: Any) -> Any:
    """The same lines side by side: walked across instead of along."""
    return np.ascontiguousarray(x.T).T


@pytest.mark.skipif(platform.machine() != "x86_64", reason="looks for x86 instructions")
def test_sums_are_vector_code() -> None:
    code = cpu_cumsum.CUMSUM.kernels["along"].assembly(ElementKind.F32)
    assert len(re.findall(r"\bv?addpd\b", code)) > 3
    assert not re.findall(r"\bcallq?\b.*\b(exp|log|memcpy)", code)


def test_halves_need_no_conversion_instructions() -> None:
    run = [sys.executable, "-c", SCAN_OF_HALVES]
    old = subprocess.run(
        run, env={**os.environ, **OLD_CPU}, capture_output=True, text=True, check=False
    )
    assert old.returncode == 0, old.stderr
    x = np.random.default_rng(3).standard_normal((3, 301)).astype(np.float16)
    assert old.stdout.strip() == hashlib.sha256(pullback.cumsum(x).tobytes()).hexdigest()


def _for_each_thread_count(run: Callable[[], Any]) -> Iterator[tuple[int, Any]]:
    threads = pullback.get_num_threads()
    try:
        for count in (1, 2, 3, 8):
            pullback.set_num_threads(count)
            yield count, run()
    finally:
        pullback.set_num_threads(threads)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_long_line_is_shared(reverse: bool) -> None:
    n = 5 * CHUNK + 77
    x = np.random.default_rng(4).standard_normal((1, n)).astype(np.float32)
    wanted = pullback.cumsum(_columns(np.repeat(x, 9, 0)), reverse=reverse)[:1]
    for count, found in _for_each_thread_count(lambda: pullback.cumsum(x, reverse=reverse)):
        assert found.tobytes() == wanted.tobytes(), count
    exact = np.cumsum(x[:, :: -1 if reverse else 1].astype(np.longdouble), axis=1)
    exact = exact[:, :: -1 if reverse else 1]
    assert np.abs(wanted - exact).max() <= np.spacing(np.float32(np.abs(exact).max()))


def _hard_lines(n: int) -> Any:
    """Lines whose parts lie near and far from each other, or hold infinities and NaN."""
    x = np.random.default_rng(8).standard_normal((5, n))
    x[1] *= 30
    x[2] += np.linspace(0, -5000, n)
    x[3, : n // 3] = x[3, n // 2 :: 2] = -np.inf
    x[4, n // 4] = 300
    x[4, n // 2] = np.inf
    x[4, -n // 8] = np.nan
    return x.astype(np.float32)


@pytest.mark.parametrize("reverse", [False, True])
def test_hard_lines_of_exponentials_have_the_bits_of_columns(reverse: bool) -> None:
    x = _hard_lines(73_805)
    dy = np.random.default_rng(9).standard_normal(x.shape).astype(np.float32)
    dy[0, 30000] = np.nan
    y = pullback.logcumsumexp(_columns(x), reverse=reverse)
    dx = pullback.logcumsumexp_backward(_columns(dy), _columns(x), y, reverse=reverse)
    y = np.ascontiguousarray(y)

    def both() -> Any:
        return (
            pullback.logcumsumexp(x, reverse=reverse),
            pullback.logcumsumexp_backward(dy, x, y, reverse=reverse),
        )

    for count, found in _for_each_thread_count(both):
        assert [a.tobytes() for a in found] == [y.tobytes(), dx.tobytes()], count


@pytest.mark.parametrize("name", ["cumprod", "cummax"])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_a_long_line_are_shared(name: str, reverse: bool) -> None:
    """The same bits as of many lines, for any number of threads: with records in every chunk, in
    few and in none, with factors that take the long way, and in place of an input."""
    n = 2 * CHUNK + 77
    rng = np.random.default_rng(8)
    x = (1 + 0.01 * rng.standard_normal((4, n))).astype(np.float32)
    x[0], x[1, n // 2] = np.sort(x[0]), np.nan
    x[2, 30000], x[2, 40000], x[3, ::997] = np.inf, 0, 0
    dy = rng.standard_normal(x.shape).astype(np.float32)
    backward = getattr(pullback, f"{name}_backward")
    y = getattr(pullback, name)(x, reverse=reverse)
    saved = (x, y) if name == "cumprod" else (x,)
    many = backward(*(np.repeat(a, 5, 0) for a in (dy, *saved)), reverse=reverse)
    wanted = many[::5].tobytes()

    def both() -> Any:
        *rest, last = (a.copy() for a in (dy, *saved))
        in_place = backward(*rest, last, reverse=reverse, out=last)
        return backward(dy, *saved, reverse=reverse), in_place

    for count, found in _for_each_thread_count(both):
        assert [a.tobytes() for a in found] == [wanted, wanted], count


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_all_nans_are_the_same(name: str) -> None:
    x = np.random.default_rng(5).standard_normal((9, 50)).astype(np.float32)
    x[0, 7], x[1, 20], x[2, 3], x[2, 9] = np.nan, -np.nan, np.inf, -np.inf
    x[3, 30] = np.array([0xFFC12345], np.uint32).view(np.float32)[0]
    x[4, 2], x[4, 5] = np.inf, 0
    along = getattr(pullback, name)(x)
    across = getattr(pullback, name)(_columns(x))
    assert np.array_equal(along.view(np.uint32), np.ascontiguousarray(across).view(np.uint32))
    assert set(along[np.isnan(along)].view(np.uint32)) == {0x7FC00000}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_all_nans_of_a_gradient_of_extrema_are_the_same(dtype: Any) -> None:
    """However sums that meet NaNs of either sign and infinities are cut into tiles."""
    rng = np.random.default_rng(11)
    x, dy = rng.standard_normal((2, 40, 300)).astype(dtype)
    x[20:] = np.sort(x[20:])
    dy[rng.random(dy.shape) < 0.02] = np.nan
    for special in (-np.nan, np.inf, -np.inf):
        dy[rng.random(dy.shape) < 0.01] = special
    along = pullback.cummax_backward(dy, x)
    across = pullback.cummax_backward(_columns(dy), _columns(x))
    assert along.tobytes() == across.tobytes()
    assert (
        len(set(along[np.isnan(along)].view(np.uint16 if dtype == np.float16 else np.uint32))) == 1
    )


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("ties", ["first", "last"])
def test_halves_that_hold_and_that_do_not(dtype: Any, ties: str) -> None:
    """Tiles are judged by their codes: zeros and NaNs of either sign, infinities, ties, any sign of
    the extremum, both directions."""
    rng = np.random.default_rng(12)
    values = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -np.nan, 2.0, 0.5]
    start = np.array(values, dtype)[:, None]
    rare = np.array(values, dtype)[rng.integers(0, len(values), (200, 160))]
    low = -np.abs(rng.standard_normal(rare.shape)).astype(dtype)
    x = np.where(rng.random(rare.shape) < 0.01, rare, low)
    x[:, :1] = np.resize(start, (200, 1))
    for name in ("cummax", "cummin"):
        scan, signed = getattr(pullback, name), x if name == "cummax" else -x
        for reverse in (False, True):
            wanted = scan(_columns(signed), reverse=reverse, ties=ties)
            found = scan(signed, reverse=reverse, ties=ties)
            assert found.tobytes() == np.ascontiguousarray(wanted).tobytes()


def _bits(array: Any) -> Any:
    return array.view(f"u{array.dtype.itemsize}")


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "logcumsumexp"])
@pytest.mark.parametrize("n", [1, 3, 10, 50, SHORT - 1, SHORT + 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_many_short_lines_have_the_bits_of_each(name: str, n: int, reverse: bool) -> None:
    """They go several at a time, transposed: lines that fill none, special values, strides of any
    sign, some tensors that lie side by side already, and results in place included."""
    rng = np.random.default_rng(13)
    x, dy = rng.standard_normal((2, 605, n)).astype(np.float32)
    for rate, special in ((0.02, np.nan), (0.04, np.inf), (0.05, -np.inf), (0.1, 0.0), (0.1, -0.0)):
        x[rng.random(x.shape) < rate] = special
        dy[rng.random(x.shape) < rate / 4] = special
    forward, backward = getattr(pullback, name), getattr(pullback, f"{name}_backward")
    y = np.concatenate([forward(line, reverse=reverse) for line in x[:, None]])
    saved = {"cumsum": (), "cummax": (x,)}.get(name, (x, y))
    each = zip(*(a[:, None] for a in (dy, *saved)), strict=True)
    dx = np.concatenate([backward(*line, reverse=reverse) for line in each])
    spaced = np.zeros((605, 3, n, 2), np.float32)[:, 1, ::-1, 1]
    spaced[:] = x
    for given in (x, spaced, _columns(x)):
        found = np.empty_like(x)
        assert (_bits(forward(given, reverse=reverse, out=found)) == _bits(y)).all()
    found = backward(_columns(dy), *saved, reverse=reverse, out=np.empty_like(x))
    assert (_bits(found) == _bits(dx)).all()
    assert (_bits(backward(dy, *saved, reverse=reverse, out=dy)) == _bits(dx)).all()


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_many_lines_side_by_side(name: str, dtype: Any) -> None:
    """Short rows ask for memory ahead, long ones do not; both as one line after the other."""
    rng = np.random.default_rng(6)
    for lines in (150, 700):
        x = (1 + 0.1 * rng.standard_normal((lines, 39))).astype(dtype)
        x[::7, 5], x[::5, 20], x[3, 9] = 0, np.inf, 0
        dy = rng.standard_normal(x.shape).astype(dtype)
        y = getattr(pullback, name)(x)
        inputs = (dy,) if name == "cumsum" else (dy, x, y)
        backward = getattr(pullback, f"{name}_backward")
        assert getattr(pullback, name)(_columns(x)).tobytes() == y.tobytes()
        assert backward(*map(_columns, inputs)).tobytes() == backward(*inputs).tobytes()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(3, 5, 300), (1027, 2050)])
def test_lines_of_f64_go_together(shape: tuple[int, ...], reverse: bool) -> None:
    """As many as there are, evenly apart or not, through the cache or past it: with the bits of
    lines side by side."""
    rng = np.random.default_rng(10)
    x = 1 + 0.1 * rng.standard_normal(shape)
    x[1, ..., 40], x[2, ..., 100] = np.inf, 0
    dy = rng.standard_normal(shape)
    spaced = np.zeros((*shape[:-2], shape[-2] + 1, shape[-1]))[..., :-1, :]
    spaced[...] = x
    for array in (x, spaced):
        y = pullback.cumprod(array, reverse=reverse)
        dx = pullback.cumprod_backward(dy, array, y, reverse=reverse)
        x1, dy1 = (_columns(a.reshape(-1, shape[-1])) for a in (x, dy))
        y1 = pullback.cumprod(x1, reverse=reverse)
        dx1 = pullback.cumprod_backward(dy1, x1, y1, reverse=reverse)
        assert y.tobytes() == y1.tobytes()
        assert dx.tobytes() == dx1.tobytes()


def _gradient_of_products(dy: Any, x: Any) -> Any:
    """The definition, in long doubles."""
    dy, x = dy.astype(np.longdouble), x.astype(np.longdouble)
    sums, later = np.zeros_like(x), 0
    for j in reversed(range(x.shape[1])):
        sums[:, j] = dy[:, j] + later
        later = x[:, j] * sums[:, j]
    before = np.cumprod(x, axis=1)[:, :-1]
    return np.concatenate([np.ones_like(x[:, :1]), before], axis=1) * sums


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_products_of_halves_leave_the_range_and_come_back(dtype: Any) -> None:
    """What is carried decays, grows and returns far beyond f32; some factors and sums are 0."""
    rng = np.random.default_rng(7)
    n = 333
    noise = np.exp(0.3 * rng.standard_normal((9, n)))
    waves = np.exp2(np.outer([1, 2, 4, -1, -2, -4, 8, 0, 0], np.sign(np.sin(np.arange(n) / 20))))
    x = (waves * noise).astype(dtype)
    x[7, ::50], x[8, 100] = 2.0**-20, 0
    dy = rng.standard_normal(x.shape).astype(dtype)
    dy[:, rng.random(n) < 0.5] = 0
    results = pullback.cumprod(x), pullback.cumprod_backward(dy, x, None)
    with np.errstate(over="ignore"):
        truths = np.cumprod(x.astype(np.longdouble), axis=1), _gradient_of_products(dy, x)
        scales = np.abs(truths[0]), _gradient_of_products(np.abs(dy), np.abs(x))
        found = [result.astype(np.longdouble) for result in results]
    finite = ml_dtypes.finfo(dtype)
    for got, truth, scale in zip(found, truths, scales, strict=True):
        inside = scale < finite.max
        error = np.abs(got - truth) / np.maximum(scale, finite.tiny)
        assert error[inside].max() <= finite.eps
        assert not np.isnan(got).any()
    across = (
        pullback.cumprod(_columns(x)),
        pullback.cumprod_backward(_columns(dy), _columns(x), None),
    )
    assert [a.tobytes() for a in across] == [r.tobytes() for r in results]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums_of_negative_zeros_are_negative(reverse: bool, dtype: Any) -> None:
    """Whatever fills tails and neighbours must change nothing when added."""
    for shape in ((3, 5), (40, 7), (2, 300), (70, 100), (1, 40_000)):
        x = np.full(shape, -0.0).astype(dtype)
        for axis in (0, 1):
            for given in (x, x[:, ::-1], np.repeat(x, 2, 1)[:, ::2], np.asfortranarray(x)):
                for scan in (pullback.cumsum, pullback.cumsum_backward):
                    found = scan(given, axis, reverse=reverse).astype(float)
                    assert np.signbit(found).all(), (shape, axis, scan)


@pytest.mark.parametrize("reverse", [False, True])
def test_f64_scans_carry_what_rounding_takes(reverse: bool) -> None:
    """In double the accumulator has no spare digits: its error is carried beside it."""
    rng = np.random.default_rng(8)
    for shape, axis in (((20_000,), 0), ((3, 4000), 1), ((4000, 20), 0)):
        flip = slice(None, None, -1 if reverse else 1)
        way = tuple(flip if k == axis else slice(None) for k in range(len(shape)))
        for scan, x in (
            (pullback.cumsum, rng.random(shape)),
            (pullback.cumprod, np.exp(rng.uniform(-0.01, 0.01, shape))),
        ):
            wide = getattr(np, scan.__name__)(x[way].astype(np.longdouble), axis)[way]
            error = np.abs(scan(x, axis, reverse=reverse) - wide) / np.spacing(wide.astype(float))
            assert error.max() < 3, (scan.__name__, shape)


def _aligned(shape: tuple[int, ...], dtype: Any, rest: int) -> Any:
    """An array whose address is `rest` beyond a cache line."""
    memory = np.empty(np.prod(shape) * np.dtype(dtype).itemsize + 128, np.uint8)
    start = (rest - memory.ctypes.data) % 64
    return memory[start : start + memory.size - 128].view(dtype).reshape(shape)


@pytest.mark.parametrize("axis", [0, 1])
def test_large_outputs_of_different_alignment(axis: int) -> None:
    """Two outputs beyond the caches, neither on the other's cache lines."""
    rng = np.random.default_rng(14)
    x = rng.standard_normal((2050, 2051)).astype(np.float32)
    outs = _aligned(x.shape, np.float32, 4), _aligned(x.shape, np.int64, 24)
    pullback.cummax(x, axis, return_indices=True, out=outs)
    assert (outs[0] == np.maximum.accumulate(x, axis)).all()
    assert (np.take_along_axis(x, outs[1], axis) == outs[0]).all()
    outs = _aligned(x.shape, np.float32, 4), _aligned(x.shape, np.float32, 12)
    a = 0.5 * rng.random(x.shape).astype(np.float32)
    pullback.linear_scan_backward(x, a, x, axis, out=outs)
    again = pullback.linear_scan_backward(x[:, :], a, x, axis)
    assert [o.tobytes() for o in outs] == [o.tobytes() for o in again]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(64, 37), (3, 37), (70, 256), (1, 1000), (5, 1000)])
def test_broadcast_factors_have_the_bits_of_whole_ones(shape: tuple[int, int], dtype: Any) -> None:
    """A factor for each line, for each step, and for all, walked along, by lines and across."""
    rng = np.random.default_rng(0)
    b, a = rng.normal(size=shape).astype(dtype), rng.uniform(0.5, 1.0, shape).astype(dtype)
    for factors, axis, reverse in itertools.product((a[:, :1], a[:1], a[:1, :1]), (0, 1), (0, 1)):
        options = {"axis": axis, "reverse": bool(reverse)}
        whole, own = np.broadcast_to(factors, shape).copy(), factors.copy()
        h = pullback.linear_scan(whole, b, **options)
        assert np.array_equal(pullback.linear_scan(own, b, **options), h)
        db = pullback.linear_scan_backward(b, own, h, **options)[1]
        assert np.array_equal(db, pullback.linear_scan_backward(b, whole, h, **options)[1])


def test_kernels_of_the_engine_are_found_by_name() -> None:
    """A program that JAX exported names its kernels; another process looks them up."""
    from pullback.ops.scan.cpu_cummax import walks_of

    script = (
        "from pullback.contract.record import resolve\n"
        "import sys\n"
        "for name in sys.argv[1:]:\n"
        "    assert resolve(':'.join(name.rsplit('.', 1))).name == name\n"
    )
    walks = [cpu_cumsum.CUMSUM, walks_of(True, False), walks_of(False, True)]
    names = [kernel.name for each in walks for kernel in each.kernels.values()]
    subprocess.run([sys.executable, "-c", script, *names], check=True)


@pytest.mark.parametrize("ties", ["first", "last"])
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_extrema_of_signed_zeros_have_the_bits_of_the_winner(name: str, ties: str) -> None:
    """0 and -0 tie: which of them is written is told by its sign alone. Without indices, other code
    finds the values."""
    rng = np.random.default_rng(5)
    for shape, axis in (((3, 70), 1), ((70, 3), 0), ((40, 5), 1)):
        x = np.where(rng.random(shape) < 0.5, -0.0, 0.0).astype(np.float32)
        _, indices = getattr(pullback, name)(x, axis, ties=ties, return_indices=True)
        along = np.arange(shape[axis]).reshape((-1, 1) if axis == 0 else (1, -1))
        holds = np.zeros_like(indices) if ties == "first" else along
        assert (indices == holds).all()
        values = getattr(pullback, name)(x, axis, ties=ties)
        assert (np.signbit(values) == np.signbit(np.take_along_axis(x, indices, axis))).all()
