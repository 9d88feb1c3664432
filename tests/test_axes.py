"""Axes counted from the end are the same axes, in every function that has one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pullback.verify.laws import same_bits
from pullback.verify.subject import subjects


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, subject in subjects().items()
        if "axis" in subject.function.parameters
        and set(subject.function.indices) <= {"offsets"}  # those of scans may be left out
    ],
)
def test_negative_axes_count_from_the_end(name: str) -> None:
    subject = subjects()[name]
    names = [n for n in subject.function.tensors if n not in subject.function.defaults]
    of_rows = {"dy"} if "p" in names else set()  # a loss has one value for each row
    different = []
    for axis in range(3):
        given: dict[str, Any] = {}
        rng = np.random.default_rng(2)
        for n in names:
            shape = np.delete((2, 3, 4), axis) if n in of_rows else (2, 3, 4)
            given[n] = rng.random(shape).astype(np.float32)
        if "alpha" in subject.function.parameters:
            given["alpha"] = 1.3
        first, last = (subject.answer({**given, "axis": a}) for a in (axis, axis - 3))
        assert all(same_bits(one, other) for one, other in zip(first, last, strict=True))
        different.append(first[0])
    assert not same_bits(different[0], different[1])
    assert not same_bits(different[1], different[2])
