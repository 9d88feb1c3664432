"""Public functions answered by their Triton plans, in Triton's interpreter on CPU memory, and the
cases that tiles and chunks add to those of the families."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from pullback.contract.element import FLOATS, ElementKind
from pullback.contract.kinds import BackendKind
from pullback.ops.case import Case, hostile_rows
from pullback.plan.stream import Stream, Workspace
from pullback.tensor.view import TensorMut
from pullback.verify.subject import Arguments, Subject, subjects

GUARD = 64  # bytes of sentinel behind the workspace


@dataclass(frozen=True)
class Interpreted(Subject):
    """A public function answered by its Triton plan, built for the interpreter."""

    layout: Callable[[Any], Any] = np.asarray

    def answer(self, arguments: Arguments, out: Any = None, **options: Any) -> tuple[Any, ...]:
        call = self.function.body(**self.function.views({**self.defaults, **arguments}))
        plan = call.plan(call.descriptor, "cpu", BackendKind.TRITON)
        outs = out if isinstance(out, tuple) else (out,)
        if out is None:
            fresh = (np.full(spec.shape, 77, spec.element.dtype) for spec in call.specs)
            outs = tuple(self.layout(array) if array.ndim else array for array in fresh)
        tensors = {slot.name: call.tensors.get(slot.name) for slot in plan.record.slots}
        for name, array in zip(call.returns, outs, strict=True):
            # A function's result may have more axes than the plan's, which folds them.
            tensors[name] = TensorMut(array).folded(plan.record.slot(name).shape(call.descriptor))
        room = np.full(plan.workspace_size + GUARD, 0xA5, np.uint8)
        scratch = Workspace.of(room[: plan.workspace_size])
        plan.run(Stream.cpu(), scratch, SimpleNamespace(**tensors))
        assert (room[plan.workspace_size :] == 0xA5).all(), "wrote beyond the workspace"
        return outs

    @property
    def defaults(self) -> Arguments:
        return {
            name: parameter.default
            for name, parameter in self.function.binder.parameters.items()
            if parameter.default is not parameter.empty
        }


SUBJECTS = [Interpreted(subject.function, subject.family) for subject in subjects().values()]


# --- cases: the hostile rows side by side, and extents around the borders of tiles ----------------

# One below, at and above the blocks of the launch tables, and several blocks.
BORDERS = (1, 15, 16, 17, 257, 511, 512, 513, 1023, 1024, 1025, 2500)
LONG = 9000  # enough tiles for a row to be cut into chunks


def row_case(rng: np.random.Generator, name: str, x: Any, axis: int, reverse: bool) -> Case:
    """A case for scans, recurrences and simplex maps alike."""
    # Products of ordinary numbers leave every range within a long row; these stay in it.
    values = np.sign(x) * (1 + 0.01 * x) if x.size > 1000 and name != "hostile" else x
    dy, b, h = (np.asarray(rng.standard_normal(x.shape)) for _ in range(3))
    arrays = {"x": np.asarray(values), "dy": dy, "dh": dy, "b": b, "h": h}
    arrays["a"] = np.asarray(np.clip(x, -1, 1))
    return Case(name, arrays, {"axis": axis, "reverse": reverse})


def _rows(rng: np.random.Generator) -> Iterator[Case]:
    hostile = np.stack([row for _, row in hostile_rows(rng)])
    for axis, x in ((1, hostile), (0, hostile.T)):
        for reverse in (False, True):
            yield row_case(rng, "hostile", x, axis, reverse)
    for n in BORDERS:
        yield row_case(rng, f"{n}", rng.standard_normal((2, n)), 1, bool(n % 2))
    yield row_case(rng, "columns", rng.standard_normal((2, 70, 9)), 1, False)
    yield row_case(rng, "long", rng.standard_normal(LONG), 0, False)
    yield row_case(rng, "long columns", rng.standard_normal((600, 3)), 0, True)
    yield row_case(rng, "rank 0", np.asarray(0.5), 0, False)
    yield row_case(rng, "nothing", np.zeros((0, 3)), 1, False)
    yield row_case(rng, "empty rows", np.zeros((3, 0)), 1, False)


def _segments(rng: np.random.Generator) -> Iterator[Case]:
    """Many columns, and groups of several pieces: the families' own cases have neither."""
    ids = np.where(rng.random(2500) < 0.9, 3, rng.integers(-1, 6, 2500))
    x = 1 + 0.01 * rng.standard_normal((2500, 2))
    yield Case("long", {"x": x, "segment_ids": ids, "dy": rng.standard_normal((5, 2))})
    ids = rng.integers(0, 3, 9)
    x = rng.integers(-2, 3, (9, 150)).astype(np.float64)
    yield Case("wide", {"x": x, "segment_ids": ids, "dy": rng.standard_normal((3, 150))})


ROWS = ("scan", "recurrence", "simplex")  # families that take the cases of rows alone
OWN: dict[str, Callable[[np.random.Generator], Iterator[Case]]] = {
    **dict.fromkeys(ROWS, _rows),
    "segment": _segments,
}


def _cases(subject: Subject) -> Iterator[Case]:
    yield from OWN.get(subject.family, lambda _: iter(()))(np.random.default_rng(11))
    if subject.family not in ROWS:
        yield from subject.cases()


def trials(
    subject: Subject, element: ElementKind, share: int = 1
) -> Iterator[tuple[str, Arguments]]:
    """The cases of a family, the variants of the function dealt out in turn. Of `share` cases an
    element meets one; each element another."""
    turn = FLOATS.index(element)
    for number, case in enumerate(_cases(subject)):
        if number % share != turn % share:
            continue
        variant = subject.variants[number // share % len(subject.variants)]
        index = (ElementKind.I64, ElementKind.I32)[number // share % 2]
        arguments = subject.arguments(case, element, index, variant)
        if arguments is not None:
            yield f"{case.name} {variant}", arguments
