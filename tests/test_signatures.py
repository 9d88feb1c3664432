"""What `help`, editors and type checkers are told of the functions is true."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import pullback as pb
from pullback.contract.element import ElementKind
from pullback.plan.public import RETURNS, SECOND, Array
from pullback.verify.laws import trials
from pullback.verify.subject import Subject, subjects

SUBJECTS = list(subjects().values())


@pytest.mark.parametrize("subject", SUBJECTS)
def test_type_hints_can_be_read(subject: Subject) -> None:
    function = getattr(pb, subject.name)
    hints = get_type_hints(function)
    assert [*hints] == [*inspect.signature(function).parameters, "return"]
    said = str(inspect.signature(function))
    assert not [word for word in ("Tensor", "Indices", *RETURNS) if word in said]


def _counts(hint: Any) -> set[int]:
    """How many arrays a function may return, by its annotation."""
    if hint is Array:
        return {1}
    if get_origin(hint) is tuple:
        return {len(get_args(hint))}
    return {count for way in get_args(hint) for count in _counts(way)}


def _calls(subject: Subject) -> Iterator[dict[str, Any]]:
    """A call with every option, on the first small case that has what it takes; one with a number
    and one with a tensor where either will do."""
    some = next(arguments for _, arguments in trials(subject, ElementKind.F32))
    flags = [name for name in SECOND if name in subject.function.parameters]
    for name in (name for name, takes_numbers in subject.function.tensors.items() if takes_numbers):
        kind = isinstance(some[name], float)
        others = (arguments for _, arguments in trials(subject, ElementKind.F32))
        yield next(other for other in others if isinstance(other[name], float) is not kind)
    for flag in (None, *flags):
        modes = {"mode": "max"} if flag == "return_indices" and "mode" in some else {}
        given = {**some, **modes, **{name: name == flag for name in flags}}
        if modes:
            given.pop("per_sample_weights", None)
        yield given
        if "initial" in subject.function.parameters:
            yield {**given, "initial": np.ones((), np.float32)}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_as_many_results_as_the_annotation_says(subject: Subject) -> None:
    stated, seen = _counts(get_type_hints(getattr(pb, subject.name))["return"]), set()
    for given in _calls(subject):
        result = getattr(pb, subject.name)(**given)
        several = isinstance(result, tuple)
        assert all(isinstance(part, np.ndarray) for part in (result if several else (result,)))
        seen.add(len(result) if several else 1)
    assert seen == stated
