"""The laws on the Triton kernels, run in Triton's interpreter on CPU memory.

The interpreter takes a Python call for every operation of every program: here every kernel meets
every dtype and all borders of its tiles, dealt out; `make test-slow` runs all cases in all dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

import pullback as pb
from interpreted import (
    CHUNKED,
    SUBJECTS,
    Interpreted,
    chunked,
    dealt,
    equals_the_oracle,
    far_apart,
    own_cases,
    tiles,
    trials,
)
from pullback.contract.element import FLOATS, ElementKind
from pullback.contract.kinds import BackendKind
from pullback.gpu import report
from pullback.gpu.program import Operand, Scratch, Step
from pullback.ops.tile_cases import LONG, row_case
from pullback.verify import laws
from pullback.verify.layouts import in_buffer
from pullback.verify.subject import Arguments, Subject

SMALL = 7 * 24  # elements at most in the arguments of laws that do not depend on size


def _keep(
    law: Callable[[Subject, Arguments], Any], tried: Iterator[tuple[str, Any]], subject: Subject
) -> None:
    for name, arguments in tried:
        try:
            law(subject, arguments)
        except laws.LawBroken as broken:
            pytest.fail(f"{name}: {broken}")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_equals_the_oracle(subject: Subject) -> None:
    _keep(equals_the_oracle, ((name, given) for _, name, given in dealt(subject)), subject)


Kinds = dict[ElementKind, set[Any]]


def _note(met: Kinds, element: ElementKind, steps: list[Step]) -> None:
    """Kernels with their kinds of work; those that see no number meet every element at once."""
    for step in steps:
        memory = [v.element for v in step.arguments.values() if isinstance(v, Operand | Scratch)]
        elements = {element} if set(FLOATS) & set(memory) else set(met)
        for each in elements:
            met[each].add(report.kind_of(step))


def test_the_share_meets_every_kernel_in_every_element(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the quick suite runs is dealt out, not drawn: nothing that is compiled is left out."""
    met: Kinds = {element: set() for element in FLOATS}
    for subject in SUBJECTS:
        for element, _, arguments in dealt(subject):
            _note(met, element, subject.steps(arguments))
    monkeypatch.setattr("pullback.ops.scan.gpu_cut.CUT_FROM", 2)
    for subject in CHUNKED_SUBJECTS:
        for element in FLOATS:
            _note(met, element, subject.steps(chunked(subject, element)))
            _note(met, element, subject.steps(chunked(subject, element, True)))
    for name, arguments, *_ in BAD:
        _note(met, ElementKind.F32, _interpreted(name).steps(arguments))
    assert not {(e, kind) for e in FLOATS for kind in report.kernels(e) if kind not in met[e]}


def test_the_share_meets_pieces_in_every_kernel_that_has_them() -> None:
    """Flags beside a state are other code: each kind of work meets them, in whole rows and cut."""
    met: dict[bool, set[report.Kind]] = {False: set(), True: set()}

    def note(steps: list[Step]) -> None:
        for step in steps:
            for flagged in ("heads", "fs"):
                if flagged in step.arguments:
                    met[step.arguments[flagged] is not None].add(report.kind_of(step))

    for subject in CHUNKED_SUBJECTS:
        for _, _, arguments in dealt(subject):
            note(subject.steps(arguments))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pullback.ops.scan.gpu_cut.CUT_FROM", 2)
            for element in FLOATS:
                note(subject.steps(chunked(subject, element)))
                note(subject.steps(chunked(subject, element, True)))
    assert met[True] == met[False] | {("find_heads",)}
    assert len(met[True]) > 12


@pytest.mark.parametrize("family", sorted({subject.family for subject in SUBJECTS}))
def test_the_share_meets_every_border(family: str) -> None:
    """Functions of a family share the borders of their tiles among them."""
    functions = [subject for subject in SUBJECTS if subject.family == family]
    met = {name.rsplit(" {", 1)[0].rsplit(" ", 1)[0] for s in functions for _, name, _ in dealt(s)}
    names = {case.name for s in functions for case in own_cases(s)}
    skipped = {name for name in names if name.startswith("long")} if family in CHUNKED else set()
    assert names - skipped <= met


