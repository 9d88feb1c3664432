"""The command line: what it prints, how it refuses, what it does not import."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compiled import in_new_process

pytest.importorskip("typer")

import pullback
from pullback.bench.memory import environment
from pullback.bench.race import Effort
from pullback.bench.results import Results
from pullback.bench.workload import F32, Draw, Row, Workload, families, take_rows
from pullback.cli import app as commands
from pullback.ops.embedding.contract import MODES
from pullback.verify.subject import subjects

ROOT = Path(__file__).parents[1]
TINY = Workload("8x16", ("lerp",), families()["lerp"].natures[0].make, take_rows, wrt=("a", "b"))


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["pullback", *words])
    return commands.run()


@pytest.mark.parametrize("command", commands.COMMANDS)
def test_help_has_a_sentence_and_an_example(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, command, "--help") == 0
    assert f"pullback {command}" in capsys.readouterr().out


def test_list_and_show(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "list", "scan", "--json") == 0
    found = {entry["op"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert found["cumprod_backward"]["dtypes"] == ["f16", "bf16", "f32", "f64"]
    assert call(monkeypatch, "list") == 0
    assert "lerp_backward" in capsys.readouterr().out
    assert call(monkeypatch, "show", "cumprod_backward") == 0
    out = capsys.readouterr().out
    assert "R[j] = dy[j] + x[j+1]·R[j+1]" in out
    assert "scan.cumprod.backward f32 numba" in out
    assert call(monkeypatch, "show", "lerp", "--json") == 0
    assert json.loads(capsys.readouterr().out)["plans"][0]["costs"]["moves"] == "201.3 MB"


def test_every_name_can_be_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    public = {name for name in pullback.__all__ if inspect.isroutine(getattr(pullback, name))}
    names = {*subjects(), *public, *(e["op"] for e in listed), *(e["plan"] for e in listed)}
    assert {"prepare_segments", "embedding_bag_per_sample_weights_backward"} <= names
    for name in names:
        assert call(monkeypatch, "show", name, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["plans"] or name in public, name
        assert found["summary"] or name not in {*subjects(), *public}, name
        assert call(monkeypatch, "show", name) == 0
        out = capsys.readouterr().out
        assert out.startswith(name)
        assert all(plan["plan"] in out and plan["skus"][-1] in out for plan in found["plans"])


def test_an_op_shows_all_its_kinds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "show", "embedding_bag_backward") == 0
    out = capsys.readouterr().out
    assert all(f"embedding.bag_{mode}_backward.backward f32" in out for mode in MODES)
    assert "by bag_max_backward" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("show", "cumprd"), "did you mean cumprod"),
        (("list", "scam"), "did you mean scan"),
        (("bench", "nothing"), "no family is called 'nothing'"),
        (("bench", "lerp", "--peers", "tensorflow"), "no peer is called"),
        (("bench", "lerp", "--rows", "no such row"), "nothing matches"),
        (("bench", "lerp", "--compare", "pyproject.toml"), "is not a result"),
        (("bench", "lerp", "--save", "docs"), "docs is not a file that can be written"),
        (("bench", "lerp", "--save", "LICENSE/x.json"), "LICENSE"),
        (("report", "benchmarks/results.json", "--out", "docs"), "docs is not a file"),
        (("catalog", "--write", "LICENSE/x.md"), "Not a directory: 'LICENSE/x.md'"),
        (("report", "missing.json"), "pullback bench --save missing.json"),
        (("report", "pyproject.toml"), "is not a result"),
        (("demo", "--dtype", "f8"), "no dtype is called 'f8'"),
        (("verify", "nothing"), "no op or family is called"),
        (("warm", "nothing"), "no family or function is called"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: tuple[str, ...],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    assert call(monkeypatch, *words) == 2
    said = capsys.readouterr()
    assert sentence in said.err.replace("\n", " ")
    assert "Traceback" not in said.err


def test_doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "doctor", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {"cores", "features", "kernel cache", "gpu", "extras", "advice"} <= found.keys()
    assert call(monkeypatch, "doctor") == 0


def test_demo_prints_one_line_per_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [Row("lerp", TINY, "lerp", way, F32) for way in ("forward", "backward")]
    monkeypatch.setattr("pullback.bench.demo.rows", lambda elements: rows)
    monkeypatch.setattr("pullback.bench.demo.EFFORT", Effort(2, 0.0, 1, 1e-5))
    assert call(monkeypatch, "demo") == 0
    out = capsys.readouterr().out
    assert "lerp_backward" in out
    assert "ulp" in out
    assert call(monkeypatch, "demo", "--json") == 0
    found = Results.from_json(capsys.readouterr().out)
    assert [row.direction for row in found.rows] == ["forward", "backward"]
    assert all(row.same_bits and row.ulp is not None and row.ulp <= 1 for row in found.rows)


def test_demo_within_some_time_takes_families_in_turns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pullback.bench.demo import in_turns, rows

    first = {row.family: row.op for row in reversed(rows())}
    found = in_turns(rows())[: 2 * len(first) : 2]
    assert {row.family: row.op for row in found} == first
    assert found[0].op == "cumsum"
    assert call(monkeypatch, "demo", "--within", "0") == 0
    assert f"0 of {len(rows())} rows in 0 s: `pullback demo` runs all." in capsys.readouterr().err


def test_demo_without_torch_has_no_column_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Row("lerp", TINY, "lerp", "forward", F32)
    monkeypatch.setattr("pullback.bench.demo.rows", lambda elements: [row])
    monkeypatch.setattr("pullback.bench.demo.EFFORT", Effort(2, 0.0, 1, 1e-5))
    assert call(monkeypatch, "demo") == 0
    assert "vs PyTorch" in capsys.readouterr().out
    monkeypatch.setattr("pullback.bench.peers.available", lambda names: ())
    assert call(monkeypatch, "demo") == 0
    assert "vs PyTorch" not in capsys.readouterr().out


def test_bench_saves_compares_and_reads_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.json"
    words = ("bench", "lerp", "--quick", "--rows", "8x8", "--peers", "numpy")
    monkeypatch.setattr("pullback.bench.race.QUICK", Effort(2, 0.0, 1, 1e-5))
    assert call(monkeypatch, *words, "--save", str(file)) == 0
    assert "Figures" in capsys.readouterr().out
    assert len(Results.load(file).rows) == 2
    assert not file.with_suffix(".csv").exists()
    assert call(monkeypatch, *words, "--compare", str(file)) == 0
    assert "New over old" in capsys.readouterr().out


def test_an_interrupt_keeps_what_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pullback.bench import compete

    measured: list[Any] = []
    real = compete.measure

    def once(*args: Any) -> Any:
        if measured:
            raise KeyboardInterrupt
        measured.append(real(*args))
        return measured[0]

    monkeypatch.setattr(compete, "measure", once)
    words = ("bench", "lerp", "--quick", "--rows", "8x8", "--peers", "none", "--json")
    assert call(monkeypatch, *words) == 130
    said = capsys.readouterr()
    assert "interrupted" in said.err
    found = Results.from_json(said.out).rows
    assert [row.workload for row in found] == [row.workload for row in measured] == ["8x8"]
    assert found[0].timings["pullback"].median == pytest.approx(
        measured[0].timings["pullback"].median, rel=1e-2
    )


def test_verify_is_quick_and_tells_what_broke(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pullback.contract.element import ElementKind
    from pullback.verify import Verdict

    broken = Verdict("lerp", ElementKind.F16, "equals the oracle", 3, "case: 9 ulp", 9.0)
    monkeypatch.setattr("pullback.verify.verify", lambda names, every: iter([broken]))
    assert call(monkeypatch, "verify", "lerp", "--json") == 1
    assert json.loads(capsys.readouterr().out)[0]["broken"] == "case: 9 ulp"
    assert call(monkeypatch, "verify", "lerp") == 1


def test_verify_fails_for_a_law_without_a_trial(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pullback.verify.subject import Subject

    monkeypatch.setattr(Subject, "cases", lambda self: ())
    assert call(monkeypatch, "verify", "linear_scan_backward", "--json") == 1
    verdicts = json.loads(capsys.readouterr().out)
    assert {verdict["trials"] for verdict in verdicts} == {0}
    assert {verdict["broken"] for verdict in verdicts} == {"no case of its family could be tried"}


def test_warm_lays_out_every_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pullback.bench import inventory

    one = [(family, plan) for family, plan in inventory.plans() if plan.__name__ == "LerpPlan"]
    monkeypatch.setattr(inventory, "plans", lambda: iter(one))
    monkeypatch.setattr(inventory, "SIZES", (inventory.SMALL,))
    monkeypatch.setattr("pullback.contract.element.FLOATS", (F32,))
    monkeypatch.setattr(inventory, "FLOATS", (F32,))
    assert call(monkeypatch, "warm", "lerp", "--jobs", "1") == 0
    assert "compiled kernels" in capsys.readouterr().err
    monkeypatch.setattr(one[0][1], "lay_out", lambda *_: 1 / 0)
    assert call(monkeypatch, "warm", "--jobs", "1") == 1
    assert "LerpPlan f32: ZeroDivisionError" in capsys.readouterr().err


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['pullback', '--help']\n"
        "from pullback.cli import app\n"
        "app.run()\n"
        "heavy = ('numba', 'torch', 'jax', 'altair', 'triton')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert in_new_process(code).endswith("[]")


def test_the_package_runs_as_the_command() -> None:
    code = (
        "import runpy, sys; sys.argv = ['pullback', '--help']\n"
        "try:\n    runpy.run_module('pullback', run_name='__main__')\n"
        "except SystemExit as done:\n    assert not done.code"
    )
    assert "demo" in in_new_process(code)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("show cumprod_b", "cumprod_backward"),
        ("show SegmentMaxP", "SegmentMaxPlan"),
        ("bench over", "overhead"),
        ("bench lerp --section acc", "accuracy"),
        ("verify simp", "simplex"),
        ("warm recu", "recurrence"),
        ("list emb", "embedding"),
        ("demo --dtype bf", "bf16"),
        ("dem", "demo"),
    ],
)
def test_the_shell_completes_names(
    words: str, offered: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_PULLBACK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"pullback {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    assert call(monkeypatch) == 0
    assert capsys.readouterr().out.split() == [offered]


def test_a_missing_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['typer'] = None\n"
        "from pullback.cli import main\n"
        "try:\n    main()\nexcept SystemExit as done:\n    print(done.code)"
    )
    assert "pip install 'pullback[cli]'" in in_new_process(code)


def test_the_catalog_is_fresh() -> None:
    from pullback.cli.catalog import catalog_page

    page = (ROOT / "docs" / "catalog.md").read_text()
    assert page == catalog_page(), "run `pullback catalog --write docs/catalog.md`"


def test_blank_draws_have_the_layout_of_real_ones() -> None:
    real, blank = Draw(F32).normal(3, 4), Draw(F32, blank=True).normal(3, 4)
    assert (real.shape, real.strides, real.dtype) == (blank.shape, blank.strides, blank.dtype)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_width_cuts_a_word(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    assert call(monkeypatch, "list", "segment") == 0
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.replace(",", " ").split()}
    assert {"unsorted_segment_mean_backward", "UnsortedSegmentMeanBackward", "reference"} <= words
    assert not any("…" in word for word in words)


@pytest.mark.parametrize("words", [("list",), ("list", "--json"), ("--help",)])
def test_a_reader_may_leave(words: tuple[str, ...]) -> None:
    code = f"import sys; sys.argv = ['pullback', *{words}]\nfrom pullback.cli import main\nmain()"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, env=environment()
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
