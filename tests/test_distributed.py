"""Arrays in parts: forms over slices in this process, DTensor and `pullback.distributed` between
processes joined by gloo, named axes of JAX on eight devices of one process."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from pullback.distributed.cost import collectives, model, table
from pullback.distributed.exact import exact
from pullback.distributed.forms import forms, sends
from pullback.distributed.slices import run_slices

SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "linear_scan")
MAPS = ("softmax", "log_softmax", "sparsemax", "entmax15", "entmax")
DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
OPTIONS: list[dict[str, Any]] = [
    {"reverse": reverse, "exclusive": exclusive, "initial": initial}
    for reverse, exclusive, initial in (
        (False, False, False),
        (True, False, True),
        (False, True, True),
        (True, True, False),
    )
]


def _values(name: str, rng: np.random.Generator, n: int) -> np.ndarray[Any, Any]:
    x = rng.normal(size=(3, n))
    if name == "cumprod":
        x[0] = 2.0 ** np.where(np.arange(n) // 65 % 2, 9, -9)  # leaves the range and comes back
        x[1, n // 2 :: 9] = 0.0
    if name in ("cummax", "cummin"):
        x = np.round(x)
        x[1, : n // 3], x[2, n // 2 :: 7] = (-np.inf if name == "cummax" else np.inf), np.nan
    if name == "logcumsumexp":
        x[1, : n // 2], x[2, n // 2 : n // 2 + 2] = -np.inf, np.inf
    return x


def _cases(name: str, dtype: Any, n: int) -> Any:
    """Calls of a function and of its gradient: name, tensors, options."""
    rng = np.random.default_rng(len(name))
    x = _values(name, rng, n).astype(dtype)
    b, dy = (rng.normal(size=(3, n)).astype(dtype) for _ in range(2))
    for options in OPTIONS if name in SCANS else [{"alpha": 1.3} if name == "entmax" else {}]:
        given: dict[str, Any] = {n: v for n, v in options.items() if n != "initial"}
        tensors = {"a": (x * 0.5).astype(dtype), "b": b} if name == "linear_scan" else {"x": x}
        if options.get("initial"):
            tensors["initial"] = rng.normal(size=3).astype(dtype)
        yield name, tensors, given
        y = getattr(pb, name)(**tensors, **given)
        known = {"dy": dy, "dh": dy, "y": y, "h": y, **tensors}
        backward = getattr(pb, f"{name}_backward").function
        used = {t: known[t] for t in backward.tensors if t in known}
        if name == "entmax":
            del used["x"]  # which is for the gradient of alpha
        yield backward.name, used, given


def _slices(x: Any, borders: list[int]) -> list[Any]:
    return [np.ascontiguousarray(part) for part in np.split(x, borders, -1)]


def _compare(found: Any, wanted: Any, where: str) -> None:
    if wanted.dtype.kind == "i":
        assert np.array_equal(found, wanted), where
        return
    found, exact = found.astype(np.float64), wanted.astype(np.float64)
    assert np.array_equal(np.isfinite(found), np.isfinite(exact)), f"{where}: infinities"
    usual = np.isfinite(exact)
    assert np.array_equal(found[~usual], exact[~usual], equal_nan=True), f"{where}: kinds"
    row = np.max(np.abs(np.where(usual, exact, 0.0)), -1, keepdims=True, initial=0.0)
    ulp = float(ml_dtypes.finfo(wanted.dtype).eps)
    # Two roundings of the largest; in float64 regrouping costs what a sum of so many may.
    bound = (64 if wanted.dtype == np.float64 else 2) * ulp * np.broadcast_to(row, exact.shape)
    assert np.all(np.abs(found[usual] - exact[usual]) <= bound[usual] + 1e-300), where


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", [*SCANS, *MAPS])
def test_parts_are_those_of_the_whole(name: str, dtype: Any) -> None:
    n = 130
    many = [sorted([0, *range(3, 126, 2), n])] if dtype is np.float32 else []
    for borders in ([], [1, 1, 40, 90], *many):
        for case in _cases(name, dtype, n):
            _hold_in_parts(*case, borders)


MANY = [*((name, 512) for name in (*SCANS, *MAPS)), ("cumsum", 2048), ("softmax", 2048)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parts"), MANY)
def test_many_parts_are_those_of_the_whole(name: str, parts: int) -> None:
    """Every rank folds all others: so many take the square of the time."""
    n = 2600
    borders = sorted(np.random.default_rng(1).integers(0, n + 1, parts - 1).tolist())
    for case in islice(_cases(name, np.float32, n), 2):
        _hold_in_parts(*case, borders)


def _hold_in_parts(
    called: str, tensors: dict[str, Any], options: dict[str, Any], borders: list[int]
) -> None:
    function = getattr(pb, called).function
    wanted = function(**tensors, **options)
    ranks: list[dict[str, Any]] = [
        function.bind((), {**tensors, **options}) for _ in range(len(borders) + 1)
    ]
    for tensor in tensors.keys() - {"initial"}:
        for rank, part in zip(ranks, _slices(tensors[tensor], borders), strict=True):
            rank[tensor] = part
    found, count, sent = run_slices(forms()[called], function, ranks)
    where = f"{called} {options} at {borders[:5]}"
    several = wanted if isinstance(wanted, tuple) else (wanted,)
    for i, whole in enumerate(several):
        parts = [results[i] for results in found]
        along = whole.ndim == 2
        _compare(np.concatenate(parts, -1) if along else parts[-1], whole, where)
    cost = collectives(called, pb.ElementKind.of(several[0]))
    assert cost is not None
    if count == cost.count:  # else too many candidates: parts are gathered whole
        assert sent == cost.sent(rows=3), where
    else:
        assert "CANDIDATES" in vars(sys.modules[forms()[called].__module__]), where


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", [*SCANS, *MAPS])
def test_exact_parts_have_the_bits_of_the_whole(name: str, dtype: Any) -> None:
    """Whole rows go to one rank each: more ranks than rows, and parts of one step and of none."""
    n = 130
    for borders in ([64], [1, 1, 40, 90]):
        for called, tensors, options in _cases(name, dtype, n):
            function = getattr(pb, called).function
            wanted = function(**tensors, **options)
            ranks: list[dict[str, Any]] = [
                function.bind((), {**tensors, **options}) for _ in range(len(borders) + 1)
            ]
            for tensor in tensors.keys() - {"initial"}:
                for rank, part in zip(ranks, _slices(tensors[tensor], borders), strict=True):
                    rank[tensor] = part
            found, count, _sent = run_slices(exact, function, ranks)
            for i, whole in enumerate(wanted if isinstance(wanted, tuple) else (wanted,)):
                parts = [results[i] for results in found]
                joined = np.concatenate(parts, -1) if whole.ndim == 2 else parts[-1]
                where = f"{called} {options} at {borders}, result {i}"
                assert joined.tobytes() == whole.tobytes(), where
            # Extents, each operand there, each result back.
            assert count == 1 + len(tensors.keys() - {"initial"}) + len(found[0]), called


def test_exact_operands_that_are_stretched_along_the_axis() -> None:
    """A factor a row beside a part of one step, and a vector, which has no rows to share."""
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(3, k)).astype(np.float32) for k in (1, 9))
    for function, tensors in (
        (pb.linear_scan.function, {"a": a, "b": b}),
        (pb.linear_scan.function, {"a": b[0], "b": b}),
        (pb.cumsum.function, {"x": b[0]}),
        (pb.linear_scan_backward.function, {"dh": b, "a": a, "h": b}),
        (pb.softmax_loss.function, {"x": b, "target": np.array([3, 8, 0])}),
    ):
        wanted = function(**tensors)
        ranks = []
        for own in (slice(0, 1), slice(1, 1), slice(1, 9)):
            given = {n: t[..., own] if t.shape[-1] == 9 else t for n, t in tensors.items()}
            ranks.append(function.bind((), given))
        found, *_ = run_slices(exact, function, ranks)
        for i, whole in enumerate(wanted if isinstance(wanted, tuple) else (wanted,)):
            parts = [results[i] for results in found]
            along = whole.ndim and whole.shape[-1] == 9
            joined = np.concatenate(parts, -1) if along else parts[1]
            assert np.array_equal(joined, whole), (function.name, i)


def test_products_that_leave_the_range_come_back() -> None:
    """Through float64 alone the carries of these parts would be 0 and NaN."""
    x = np.repeat([2.0**-4, 2.0**4, 2.0**-4, 2.0**4], 1000).astype(np.float32)[None]
    function = pb.cumprod.function
    ranks = [function.bind((), {"x": part}) for part in _slices(x, [1000, 2000, 3000])]
    found, *_ = run_slices(forms()["cumprod"], function, ranks)
    assert all(np.isfinite(results[0]).all() for results in found)
    assert found[2][0][0, 0] == 2.0**-4
    factors = np.full((1, 4000), 4.0, np.float32)
    function = pb.linear_scan.function
    ranks = [
        function.bind((), {"a": part, "b": np.zeros_like(part)})
        for part in _slices(factors, [1000, 2000])
    ]
    found, *_ = run_slices(forms()["linear_scan"], function, ranks)
    assert all(np.array_equal(results[0], np.zeros_like(results[0])) for results in found)


@pytest.mark.parametrize("borders", [[], [10, 20], [3, 3, 25]])
def test_loss_of_classes_in_parts(borders: list[int]) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 30)).astype(np.float32)
    x[3], x[2, 5] = -np.inf, np.inf
    target, dy = np.array([3, 29, 5, 0]), rng.normal(size=4).astype(np.float32)
    wanted, p = pb.softmax_loss(x, target, return_probabilities=True)
    options = {"target": target, "return_probabilities": True}
    function, backward = pb.softmax_loss.function, pb.softmax_loss_backward.function
    ranks = [function.bind((), {"x": part, **options}) for part in _slices(x, borders)]
    found, count, _ = run_slices(forms()["softmax_loss"], function, ranks)
    assert count == (2 if len(borders) == 3 else 1)  # where parts begin has to be told if uneven
    for loss, _part in found:
        assert np.allclose(loss, wanted, rtol=1e-6)
    assert np.allclose(np.concatenate([part for _, part in found], -1), p, rtol=1e-6)
    ranks = [backward.bind((dy, part, target), {}) for part in _slices(p, borders)]
    found, *_ = run_slices(forms()["softmax_loss_backward"], backward, ranks)
    dx = np.concatenate([part for (part,) in found], -1)
    assert np.allclose(dx, pb.softmax_loss_backward(dy, p, target), rtol=1e-6)
    bad = {**options, "target": np.array([1, 99, 2, 3])}
    ranks = [function.bind((), {"x": part, **bad}) for part in _slices(x, borders)]
    with pytest.raises(pb.IndexOutOfRange, match=r"in \[0, 30\), got 99 at position 1"):
        run_slices(forms()["softmax_loss"], function, ranks)


def test_a_kernel_says_what_it_takes_over_ranks() -> None:
    desc = pb.ScanDescriptor(
        kind=pb.ScanKind.CUMSUM, input_shape=(3, 5), scan_axis=1, element=pb.ElementKind.F32
    )
    found = pb.ScanPlan.select(pb.Stream.cpu(), desc).sku.collectives
    assert (found.operation, found.count, found.sent(rows=3), found.same_bits) == (
        "all_gather",
        1,
        24,
        False,
    )
    assert str(found) == "all_gather, 8 bytes a row, folded in the order of ranks"


def test_no_form_sends_more_than_it_has_to_without_a_reason() -> None:
    for name, sent in sends().items():
        least = sent.rows if sent.least is None else sent.least
        enough = sent.rows * 8 <= 1.1 * least * 8
        assert enough or sent.why, name
        assert sent.besides * 8 <= 64, name
    text = (Path(__file__).parents[1] / "docs" / "distributed.md").read_text()
    for made in (table, model):
        name = made.__name__
        assert made() in text, (
            f"python -c 'from pullback.distributed.cost import {name}; print({name}())'"
        )


def _run(script: str, *args: str) -> None:
    path = Path(__file__).with_name(script)
    found = subprocess.run(
        [sys.executable, path, *args], capture_output=True, text=True, timeout=300
    )
    assert (found.stdout, found.returncode) == ("", 0), found.stderr[-3000:]


@pytest.mark.parametrize("size", [2, 4])
def test_all_cases_between_processes(size: int) -> None:
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch without gloo")
    _run("ranks.py", str(size))


def test_named_axes_of_eight_devices() -> None:
    pytest.importorskip("jax")
    _run("devices.py")


def test_collectives_and_bytes_of_one_rank_of_1024() -> None:
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    _run("counted.py")