@pytest.mark.slow
@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_equals_the_oracle_on_every_case(subject: Subject, element: ElementKind) -> None:
    share = 1 if tiles(subject.family).alone else 3
    _keep(equals_the_oracle, trials(subject, element, share), subject)


def _small(subject: Subject, element: ElementKind, most: int) -> Iterator[tuple[str, Arguments]]:
    """A few small cases: what they show does not depend on size."""
    found = 0
    for name, arguments in trials(subject, element, 5):
        sizes = [value.size for value in arguments.values() if isinstance(value, np.ndarray)]
        if min(sizes) > 0 and max(sizes) <= SMALL and found < most:
            found += 1
            yield name, arguments


def _any_layout(subject: Subject, layout: str, element: ElementKind, most: int) -> None:
    """Strides of inputs and outputs change where elements are, not what they are. The order of
    operations may differ, so this is the oracle again."""
    relaid = Interpreted(subject.function, subject.family, laws.LAYOUTS[layout])

    def law(_: Subject, arguments: Arguments) -> None:
        equals_the_oracle(relaid, laws._relaid(arguments, laws.LAYOUTS[layout]))

    _keep(law, _small(subject, element, most), subject)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_any_layout(subject: Subject) -> None:
    """Two layouts for each function, in two elements."""
    turn = SUBJECTS.index(subject)
    for number, layout in list(enumerate(laws.LAYOUTS))[turn % 3 :: 3]:
        _any_layout(subject, layout, FLOATS[(turn + number) % len(FLOATS)], 1)


@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("name", ["cumsum", "softmax_backward", "linear_scan", "lerp"])
def test_rows_over_several_strided_loops(name: str, axis: int) -> None:
    """Four axes that no two tensors let join, the last of them strided."""
    rng, shape = np.random.default_rng(6), (2, 3, 2, 5)
    subject = next(s for s in SUBJECTS if s.name == name)
    relaid = Interpreted(subject.function, subject.family, _permuted)
    names = [n for n in subject.function.tensors if n not in subject.function.defaults]
    arguments: Arguments = {n: rng.random(shape) for n in names}
    if "axis" in subject.function.parameters:
        arguments["axis"] = axis
    equals_the_oracle(relaid, laws._relaid(arguments, _permuted))


def _permuted(array: Any) -> Any:
    return in_buffer(array, (2, 0, 1, 3), (1, 1, 1, 2), 1)


