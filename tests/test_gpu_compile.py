"""Every kernel compiles for every target without a GPU, and spills nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from pullback.contract.element import FLOATS, ElementKind
from pullback.gpu import report
from pullback.gpu.targets import TARGETS, build

SHARE = 12  # of how many kernels each element and target meets one, in the quick suite


def _check(element: ElementKind, target: str, start: int, share: int) -> None:
    for entry in report.entries(element)[start::share]:
        found = build(entry.step, target)
        assert found.spills == 0, f"{entry.title}: {entry.step.kernel.__name__} spills on {target}"
        assert found.registers > 0


@pytest.mark.parametrize("turn", range(len(FLOATS)))
def test_a_share_compiles(turn: int) -> None:
    targets = list(TARGETS)
    _check(FLOATS[turn], targets[turn % len(targets)], turn, SHARE)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", FLOATS, ids=lambda element: element.value)
def test_everything_compiles(element: ElementKind, target: str) -> None:
    _check(element, target, 0, 1)


def test_rows_are_read_in_wide_loads() -> None:
    """Contiguous f32 rows move sixteen bytes at a time: no stride is left unknown."""
    wanted = {"Scan cumsum rows", "Softmax softmax rows", "BinaryParam param"}
    found = {e.title: e.step for e in report.entries(ElementKind.F32) if e.title in wanted}
    assert found.keys() == wanted
    for step in found.values():
        assert build(step, "sm_80").vector == 16
