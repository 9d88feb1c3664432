"""The oracles along an axis against things that share nothing with them.

Peers, literal sums, fifty digits, and differentiation.
"""

from __future__ import annotations

import entmax as entmax_package
import mpmath
import numpy as np
import pytest
import scipy.special
import torch

from agreement import Function, close, numeric_pullback, same, torch_pullback
from pullback.ops.lerp import oracle as lerp
from pullback.ops.recurrence import oracle as recurrence
from pullback.ops.scan import oracle as scan
from pullback.ops.simplex import oracle as simplex
from pullback.verify.ulp import round_to, worst

INF, NAN = np.inf, np.nan


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240611)


# Scans ------------------------------------------------------------------------------------------

LAYOUTS = [((7,), 0), ((), 0), ((), -1), ((3, 5, 2), 1), ((4, 6), -2), ((2, 0, 3), 1), ((0, 4), 1)]


def flipped(f: Function, reverse: bool) -> Function:
    return (lambda x, d: f(x.flip(d), d).flip(d)) if reverse else f


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), LAYOUTS)
def test_scans_agree_with_torch(
    rng: np.random.Generator, shape: tuple[int, ...], axis: int, reverse: bool
) -> None:
    x = np.asarray(rng.standard_normal(shape))
    x[rng.random(shape) < 0.25] = 0
    dy = np.asarray(rng.standard_normal(shape))
    options = {"axis": axis, "reverse": reverse}
    for name in ("cumsum", "cumprod", "logcumsumexp"):
        peer = flipped(getattr(torch, name), reverse)
        y = getattr(scan, name)(x, **options)
        close(y, peer(torch.tensor(x), axis))
        (want,) = torch_pullback(lambda t, p=peer: p(t, axis), dy, x)
        if name == "cumsum":
            close(scan.cumsum_backward(dy, **options), want)
        else:
            close(getattr(scan, name + "_backward")(dy, x, None, **options), want)
            close(getattr(scan, name + "_backward")(dy, x, y, **options), want)
    for name in ("cummax", "cummin"):
        peer = flipped(lambda t, d, n=name: getattr(torch, n)(t, d).values, reverse)
        y, at = getattr(scan, name)(x, **options, return_indices=True, ties="last")
        close(y, peer(torch.tensor(x), axis))
        rows = np.atleast_1d(x)
        same(np.take_along_axis(rows, np.atleast_1d(at), axis).reshape(shape), y)
        (want,) = torch_pullback(lambda t, p=peer: p(t, axis), dy, x)
        close(getattr(scan, name + "_backward")(dy, x, **options, ties="last"), want)


def test_extremum_indices_agree_with_torch_on_ties_and_nan(rng: np.random.Generator) -> None:
    x = rng.integers(-2, 3, (40, 9)).astype(np.float64)
    x[rng.random(x.shape) < 0.1] = NAN
    for name in ("cummax", "cummin"):
        values, at = getattr(scan, name)(x, return_indices=True, ties="last")
        want = getattr(torch, name)(torch.tensor(x), 1)
        close(values, want.values)
        np.testing.assert_array_equal(at, want.indices.numpy())
        # FIRST is the earliest position of the same value: a literal search over each prefix.
        _, first = getattr(scan, name)(x, return_indices=True)
        for r, k in np.ndindex(x.shape):
            hits = np.isnan(x[r]) if np.isnan(values[r, k]) else x[r] == values[r, k]
            assert first[r, k] == np.flatnonzero(hits)[0]


def test_cumprod_backward_is_the_literal_sum_of_products(rng: np.random.Generator) -> None:
    for zeros in range(4):
        x, dy = rng.standard_normal(9), rng.standard_normal(9)
        x[rng.permutation(9)[:zeros]] = 0
        want = [
            sum(dy[i] * np.prod(np.delete(x[: i + 1], j)) for i in range(j, 9)) for j in range(9)
        ]
        close(scan.cumprod_backward(dy, x), np.array(want))


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e6])
@pytest.mark.parametrize("slope", [0.0, 3.0, -3.0, 1e5])
def test_logcumsumexp_against_fifty_digits(
    rng: np.random.Generator, offset: float, slope: float
) -> None:
    x = rng.standard_normal(12) + slope * np.arange(12) + offset
    dy = rng.standard_normal(12)
    with mpmath.workdps(50):
        wide = [mpmath.mpf(float(v)) for v in x]
        y = [mpmath.log(sum(mpmath.exp(v) for v in wide[: k + 1])) for k in range(12)]
        dx = [sum(dy[i] * mpmath.exp(wide[k] - y[i]) for i in range(k, 12)) for k in range(12)]
    exact = [np.longdouble(mpmath.nstr(v, 25)) for v in y]
    assert worst(round_to(scan.logcumsumexp(x), np.float64), np.array(exact)) <= 0.501
    want = np.array([np.longdouble(mpmath.nstr(v, 25)) for v in dx])
    got = scan.logcumsumexp_backward(dy, x)
    np.testing.assert_allclose(got, want, rtol=1e-16, atol=1e-300)