@pytest.mark.slow
@pytest.mark.parametrize("layout", laws.LAYOUTS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_any_layout_of_every_element(subject: Subject, layout: str) -> None:
    for element in FLOATS:
        _any_layout(subject, layout, element, 3)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_offsets_of_64_bits(subject: Subject) -> None:
    """No offset is computed in 32 bits, in any tensor of any kernel."""
    far = Interpreted(subject.function, subject.family, far_apart)

    def law(_: Subject, arguments: Arguments) -> None:
        equals_the_oracle(far, laws._relaid(arguments, far_apart))

    _keep(law, _small(subject, ElementKind.F16, 1), subject)


MEMORY = [laws.leaves_no_traces, laws.works_in_place]


@pytest.mark.parametrize("law", MEMORY)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_law(law: Callable[[Subject, Arguments], Any], subject: Subject) -> None:
    element = FLOATS[SUBJECTS.index(subject) % len(FLOATS)]
    _keep(law, _small(subject, element, 1), subject)


@pytest.mark.slow
@pytest.mark.parametrize("law", MEMORY)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_law_on_every_element(law: Callable[[Subject, Arguments], Any], subject: Subject) -> None:
    for element in FLOATS:
        _keep(law, _small(subject, element, 4), subject)


# --- rows cut into chunks -----------------------------------------------------------------------

CHUNKED_SUBJECTS = [s for s in SUBJECTS if s.family in CHUNKED]


@pytest.mark.parametrize("subject", CHUNKED_SUBJECTS)
def test_chunks(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several chunks, in every element and both directions, and pieces of them."""
    monkeypatch.setattr("pullback.ops.scan.gpu_cut.CUT_FROM", 2)
    _keep(equals_the_oracle, ((e.name, chunked(subject, e)) for e in FLOATS), subject)
    _keep(equals_the_oracle, ((e.name, chunked(subject, e, True)) for e in FLOATS), subject)


def _chunks_in_place(subject: Subject, element: ElementKind) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pullback.ops.scan.gpu_cut.CUT_FROM", 2)
        laws.works_in_place(subject, chunked(subject, element))


@pytest.mark.parametrize("subject", CHUNKED_SUBJECTS)
def test_chunks_in_place(subject: Subject) -> None:
    """Chunks of a row run in any order on a GPU, and may overwrite what others read: neighbours
    are kept in scratch, so the result is that of fresh memory."""
    _chunks_in_place(subject, FLOATS[CHUNKED_SUBJECTS.index(subject) % len(FLOATS)])


@pytest.mark.slow
@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("subject", CHUNKED_SUBJECTS)
def test_chunks_in_place_of_every_element(subject: Subject, element: ElementKind) -> None:
    _chunks_in_place(subject, element)


@pytest.mark.slow
@pytest.mark.parametrize("subject", CHUNKED_SUBJECTS)
def test_long_rows_in_place(subject: Subject) -> None:
    rng = np.random.default_rng(2)
    case = row_case(rng, "long", rng.standard_normal(LONG), 0, False)
    arguments = subject.arguments(case, ElementKind.F32, ElementKind.I64, {})
    assert arguments is not None
    laws.works_in_place(subject, arguments)


def test_nan_is_handed_on_with_nothing() -> None:
    """A factor of NaN makes NaN of zero too, although zeros shield from products that overflow."""
    a = np.array([0.5, np.nan, 0.5], np.float32)
    h = np.array([0, 0, 1], np.float32)
    one_hot = np.array([1, 0, 0, 0], np.float32)
    x = np.array([1, 2, np.nan, 3], np.float32)
    equals_the_oracle(_interpreted("linear_scan"), {"a": a, "b": h})
    equals_the_oracle(_interpreted("linear_scan_backward"), {"dh": h[::-1], "a": a, "h": h})
    y = np.cumprod(x, dtype=np.float32)
    arguments = {"dy": one_hot, "x": x, "y": y}
    equals_the_oracle(_interpreted("cumprod_backward"), arguments)


# --- errors -------------------------------------------------------------------------------------


def _interpreted(name: str) -> Interpreted:
    return next(subject for subject in SUBJECTS if subject.name == name)


IDS = np.array([0, 1, 1, 7, 2, -3], np.int64)
ROWS_OF_SIX = np.ones((6, 3), np.float32)
SEGMENTS = {"x": ROWS_OF_SIX, "segment_ids": IDS}
LOOKUP = {"weight": ROWS_OF_SIX, "indices": IDS}
PIECES: Arguments = {"x": np.ones(6, np.float32)}
BAGS: Arguments = {
    "dout": np.ones((3, 2), np.float32),
    "indices": np.array([0, 1, 1]),
    "offsets": np.array([0, 1, 3]),
    "num_embeddings": 3,
    "mode": "max",
}
CLASSES: Arguments = {"target": np.array([0, 2, 3], np.int64)}
BAD: list[tuple[str, Arguments, type[Exception], str]] = [
    (
        "segment_sum",
        {**SEGMENTS, "num_segments": 3, "out_of_range": "error"},
        pb.IndexOutOfRange,
        "7 at position 3",
    ),
    (
        "segment_max",
        {**SEGMENTS, "num_segments": 9, "indices_are_sorted": True, "out_of_range": "skip"},
        pb.InvalidProblem,
        "2 at position 4",
    ),
    ("embedding", {**LOOKUP, "out_of_range": "error"}, pb.IndexOutOfRange, "7 at position 3"),
    (
        "embedding_bag",
        {**LOOKUP, "offsets": np.array([0, 4, 2]), "mode": "sum"},
        pb.InvalidProblem,
        "2 at position 2",
    ),
    (
        "segment_max",
        {"x": ROWS_OF_SIX, "offsets": np.array([0, 4, 7]), "return_indices": True},
        pb.InvalidProblem,
        "7 at position 2",
    ),
    (
        "segment_mean_backward",
        {"dy": np.ones((2, 3), np.float32), "offsets": np.array([1, 4, 6]), "num_inputs": 6},
        pb.InvalidProblem,
        "1 at position 0",
    ),
    ("cumsum", {**PIECES, "offsets": np.array([0, 4, 2, 6])}, pb.InvalidProblem, "2 at position 2"),
    (
        "cummax",
        {**PIECES, "offsets": np.array([0, 4, 5]), "exclusive": True},
        pb.InvalidProblem,
        "5 at position 2",
    ),
    (
        "linear_scan_backward",
        {
            **{name: np.ones(6, np.float32) for name in ("dh", "h")},
            "a": np.ones((), np.float32),
            "offsets": np.array([1, 6]),
            "initial": np.ones((), np.float32),
        },
        pb.InvalidProblem,
        "1 at position 0",
    ),
    (
        "embedding_bag_backward",
        {**BAGS, "output_index": np.array([[0, -1], [7, 1], [-1, -1]])},
        pb.IndexOutOfRange,
        "`output_index`.* 7 at position 2",
    ),
    (
        "embedding_bag_backward",
        {**BAGS, "output_index": np.array([[0, 0], [1, -2], [-1, -1]])},
        pb.IndexOutOfRange,
        "`output_index`.* -2 at position 3",
    ),
    (
        "softmax_loss",
        {**CLASSES, "x": np.ones((3, 3), np.float32), "return_probabilities": True},
        pb.IndexOutOfRange,
        r"`target`.* in \[0, 3\), got 3 at position 2",
    ),
    (
        "sparsemax_loss_backward",
        {**CLASSES, "dy": np.ones(3, np.float32), "p": np.ones((3, 0), np.float32)},
        pb.IndexOutOfRange,
        "`target`.* 0 at position 0",
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


def _reproducible(subject: Interpreted, arguments: Arguments) -> pb.Reproducibility:
    call = subject.function.body(**subject.function.views({**subject.defaults, **arguments}))
    plan = call.plan(call.descriptor, "cpu", BackendKind.TRITON)
    return plan.precision_guarantee.reproducibility


def _has_the_bits_of_the_cpu(subject: Any, arguments: Arguments) -> None:
    """Where nothing is added up, a GPU gives the CPU's bits, and the guarantee says so."""
    if _reproducible(subject, arguments) is pb.Reproducibility.ANY_MACHINE:
        on_cpu = Subject(subject.function, subject.family).answer(arguments)
        for got, want in zip(subject.answer(arguments), on_cpu, strict=True):
            assert laws.same_bits(got, want)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_bits_of_the_cpu_where_promised(subject: Subject) -> None:
    for element in (ElementKind.F32, ElementKind.BF16):
        _keep(_has_the_bits_of_the_cpu, _small(subject, element, 1), subject)


def test_guarantees_are_those_of_the_gpu() -> None:
    def kept(kind: pb.ScanKind) -> Any:
        desc = pb.ScanDescriptor(kind=kind, input_shape=(3,), scan_axis=0, element=ElementKind.F32)
        return pb.ScanPlan(desc, "cpu", BackendKind.TRITON).precision_guarantee

    assert kept(pb.ScanKind.CUMSUM).reproducibility is pb.Reproducibility.RUN_TO_RUN
    assert kept(pb.ScanKind.CUMMAX).reproducibility is pb.Reproducibility.ANY_MACHINE
