"""How cost grows: along the axis, along the batch, and with the number of threads."""

from __future__ import annotations

from collections.abc import Iterator

from pullback.bench.compete import keeps_bits
from pullback.bench.problem import Problem
from pullback.bench.race import Effort, race
from pullback.bench.results import Growth, Scaling
from pullback.bench.workload import Draw, Family, Row, Workload

# Four million elements already leave the caches behind, so that all three sizes live in memory.
BASE, FACTORS = 2048, (1, 4, 16)
EFFORT = Effort(rounds=7, seconds=0.15, least=3)


def _problem(family: Family, op: str, direction: str, batch: int, axis: int) -> Problem:
    model = family.workloads[0]
    workload = Workload(
        f"{batch}x{axis}", (op,), lambda draw, op: family.grow(draw, op, batch, axis),
        backward_options=model.backward_options, gathers=model.gathers,
    )  # fmt: skip
    row = Row(family.name, workload, op, direction, model.elements[0])
    return row.problems(Draw(row.element))[0]


def growth(
    family: Family, op: str, direction: str, base: int = BASE, effort: Effort = EFFORT
) -> Iterator[Growth]:
    """Cost per element at n, 4n and 16n, in nanoseconds."""
    for along in ("axis", "batch"):
        extents = tuple(base * factor for factor in FACTORS)
        costs = []
        for extent in extents:
            sizes = (base, extent) if along == "axis" else (extent, base)
            problem = _problem(family, op, direction, *sizes)
            run, _ = problem.into_outputs()
            run()
            took = race({"run": run}, effort)["run"].median
            costs.append(took / problem.elements * 1e9)
        yield Growth(family.name, op, direction, along, extents, tuple(costs))


def scaling(row: Row, threads: int, effort: Effort = EFFORT) -> Scaling:
    """One thread beside all of them, in turns."""
    problem, _ = row.problems(Draw(row.element))
    (one, _), (every, _) = problem.into_outputs(1), problem.into_outputs(threads)
    same = keeps_bits(problem, threads)
    took = race({"one": one, "all": every}, effort)
    return Scaling(
        row.family, row.op, row.direction, row.workload.name,
        took["one"].median, took["all"].median, threads, same,
    )  # fmt: skip
