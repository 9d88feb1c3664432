"""Every kernel compiles for every target without a GPU, and spills nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton")

from pullback.contract.element import FLOATS, ElementKind
from pullback.gpu.report import is_fresh, steps
from pullback.gpu.targets import TARGETS, build

DOCUMENT = Path(__file__).parent.parent / "docs" / "gpu.md"
SHARE = 12  # of how many kernels each element and target meets one, in the quick suite


def _check(element: ElementKind, target: str, start: int, share: int) -> None:
    for title, step in steps(element)[start::share]:
        found = build(step, target)
        assert found.spills == 0, f"{title}: {step.kernel.__name__} spills on {target}"
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
    found = {title: step for title, step in steps(ElementKind.F32) if title in wanted}
    assert found.keys() == wanted
    for step in found.values():
        assert build(step, "sm_80").vector == 16


@pytest.mark.slow
def test_the_table_is_fresh() -> None:
    """`pullback gpu-report` writes it again after a change in a kernel."""
    assert is_fresh(DOCUMENT)
