"""How often a process that meets many shapes compiles a kernel: what a launch asks of Triton is
counted, nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from pullback.contract.element import ElementKind
from pullback.contract.kinds import BinaryKind, ScanKind, SoftmaxKind
from pullback.gpu.arguments import launched
from pullback.gpu.program import Operand, Scratch, Step
from pullback.gpu.report import records
from pullback.gpu.sketch import Sample, sketched
from pullback.gpu.targets import build, specialisation

SHAPES, MOST = 200, 4
RECORDS = {record.name: record for record in records()}
Draw = Callable[[int], int]  # an extent of at least 2, and at most a limit


def _rows(axis: str, **options: Any) -> Callable[[Draw], dict[str, Any]]:
    return lambda draw: {**options, "input_shape": (draw(3000), draw(9000)), axis: 1}


def _columns(axis: str, **options: Any) -> Callable[[Draw], dict[str, Any]]:
    return lambda draw: {**options, "input_shape": (draw(90), draw(3000), draw(900)), axis: 1}


def _segments(draw: Draw) -> dict[str, Any]:
    sizes = {"num_inputs": draw(90_000), "embedding_dim": draw(500), "num_segments": draw(5000)}
    return dict(sizes)


def _table(draw: Draw) -> dict[str, Any]:
    sizes = {"num_indices": draw(90_000), "embedding_dim": draw(500), "num_embeddings": draw(5000)}
    return dict(sizes)


def _sums(draw: Draw) -> dict[str, Any]:
    rows, columns = draw(3000), draw(3000)
    shapes = {"a_shape": (columns,), "b_shape": (rows, columns), "weight_shape": ()}
    return {"shape": (rows, columns), **shapes}


def _problems() -> Iterator[tuple[str, str, Callable[[Draw], dict[str, Any]]]]:
    for title, layout in (("rows", _rows), ("columns", _columns)):
        for kind in (ScanKind.CUMSUM, ScanKind.LOG_CUMSUM_EXP, ScanKind.CUMMAX):
            for name in ("Scan", "ScanBackward"):
                yield f"{name} {kind.value} {title}", name, layout("scan_axis", kind=kind)
        for name in ("LinearScan", "LinearScanBackward"):
            yield f"{name} {title}", name, layout("scan_axis")
        for kind in (SoftmaxKind.SOFTMAX, SoftmaxKind.ENTMAX15):
            for name in ("Softmax", "SoftmaxBackward"):
                yield f"{name} {kind.value} {title}", name, layout("softmax_axis", kind=kind)
    for reduction in ("Sum", "Mean", "Max", "Prod"):
        for name in (f"UnsortedSegment{reduction}", f"UnsortedSegment{reduction}Backward"):
            yield name, name, _segments
    yield "SegmentLogsumexp", "SegmentLogsumexp", _segments
    yield "SegmentLogsumexpBackward", "SegmentLogsumexpBackward", _segments
    yield "Embedding", "Embedding", _table
    yield "EmbeddingBackward", "EmbeddingBackward", _table
    lerp = {"kind": BinaryKind.LERP, "param": 0.3}
    for name in ("BinaryParam", "BinaryParamBackward"):
        yield name, name, lambda draw: {**lerp, "shape": (draw(3000), draw(3000))}
    yield "LerpBackward", "LerpBackward", _sums


PROBLEMS = {title: (name, problem) for title, name, problem in _problems()}


def _steps(name: str, options: dict[str, Any]) -> list[Step]:
    program, _ = sketched(RECORDS[name], Sample("", options), ElementKind.F32)
    return [step for step in program.steps if isinstance(step, Step)]


def _kind(step: Step) -> tuple[str, ...]:
    """A kernel, its constants (tiles among them) and which tensors it is given."""
    given = {
        name: getattr(value, "element", value)
        for name, value in step.arguments.items()
        if name.isupper() or value is None or isinstance(value, Operand | Scratch)
    }
    return (step.kernel.__name__, *(f"{name}={value}" for name, value in given.items()))


@pytest.mark.parametrize("title", PROBLEMS)
def test_many_shapes_take_few_compilations(title: str) -> None:
    """A kernel with a tile of its launch table is compiled at most four times, by 200 shapes of
    which half are drawn by magnitude, so that all tiles are met."""
    name, problem = PROBLEMS[title]
    rng = np.random.default_rng(24)

    def draw(most: int) -> int:
        if rng.random() < 0.5:
            return int(rng.integers(2, most))
        return int(np.exp(rng.uniform(np.log(2), np.log(most))))

    met: dict[tuple[str, ...], set[str]] = {}
    for _ in range(SHAPES):
        for step in _steps(name, problem(draw)):
            met.setdefault(_kind(step), set()).add(specialisation(step))
    assert met
    crowded = {kind: len(asked) for kind, asked in met.items() if len(asked) > MOST}
    assert not crowded


def _cumsum(n: int) -> Step:
    (step,) = _steps("Scan", {"kind": ScanKind.CUMSUM, "input_shape": (700, n), "scan_axis": 1})
    return step


def test_extents_of_16_bytes_are_read_in_wide_loads() -> None:
    """Multiples of 16 elements are not asked for; and where addresses do not allow it, loads are
    of one element."""
    assert build(_cumsum(1004), "sm_80").vector == 16
    assert build(_cumsum(1003), "sm_80").vector == 4
    assert specialisation(_cumsum(1004)) == specialisation(_cumsum(2048))


@pytest.mark.parametrize("shape", [(3, 8, 5), (5, 7, 8), (4, 1, 8), (8, 8, 1)])
def test_numbers_are_told_exactly(shape: tuple[int, ...]) -> None:
    """What kernels make of extents, strides and steps is what they were."""
    for axis in range(3):
        options = {"kind": ScanKind.CUMSUM, "input_shape": shape, "scan_axis": axis}
        for step in _steps("Scan", options):
            given, told = step.arguments, launched(step)
            aligned = told["extents"][0].value
            assert tuple(e // 16 for e in told["extents"][1:]) == (given["extents"] or (1,))
            strides = (1 if s is None else s // 16 * aligned for s in told["strides_x"])
            assert tuple(strides) == (given["strides_x"] or (0,))
            by = told["step_x"]
            assert given["step_x"] == (by[1] // 16 * by[0].value if by else 1)
