"""The laws on the Triton kernels, run in Triton's interpreter on CPU memory.

The interpreter takes a Python call for every operation of every program, so each element meets a
share of the cases; `make test-slow` runs them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

import pullback as pb
from pullback.contract.element import FLOATS, ElementKind
from pullback.contract.kinds import BackendKind
from pullback.ops.case import Case, hostile_rows
from pullback.plan.stream import Stream, Workspace
from pullback.tensor.view import TensorMut
from pullback.verify import laws
from pullback.verify.subject import Arguments, Subject, subjects

pytestmark = pytest.mark.slow  # the interpreter takes its time: `make test-slow`

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


SUBJECTS = [
    Interpreted(subject.function, subject.family)
    for subject in subjects().values()
    if subject.family != "recurrence"
]


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


def _segments(rng: np.random.Generator) -> Iterator[Case]:
    """Many columns, and groups of several pieces: the families' own cases have neither."""
    ids = np.where(rng.random(2500) < 0.9, 3, rng.integers(-1, 6, 2500))
    x = 1 + 0.01 * rng.standard_normal((2500, 2))
    yield Case("long", {"x": x, "segment_ids": ids, "dy": rng.standard_normal((5, 2))})
    ids = rng.integers(0, 3, 9)
    x = rng.integers(-2, 3, (9, 150)).astype(np.float64)
    yield Case("wide", {"x": x, "segment_ids": ids, "dy": rng.standard_normal((3, 150))})


OWN: dict[str, Callable[[np.random.Generator], Iterator[Case]]] = {
    "scan": _rows,
    "simplex": _rows,
    "segment": _segments,
}
# Of how many cases an element meets one.
SHARE = {"scan": 4, "simplex": 4, "lerp": 24, "segment": 24, "embedding": 60}


def _cases(subject: Subject) -> Iterator[Case]:
    yield from OWN.get(subject.family, lambda _: iter(()))(np.random.default_rng(11))
    if subject.family not in ("scan", "simplex"):
        yield from subject.cases()


