"""Sums of f32 on the GPU in pairs of f32: as exact as sums in f64, over the range of f64, and
without its instructions where that range is not needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from interpreted import SUBJECTS, Emulated, Interpreted, equals_the_oracle
from pullback.verify.emulated import emulated
from pullback.verify.subject import Arguments

MOST = np.float32(3e38)
RNG = np.random.default_rng(5)


def _rows(*values: float, n: int = 40) -> Any:
    """These values first, then ordinary ones."""
    return np.concatenate([np.array(values), RNG.standard_normal(n)]).astype(np.float32)


# Sums that leave the range of f32 and come back, in one tile and over several; what is not finite.
HARD = {
    "beyond and back": _rows(MOST, MOST, -MOST, -MOST),
    "beyond only in a tree": _rows(-MOST, MOST, MOST, -MOST, 1.0),
    "beyond at the end of a tile": np.concatenate(
        [_rows(n=1022), [MOST, MOST, 5.0, -MOST, -MOST], _rows(n=2000)]
    ).astype(np.float32),
    "infinite": _rows(1.0, np.inf, 2.0),
    "NaN": _rows(1.0, np.nan, 2.0),
    "cancelling": _rows(1e30, 1.0, -1e30, 3e-8),
    "least": np.full(70, 1e-45, np.float32),
}


def _subject(name: str) -> Interpreted:
    return next(subject for subject in SUBJECTS if subject.name == name)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", HARD)
def test_running_sums_have_the_range_of_f64(name: str, reverse: bool) -> None:
    x = HARD[name]
    equals_the_oracle(_subject("cumsum"), {"x": x, "reverse": reverse})
    pieces = np.array([0, 1, 3, 3, len(x)])
    equals_the_oracle(_subject("cumsum"), {"x": x, "reverse": reverse, "offsets": pieces})


@pytest.mark.parametrize("name", ["beyond at the end of a tile", "infinite"])
def test_chunks_hand_on_the_range_of_f64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pullback.ops.scan.gpu_cut.CUT_FROM", 2)
    x = np.concatenate([HARD[name], _rows(n=2100)])
    equals_the_oracle(_subject("cumsum"), {"x": x})


@pytest.mark.parametrize("function", ["segment_sum", "segment_mean"])
@pytest.mark.parametrize("name", HARD)
def test_sums_of_segments_have_the_range_of_f64(name: str, function: str) -> None:
    """One segment goes on over several tiles and blocks, others are of a few rows."""
    x = HARD[name]
    ids = np.minimum(np.arange(len(x)) // 5, 2)
    options = {"num_segments": 4, "indices_are_sorted": True}
    equals_the_oracle(_subject(function), {"x": x[:, None], "segment_ids": ids, **options})


SHARES = np.concatenate([np.full(4, 1e-30), RNG.standard_normal(8), [1e-43, 0.0]])


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e37])
def test_weighted_sums_lose_nothing_below_and_above(mode: str, scale: float) -> None:
    """Products whose rest f32 does not hold, and quotients."""
    indices = np.arange(14) % 6
    table = (RNG.standard_normal((6, 3)) * scale).astype(np.float32)
    bags = {"indices": indices, "offsets": np.array([0, 5, 5, 11]), "mode": mode}
    if mode == "sum":
        bags["per_sample_weights"] = SHARES.astype(np.float32)
    equals_the_oracle(_subject("embedding_bag"), {"weight": table, **bags})
    dout = (RNG.standard_normal((4, 3)) * scale).astype(np.float32)
    back = {"dout": dout, **bags, "num_embeddings": 6}
    equals_the_oracle(_subject("embedding_bag_backward"), back)


def test_weighted_sums_of_products_below_all_numbers() -> None:
    """Each of them rounds to zero, their sum does not."""
    count = 3000
    weight = np.full((2, 3), 2.0**-100, np.float32)
    shares = np.full(count, 0.3 * 2.0**-49, np.float32)
    bags = {"offsets": np.array([0, 5]), "mode": "sum", "per_sample_weights": shares}
    given = {"weight": weight, "indices": np.arange(count) % 2, **bags}
    equals_the_oracle(_subject("embedding_bag"), given)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_probabilities_keep_what_the_difference_from_the_maximum_loses(op: str) -> None:
    x = RNG.uniform(-50, 50, (4, 300)).astype(np.float32)
    equals_the_oracle(_subject(op), {"x": x})


@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e-22, 1e20])
def test_products_of_rows_lose_nothing_below_and_above(scale: float) -> None:
    sides = (RNG.standard_normal((n, 5)) * scale for n in (4, 6))
    dout, weight = (side.astype(np.float32) for side in sides)
    bags = {"indices": np.arange(14) % 6, "offsets": np.array([0, 5, 5, 11])}
    subject = _subject("embedding_bag_per_sample_weights_backward")
    equals_the_oracle(subject, {"dout": dout, "weight": weight, **bags})


N, ROWS = 4096, (2048, 32)
SUMS: dict[str, Arguments] = {
    "cumsum": {"x": RNG.standard_normal(N)},
    "cumsum_backward": {"dy": RNG.standard_normal((64, 64)), "axis": 0},
    "segment_sum": {
        "x": RNG.standard_normal(ROWS),
        "segment_ids": np.sort(RNG.integers(0, 90, 2048)),
        "num_segments": 90,
        "indices_are_sorted": True,
    },
    "segment_mean": {
        "x": RNG.standard_normal(ROWS),
        "segment_ids": RNG.integers(0, 90, 2048),
        "num_segments": 90,
    },
    "segment_var": {
        "x": RNG.standard_normal(ROWS),
        "segment_ids": RNG.integers(0, 90, 2048),
        "num_segments": 90,
    },
    "embedding_backward": {
        "dout": RNG.standard_normal(ROWS),
        "indices": RNG.integers(0, 500, 2048),
        "num_embeddings": 500,
    },
    "embedding_bag": {
        "weight": RNG.standard_normal((500, 32)),
        "indices": RNG.integers(0, 500, 2048),
        "offsets": np.arange(0, 2048, 40),
        "mode": "mean",
    },
    "embedding_bag_backward": {
        "dout": RNG.standard_normal((52, 32)),
        "indices": RNG.integers(0, 500, 2048),
        "offsets": np.arange(0, 2048, 40),
        "num_embeddings": 500,
        "mode": "mean",
    },
}
MOST_F64 = 4  # instructions an element that is summed
TWICE = ("segment_var",)  # sums gaps, and then squares of them


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_f32_take_hardly_any_f64(name: str) -> None:
    floats = {
        k: v.astype(np.float32) if getattr(v, "dtype", None) == np.float64 else v
        for k, v in SUMS[name].items()
    }
    counts = emulated(_subject(name), floats, "sm_90").counts
    elements = N if name.startswith("cumsum") else ROWS[0] * ROWS[1]
    elements *= 2 if name in TWICE else 1
    assert counts.instructions["f64"] <= MOST_F64 * elements


def test_compiled_sums_have_the_range_of_f64() -> None:
    function = _subject("cumsum")
    compiled = Emulated(function.function, function.family)
    equals_the_oracle(compiled, {"x": HARD["beyond at the end of a tile"]})


def test_warps_that_store_the_same_count_do_not_race() -> None:
    """Four warps each have the counts of a tile of 128 columns, and bring them into another order
    by way of the same shared memory."""
    function = _subject("segment_mean")
    x = RNG.standard_normal((9, 150)).astype(np.float32)
    arguments = {"x": x, "segment_ids": RNG.integers(0, 3, 9), "num_segments": 3}
    equals_the_oracle(Emulated(function.function, function.family), arguments)
