"""Every kernel compiles for every target without a GPU, and spills nothing."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("triton")

from triton._C.libtriton import ir
from triton.compiler import make_backend

from pullback.contract.element import FLOATS, ElementKind
from pullback.gpu import report
from pullback.gpu.program import Step
from pullback.gpu.targets import TARGETS, Resources, _specialised, build

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


@pytest.mark.parametrize("element", [ElementKind.F32, ElementKind.F64], ids=str)
def test_the_longest_rows_in_registers_do_not_spill(element: ElementKind) -> None:
    """Rows that take all registers there are."""
    longest: dict[str, report.Entry] = {}
    for entry in report.entries(element):
        step, tile = entry.step, entry.step.arguments.get("B", 0)
        exponential = step.arguments.get("KIND") in ("softmax", "log_softmax")
        held = step.kernel.__name__ in ("exp_row", "map_back") and step.arguments["n"] <= tile
        if held and exponential:
            kind = f"{step.kernel.__name__} {step.arguments['KIND']}"
            if kind not in longest or tile > longest[kind].step.arguments["B"]:
                longest[kind] = entry
    assert len(longest) == 4
    for entry in longest.values():
        _check(entry, "sm_90")


def test_rows_are_read_in_wide_loads() -> None:
    """Contiguous f32 rows move sixteen bytes at a time: no stride is left unknown."""
    wanted = {"Scan cumsum rows", "Softmax softmax rows", "BinaryParam param"}
    found = {e.title: e.step for e in report.entries(ElementKind.F32) if e.title in wanted}
    assert found.keys() == wanted
    for step in found.values():
        assert build(step, "sm_80").vector == 16


# --- what Triton makes of a kernel before it knows of registers ---------------------------------


def _triton_ir(step: Step, target: str = "sm_90") -> str:
    """The kernel as Triton reads it: loops with the types of their counters, divisions by name."""
    source, parsed = _specialised(step, target)
    backend, context = make_backend(TARGETS[target]), ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(parsed)
    made = source.make_ir(TARGETS[target], parsed, functions, backend.get_module_map(), context)
    return str(made)


@cache
def _sources(element: ElementKind) -> dict[str, tuple[Step, str]]:
    return {
        f"{entry.title}: {entry.step.kernel.__name__}, {number}": (
            entry.step,
            _triton_ir(entry.step),
        )
        for number, entry in enumerate(report.entries(element))
    }


def test_loops_over_elements_count_in_64_bits() -> None:
    """With 32 bits the step past an extent of 2^31 - 1 wraps, and reads before the row. Extents of
    the samples fit into 32 bits, so a counter is wide only where the kernel says so. A counter
    nobody reads (`_`) counts the steps of a bisection, 64 at most."""
    counters: dict[str, str] = {}
    for title, (_, text) in _sources(ElementKind.F32).items():
        loops = re.findall(r"scf\.for (%\w+) = .*: (\w+) \{", text)
        assert len(loops) == text.count("scf.for"), f"{title}: a loop of another form"
        over_elements = [(name, kind) for name, kind in loops if not name.startswith("%_")]
        counters.update((f"{title}, {name}", kind) for name, kind in over_elements)
    assert {"map_tiles", "map_back", "dots", "reduce", "sweep"} <= {
        title.split(": ")[1].split(",")[0] for title in counters
    }
    assert not [loop for loop, kind in counters.items() if kind != "i64"]


@pytest.mark.parametrize("element", [ElementKind.F32, ElementKind.BF16], ids=str)
def test_divisions_are_correctly_rounded(element: ElementKind) -> None:
    """`/` on f32 is off by up to 2 ulp. Only the simplex maps may use it, whose exponentials are
    not rounded correctly either."""
    sources = {
        title: text
        for title, (step, text) in _sources(element).items()
        if ".simplex." not in step.kernel.__module__
    }
    assert not [title for title, text in sources.items() if re.search(r"arith\.divf .*f32", text)]
    assert [title for title, text in sources.items() if "tt.precise_divf" in text]


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
