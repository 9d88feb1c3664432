"""Segments whose rows are in parts: forms over slices in this process."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from pullback.distributed.cost import collectives
from pullback.distributed.forms import forms
from pullback.distributed.slices import run_slices

NAMES = [
    f"segment_{name}"
    for name in (
        *("sum", "mean", "max", "min", "prod"),
        *("logsumexp", "softmax", "log_softmax", "var", "std"),
    )
]
DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
ROWS, SEGMENTS = 60, 11
OPTIONS: list[dict[str, Any]] = [{}, {"empty": 7.0}, {"ties": "split"}, {"ties": "last"}]
Array = np.ndarray[Any, Any]


def _rows(name: str, rng: np.random.Generator) -> Array:
    x = rng.normal(size=(ROWS, 3))
    if name in ("segment_max", "segment_min"):
        x = np.round(x)
        x[5, 1] = np.nan
    if "log" in name or "soft" in name:
        x[10, 0], x[30:40] = np.inf, -np.inf
    if name == "segment_prod":
        x[4, 2], x[10:20] = 0.0, x[10:20] * 1e-3
    return x


def _ids(rng: np.random.Generator, ascending: bool) -> Array:
    ids = rng.integers(0, 9, ROWS)
    ids[ids == 4] = 3  # 4, 9 and 10 are empty
    ids[30:40] = 8
    if ascending:
        return np.sort(ids)
    ids[7] = 50
    return ids


def _split(x: Array, borders: list[int], axis: int) -> list[Array]:
    return [np.ascontiguousarray(part) for part in np.split(x, borders, axis)]


def _near(found: Array, wanted: Array, where: str) -> None:
    found, exact = found.astype(np.float64), wanted.astype(np.float64)
    usual = np.isfinite(exact)
    assert np.array_equal(found[~usual], exact[~usual], equal_nan=True), f"{where}: kinds"
    largest = np.max(np.abs(exact[usual]), initial=1e-6)
    eps = float(ml_dtypes.finfo(wanted.dtype).eps)
    assert np.all(np.abs(found[usual] - exact[usual]) <= 3 * eps * largest), where


def _run(
    name: str, tensors: dict[str, Array], options: dict[str, Any], borders: list[int]
) -> tuple[list[Any], int, int]:
    """Results of ranks; tensors with a row for each id are in parts."""
    function, axis = getattr(pb, name).function, options["axis"]
    ranks: list[dict[str, Any]] = [{} for _ in range(len(borders) + 1)]
    for key, tensor in tensors.items():
        along = 0 if key == "segment_ids" else axis
        parts = [tensor] * len(ranks)
        if tensor.shape[along] == ROWS:
            parts = _split(tensor, borders, along)
        for rank, part in zip(ranks, parts, strict=True):
            rank[key] = part
    bound = [function.bind((), {**rank, **options}) for rank in ranks]
    return run_slices(forms()[name], function, bound)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", NAMES)
def test_segments_in_parts_are_those_of_the_whole(name: str, dtype: Any) -> None:
    rng = np.random.default_rng(len(name))
    function, backward = getattr(pb, name).function, getattr(pb, f"{name}_backward").function
    for number, more in enumerate(OPTIONS):
        if any(option not in function.parameters for option in more):
            continue
        ascending, axis = number % 2 == 1, number // 2
        x, ids = _rows(name, rng), _ids(rng, ascending)
        x = np.ascontiguousarray(np.moveaxis(x, 0, axis)).astype(dtype)
        options = {"axis": axis, "indices_are_sorted": ascending, "out_of_range": "skip", **more}
        wanted = function(x, ids, SEGMENTS, **options)
        dy = rng.normal(size=wanted.shape).astype(dtype)
        known = {"dy": dy, "x": x, "y": wanted, "segment_ids": ids}
        used = {n: known[n] for n in backward.parameters if n in known}
        given = {"num_segments": SEGMENTS, **options}
        back = {n: v for n, v in given.items() if n in backward.parameters}
        gradient = backward(**used, **back)
        for borders in ([20, 20, 45, 60], [1], []):
            where = f"{name} {options} at {borders}"
            found, count, sent = _run(name, {"x": x, "segment_ids": ids}, given, borders)
            parts = [results[0] for results in found]
            if wanted.shape == x.shape:
                parts = [np.concatenate(parts, axis)]
            for part in parts:
                _near(part, wanted, where)
            cost = collectives(name, pb.ElementKind.of(x))
            assert cost is not None
            assert count == cost.count, where
            bounds = [len(np.unique(part)) for part in np.split(ids, borders)]
            if more.get("ties") != "split":  # which counts rows that tie, too
                assert sent == cost.sent(rows=3 * max(bounds), segments=max(bounds)), where
            found, *_ = _run(f"{name}_backward", used, back, borders)
            _near(np.concatenate([g for (g,) in found], axis), gradient, f"gradient, {where}")


def test_products_of_many_rows_in_parts_stay_in_range() -> None:
    """700 factors of 2**-9 leave float64, and as many of 2**9 on another rank bring it back."""
    x = np.repeat([2.0**-9, 2.0**9], 700).astype(np.float32)[:, None]
    ids = np.zeros(1400, np.int64)
    function = pb.segment_prod.function
    ranks = [function.bind((x[part], ids[part], 1), {}) for part in (slice(700), slice(700, 1400))]
    found, *_ = run_slices(forms()["segment_prod"], function, ranks)
    assert [results[0][0, 0] for results in found] == [1.0, 1.0]
    mixed = np.arange(1400) % 600  # blocks of rows that are each of a segment of their own
    x = np.full((1400, 1), 0.5, np.float32)
    ranks = [function.bind((x, mixed, 600), {})]
    found, *_ = run_slices(forms()["segment_prod"], function, ranks)
    assert np.array_equal(found[0][0], pb.segment_prod(x, mixed, 600))


def test_all_ranks_raise_what_one_finds_wrong_with_its_ids() -> None:
    function = pb.segment_sum.function
    x, good = np.ones((3, 2), np.float32), np.array([0, 1, 1])
    cases: list[tuple[Any, bool, type[Exception], str]] = [
        (np.array([2, 9, 3]), False, pb.IndexOutOfRange, "got 9 at position 1 of rank 1"),
        (np.array([2, 3, 2]), True, pb.InvalidProblem, "got 2 at position 2 of rank 1"),
        (np.array([0, 3, 3]), True, pb.InvalidProblem, "got 0 at position 0 of rank 1"),
    ]
    for ids, ascending, error, said in cases:
        options = {"indices_are_sorted": ascending}
        ranks = [function.bind((x, part, 5), options) for part in (good, ids)]
        with pytest.raises(error, match=said):
            run_slices(forms()["segment_sum"], function, ranks)
