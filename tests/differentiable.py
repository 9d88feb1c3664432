"""Points where every function is smooth, for tests that differentiate: derived from the registry,
so that a new function is covered by existing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pullback.contract.element import ElementKind
from pullback.ops.case import Case
from pullback.verify.subject import Arguments, Subject, subjects

SUBJECTS = list(subjects().values())


def _apart(rng: np.random.Generator, *shape: int) -> Any:
    """Values that no small step makes equal."""
    return (rng.permutation(int(np.prod(shape))) / 5 + 0.3).reshape(shape)


def _rows(rng: np.random.Generator) -> Iterator[Case]:
    for axis, reverse in ((0, False), (1, True)):
        arrays = {"x": _apart(rng, 3, 4), "dy": rng.standard_normal((3, 4))}
        yield Case("rows", arrays, {"axis": axis, "reverse": reverse})


def _scans(rng: np.random.Generator) -> Iterator[Case]:
    """Also exclusive, from an initial value, in pieces, and all of these."""
    for number, case in enumerate(_extended(_rows(rng), rng)):
        # Of the lines of a map no two elements are alike; an initial value must be none of them.
        initial = case.arrays.get("initial")
        more = {} if initial is None else {"initial": initial + 0.03 + number}
        yield Case(case.name, {**case.arrays, **more}, case.options)


def _extended(cases: Iterator[Case], rng: np.random.Generator) -> Iterator[Case]:
    for case in cases:
        yield case
        rest = 4 if case.options["axis"] == 0 else 3
        extent = 3 if case.options["axis"] == 0 else 4
        exclusive = {**case.options, "exclusive": True}
        if "a" in case.arrays:  # the identity of others is infinite, which has no differences
            yield Case("exclusive", case.arrays, exclusive)
        arrays = {**case.arrays, "initial": rng.uniform(0.4, 0.6, rest)}
        yield Case("initial", arrays, case.options)
        yield Case("exclusive, initial", {**arrays, "initial": np.array(0.45)}, exclusive)
        arrays = {**case.arrays, "offsets": np.array([0, 1, 1, extent])}
        yield Case("pieces", arrays, case.options)
        shape = (3, rest) if case.options["axis"] == 0 else (rest, 3)
        yield Case("all", {**arrays, "initial": rng.uniform(0.4, 0.6, shape)}, exclusive)


def _supported(rng: np.random.Generator) -> Iterator[Case]:
    """Rows so even that every entry has a share: at the edge of the support y has no derivative."""
    for case in _rows(rng):
        yield Case(case.name, {**case.arrays, "x": case.arrays["x"] / 20}, case.options)


def _recurrent_rows(rng: np.random.Generator) -> Iterator[Case]:
    names = ("a", "b", "dh", "h", "x", "discount")
    for axis, reverse in ((0, False), (1, True)):
        arrays = {name: rng.standard_normal((3, 4)) for name in names}
        yield Case("rows", arrays, {"axis": axis, "reverse": reverse})


def _recurrence(rng: np.random.Generator) -> Iterator[Case]:
    yield from _extended(_recurrent_rows(rng), rng)
    case = next(_recurrent_rows(rng))
    narrow = {"a": np.array([[0.3], [0.7], [-0.4]]), "discount": np.array(0.9)}
    yield Case("broadcast", {**case.arrays, **narrow}, case.options)


def _lerp(rng: np.random.Generator) -> Iterator[Case]:
    arrays = {name: rng.standard_normal((3, 4)) for name in ("a", "b", "dy")}
    yield Case("number", arrays, {"weight": 0.3})
    yield Case("tensor", {**arrays, "weight": np.array([0.2, 0.7, -0.1, 1.4])})
    yield Case("broadcast", {**arrays, "a": arrays["a"][:1], "weight": np.array(0.7)})


def _segment(rng: np.random.Generator) -> Iterator[Case]:
    ids = np.array([2, 0, 2, 1, 0, 5, -1])
    yield Case(
        "rows", {"x": _apart(rng, 7, 2), "dy": rng.standard_normal((6, 2)), "segment_ids": ids}
    )
    columns = {"x": _apart(rng, 2, 7), "dy": rng.standard_normal((2, 6)), "segment_ids": ids}
    yield Case("columns", columns, {"axis": -1, "num_segments": 6})
    borders = {"offsets": np.array([0, 3, 3, 7]), "dy": rng.standard_normal((2, 3, 1))}
    options = {"axis": 1, "num_segments": 3, "num_inputs": 7}
    yield Case("borders", {"x": _apart(rng, 2, 7, 1), **borders}, options)


def _full_segments(rng: np.random.Generator) -> Iterator[Case]:
    """Segments with rows, and rows with segments: -inf has no derivative."""
    ids = np.array([2, 0, 2, 1, 0, 3, 1])
    dy = rng.standard_normal((4, 2))
    yield Case("rows", {"x": _apart(rng, 7, 2) / 4, "dy": dy, "segment_ids": ids})
    options = {"axis": 1, "num_segments": 3}
    arrays = {"offsets": np.array([0, 3, 4, 7]), "dy": rng.standard_normal((2, 3, 1))}
    yield Case("borders", {"x": _apart(rng, 2, 7, 1) / 4, **arrays}, options)


def _gathered(rng: np.random.Generator) -> Iterator[Case]:
    at, ids = np.array([4, 1, 1, 3, 0, 4, 2, -1]), np.array([2, 0, 2, 1, 0, 5, -1, 1])
    rows = {"x": _apart(rng, 5, 2), "dy": rng.standard_normal((6, 2)), "gather_ids": at}
    for reduce in ("sum", "mean", "max", "min"):
        known = {"reduce": reduce, "num_segments": 6}
        yield Case(reduce, {**rows, "segment_ids": ids}, known)
    weights = rng.standard_normal(8)
    yield Case("weighted", {**rows, "segment_ids": ids, "weights": weights}, {"num_segments": 6})
    borders = {"offsets": np.array([0, 3, 3, 4, 4, 7, 8]), "gather_ids": np.abs(at)}
    known = {"reduce": "max", "num_segments": 6}
    yield Case("borders", {**rows, **borders}, known)


def _segment_maps(rng: np.random.Generator) -> Iterator[Case]:
    """The same segments with a gradient for each row."""
    for case in _full_segments(rng):
        x, dy = case.arrays["x"], case.arrays["dy"]
        count = dy.shape[case.options.get("axis", 0)]
        arrays = {**case.arrays, "dy": rng.standard_normal(x.shape)}
        yield Case(case.name, arrays, {**case.options, "num_segments": count})


def _embedding(rng: np.random.Generator) -> Iterator[Case]:
    table = {"weight": _apart(rng, 5, 2)}
    indices = np.array([[4, 1, 1], [-1, 0, 4]])
    lookup = {**table, "indices": indices, "dout": rng.standard_normal((2, 3, 2))}
    yield Case("lookup", lookup, {"padding_idx": 0})
    bags = {
        **table,
        "indices": np.array([4, 1, 1, 9, 0, 4, 2]),
        "offsets": np.array([0, 2, 2, 5]),
        "per_sample_weights": rng.standard_normal(7),
        "dout": rng.standard_normal((4, 2)),
    }
    yield Case("bags", bags, {"padding_idx": 0})


def _entmax(rng: np.random.Generator) -> Iterator[Case]:
    """Even rows, for the reason above; alpha is a number or a tensor, targets are of both kinds."""
    x = {"x": _apart(rng, 3, 4) / 20}
    yield Case("number", {**x, "dy": rng.standard_normal((3, 4))}, {"axis": 0, "alpha": 1.3})
    arrays = {**x, "dy": rng.standard_normal((3, 4)), "alpha": np.array([[1.2], [1.5], [1.7]])}
    yield Case("alpha of rows", arrays, {"axis": 1})
    yield Case("one alpha", {**arrays, "alpha": np.array(1.4)}, {"axis": 1})
    loss = {**x, "dy": rng.standard_normal(3)}
    target = rng.random((3, 4))
    target /= target.sum(1, keepdims=True)
    yield Case("distribution", {**loss, "target": target}, {"axis": 1, "alpha": 1.3})
    classes = {**x, "dy": rng.standard_normal(4), "target": np.array([2, 0, 1, 1])}
    yield Case("classes", classes, {"axis": 0, "alpha": 1.3})


_CASES = {
    "entmax": _entmax,
    "scan": _scans,
    "simplex": _rows,
    "recurrence": _recurrence,
    "lerp": _lerp,
    "segment": _segment,
    "segment_softmax": _segment_maps,
    "segment_statistics": _full_segments,
    "segment_gather": _gathered,
    "embedding": _embedding,
}


def _cases(subject: Subject) -> Callable[[np.random.Generator], Iterator[Case]]:
    backward_of_a_map = subject.family == "simplex" and subject.forward is not None
    return _supported if backward_of_a_map else _CASES[subject.family]


def points(subject: Subject, element: ElementKind = ElementKind.F64) -> list[Arguments]:
    """NumPy arguments for every sensible combination of a function's options."""
    found = []
    for variant in subject.variants:
        for case in _cases(subject)(np.random.default_rng(3)):
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
    assert found, f"no point for {subject.name} in tests/differentiable.py"
    return found
