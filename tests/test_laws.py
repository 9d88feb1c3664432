"""Every law on every public function in every element: a new op is tested by existing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pullback.contract.element import FLOATS, ElementKind
from pullback.ops.case import Case
from pullback.verify import laws
from pullback.verify.subject import Arguments, Subject, subjects

SUBJECTS = list(subjects().values())
BACKWARDS = [subject for subject in SUBJECTS if subject.forward is not None]

# Each element meets a share of the cases, so that the suite stays within its budget; `make
# test-slow` runs them all.
SHARE = {ElementKind.F32: 3, ElementKind.F64: 5, ElementKind.F16: 7, ElementKind.BF16: 7}


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_equals_the_oracle(subject: Subject, element: ElementKind) -> None:
    assert _obeys(laws.equals_the_oracle, subject, element, SHARE[element]) > 10


@pytest.mark.slow
@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_equals_the_oracle_on_every_case(subject: Subject, element: ElementKind) -> None:
    assert _obeys(laws.equals_the_oracle, subject, element, 1) > 10


def _obeys(
    law: Any,
    subject: Subject,
    element: ElementKind,
    every: int,
    among: Callable[[Case], bool] = lambda _: True,
) -> int:
    """How many trials the law held on."""
    count = 0
    for name, arguments in laws.trials(subject, element, every, among):
        try:
            law(subject, arguments)
        except laws.LawBroken as broken:
            pytest.fail(f"{name}: {broken}")
        count += 1
    return count


OTHERS = (
    laws.keeps_bits_in_any_layout,
    laws.leaves_no_traces,
    laws.works_in_place,
    laws.agrees_with_its_plan,
)


def _others(subject: Subject, arguments: Arguments) -> None:
    for law in OTHERS:
        try:
            law(subject, arguments)
        except laws.LawBroken as broken:
            raise laws.LawBroken(f"{law.__name__}: {broken}") from None


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_other_laws(subject: Subject, element: ElementKind) -> None:
    """All on the same arguments: to complete these takes longer than the laws do."""
    assert _obeys(_others, subject, element, 6 * SHARE[element]) > 0


@pytest.mark.parametrize("subject", SUBJECTS)
def test_keeps_bits_in_any_layout_of_high_rank(subject: Subject) -> None:
    """Permuted axes can be told from column-major ones from rank 3 on, and mistaken for adjacent
    lines from rank 4 on."""
    element = FLOATS[SUBJECTS.index(subject) % len(FLOATS)]
    count = _obeys(laws.keeps_bits_in_any_layout, subject, element, 2, _has_high_rank)
    assert count > 0 or not any(_has_high_rank(c) for c in subject.cases() if subject.takes(c))


def _has_high_rank(case: Case) -> bool:
    return max(array.ndim for array in case.arrays.values()) >= 4


@pytest.mark.parametrize("element", [ElementKind.F32, ElementKind.F64])
@pytest.mark.parametrize("subject", [s for s in SUBJECTS if s.family == "scan"])
def test_keeps_bits_in_any_layout_of_wide_range(subject: Subject, element: ElementKind) -> None:
    """Which path a tile takes may depend on the tiles beside it, its bits may not."""
    wide = _obeys(laws.keeps_bits_in_any_layout, subject, element, 1, _has_wide_range)
    assert wide == 2


def _has_wide_range(case: Case) -> bool:
    return case.name.startswith("wide range")


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_keeps_bits_on_any_threads(subject: Subject, element: ElementKind) -> None:
    """On inputs large enough to be split, in every way there is to walk them."""
    count = 0
    for number, case in enumerate(subject.large_cases()):
        variant = subject.variants[number // 2 % len(subject.variants)]
        arguments = subject.arguments(case, element, ElementKind.I64, variant, exact=False)
        if arguments is not None:
            laws.keeps_bits_on_any_threads(subject, arguments)
            count += 1
    assert count > 0


@pytest.mark.parametrize("subject", BACKWARDS)
def test_is_the_adjoint(subject: Subject) -> None:
    """Against central differences of the oracle, on smooth inputs without ties."""
    rng = np.random.default_rng(3)
    assert subject.forward is not None
    count = 0
    for variant in subject.variants:
        if variant.get("ties") == "split":
            continue
        for case in SMOOTH[subject.family](rng):
            arguments = subject.arguments(case, ElementKind.F64, ElementKind.I64, variant)
            forward = subject.forward.arguments(case, ElementKind.F64, ElementKind.I64, variant)
            if arguments is None or forward is None or variant.get("scale_grad_by_freq"):
                continue
            if any(name not in forward for name in laws.differentiated(subject, arguments)):
                continue
            laws.is_the_adjoint(subject, arguments, forward)
            count += 1
    assert count > 0


def _smooth_rows(rng: np.random.Generator) -> list[Case]:
    shape = (5, 23)
    data = {"x": rng.standard_normal(shape), "dy": rng.standard_normal(shape)}
    return [
        Case(f"axis {axis}, {reverse}", data, {"axis": axis, "reverse": reverse})
        for axis in (0, 1)
        for reverse in (False, True)
    ]


def _recurrent(rng: np.random.Generator, x: Any) -> dict[str, Any]:
    b, dh = rng.standard_normal((2, *x.shape))
    return {"a": x / 4, "b": b, "dh": dh}


def _smooth_recurrence(rng: np.random.Generator) -> list[Case]:
    return [Case(c.name, _recurrent(rng, c.arrays["x"]), c.options) for c in _smooth_rows(rng)]


def _smooth_lerp(rng: np.random.Generator) -> list[Case]:
    shapes = [((4, 5), (4, 5), (4, 5)), ((4, 1), (5,), (1, 5)), ((), (4, 5), ())]
    found = []
    for a, b, w in shapes:
        whole = np.broadcast_shapes(a, b, w)
        data = {"a": rng.standard_normal(a), "b": rng.standard_normal(b)}
        data = {k: np.asarray(v) for k, v in data.items()}
        dy = {"dy": np.asarray(rng.standard_normal(whole))}
        weight = {"weight": np.asarray(0.1 + 0.3 * rng.random(w))}
        found.append(Case("tensor", {**data, **weight, **dy}))
        if w == (4, 5) or w == ():
            found.append(Case("number", {**data, **dy}, {"weight": 0.3}))
    return found


def _smooth_segment(rng: np.random.Generator) -> list[Case]:
    ids = rng.integers(0, 6, 20)
    ids[3] = -1
    data = {"x": rng.standard_normal((20, 3)), "dy": rng.standard_normal((7, 3))}
    turned = {"x": rng.standard_normal((2, 20)), "dy": rng.standard_normal((2, 7))}
    options = {"axis": 1, "num_segments": 7, "num_inputs": 20}
    offsets = np.array([0, 4, 4, 5, 9, 9, 15, 20])
    return [
        Case("ids", {**data, "segment_ids": ids}),
        Case("ids along axis 1", {**turned, "segment_ids": ids}, options),
        Case("borders", {**data, "offsets": offsets}, {"num_inputs": 20}),
        Case("borders along axis 1", {**turned, "offsets": offsets}, options),
    ]


def _smooth_segment_maps(rng: np.random.Generator) -> list[Case]:
    """The same segments with a gradient for each row."""
    found = []
    for case in _smooth_segment(rng):
        x = case.arrays["x"]
        arrays = {**case.arrays, "dy": rng.standard_normal(x.shape)}
        found.append(Case(case.name, arrays, {**case.options, "num_segments": 7}))
    return found


def _smooth_gathered(rng: np.random.Generator) -> list[Case]:
    at, ids = rng.integers(0, 6, 20), rng.integers(0, 6, 20)
    at[2], ids[3] = -1, -1
    data = {"x": rng.standard_normal((6, 3)), "dy": rng.standard_normal((7, 3)), "gather_ids": at}
    found = [
        Case(reduce, {**data, "segment_ids": ids}, {"reduce": reduce, "num_segments": 7})
        for reduce in ("sum", "mean", "max", "min")
    ]
    weighted = {**data, "segment_ids": ids, "weights": rng.standard_normal(20)}
    return [*found, Case("weighted", weighted, {"num_segments": 7})]


def _smooth_embedding(rng: np.random.Generator) -> list[Case]:
    indices = rng.integers(0, 6, 20)
    data = {"weight": rng.standard_normal((6, 3)), "indices": indices}
    bagged = {
        **data,
        "offsets": np.array([0, 4, 4, 11]),
        "per_sample_weights": rng.standard_normal(20),
        "dout": rng.standard_normal((4, 3)),
    }
    return [
        Case("plain", {**data, "dout": rng.standard_normal((20, 3))}, {"padding_idx": 2}),
        Case("bags", bagged, {"padding_idx": 2}),
    ]


def _smooth_entmax(rng: np.random.Generator) -> list[Case]:
    """Even rows: every entry has a share."""
    x = 0.1 * rng.standard_normal((5, 7))
    weights = rng.random((5, 7))
    loss = {"x": x, "dy": rng.standard_normal(5)}
    data = {"x": x, "dy": rng.standard_normal((5, 7))}
    alpha = 1.2 + 0.5 * rng.random((5, 1))
    share = {"target": weights / weights.sum(1, keepdims=True)}
    return [
        Case("number", data, {"axis": 0, "alpha": 1.3}),
        Case("tensor", {**data, "alpha": alpha}, {"axis": 1}),
        Case("distribution", {**loss, **share}, {"axis": 1, "alpha": 1.3}),
        Case("classes", {**loss, "target": rng.integers(0, 7, 5)}, {"axis": 1, "alpha": 1.3}),
    ]


SMOOTH = {
    "entmax": _smooth_entmax,
    "scan": _smooth_rows,
    "simplex": _smooth_rows,
    "recurrence": _smooth_recurrence,
    "lerp": _smooth_lerp,
    "segment": _smooth_segment,
    "segment_softmax": _smooth_segment_maps,
    "segment_statistics": _smooth_segment,
    "segment_gather": _smooth_gathered,
    "embedding": _smooth_embedding,
}
