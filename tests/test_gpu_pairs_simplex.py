"""Simplex maps of f32 with a threshold and their losses on the GPU: in pairs of f32, within their
accuracy contract and with no instruction of f64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from interpreted import SUBJECTS, Emulated, Interpreted, equals_the_oracle
from pullback.verify.emulated import emulated
from pullback.verify.subject import Arguments

RNG = np.random.default_rng(15)
N = 40
KINDS = ("sparsemax", "entmax15")


def _subject(name: str) -> Interpreted:
    return next(subject for subject in SUBJECTS if subject.name == name)


def _f32(*parts: Any) -> Any:
    return np.concatenate([np.atleast_1d(part) for part in parts]).astype(np.float32)


def _normal(n: int = N) -> Any:
    return RNG.standard_normal(n)


# One row each. A step of f32 between two thresholds is 2^-25 or so: many entries lie nearer.
ROWS = {
    "ordinary": _f32(_normal()),
    "spread": _f32(30 * _normal()),
    "even": _f32(np.zeros(N)),
    "nearly even": _f32(1e-6 * _normal()),
    "far from zero": _f32(1e4 + _normal()),
    "ties": _f32(np.repeat(_normal(8), 5)),
    "ties at the threshold": _f32(1.0, np.zeros(N - 1)),
    "near ties at the threshold": _f32(1.0, 1e-7 * RNG.integers(-9, 9, 70)),
    "near ties at both": _f32(1.0, 1.0 - 1e-7 * RNG.integers(0, 9, 9), 0.5 + 1e-7 * _normal()),
    "half": _f32(0.5, np.zeros(99) + 1e-8, 0.5 - 1e-7),
    "two far ones": _f32(3e38, -3e38, _normal()),
    "least": np.full(N, 1e-45, np.float32),
    "masked": np.where(RNG.random(N) < 0.5, -np.inf, _f32(_normal())),
    "only -inf": _f32(np.full(N, -np.inf)),
    "+inf": _f32(1.0, np.inf, 3.0, np.inf, _normal()),
    "NaN": _f32(1.0, np.nan, _normal()),
    "in tiles": _f32(0.01 * _normal(5000)),
    "ties in tiles": _f32(1.0, np.full(4999, 0.5), 0.5 + 1e-7 * np.arange(-20, 20)),
}


def _targets(x: Any) -> list[Any]:
    """Classes, likely and not, an even distribution and a sparse one."""
    sparse = (RNG.random((1, x.shape[1])) < 0.2) * RNG.random((1, x.shape[1])) + 1e-9
    sparse = (sparse / sparse.sum()).astype(np.float32)
    classes = [np.array([k]) for k in (0, 1, x.shape[1] - 1)]
    return [*classes, np.full_like(x, 1 / x.shape[1]), sparse]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ROWS)
def test_hard_rows(name: str, kind: str) -> None:
    x = ROWS[name][None]
    equals_the_oracle(_subject(kind), {"x": x})
    y = _subject(kind).answer({"x": x})[0]
    for dy in (RNG.standard_normal(x.shape), np.ones(x.shape), 1e-30 * RNG.random(x.shape)):
        asked = {"dy": dy.astype(np.float32), "y": y}
        equals_the_oracle(_subject(f"{kind}_backward"), asked)
    for target in _targets(x):
        asked = {"x": x, "target": target, "return_probabilities": True}
        equals_the_oracle(_subject(f"{kind}_loss"), asked)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_is_zero_where_the_map_was_found_in_another_way(kind: str) -> None:
    """Its threshold has other rounding errors: those of the map's own kernel, and of f64."""
    for scale in (0.01, 1.0):
        x = (scale * RNG.standard_normal((30, 700))).astype(np.float32)
        wide = _subject(kind).answer({"x": x.astype(np.float64)})[0]
        for p in (_subject(kind).answer({"x": x})[0], wide.astype(np.float32)):
            assert (_subject(f"{kind}_loss").answer({"x": x, "target": p})[0] == 0).all()


@pytest.mark.parametrize("extent", [100, 1000, 6000])
@pytest.mark.parametrize("kind", KINDS)
def test_no_instruction_is_of_f64(kind: str, extent: int) -> None:
    x, dy = RNG.standard_normal((2, 3, extent)).astype(np.float32)
    y = np.abs(x) / np.abs(x).sum(1, keepdims=True)
    asked: dict[str, Arguments] = {
        kind: {"x": x},
        f"{kind}_backward": {"dy": dy, "y": y},
        f"{kind}_loss": {"x": x, "target": y},
    }
    for name, arguments in asked.items():
        assert emulated(_subject(name), arguments, "sm_90").counts.instructions["f64"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_code(kind: str) -> None:
    for name in ("near ties at both", "two far ones", "ties in tiles"):
        x = ROWS[name][None]
        for function, more in ((kind, {}), (f"{kind}_loss", {"target": np.array([1])})):
            subject = _subject(function)
            equals_the_oracle(Emulated(subject.function, subject.family), {"x": x, **more})
