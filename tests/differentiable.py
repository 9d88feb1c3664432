"""Points where every function is smooth, for tests that differentiate: derived from the registry,
so that a new function is covered by existing."""

from __future__ import annotations

import numpy as np

from pullback.contract.element import ElementKind
from pullback.verify.subject import Arguments, Subject, subjects

SUBJECTS = list(subjects().values())


def points(subject: Subject, element: ElementKind = ElementKind.F64) -> list[Arguments]:
    """NumPy arguments for every sensible combination of a function's options."""
    found = []
    for variant in subject.variants:
        for case in subject.smooth_cases():
            arguments = subject.arguments(case, element, ElementKind.I64, variant)
            if arguments is not None:
                found.append(arguments)
    return found + [_with_zeros(point) for point in found[:1] if "prod" in subject.name]


def _with_zeros(arguments: Arguments) -> Arguments:
    """Products are smooth at zeros, and that is where divisions would show."""
    x = arguments["x"].copy()
    x[:2] = 0
    if "y" in arguments:
        return {**arguments, "x": x, "y": np.cumprod(x, arguments["axis"])}
    return {**arguments, "x": x}


def smooth(subject: Subject) -> list[Arguments]:
    """The points, if there are any: an empty list would make a test pass unseen."""
    found = points(subject)
    assert found, f"no point for {subject.name}: `smooth_cases` of its family lack one"
    return found
