"""The instrument: what it counts, whom it calls wrong, how it reads its figures. No times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from pullback.bench import accuracy, compete, growth, machine, memory, peers, run
from pullback.bench.compete import verdict
from pullback.bench.figures import At, ahead, as_exact, into, never_behind, no_slower, of_copy
from pullback.bench.inventory import descriptors, entries, plans
from pullback.bench.problem import Problem
from pullback.bench.race import Effort, Timing, copy_of, race, summary
from pullback.bench.results import Accuracy, FigureResult, Ratio, Results, RowResult, compare
from pullback.bench.workload import (
    BF16,
    BOTH,
    F32,
    Draw,
    Peers,
    Row,
    Workload,
    families,
    rows_of,
    take_columns,
    take_rows,
)
from pullback.contract.element import FLOATS
from pullback.verify.subject import subjects

HASTE = Effort(rounds=2, seconds=0.0, least=1, sample=1e-5)


def _lerp(*shape: int) -> Workload:
    def make(draw: Draw, op: str) -> dict[str, Any]:
        return {"a": draw.normal(*shape), "b": draw.normal(*shape), "weight": 0.25}

    return Workload("tiny", ("lerp",), make, take_rows, wrt=("a", "b"))


def _row(way: str = "forward", element: Any = F32) -> Row:
    return Row("lerp", _lerp(16, 8), "lerp", way, element)


# --- problems -------------------------------------------------------------------------------------


def test_bytes_are_the_tensors_once() -> None:
    forward, _ = _row().problems(Draw(F32))
    assert forward.nbytes == 3 * 16 * 8 * 4
    backward, _ = _row("backward", BF16).problems(Draw(BF16))
    assert backward.nbytes == 3 * 16 * 8 * 2
    assert backward.elements == 16 * 8


def test_a_broadcast_operand_counts_once() -> None:
    row = np.ones((1, 8), np.float32)
    problem = Problem(
        subjects()["lerp"], {"a": np.ones((16, 8), np.float32), "b": row, "weight": 0.5}
    )
    assert problem.nbytes == (16 * 8 + 8 + 16 * 8) * 4


def test_the_plan_gives_what_the_function_gives() -> None:
    for way in ("forward", "backward"):
        problem, _ = _row(way).problems(Draw(F32))
        run_, outs = problem.into_outputs(1)
        run_()
        for got, want in zip(outs, problem.answer(), strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_part_of_the_problem_is_that_part_of_the_result() -> None:
    problem, _ = _row("backward").problems(Draw(F32))
    whole, part = problem.answer(), problem.part(take_rows).answer()
    for got, want in zip(part, whole, strict=True):
        np.testing.assert_array_equal(got, take_rows(want))
    assert max(float(error.max()) for error in problem.errors(whole)) <= 1


def test_takes() -> None:
    x = np.arange(40).reshape(10, 4)
    assert len(take_rows(x)) == 4
    assert take_columns(x).shape[0] == 10
    assert take_columns(x[0]).shape == (4,)


# --- timing ---------------------------------------------------------------------------------------


def test_everybody_runs_and_slow_ones_leave_early() -> None:
    calls = {"a": 0, "b": 0}

    def runner(name: str) -> Callable[[], None]:
        def call() -> None:
            calls[name] += 1

        return call

    timings = race({name: runner(name) for name in calls}, HASTE, slow=("b",))
    assert set(timings) == {"a", "b"}
    assert calls["b"] == timings["b"].samples
    assert all(t.low <= t.median <= t.high for t in timings.values())


def test_summary_is_median_and_quartiles() -> None:
    assert summary([3.0]) == Timing(3.0, 3.0, 3.0, 1)
    assert summary([1.0, 2.0, 3.0, 4.0, 5.0]) == Timing(3.0, 2.0, 4.0, 5)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("nbytes", [0, 7, 1 << 21])
def test_the_copy_runs_at_any_size(threads: int, nbytes: int) -> None:
    copy_of(nbytes, threads)()


def test_the_machine_is_described() -> None:
    found = machine.describe(2)
    assert found.cores >= 1
    assert found.versions["numpy"] == np.__version__
    assert 0 <= machine.Bystanders().share() <= 1


# --- verdicts -------------------------------------------------------------------------------------

GOAL = np.array([[1.0, 0.0, 3.0], [2.0, 0.0, 1.0]], np.float32)


@pytest.mark.parametrize(
    ("got", "said"),
    [
        (GOAL, ""),
        (GOAL + np.float32(1e-6), ""),
        (np.where(GOAL == 0, np.float32(nan), GOAL), "wrong: NaN at zeros"),
        (np.full_like(GOAL, nan), "wrong: NaN"),
        (np.full_like(GOAL, inf), "wrong: 100% of the elements"),
        (2 * GOAL, "wrong: 67% of the elements"),
        (GOAL[:1], "wrong: gives float32[1, 3]"),
        (GOAL.astype(np.float64), "wrong: gives float64[2, 3]"),
    ],
)
def test_verdicts(got: Any, said: str) -> None:
    assert verdict((got,), (GOAL.astype(np.longdouble),), F32) == said


def test_a_missed_nan_is_wrong() -> None:
    assert verdict((GOAL,), (np.where(GOAL == 0, nan, GOAL),), F32) == "wrong: misses a NaN"


def test_sums_that_cancel_are_not_wrong_in_rows_of_one_number() -> None:
    truth = np.linspace(-1, 1, 2000, dtype=np.longdouble)[:, None] * 1e-4
    truth[0] = 1  # what the terms are as large as
    rounded = (truth + 1e-7).astype(np.float32)
    assert verdict((rounded,), (truth,), F32) == ""
    assert verdict((rounded + np.float32(0.01),), (truth,), F32).startswith("wrong")


def test_wrong_and_failing_peers_get_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> Any:
        raise RuntimeError("not today")

    tables = {
        "numpy": lambda: {"lerp": lambda a, b, weight: a + np.float32(weight) * (b - a)},
        "scipy": lambda: {"lerp": lambda a, b, weight: a},
        "numbagg": lambda: {"lerp": fail},
    }
    family = replace(families()["lerp"], peers=Peers(tables))
    monkeypatch.setattr(compete, "families", lambda: {"lerp": family})
    found = compete.measure(_row(), ("numpy", "scipy", "numbagg"), HASTE, 2)
    assert set(found.timings) == {"pullback", "pullback out", "numpy", "copy"}
    assert found.verdicts["scipy"].startswith("wrong")
    assert found.verdicts["numbagg"] == "failed: RuntimeError: not today"
    assert found.same_bits
    assert found.ulp is not None


@pytest.mark.parametrize("library", ["torch", "torch out", "jax", "numpy"])
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_peers_agree_with_us(library: str, way: str) -> None:
    if library not in peers.available((library,)):
        pytest.skip(f"{library} is not installed")
    found = compete.measure(_row(way), (library,), HASTE, 2)
    assert not found.verdicts
    offered = way == "forward" or library in ("torch", "jax")
    assert (library in found.timings) == offered


@pytest.mark.slow
def test_compiled_peers_are_compiled_before_they_compete() -> None:
    if "torch.compile" not in peers.available():
        pytest.skip("PyTorch or a C++ compiler is not installed")
    from torch._dynamo.utils import counters

    problem, forward = _row("backward").problems(Draw(F32))
    contest = peers.Contest(problem, forward, ("a", "b"))
    entered = peers.enter(
        "torch.compile", families()["lerp"].peers.table("torch"), "lerp", contest, 2
    )
    assert entered is not None
    before = dict(counters["stats"])
    results = entered.fetch(entered.run())
    assert before["unique_graphs"] == 1
    assert counters["stats"] == before
    assert not verdict(results, problem.subject.truth(problem.arguments), F32)


def test_slow_columns_enter_main_rows_unless_named() -> None:
    chosen = run.Selection(("lerp",), ("torch", "torch.compile"), 2)
    assert chosen.columns() == ("torch",)
    assert chosen.columns(main=True) == chosen.libraries
    assert replace(chosen, named=True).columns() == chosen.libraries
    for family in families().values():
        main = [(row.op, row.direction) for row in rows_of(family) if row.main]
        known = {"forward": [*subjects()]}
        known["backward"] = [n for n in subjects() if f"{n}_backward" in subjects()]
        wanted = [(op, way) for op in family.ops for way in BOTH if op in known[way]]
        assert sorted(main) == sorted(wanted)


def test_without_a_compiler_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "torch.compile" not in peers.available()
    (said,) = peers.left_out(("torch.compile", "numpy"))
    assert said.startswith("left out: torch.compile (")


# --- sections -------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["embedding", "embedding_bag", "cumprod"])
def test_a_step_gives_its_backward_what_its_forward_left(op: str) -> None:
    family = families()[subjects()[op].family]
    small = next(w for w in family.workloads if op in w.ops and "small" in w.tags)
    problem, forward = Row(family.name, small, op, "backward", F32).problems(Draw(F32))
    gradients, results = memory.own_step(problem, forward)()
    wanted = (*problem.answer(), *forward.answer())
    for got, want in zip((*gradients, *results), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_accuracy_counts_ulps() -> None:
    found = accuracy.measure(_row("backward"), ("torch",), 2)
    assert found.errors["pullback"][0] <= 1
    assert found.errors["pullback"][1] <= found.errors["pullback"][0]


def test_growth_and_scaling() -> None:
    family = families()["lerp"]
    found = list(growth.growth(family, "lerp", "forward", 4, HASTE))
    assert [entry.along for entry in found] == ["axis", "batch"]
    assert found[0].extents == (4, 16, 64)
    assert growth.scaling(_row(), 2, HASTE).same_bits


def test_two_rows_of_ours_take_turns() -> None:
    small = [row for row in rows_of(families()["lerp"]) if "small" in row.workload.tags]
    one, other = (At(row.op, row.direction, row.workload.name) for row in small[:2])
    found = compete.in_turns("lerp", "size", one, into(other), HASTE)
    assert (found.family, found.text) == ("lerp", "size")
    assert min(found.over, found.under) > 0


@pytest.mark.parametrize("family", families().values(), ids=lambda f: f.name)
def test_every_pair_of_a_figure_is_two_rows(family: Any) -> None:
    keys = {row.key for row in rows_of(family)}
    for figure in family.figures:
        for at in figure.pair or ():
            assert (at.op, at.direction, at.workload, at.dtype) in keys, figure.text


@pytest.mark.parametrize("family", families().values(), ids=lambda f: f.name)
def test_every_row_can_be_laid_out(family: Any) -> None:
    """Blank inputs: shapes, options and saved tensors fit the functions, at the smallest size."""
    rows = [row for row in rows_of(family) if "small" in row.workload.tags]
    for row in rows[:: max(1, len(rows) // 8)]:
        problem, _ = row.problems(Draw(row.element, blank=True))
        assert problem.nbytes > 0
        assert problem.call.plan.record.op(problem.call.descriptor)


def test_tasks_follow_the_selection() -> None:
    chosen = run.Selection(("lerp", "overhead"), (), 2)
    sections = {task.section for task in run.tasks(chosen)}
    assert sections == set(run.SECTIONS)
    some = run.tasks(replace(chosen, sections=("rows",), pattern="*backward 64x64*"))
    assert [task.title for task in some] == ["lerp backward 64x64 f32"]


def test_the_inventory_is_whole() -> None:
    assert {entry.family for entry in entries()} == set(families())
    for _, plan in plans():
        found = list(descriptors(plan))
        assert {descriptor.element for descriptor in found} == set(FLOATS), plan


# --- figures --------------------------------------------------------------------------------------


def _result(op: str, workload: str = "4096x4096", dtype: str = "f32", **times: float) -> RowResult:
    timings = {name.replace("_", " "): Timing(time, time, time, 3) for name, time in times.items()}
    return RowResult("scan", op, "backward", workload, dtype, 100, 10, 0.5, True, 0.0, timings)


def _results() -> Results:
    found = Results({"commit": "x", "threads": 2})
    found.add(_result("cumsum", pullback=2.0, pullback_out=1.0, copy=0.8, torch=10.0, jax=1.0))
    found.add(_result("cumsum", "axis 0", pullback=4.0, pullback_out=1.5, copy=0.8))
    found.add(Ratio("scan", "axis", 3.0, 2.0))
    found.add(
        Accuracy(
            "scan", "cumsum", "backward", "random", "f32", {"pullback": (2.0, 1), "jax": (4.0, 1)}
        )
    )
    return found


def test_figures_are_read_off_the_rows() -> None:
    at, axis = At("cumsum", "backward"), At("cumsum", "backward", "axis 0")
    found = _results()
    figures = (
        (of_copy(0.75, at), 0.8, True),
        (ahead(4.0, at, "torch"), 5.0, True),
        (ahead(1.3, at, "torch", "jax"), 0.5, False),
        (no_slower(1.2, "axis", axis, at), 1.5, False),
        (never_behind("scan"), 0.5, False),
        (as_exact("scan"), 0.5, True),
        (of_copy(0.5, At("cumprod")), None, None),
    )
    for figure, measured, met in figures:
        read = figure.read("scan", found)
        assert (read.measured, read.met) == (measured, met), figure.text


def test_every_family_has_figures_with_texts() -> None:
    for family in families().values():
        texts = [figure.text for figure in family.figures]
        assert len(set(texts)) == len(texts)


def test_compare_takes_the_machine_out() -> None:
    old, new = _results(), _results()
    slower = {n: Timing(2 * t.median, 0, 0, 3) for n, t in new.rows[0].timings.items()}
    new.rows[0] = replace(new.rows[0], timings=slower)
    assert all(ratio == 1 for _, _, ratio in compare(old, new))


def test_a_figure_that_was_not_run_is_neither_met_nor_missed() -> None:
    assert FigureResult("scan", "x", ">=", 1.0, None).met is None
    assert FigureResult("scan", "x", "<=", 1.0, nan).met is None