def _trials(
    subject: Subject, element: ElementKind, share: int = 1
) -> Iterator[tuple[str, Arguments]]:
    """The cases of a family, the variants of the function dealt out in turn."""
    turn = FLOATS.index(element)
    for number, case in enumerate(_cases(subject)):
        if number % share != turn % share:
            continue
        variant = subject.variants[number // share % len(subject.variants)]
        index = (ElementKind.I64, ElementKind.I32)[number // share % 2]
        arguments = subject.arguments(case, element, index, variant)
        if arguments is not None:
            yield f"{case.name} {variant}", arguments


def _id(value: Any) -> str:
    if isinstance(value, ElementKind):
        return value.name.lower()
    return str(getattr(value, "name", None) or getattr(value, "__name__", value))


def _keep(
    law: Callable[[Subject, Arguments], Any], trials: Iterator[tuple[str, Any]], subject: Subject
) -> None:
    for name, arguments in trials:
        try:
            law(subject, arguments)
        except laws.LawBroken as broken:
            pytest.fail(f"{name}: {broken}")


# --- laws ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("element", FLOATS, ids=_id)
@pytest.mark.parametrize("subject", SUBJECTS, ids=_id)
def test_equals_the_oracle(subject: Subject, element: ElementKind) -> None:
    _keep(laws.equals_the_oracle, _trials(subject, element, SHARE[subject.family]), subject)


@pytest.mark.slow
@pytest.mark.parametrize("element", FLOATS, ids=_id)
@pytest.mark.parametrize("subject", SUBJECTS, ids=_id)
def test_equals_the_oracle_on_every_case(subject: Subject, element: ElementKind) -> None:
    share = max(1, SHARE[subject.family] // 12)
    _keep(laws.equals_the_oracle, _trials(subject, element, share), subject)


SMALL = 7 * 24  # elements at most in the arguments of the laws below


def _small(subject: Subject, element: ElementKind) -> Iterator[tuple[str, Arguments]]:
    """A few small cases: what they show does not depend on size."""
    found = 0
    for name, arguments in _trials(subject, element, 5):
        sizes = [value.size for value in arguments.values() if isinstance(value, np.ndarray)]
        if min(sizes) > 0 and max(sizes) <= SMALL and found < 3:
            found += 1
            yield name, arguments


@pytest.mark.parametrize("layout", laws.LAYOUTS, ids=_id)
@pytest.mark.parametrize("subject", SUBJECTS, ids=_id)
def test_any_layout(subject: Subject, layout: str) -> None:
    """Strides of inputs and outputs change where elements are, not what they are. The order of
    operations may differ, so this is the oracle again."""
    element = FLOATS[list(laws.LAYOUTS).index(layout) % len(FLOATS)]
    relaid = Interpreted(subject.function, subject.family, laws.LAYOUTS[layout])

    def law(subject: Subject, arguments: Arguments) -> None:
        laws.equals_the_oracle(relaid, laws._relaid(arguments, laws.LAYOUTS[layout]))

    _keep(law, _small(subject, element), subject)


@pytest.mark.parametrize("law", [laws.leaves_no_traces, laws.works_in_place], ids=_id)
@pytest.mark.parametrize("subject", SUBJECTS, ids=_id)
def test_law(law: Callable[[Subject, Arguments], Any], subject: Subject) -> None:
    for element in (ElementKind.F32, ElementKind.BF16):
        _keep(law, _small(subject, element), subject)


def test_long_rows_in_place() -> None:
    """Chunks of a row run in any order on a GPU, and may overwrite what others read: neighbours
    are kept in scratch, so the result is that of fresh memory."""
    rng = np.random.default_rng(2)
    case = _row_case(rng, "long", rng.standard_normal(LONG // 2), 0, False)
    for subject in SUBJECTS:
        if subject.family == "scan" and subject.forward is not None:
            arguments = subject.arguments(case, ElementKind.F32, ElementKind.I64, {})
            assert arguments is not None
            laws.works_in_place(subject, arguments)


# --- errors -------------------------------------------------------------------------------------


def _interpreted(name: str) -> Interpreted:
    return next(subject for subject in SUBJECTS if subject.name == name)


IDS = np.array([0, 1, 1, 7, 2, -3], np.int64)
ROWS = np.ones((6, 3), np.float32)
BAD: list[tuple[str, Arguments, type[Exception], str]] = [
    (
        "segment_sum",
        {"x": ROWS, "segment_ids": IDS, "num_segments": 3, "out_of_range": "error"},
        pb.IndexOutOfRange,
        "7 at position 3",
    ),
    (
        "segment_max",
        {
            "x": ROWS,
            "segment_ids": IDS,
            "num_segments": 9,
            "indices_are_sorted": True,
            "out_of_range": "skip",
        },
        pb.InvalidProblem,
        "2 at position 4",
    ),
    (
        "embedding",
        {"weight": ROWS, "indices": IDS, "out_of_range": "error"},
        pb.IndexOutOfRange,
        "7 at position 3",
    ),
    (
        "embedding_bag",
        {"weight": ROWS, "indices": IDS, "offsets": np.array([0, 4, 2]), "mode": "sum"},
        pb.InvalidProblem,
        "2 at position 2",
    ),
]


@pytest.mark.parametrize(("name", "arguments", "error", "said"), BAD, ids=lambda v: None)
def test_a_failed_check_writes_nothing(
    name: str, arguments: Arguments, error: type[Exception], said: str
) -> None:
    subject = _interpreted(name)
    call = subject.function.body(**subject.function.views({**subject.defaults, **arguments}))
    outs = tuple(np.full(spec.shape, 5, spec.element.dtype) for spec in call.specs)
    with pytest.raises(error, match=said):
        subject.answer(arguments, out=outs if len(outs) > 1 else outs[0])
    assert all((out == 5).all() for out in outs)


def test_a_gpu_without_triton_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pullback.gpu.device.find_spec", lambda name: None)
    desc = pb.ScanDescriptor(
        kind=pb.ScanKind.CUMSUM, input_shape=(3,), scan_axis=0, element=ElementKind.F32
    )
    with pytest.raises(pb.Unsupported, match=r"pullback\[gpu\]"):
        pb.ScanPlan.select(Stream.cuda(), desc)


def test_guarantees_are_those_of_the_gpu() -> None:
    def kept(kind: pb.ScanKind) -> Any:
        desc = pb.ScanDescriptor(kind=kind, input_shape=(3,), scan_axis=0, element=ElementKind.F32)
        return pb.ScanPlan(desc, "cpu", BackendKind.TRITON).precision_guarantee

    assert kept(pb.ScanKind.CUMSUM).reproducibility is pb.Reproducibility.RUN_TO_RUN
    assert kept(pb.ScanKind.CUMMAX).reproducibility is pb.Reproducibility.ANY_MACHINE
