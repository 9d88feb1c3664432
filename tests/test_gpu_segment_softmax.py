"""Softmax, logsumexp and variances within segments on the GPU, where numbers are not finite, or far
apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from interpreted import SUBJECTS, Emulated, Interpreted, equals_the_oracle
from pullback.contract.element import ElementKind
from pullback.ops.case import Case
from pullback.ops.segment.gpu_reduce import levels_of

INF, NAN = np.inf, np.nan
# A segment each: ordinary, far apart, masked in part and wholly, infinite, NaN, of one row.
SEGMENTS: tuple[tuple[float, ...], ...] = (
    (0.5, -1.0, 2.0),
    (-1e4, 1e4, 9990.0),
    (-INF, 1.0, -INF, 0.0),
    (-INF, -INF),
    (INF, 1.0, INF, -INF),
    (1.0, NAN, 2.0),
    (INF, NAN),
    (-87.5, 88.0, 15.0),
    (3.0,),
)
X = np.array([value for segment in SEGMENTS for value in segment])
IDS = np.repeat(np.arange(len(SEGMENTS)), [len(segment) for segment in SEGMENTS])
COUNT = len(SEGMENTS) + 2  # the last two have no rows
NAMES = [s.name for s in SUBJECTS if s.family in ("segment_softmax", "segment_statistics")]


def _subject(name: str) -> Interpreted:
    return next(subject for subject in SUBJECTS if subject.name == name)


def _arguments(subject: Interpreted, element: ElementKind, infinite: bool = False) -> Any:
    """Rows in any order, some in no segment; gradients for rows or for segments."""
    rng = np.random.default_rng(4)
    order = rng.permutation(len(X))
    x = np.stack([X, X[::-1] * 0.5, rng.standard_normal(len(X))], 1)[order]
    ids = np.append(IDS[order], [-1, COUNT])
    x = np.concatenate([x, np.ones((2, 3))])
    rows = x.shape if subject.family == "segment_softmax" else (COUNT, 3)
    dy = rng.standard_normal(rows)
    if infinite:
        dy[::4] = INF
    case = Case("hard", {"x": x, "segment_ids": ids, "dy": dy}, {"num_segments": COUNT})
    found = subject.arguments(case, element, ElementKind.I64, subject.variants[0])
    assert found is not None
    return found


@pytest.mark.parametrize("name", NAMES)
def test_special_values_within_segments(name: str) -> None:
    subject = _subject(name)
    for element in (ElementKind.F32, ElementKind.F64, ElementKind.BF16):
        equals_the_oracle(subject, _arguments(subject, element))
    if "backward" in name:
        equals_the_oracle(subject, _arguments(subject, ElementKind.F32, True))


@pytest.mark.parametrize("name", ["segment_log_softmax", "segment_softmax_backward"])
def test_compiled_code_with_special_values(name: str) -> None:
    subject = _subject(name)
    compiled = Emulated(subject.function, subject.family, target="sm_100")
    equals_the_oracle(compiled, _arguments(subject, ElementKind.F32))


def test_a_segment_of_several_blocks() -> None:
    x = np.random.default_rng(7).standard_normal((300, 2)).astype(np.float32)
    ids = np.minimum(np.arange(300) // 4, 9)
    assert len(levels_of(300, 2)) > 1
    for name in ("segment_softmax", "segment_logsumexp", "segment_var", "segment_std"):
        arguments = {"x": x, "segment_ids": ids, "num_segments": 12, "indices_are_sorted": True}
        equals_the_oracle(_subject(name), arguments)


# --- variances ------------------------------------------------------------------------------------

VARIANCES = ("segment_var", "segment_std")
SCALES = {"ordinary": 1.0, "as small as numbers are": 3e-44, "squares beyond f32": 1e25}


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("name", [*VARIANCES, *(f"{name}_backward" for name in VARIANCES)])
def test_variances_of_any_size(name: str, scale: float) -> None:
    """Segments of several tiles and blocks, whose squares f32 does not hold. A root does."""
    rng, subject = np.random.default_rng(3), _subject(name)
    ids = np.sort(np.append(np.zeros(200, np.int64), rng.integers(0, 5, 100)))
    x = (scale * rng.standard_normal((300, 20))).astype(np.float32)
    asked = {"x": x, "segment_ids": ids, "indices_are_sorted": True, "ddof": 1}
    if "backward" in name:
        asked["dy"] = rng.standard_normal((7, 20)).astype(np.float32)
    else:
        asked["num_segments"] = 7
    equals_the_oracle(subject, asked)


@pytest.mark.parametrize("name", VARIANCES)
@pytest.mark.parametrize("far", [0.0, 1e6, -3e-40])
def test_equal_rows_have_no_variance(name: str, far: float) -> None:
    """Exactly, and rows far from zero lose nothing; as many rows as ddof have none either."""
    x = np.full((40, 3), far, np.float32)
    x[20:] += np.arange(20, dtype=np.float32)[:, None] % 5
    for ddof in (0, 20, 21):
        asked = {"x": x, "segment_ids": np.arange(40) // 20, "num_segments": 3, "ddof": ddof}
        (y,) = _subject(name).answer({**asked, "empty": 7.5})
        assert (y[0] == 0).all()
        assert ((y[1] > 0) == (ddof == 0)).all()
        assert (y[2] == 7.5).all()
        equals_the_oracle(_subject(name), asked)


def test_logarithms_of_sums_are_rounded_once() -> None:
    """Segments of two rows with sums near 1.4: their logarithms show what f32 rounds off twice."""
    rng = np.random.default_rng(31)
    x = rng.uniform(0.35, 0.49, (400, 2, 32)) * np.array([[1.0], [-1.0]])
    call = {"x": x.reshape(800, 32).astype(np.float32), "segment_ids": np.arange(800) // 2}
    equals_the_oracle(_subject("segment_log_softmax"), {**call, "num_segments": 400})
