"""Errors in ulp, ours and everybody's, on the same inputs.

The truth is the derivative at the inputs as they are. A backward that starts from a saved result
inherits its rounding, and that counts: the saved result given to the oracle is the exact one."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.bench import peers
from pullback.bench.compete import own_contestants, verdict
from pullback.bench.peers import Contest
from pullback.bench.problem import Problem, is_float
from pullback.bench.results import OURS, Accuracy
from pullback.bench.workload import Draw, Row, families
from pullback.verify.accuracy import bound_of
from pullback.verify.ulp import ulp_error


def _ideal(problem: Problem, forward: Problem) -> Problem:
    """The problem with saved results replaced by what they would be without rounding."""
    if problem is forward:
        return problem
    exact = forward.subject.truth(forward.arguments)
    saved = dict(zip(forward.call.returns, exact, strict=False))
    floats = {k: v for k, v in saved.items() if k in problem.arguments and v.dtype.kind == "f"}
    return Problem(problem.subject, {**problem.arguments, **floats})


def _errors(problem: Problem, results: tuple[Any, ...], truths: tuple[Any, ...]) -> Any:
    scales = bound_of(problem.subject).scale(problem.subject, problem.arguments)
    found = [
        ulp_error(got, want, scale).ravel()
        for got, want, scale in zip(results, truths, scales, strict=False)
        if is_float(got)
    ]
    return np.concatenate(found) if found else np.zeros(1)


def measure(row: Row, libraries: tuple[str, ...], threads: int) -> Accuracy:
    """Worst and mean error of every contestant, or what is wrong with it."""
    problem, forward = row.problems(Draw(row.element))
    ideal = _ideal(problem, forward)
    truths = ideal.subject.truth(ideal.arguments, problem.arguments)
    contest = Contest(problem, forward, row.workload.wrt if row.direction == "backward" else ())
    tables = families()[row.family].peers
    errors: dict[str, tuple[float, float]] = {}
    verdicts: dict[str, str] = {}
    for name in (OURS, *libraries):
        try:
            if name == OURS:
                entered = own_contestants(problem)[0]
            else:
                table = tables.table(peers.LIBRARIES[name].table)
                found = peers.enter(name, table, row.op, contest, threads)
                if found is None:
                    continue
                entered = found
            results = entered.fetch(entered.run())
        except Exception as error:  # a peer may fail in any way it likes
            verdicts[name] = f"failed: {type(error).__name__}"
            continue
        said = verdict(results, truths, row.element)
        if said:
            verdicts[name] = said
            continue
        ulps = _errors(problem, results, truths)
        errors[name] = float(ulps.max(initial=0.0)), float(ulps.mean())
    return Accuracy(
        row.family, row.op, row.direction, row.workload.name, row.element.value, errors, verdicts
    )