def test_logcumsumexp_keeps_a_tiny_addend() -> None:
    assert float(scan.logcumsumexp(np.array([0.0, -60.0]))[1]) == np.exp(-60.0)


SCAN_SPECIALS: list[tuple[str, list[float], list[float], list[float]]] = [
    # op, x, y, dx for dy = 1, 2, 3, ...
    ("logcumsumexp", [-INF, -INF, 0.0], [-INF, -INF, 0], [0, 0, 3]),
    ("logcumsumexp", [0.0, INF, 1.0, INF], [0, INF, INF, INF], [1, 9, 0, 0]),
    ("logcumsumexp", [-INF, INF], [-INF, INF], [0, 2]),
    ("logcumsumexp", [INF, NAN, 1.0], [INF, NAN, NAN], [NAN, NAN, NAN]),
    ("logcumsumexp", [NAN, INF], [NAN, NAN], [NAN, NAN]),
    ("logcumsumexp", [-INF, NAN], [-INF, NAN], [0, NAN]),
    ("logcumsumexp", [0.0, -INF, -INF], [0, 0, 0], [6, 0, 0]),
    ("logcumsumexp", [0.0, 1e30], [0, 1e30], [1, 2]),
    ("cumprod", [2.0, 0.0, 3.0], [2, 0, 0], [1, 22, 0]),
    ("cumprod", [0.0, 0.0, 3.0], [0, 0, 0], [1, 0, 0]),
    ("cummax", [1.0, NAN, 3.0, NAN], [1, NAN, NAN, NAN], [1, 9, 0, 0]),
    ("cummax", [-0.0, 0.0, -1.0], [-0.0, -0.0, -0.0], [6, 0, 0]),
    ("cummin", [0.0, -0.0, 1.0], [0.0, 0.0, 0.0], [6, 0, 0]),
    ("cummax", [-INF, -INF], [-INF, -INF], [3, 0]),
    ("cummin", [INF, NAN, -INF], [INF, NAN, NAN], [1, 5, 0]),
]


@pytest.mark.parametrize(("name", "x", "y", "dx"), SCAN_SPECIALS)
def test_scan_specials(name: str, x: list[float], y: list[float], dx: list[float]) -> None:
    rows, dy = np.array(x), np.arange(1.0, len(x) + 1)
    saved = (np.array(y),) if name in ("cumprod", "logcumsumexp") else ()
    same(getattr(scan, name)(rows), y)
    close(getattr(scan, name + "_backward")(dy, rows, *saved), np.array(dx), atol=0)
    close(getattr(scan, name + "_backward")(dy, rows, *(None for _ in saved)), np.array(dx), atol=0)
    mirrored = getattr(scan, name + "_backward")(dy[::-1], rows[::-1], *saved[:0], reverse=True)
    close(mirrored[::-1], np.array(dx), atol=0)


def test_last_tie_copies_the_bits_of_the_last() -> None:
    values, at = scan.cummax(np.array([0.0, -0.0, 0.0]), return_indices=True, ties="last")
    same(values, [0.0, -0.0, 0.0])
    np.testing.assert_array_equal(at, [0, 1, 2])
    _, at = scan.cummax(np.array([5.0, 5.0, 1.0]), reverse=True, return_indices=True)
    np.testing.assert_array_equal(at, [1, 1, 2])


@pytest.mark.parametrize("reverse", [False, True])
def test_many_pieces_are_a_recurrence_that_forgets(rng: np.random.Generator, reverse: bool) -> None:
    """Pieces of 0 to 10 steps and a giant: the factor is 0 where one begins."""
    lengths = np.concatenate([rng.integers(0, 11, 20_000), [30_000]])
    rng.shuffle(lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    n = int(offsets[-1])
    a, b, h = rng.uniform(-1, 1, n), rng.standard_normal(n), rng.standard_normal(len(lengths))
    some = np.flatnonzero(lengths)
    first = (offsets[1:] - 1 if reverse else offsets[:-1])[some]
    forgetting, start = a.copy(), b.astype(np.longdouble)
    forgetting[first] = 0
    start[first] += a[first] * h[some].astype(np.longdouble)
    close(
        recurrence.linear_scan(a, b, reverse=reverse, initial=h, offsets=offsets),
        recurrence.linear_scan(forgetting, start, reverse=reverse),
    )


# Lerp -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shapes", [((3, 4),) * 3, ((4,), (3, 1), (2, 1, 1)), ((), (2,), ()), ((0, 3), (1, 3), (3,))]
)
def test_lerp_agrees_with_torch(
    rng: np.random.Generator, shapes: tuple[tuple[int, ...], ...]
) -> None:
    a, b, w = (np.asarray(rng.standard_normal(s)) for s in shapes)
    dy = np.asarray(rng.standard_normal(np.broadcast_shapes(*shapes)))
    close(lerp.lerp(a, b, w), torch.lerp(*map(torch.tensor, (a, b, w))))
    close(lerp.lerp_backward(dy, w, a, b), torch_pullback(torch.lerp, dy, a, b, w))
    dy = np.asarray(rng.standard_normal(np.broadcast_shapes(*shapes[:2])))
    want = torch_pullback(lambda p, q: torch.lerp(p, q, 0.3), dy, a, b)
    close(lerp.lerp_backward(dy, 0.3, a, b), want)
    close(lerp.lerp_backward(dy, 0.3), ((1 - 0.3) * dy, 0.3 * dy))


