"""Every adversarial case is well formed: its oracles take it and agree on its shapes."""

from __future__ import annotations

from importlib import import_module
from itertools import cycle, islice

import numpy as np
import pytest

from pullback.contract.element import ElementKind
from pullback.ops.case import Case
from pullback.verify.subject import Subject, subjects

FORWARDS: dict[str, list[Subject]] = {}
for _subject in subjects().values():
    if _subject.forward is None:
        FORWARDS.setdefault(_subject.family, []).append(_subject)


def family(name: str) -> list[Case]:
    module = import_module(f"pullback.ops.{name}.cases")
    return list(module.cases(np.random.default_rng(7)))


@pytest.mark.parametrize("name", FORWARDS)
def test_names_are_unique_and_values_repeat_with_the_seed(name: str) -> None:
    once, again = family(name), family(name)
    assert len({case.name for case in once}) == len(once)
    for case, twin in zip(once, again, strict=True):
        assert (case.name, str(case.options)) == (twin.name, str(twin.options))
        for key, array in case.arrays.items():
            assert array.dtype in (np.float64, np.int64)
            np.testing.assert_array_equal(array, twin.arrays[key])


@pytest.mark.parametrize("name", FORWARDS)
def test_oracles_take_every_case(name: str) -> None:
    """Oracles in turn: what is ill formed for one is so for all of a family."""
    turns, tried = cycle(FORWARDS[name]), 0
    for case in family(name):
        for subject in islice(turns, len(FORWARDS[name])):
            given = subject.arguments(case, ElementKind.F64, ElementKind.I64, subject.variants[0])
            if given is not None:
                break
        else:
            raise AssertionError(f"no function takes {case.name}")
        (y,) = subject.truth(given)
        dy = next(case.arrays[key] for key in ("dy", "dout", "dh") if key in case.arrays)
        assert y.shape == dy.shape, (subject.name, case.name)
        assert y.dtype == np.longdouble, (subject.name, case.name)
        tried += 1
    assert tried > 10
