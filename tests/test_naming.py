"""Arguments that nobody takes are named in one sentence, with what was probably meant."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import plans
from pullback.contract.naming import SYNONYMS, hint
from pullback.verify.subject import Subject, subjects

X = np.ones((3, 2))
IDS = np.array([0, 1, 1])
UNEXPECTED = "unexpected argument"


def _torch(array: Any) -> Any:
    return pytest.importorskip("torch").from_numpy(array)


def _jax(array: Any) -> Any:
    return pytest.importorskip("jax.numpy").asarray(array)


@pytest.mark.parametrize("convert", [lambda array: array, _torch, _jax], ids=["np", "torch", "jax"])
@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda x, _: pb.cumsum(x, dim=0), f"cumsum: {UNEXPECTED} 'dim', did you mean 'axis'?"),
        (lambda x, _: pb.cumsum(x, revers=True), "argument 'revers', did you mean 'reverse'?"),
        (lambda x, _: pb.cumsum(input=x), "argument 'input', did you mean 'x'?"),
        (lambda x, _: pb.cumsum(x, up=True), "cumsum: unexpected argument 'up'"),
        (lambda x, _: pb.cumsum(), "cumsum: missing argument 'x'"),
        (lambda x, _: pb.cumsum(x, 0, True), "cumsum: takes 2 arguments by position, got 3"),
        (lambda x, _: pb.softmax(x, dim=-1), "unexpected argument 'dim', did you mean 'axis'?"),
        (lambda x, ids: pb.segment_sum(x, index=ids), "'index', did you mean 'segment_ids'?"),
        (lambda x, ids: pb.segment_sum(x, ids, dim_size=2), "did you mean 'num_segments'?"),
        (lambda x, ids: pb.embedding(x, input=ids), "'input', did you mean 'indices'?"),
        (lambda x, ids: pb.embedding(x), "embedding: missing argument 'indices'"),
        (lambda x, ids: pb.embedding_backward(x, ids, 3, spars=True), "did you mean 'sparse'?"),
        (lambda x, _: pb.cumsum(x, output=x), "did you mean 'out'?"),
    ],
)  # fmt: skip
def test_functions(
    call: Callable[[Any, Any], Any], sentence: str, convert: Callable[[Any], Any]
) -> None:
    x, ids = convert(X.astype(np.float32)), convert(IDS.astype(np.int32))
    for _ in range(2):
        with pytest.raises(TypeError) as caught:
            call(x, ids)
        assert str(caught.value).endswith(sentence)
        assert re.match(r"\w+: ", str(caught.value))
    pb.cumsum(x)  # as before


@pytest.mark.parametrize("subject", list(subjects().values()))
def test_all_functions_name_what_they_do_not_take(subject: Subject) -> None:
    function = getattr(pb, subject.name)
    names = [*inspect.signature(function).parameters]
    for name in names:
        given = dict.fromkeys(names[: names.index(name)], X)
        with pytest.raises(TypeError, match=f"^{subject.name}: unexpected argument '{name}_'"):
            function(**given, **{f"{name}_": X})
        assert hint(f"{name}_", names) == f", did you mean {name!r}?"
    required = [
        n for n, p in inspect.signature(function).parameters.items() if p.default is p.empty
    ]
    with pytest.raises(TypeError, match=f"^{subject.name}: missing argument '{required[0]}'"):
        function()


def test_synonyms_are_of_arguments_that_exist() -> None:
    taken = {name for subject in subjects().values() for name in subject.function.parameters}
    stated = {f.name for name in plans.__all__ if not name.endswith("Plan") for f in _fields(name)}
    assert SYNONYMS.keys() <= taken | stated


def _fields(name: str) -> Any:
    return fields(getattr(plans, name))


@pytest.mark.parametrize("name", [n for n in plans.__all__ if not n.endswith("Plan")])
def test_descriptors_and_args(name: str) -> None:
    kind = getattr(plans, name)
    given = {field.name: object() for field in _fields(name)}
    made = kind(**given)
    assert all(getattr(made, field) is value for field, value in given.items())
    assert made == kind(**given)
    assert list(inspect.signature(kind).parameters) == [*given]
    first = next(iter(given))
    with pytest.raises(TypeError) as caught:
        kind(**{f"{first}_": 1})
    assert str(caught.value) == f"{name}: unexpected argument '{first}_', did you mean '{first}'?"
    with pytest.raises(TypeError, match=f"^{name}: missing argument '{first}'"):
        kind()
    if name.endswith("Descriptor"):
        assert replace(made, **{first: 1}) != made
        with pytest.raises(AttributeError):
            setattr(made, first, 1)


def test_axes_of_descriptors() -> None:
    with pytest.raises(TypeError, match="'axis', did you mean 'scan_axis'"):
        pb.ScanDescriptor(axis=0)
    with pytest.raises(TypeError, match="'dim', did you mean 'softmax_axis'"):
        pb.SoftmaxDescriptor(dim=0)


def test_plans_hold_all_plans_and_nothing_else() -> None:
    ends = ("Descriptor", "Args", "Plan")
    assert plans.__all__ == sorted(name for name in pb.__all__ if name.endswith(ends))
    assert dir(plans) == plans.__all__
    assert len(plans.__all__) >= 108
    assert len(plans.__all__) % 3 == 0
    assert all(getattr(plans, name) is getattr(pb, name) for name in plans.__all__)
    for name in ("cumsum", "Stream", "_pullback_Plan", "NoPlan"):
        with pytest.raises(AttributeError, match=f"'pullback.plans' has no attribute '{name}'"):
            getattr(plans, name)
