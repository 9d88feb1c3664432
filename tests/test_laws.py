"""Every law on every public function in every element: a new op is tested by existing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def _has_wide_range(case: Case) -> bool:
    return case.name.startswith("wide range")


@pytest.mark.parametrize("element", [ElementKind.F32, ElementKind.F64])
@pytest.mark.parametrize("subject", [s for s in SUBJECTS if any(map(_has_wide_range, s.cases()))])
def test_keeps_bits_in_any_layout_of_wide_range(subject: Subject, element: ElementKind) -> None:
    """Which path a tile takes may depend on the tiles beside it, its bits may not."""
    wide = _obeys(laws.keeps_bits_in_any_layout, subject, element, 1, _has_wide_range)
    assert wide == 2


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
    assert subject.forward is not None
    count = 0
    for variant in subject.variants:
        if variant.get("ties") == "split":
            continue
        for case in subject.larger_smooth_cases():
            arguments = subject.arguments(case, ElementKind.F64, ElementKind.I64, variant)
            forward = subject.forward.arguments(case, ElementKind.F64, ElementKind.I64, variant)
            if arguments is None or forward is None or variant.get("scale_grad_by_freq"):
                continue
            if any(name not in forward for name in laws.differentiated(subject, arguments)):
                continue
            laws.is_the_adjoint(subject, arguments, forward)
            count += 1
    assert count > 0
