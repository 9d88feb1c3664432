"""Recurrences, logarithms of sums and gradients of extrema of f32 on the GPU: in pairs of f32 as
exact as in f64, over its range, and without its instructions where that is not needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from interpreted import SUBJECTS, Emulated, Interpreted, equals_the_oracle
from pullback.verify.emulated import emulated
from pullback.verify.subject import Arguments

RNG = np.random.default_rng(8)
N = 1100  # more than a tile


def _f32(*parts: Any) -> Any:
    return np.concatenate([np.atleast_1d(part) for part in parts]).astype(np.float32)


def _subject(name: str) -> Interpreted:
    return next(subject for subject in SUBJECTS if subject.name == name)


# Exponents that rise further than f32 reaches within a tile, fall, or are not finite.
EXPONENTS = {
    "ordinary": _f32(RNG.standard_normal(N)),
    "rising": _f32(np.linspace(-300, 300, N)),
    "falling": _f32(np.linspace(300, -300, N)),
    "one step up": _f32(np.full(600, -90.0), np.full(600, 20.0)),
    "near zero": _f32(-30.0 * RNG.random(20), RNG.standard_normal(N) - 5.0),
    "cancelling": _f32(np.log(1e-3) * np.ones(1000), RNG.standard_normal(90)),
    "leading -inf": _f32(np.full(30, -np.inf), RNG.standard_normal(N)),
    "only -inf": _f32(np.full(40, -np.inf)),
    "+inf": _f32(1.0, 2.0, np.inf, 3.0, np.inf, RNG.standard_normal(N)),
    "NaN": _f32(1.0, np.nan, RNG.standard_normal(N)),
    "large": _f32(3e38, -3e38, 3.4e38, RNG.standard_normal(30)),
}
PIECES = np.array([0, 3, 3, 40, 40])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", EXPONENTS)
def test_logarithms_of_sums_have_the_range_of_f64(name: str, reverse: bool) -> None:
    x = EXPONENTS[name]
    subject = _subject("logcumsumexp")
    equals_the_oracle(subject, {"x": x, "reverse": reverse})
    pieces = np.minimum(np.append(PIECES, len(x)), len(x))
    equals_the_oracle(subject, {"x": x, "reverse": reverse, "offsets": pieces})
    rows = np.stack([EXPONENTS["ordinary"][:30], x[:30]])
    equals_the_oracle(subject, {"x": rows, "axis": 1, "reverse": reverse})


def _normal(n: int = N) -> Any:
    return RNG.standard_normal(n)


# Factors and terms whose products leave the range of f32, and come back or do not.
WALKS = {
    "ordinary": (_f32(_normal()), _f32(_normal())),
    "decaying": (_f32(RNG.random(N)), _f32(_normal())),
    "held": (_f32(np.full(N, 0.9999)), _f32(_normal())),
    "an impulse": (_f32(np.full(N, 0.5)), _f32(1.0, np.zeros(N - 1))),
    "an impulse that comes back": (
        _f32(np.full(300, 0.5), np.full(300, 2.0)),
        _f32(1.0, np.zeros(599)),
    ),
    "an impulse that comes back after a tile": (
        _f32(np.full(1300, 0.8), np.full(1300, 1.25)),
        _f32(1.0, np.zeros(2599)),
    ),
    "a large impulse in one step": (
        _f32(1.0, 2.0**-100, 2.0**-60, 2.0**90, 2.0**70, np.ones(9)),
        _f32(2.0**40, np.zeros(13)),
    ),
    "growing": (_f32(np.full(90, 1.5)), _f32(_normal(90))),
    "beyond and back": (_f32(np.full(40, 8.0), np.full(80, 0.1)), _f32(1e20, _normal(119))),
    "factors of no size": (_f32(_normal(20), 1e-42, _normal(20)), _f32(1e30 * _normal(41))),
    "terms of no size": (_f32(_normal(50)), _f32(1e-42 * _normal(50))),
    "small": (_f32(_normal()), _f32(1e-20 * _normal())),
    "zeros": (_f32(_normal(9), 0.0, _normal(9), 0.0, 0.0, _normal(9)), _f32(_normal(30))),
    "nothing yet": (_f32(_normal(60)), _f32(np.zeros(40), _normal(20))),
    "infinite": (_f32(_normal(9), np.inf, _normal(9)), _f32(_normal(5), np.inf, _normal(13))),
    "NaN": (_f32(_normal(9), np.nan, _normal(9)), _f32(_normal(19))),
    "alternating": (_f32(np.full(N, -1.0)), _f32(1e30 * np.ones(N))),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", WALKS)
def test_recurrences_have_the_range_of_f64(name: str, reverse: bool) -> None:
    a, b = WALKS[name]
    if reverse:
        a, b = a[::-1].copy(), b[::-1].copy()
    subject = _subject("linear_scan")
    equals_the_oracle(subject, {"a": a, "b": b, "reverse": reverse})
    pieces = np.array([0, 3, 3, 9, len(a)])
    equals_the_oracle(subject, {"a": a, "b": b, "reverse": reverse, "offsets": pieces})
    h = _f32(subject.answer({"a": a, "b": b, "reverse": reverse})[0])
    back = {"dh": b[::-1].copy(), "a": a, "h": h, "reverse": reverse}
    equals_the_oracle(_subject("linear_scan_backward"), back)


@pytest.mark.parametrize("name", ["ordinary", "an impulse that comes back", "growing"])
def test_chunks_of_recurrences_hand_on_the_range_of_f64(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pullback.ops.scan.gpu_cut.CUT_FROM", 2)
    a, b = (np.tile(part, 4)[:2500] for part in WALKS[name])
    equals_the_oracle(_subject("linear_scan"), {"a": a, "b": b})
    equals_the_oracle(_subject("linear_scan_backward"), {"dh": b, "a": a, "h": b * 0 + 1})


@pytest.mark.parametrize("name", ["ordinary", "rising", "leading -inf", "+inf"])
def test_chunks_of_logarithms_hand_on_the_range_of_f64(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pullback.ops.scan.gpu_cut.CUT_FROM", 2)
    equals_the_oracle(_subject("logcumsumexp"), {"x": np.tile(EXPONENTS[name], 2)})


GRADIENTS = {
    "ordinary": _f32(_normal()),
    "beyond and back": _f32(3e38, 3e38, -3e38, -3e38, _normal()),
    "NaN": _f32(_normal(600), np.nan, _normal(499)),
    "infinite": _f32(_normal(600), np.inf, _normal(20), -np.inf, _normal(478)),
}


@pytest.mark.parametrize("function", ["cummax_backward", "cummin_backward"])
@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("chunked", [False, True])
def test_gradients_of_extrema_have_the_range_of_f64(
    function: str, name: str, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is dropped is dropped entirely, NaN and infinities included."""
    if chunked:
        monkeypatch.setattr("pullback.ops.scan.gpu_cut.CUT_FROM", 2)
    dy = GRADIENTS[name]
    x = _f32(np.sort(_normal(dy.size // 2)), _normal(dy.size - dy.size // 2))
    for reverse in (False, True):
        given: Arguments = {"dy": dy, "x": x, "reverse": reverse}
        equals_the_oracle(_subject(function), given)
        pieces = np.array([0, 3, 3, 590, dy.size])
        equals_the_oracle(_subject(function), {**given, "offsets": pieces})


SHAPES = {0: (200, 64), 1: (4, 2000)}  # rows of one chunk
SCANS: dict[str, tuple[str, ...]] = {
    "logcumsumexp": ("x",),
    "linear_scan": ("a", "b"),
    "linear_scan_backward": ("dh", "a", "h"),
    "cummax_backward": ("dy", "x"),
    "cummin_backward": ("dy", "x"),
}
MOST_F64 = 4  # instructions an element


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", SCANS)
def test_scans_of_f32_take_hardly_any_f64(name: str, axis: int) -> None:
    given: Arguments = {
        argument: RNG.standard_normal(SHAPES[axis]).astype(np.float32) for argument in SCANS[name]
    }
    counts = emulated(_subject(name), {**given, "axis": axis}, "sm_90").counts
    assert counts.instructions["f64"] <= MOST_F64 * SHAPES[axis][0] * SHAPES[axis][1]


def test_compiled_scans_have_the_range_of_f64() -> None:
    a, b = WALKS["an impulse that comes back"]
    for name, given in (
        ("linear_scan", {"a": a, "b": b}),
        ("logcumsumexp", {"x": EXPONENTS["rising"]}),
        ("cummax_backward", {"dy": GRADIENTS["beyond and back"], "x": _f32(_normal(N + 4))}),
    ):
        function = _subject(name)
        equals_the_oracle(Emulated(function.function, function.family), given)
