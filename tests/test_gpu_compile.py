"""Every kernel compiles for every target without a GPU, and spills nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from pullback.contract.element import FLOATS, ElementKind
from pullback.gpu import report
from pullback.gpu.targets import TARGETS, build

TURNS = len(FLOATS)


def _check(entry: report.Entry, target: str) -> None:
    found = build(entry.step, target)
    assert found.spills == 0, f"{entry.title}: {entry.step.kernel.__name__} spills on {target}"
    assert found.registers > 0


@pytest.mark.parametrize("turn", range(TURNS))
def test_every_kernel_compiles(turn: int) -> None:
    """Elements and targets dealt out in turn."""
    targets, element = list(TARGETS), FLOATS[turn]
    for number, (kind, entry) in enumerate(report.kernels(ElementKind.F32).items()):
        if number % TURNS == turn:
            target = targets[number // TURNS % len(targets)]
            _check(report.kernels(element).get(kind, entry), target)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", FLOATS, ids=lambda element: element.value)
def test_everything_compiles(element: ElementKind, target: str) -> None:
    for entry in report.entries(element):
        _check(entry, target)


def test_rows_are_read_in_wide_loads() -> None:
    """Contiguous f32 rows move sixteen bytes at a time: no stride is left unknown."""
    wanted = {"Scan cumsum rows", "Softmax softmax rows", "BinaryParam param"}
    found = {e.title: e.step for e in report.entries(ElementKind.F32) if e.title in wanted}
    assert found.keys() == wanted
    for step in found.values():
        assert build(step, "sm_80").vector == 16
