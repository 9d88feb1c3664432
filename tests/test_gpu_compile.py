"""Every kernel compiles for every target without a GPU, and spills nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from pullback.contract.element import FLOATS, ElementKind
from pullback.gpu import report
from pullback.gpu.targets import TARGETS, Resources, build

DOCUMENT = Path(__file__).parent.parent / "docs" / "gpu.md"
TURNS = len(FLOATS)


def _check(entry: report.Entry, target: str) -> Resources:
    found = build(entry.step, target)
    assert found.spills == 0, f"{entry.title}: {entry.step.kernel.__name__} spills on {target}"
    assert found.registers > 0
    return found


def _dealt() -> list[tuple[report.Job, str]]:
    """Every kernel once; elements and targets in turn."""
    targets = list(TARGETS)
    kinds = dict.fromkeys(kind for _, kind in report.jobs())
    dealt = []
    for number, kind in enumerate(kinds):
        elements = [element for element in FLOATS if kind in report.kernels(element)]
        job = (elements[number % len(elements)], kind)
        dealt.append((job, targets[number // TURNS % len(targets)]))
    return dealt


@pytest.mark.parametrize("turn", range(TURNS))
def test_every_kernel_compiles(turn: int) -> None:
    """Without spills, and to what the table says it takes."""
    rows = dict(zip(report.jobs(), report.rows_of(DOCUMENT), strict=True))
    for job, target in _dealt()[turn::TURNS]:
        element, kind = job
        found = _check(report.kernels(element)[kind], target)
        assert report.cell_of(found) == report.cells_of(rows[job])[target], f"{kind} on {target}"


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


# --- the table of docs/gpu.md: `pullback gpu-report` writes it again after a change in a kernel --


def test_the_table_is_fresh() -> None:
    """Made from these sources, by this Triton, with a row for every kernel and element."""
    rows = report.rows_of(DOCUMENT)
    heads = [report.head_of(job) for job in report.jobs()]
    assert len(rows) == len(heads)
    assert all(row.startswith(head) for row, head in zip(rows, heads, strict=True))
    assert report.is_fresh(DOCUMENT)


def test_nothing_spills() -> None:
    assert not [row for row in report.rows_of(DOCUMENT) if report.spills(row)]


def test_the_command_renews_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = pytest.importorskip("pullback.cli.app")
    page, jobs = tmp_path / "gpu.md", report.jobs()[:1]
    page.write_text(DOCUMENT.read_text().replace(report.stamp(), "0"))
    assert not report.is_fresh(page)
    monkeypatch.setattr(report, "jobs", lambda: jobs)
    monkeypatch.setattr(
        sys, "argv", ["pullback", "gpu-report", "--write", str(page), "--workers", "1"]
    )
    assert commands.run() == 0
    assert report.is_fresh(page)
    assert report.rows_of(page) == [report.row_of(jobs[0])]
    assert "1 kernels, 0 of them spill" in capsys.readouterr().err
