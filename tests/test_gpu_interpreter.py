"""The laws on the Triton kernels, run in Triton's interpreter on CPU memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from pullback.contract.element import FLOATS, ElementKind
from pullback.contract.kinds import BackendKind
from pullback.ops.case import Case, hostile_rows
from pullback.plan.stream import Stream, Workspace
from pullback.tensor.view import TensorMut
from pullback.verify import laws
from pullback.verify.subject import Arguments, Subject, subjects


@dataclass(frozen=True)
class Interpreted(Subject):
    """A public function answered by its Triton plan, built for the interpreter."""

    def answer(self, arguments: Arguments, out: Any = None, **options: Any) -> tuple[Any, ...]:
        call = self.function.body(**self.function.views({**self.defaults, **arguments}))
        plan = call.plan(call.descriptor, "cpu", BackendKind.TRITON)
        outs = out if isinstance(out, tuple) else (out,)
        if out is None:
            outs = tuple(np.full(spec.shape, 77, spec.element.dtype) for spec in call.specs)
        tensors = {slot.name: call.tensors.get(slot.name) for slot in plan.record.slots}
        for name, array in zip(call.returns, outs, strict=True):
            # A function's result may have more axes than the plan's, which folds them.
            tensors[name] = TensorMut(array).folded(plan.record.slot(name).shape(call.descriptor))
        args = SimpleNamespace(**tensors)
        plan.run(Stream.cpu(), Workspace.allocate(plan), args)
        return outs

    @property
    def defaults(self) -> Arguments:
        return {
            name: parameter.default
            for name, parameter in self.function.binder.parameters.items()
            if parameter.default is not parameter.empty
        }


# --- cases: the hostile rows side by side, and extents around the borders of tiles ----------------

BORDERS = (1, 15, 16, 17, 257, 1023, 1024, 1025, 3000)
LONG = 9000  # enough tiles for a row to be cut into chunks


def _rows(rng: np.random.Generator) -> Iterator[Case]:
    hostile = np.stack([row for _, row in hostile_rows(rng)])
    for axis, x in ((1, hostile), (0, hostile.T)):
        for reverse in (False, True):
            yield _row_case(rng, "hostile", x, axis, reverse)
    for n in BORDERS:
        yield _row_case(rng, f"{n}", rng.standard_normal((2, n)), 1, bool(n % 2))
    yield _row_case(rng, "columns", rng.standard_normal((2, 70, 9)), 1, False)
    yield _row_case(rng, "long", rng.standard_normal(LONG), 0, False)
    yield _row_case(rng, "long columns", rng.standard_normal((600, 3)), 0, True)
    yield _row_case(rng, "rank 0", np.asarray(0.5), 0, False)
    yield _row_case(rng, "nothing", np.zeros((0, 3)), 1, False)
    yield _row_case(rng, "empty rows", np.zeros((3, 0)), 1, False)


def _row_case(rng: np.random.Generator, name: str, x: Any, axis: int, reverse: bool) -> Case:
    # Products of ordinary numbers leave every range within a long row; these stay in it.
    values = np.sign(x) * (1 + 0.01 * x) if x.size > 1000 and name != "hostile" else x
    arrays = {"x": np.asarray(values), "dy": np.asarray(rng.standard_normal(x.shape))}
    return Case(name, arrays, {"axis": axis, "reverse": reverse})


CASES: dict[str, Callable[[np.random.Generator], Iterator[Case]]] = {
    "scan": _rows,
    "simplex": _rows,
}


def _trials(subject: Subject, element: ElementKind, every: int = 1) -> Iterator[tuple[str, Any]]:
    """The cases of a family in turn with the variants of the function."""
    own = CASES.get(subject.family)
    cases = own(np.random.default_rng(11)) if own else subject.cases()
    for number, case in enumerate(cases):
        variant = subject.variants[number % len(subject.variants)]
        index = (ElementKind.I64, ElementKind.I32)[number % 2]
        arguments = subject.arguments(case, element, index, variant)
        if arguments is not None and number % every == 0:
            yield f"{case.name} {variant}", arguments