def test_lerp_is_exact_at_its_ends(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((2, 50)) * 10.0 ** rng.integers(-300, 300, (2, 50))
    same(lerp.lerp(a, b, 0.0), a)
    same(lerp.lerp(a, b, 1), b)
    same(lerp.lerp(a, a, 0.7), a)
    assert lerp.lerp_backward(np.ones(1), 1e-30)[0] == 1
    with pytest.raises(ValueError):
        lerp.lerp_backward(np.ones(3), np.array(0.5))


# Simplex ----------------------------------------------------------------------------------------

MAPS: dict[str, Function] = {
    "softmax": lambda x, d: torch.softmax(x, d),
    "log_softmax": lambda x, d: torch.log_softmax(x, d),
    "sparsemax": lambda x, d: entmax_package.sparsemax(x, d),
    "entmax15": lambda x, d: entmax_package.entmax15(x, d),
}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize(("shape", "axis"), [((9,), 0), ((3, 17, 2), 1), ((4, 65), -1)])
@pytest.mark.parametrize("spread", [0.0, 0.3, 5.0])
def test_simplex_agrees_with_peers_and_differences(
    rng: np.random.Generator, name: str, shape: tuple[int, ...], axis: int, spread: float
) -> None:
    x, dy = spread * rng.standard_normal(shape), rng.standard_normal(shape)
    forward, backward = getattr(simplex, name), getattr(simplex, name + "_backward")
    y = forward(x, axis)
    close(y, MAPS[name](torch.tensor(x), axis))
    (want,) = torch_pullback(lambda t: MAPS[name](t, axis), dy, x)
    close(backward(dy, y, axis), want)
    if spread and x.size < 10:
        close(backward(dy, y, axis), numeric_pullback(forward, dy, x), 1e-9, 1e-9)
    close(forward(x + 2.0**20, axis), forward((x + 2.0**20) - 2.0**20, axis), atol=1e-18)


def test_softmax_agrees_with_scipy(rng: np.random.Generator) -> None:
    x = (1000 * rng.standard_normal((5, 33))).astype(np.longdouble)
    np.testing.assert_allclose(simplex.softmax(x), scipy.special.softmax(x, axis=-1), rtol=1e-16)
    np.testing.assert_allclose(
        simplex.log_softmax(x), scipy.special.log_softmax(x, axis=-1), rtol=1e-16, atol=1e-18
    )


@pytest.mark.parametrize("name", MAPS)
def test_simplex_specials(name: str) -> None:
    forward, backward = getattr(simplex, name), getattr(simplex, name + "_backward")
    logs = name == "log_softmax"

    def check(x: list[float], masses: list[float], dy: list[float], dx: list[float]) -> None:
        with np.errstate(divide="ignore"):
            y = forward(np.array(x))
            close(y, np.log(masses) if logs else np.array(masses))
        close(backward(np.array(dy), y), np.array(dx))

    check([-INF, -INF], [0, 0], [NAN if not logs else 1.0, INF], [0, 0])
    check([NAN, INF, 1.0], [NAN] * 3, [1.0, 2.0, 3.0], [NAN] * 3)
    check([3.0], [1], [5.0], [0])
    check([], [], [], [])
    y = forward(np.array([INF, 0.0, INF, INF]))
    np.testing.assert_allclose(np.exp(y) if logs else y, [1 / 3, 0, 1 / 3, 1 / 3])
    y = forward(np.array([0.0, -INF, 0.0]))
    np.testing.assert_allclose(np.exp(y) if logs else y, [0.5, 0, 0.5])
    assert forward(np.zeros((3, 0))).shape == (3, 0)
    assert forward(np.float64(7.0)).shape == ()
    assert np.isnan(backward(np.ones(3), np.array([NAN, 0.5, 0.5]))).all()


def test_sparse_maps_do_not_read_dy_off_the_support() -> None:
    y, dy = np.array([0.5, 0.0, 0.5]), np.array([1.0, NAN, 3.0])
    same(simplex.sparsemax_backward(dy, y), [-1, 0, 1])
    close(simplex.entmax15_backward(dy, y), np.array([-1, 0, 1]) * np.sqrt(0.5))


def test_an_entry_at_the_threshold_is_off_the_support() -> None:
    same(simplex.sparsemax(np.array([1.0, 0.0])), [1, 0])
    same(simplex.sparsemax(np.array([0.5, 0.5, 0.0])), [0.5, 0.5, 0])
    same(simplex.entmax15(np.array([2.0, 0.0])), [1, 0])
