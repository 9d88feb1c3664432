"""Compiling kernels ahead of the first call: `pullback.warm` and the command of that name."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple

import pullback
from pullback.bench import inventory
from pullback.bench.problem import Problem
from pullback.contract.element import FLOAT_NAMES, FLOATS, ElementKind, kind_of_dtype
from pullback.contract.errors import InvalidProblem, KernelFailure
from pullback.contract.naming import hint
from pullback.cpu import library
from pullback.verify.subject import Subject, subjects


class Step(NamedTuple):
    """The kernels of one plan class (or inventory.CALLS) for one dtype; of one op, or of all."""

    plan: str
    element: ElementKind
    op: str | None = None

    def __str__(self) -> str:
        return f"{self.op or self.plan} {self.element.value}"


def warm(*functions: Any, dtypes: Any = None, jobs: int = 1) -> None:
    """Compile kernels into the disk cache now, so that no first call has to.

    Parameters
    ----------
    *functions : functions, or names of functions or families
        Each with its gradient: `warm(pb.softmax, "segment")`. A name that both have means the
        family. Without any, every kernel there is, which takes minutes.
    dtypes : sequence of dtypes, optional
        Of NumPy, PyTorch or JAX, or their names; all four floats if left out.
    jobs : int, default 1
        Processes to compile in. More than one are started anew, so a script that asks for them
        needs `if __name__ == "__main__":`.

    Examples
    --------
    >>> pb.warm(pb.cumsum, dtypes=["float32"])
    """
    known = [*pullback._FAMILIES, *subjects()]
    names = [_name(function, known) for function in functions]
    for step, error in compiled(steps(names, _elements(dtypes)), jobs):
        if error:
            failure = KernelFailure(step.op or step.plan, -1)
            failure.add_note(error)
            raise failure


def _name(function: Any, known: list[str]) -> str:
    name = function if isinstance(function, str) else getattr(function, "__name__", "")
    if name in known:
        return name
    expected = "functions of pullback, or names of functions or families"
    raise InvalidProblem("warm", "functions", expected, repr(function) + hint(name, known))


def _elements(dtypes: Any) -> tuple[ElementKind, ...]:
    if dtypes is None:
        return FLOATS
    given = [dtypes] if isinstance(dtypes, str | ElementKind | type) else list(dtypes)
    return tuple(dict.fromkeys(map(_element, given)))


def _element(dtype: Any) -> ElementKind:
    name = dtype.__name__ if isinstance(dtype, type) else dtype
    by_value = {kind.value: kind for kind in FLOATS}
    kind = dtype if isinstance(dtype, ElementKind) else by_value.get(name) or kind_of_dtype(name)
    if kind not in FLOATS:
        raise InvalidProblem("warm", "dtypes", f"dtypes among {FLOAT_NAMES}", repr(dtype))
    return kind


# --- what there is to compile --------------------------------------------------------------------


def steps(names: Iterable[str], elements: Iterable[ElementKind]) -> list[Step]:
    """What compiles the kernels of these families and functions, of all if there are none; first
    what every call goes through."""
    by_plan = {plan.__name__: family for family, plan in inventory.plans()}
    wanted: dict[tuple[str, str | None], None] = {}
    for name in names or dict.fromkeys(by_plan.values()):
        if name in by_plan.values():
            wanted.update(
                {(plan, None): None for plan, family in by_plan.items() if family == name}
            )
        else:
            wanted.update(dict.fromkeys(_ops_with_gradient(name)))
    whole = {plan for plan, op in wanted if op is None}
    chosen = [(plan, op) for plan, op in wanted if op is None or plan not in whole]
    todo = [Step(plan, element, op) for element in elements for plan, op in chosen]
    # A library that was compiled ahead always has what every call goes through.
    return todo if library.path() else [Step(inventory.CALLS, FLOATS[0]), *todo]


def _ops_with_gradient(name: str) -> Iterator[tuple[str, str]]:
    """Plan classes and ops behind a function and behind those that are its backwards."""
    for subject in subjects().values():
        forward = subject.forward
        if subject.name == name or (forward is not None and forward.name == name):
            yield from _ops(subject)


def _ops(subject: Subject) -> Iterator[tuple[str, str]]:
    """Asked for with each of a function's options on the first case of its family that it takes."""
    sorted_or_not: tuple[dict[str, Any], ...] = ({},)
    if "indices_are_sorted" in subject.function.parameters:
        sorted_or_not = ({"indices_are_sorted": True}, {"indices_are_sorted": False})
    for variant, more in product(subject.variants, sorted_or_not):
        made = (
            subject.arguments(case, ElementKind.F32, ElementKind.I64, variant)
            for case in subject.cases()
        )
        found = next((arguments for arguments in made if arguments is not None), None)
        if found is not None:
            call = Problem(subject, {**found, **more}).call
            yield call.plan.__name__, call.plan.record.op(call.descriptor)


# --- compiling -----------------------------------------------------------------------------------


def compiled(todo: list[Step], jobs: int) -> Iterator[tuple[Step, str]]:
    """What is done, as it gets done, with what went wrong."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    if jobs == 1:
        from pullback.cpu.notice import compiling

        before = compiling.told
        _be_quiet()
        try:
            for step in todo:
                yield step, inventory.compile_ahead(*step)
        finally:
            compiling.told = before
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_leave_quietly) as pool:
        running = {pool.submit(inventory.compile_ahead, *step): step for step in todo}
        for done in as_completed(running):
            yield running[done], done.result()


def _leave_quietly() -> None:
    """Ctrl-C reaches the helping processes too: they just end, without a word each."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _be_quiet()


def _be_quiet() -> None:
    """That kernels are compiled is what was asked for."""
    from pullback.cpu.notice import compiling

    compiling.told = True
