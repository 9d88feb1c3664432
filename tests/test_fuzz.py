"""The fuzzer itself: that cases are repeatable and reach everything, and that it finds what is
planted. Past failures are replayed."""

from __future__ import annotations

import gc
import json
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback
from pullback.aot.collect import requests
from pullback.bench.ahead import steps
from pullback.contract.element import FLOATS, ElementKind
from pullback.cpu.library import entry_name
from pullback.fuzz import checks, forms
from pullback.fuzz.coverage import all_kernels, lines_of
from pullback.fuzz.generate import CHECKS, MISTAKES, Source
from pullback.fuzz.layout import Layout, place
from pullback.fuzz.memory import Memory
from pullback.fuzz.reach import phases
from pullback.fuzz.run import Settings, run
from pullback.fuzz.script import script
from pullback.fuzz.shrink import Server, shrink
from pullback.fuzz.thresholds import thresholds
from pullback.fuzz.trial import Trial
from pullback.verify.subject import Subject, subjects

NAMES = tuple(sorted(subjects()))
CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.json"))


def _trial(**changes: Any) -> Trial:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    layouts = {"x": Layout.plain(2), "out": Layout((0, 1), (-1, 1), (0, 1))}
    trial = Trial("cumsum", ElementKind.F32, {"x": x}, {"axis": 1}, layouts, ("layout",), out=True)
    return replace(trial, **changes)


# --- cases ------------------------------------------------------------------------------------


def test_a_case_is_a_function_of_seed_and_number() -> None:
    source = Source(3, NAMES)
    for number in (0, 17, 40):
        first, second = (source.trial(source.choices(number)).to_json() for _ in range(2))
        assert first == second


def test_trials_survive_being_stored() -> None:
    source = Source(4, NAMES)
    for number in range(20):
        stored = source.trial(source.choices(number)).to_json()
        assert Trial.from_json(json.loads(json.dumps(stored))).to_json() == stored


def test_thresholds_are_read_from_the_kernels() -> None:
    from pullback.cpu import walks
    from pullback.ops.segment import cpu_words

    assert {walks.CHUNK, cpu_words.BLOCK} <= set(thresholds())


def test_every_option_check_and_mistake_is_drawn() -> None:
    """A new parameter that no draw reaches is one that nobody tests: see `ops/*/cases.py`."""
    seen: dict[tuple[str, str], set[str]] = {}
    drawn: Counter[str] = Counter()
    for name in NAMES:
        source = Source(11, (name,), sizes=(1, 1, 0, 0, 0), blank=True)
        for number in range(90):
            trial = source.trial(source.choices(number))
            drawn.update([*trial.checks, trial.mistake, *trial.refused])
            for parameter in trial.subject.function.parameters:
                given = trial.arguments.get(parameter)
                kind = "array" if isinstance(given, np.ndarray) else repr(given)
                seen.setdefault((name, parameter), set()).add(kind)
    defaults = {(n, p): subjects()[n].function.defaults.get(p) for n, p in seen}
    fixed = [k for k, kinds in seen.items() if kinds <= {repr(defaults[k])}]
    assert fixed == []
    assert set(CHECKS) <= set(drawn)
    assert set(MISTAKES) <= set(drawn)
    assert {"InvalidProblem", "IndexOutOfRange", "Unsupported"} <= set(drawn)


# What kernels are compiled for where it is not all four floats, by their names. An f32 stands for
# none in those that touch ids, borders and addresses alone.
FOR = (
    (r"ops\.scan\.cpu_cumprod\w*\.\w+_f64_", "f64"),
    (r"ops\.entmax\.cpu_loss\.check_classes", "f64"),
    (r"ops\.scan\.cpu_\w+\.\w+_recomputed_", "f16 bf16"),
    (r"ops\.scan\.cpu_cumprod\.", "f16 bf16 f32"),
    (r"ops\.scan\.cpu_logcumsumexp_backward\.", "f32 f64"),
    (r"ops\.scan\.cpu_cumprod_backward\.", "f32"),
    (r"ops\.segment\.cpu_(index|borders|direct)\.", "f32"),
    (r"ops\.segment_gather\.cpu_reduce\.(count_rows|resolve_ids)", "f32"),
    (r"ops\.embedding\.cpu_rows\.(number|place|sort)_rows", "f32"),
    (r"ops\.embedding\.cpu_bag\.(check_winners|count_holders|judge_winners)", "f32"),
    (r"cpu\.(piecewise|extended)\.(run_pieces|extended_begin)", "f32"),
    (r"cpu\.stateful\.stateful_(begin|firsts|lasts|places)", "f32"),
)


def _elements(kernel: str) -> set[str]:
    every = " ".join(element.value for element in FLOATS)
    return set(next((of for name, of in FOR if re.match(name, kernel)), every).split())


def test_every_kernel_is_reached_in_every_element_and_compiled_ahead() -> None:
    """Programs are laid out, not run: sizes count, time does not."""
    entries: set[str] = set()
    variants = {(kernel, element) for kernel in all_kernels() for element in _elements(kernel)}
    missing, found, wanted = set(variants), set[tuple[str, str]](), set(NAMES)
    users: dict[str, set[str]] = {}  # functions that run kernels of a folder
    for turn in range(1000):
        for offset, name in enumerate(NAMES):
            if name not in wanted:
                continue
            source = Source(5, (name,), sizes=(1, 3, 1, 5, 0), blank=True)
            trial = source.trial(source.choices(turn * len(NAMES) + offset))
            for phase in phases(trial):
                kernel = phase.kernel.name.removeprefix("pullback.")
                users.setdefault(_folder(kernel), set()).add(name)
                found.add((kernel, phase.element.value))
                entries.add(entry_name(phase.kernel.name, phase.element, phase.index))
        missing -= found
        if not missing:
            break
        if turn >= 40:  # most are reached by now: only who may reach the others
            wanted = {n for k, _ in missing for n in users.get(_folder(k), NAMES)}
    assert sorted(missing) == []
    assert sorted(found - variants) == []  # compiled for what nobody wants
    ahead = requests(steps((), FLOATS))  # what wheels and `pullback warm` have
    assert sorted(entries - ahead.keys()) == []


def test_kernels_are_counted_where_the_collector_passes_them_by() -> None:
    known = set(all_kernels())
    gc.freeze()
    assert known <= set(all_kernels.__wrapped__())
    assert "ops.lerp.cpu_elementwise.lerp_forward" in known


def _folder(kernel: str) -> str:
    return ".".join(kernel.split(".")[:2])


def test_nothing_in_the_fuzzer_names_an_op() -> None:
    folder = Path(pullback.__file__).parent / "fuzz"
    words = {w for file in folder.glob("*.py") for w in re.findall(r"\w+", file.read_text())}
    assert words & set(NAMES) == set()


# --- what it finds ----------------------------------------------------------------------------


def _planted(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    """Make a function go wrong where the fuzzer looks for it."""
    true = subjects()["cumsum"].function

    class Wrong(type(true)):  # type: ignore[misc]
        def __call__(self, *args: Any, **options: Any) -> Any:
            return wrong(true, *args, **options)

    function = Wrong(true.body, "cumsum")
    monkeypatch.setitem(subjects(), "cumsum", Subject(function, "scan"))


def test_a_write_beside_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(true: Any, *args: Any, out: Any = None, **options: Any) -> Any:
        result = true(*args, out=out, **options)
        if out is not None:
            wider = np.lib.stride_tricks.as_strided(out, (3, 5), out.strides)
            wider[1, 4] = 0
        return result

    _planted(monkeypatch, wrong)
    with pytest.raises(forms.Mismatch, match="memory outside was written"):
        checks.run(_trial())


def test_a_changed_input_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(true: Any, x: Any, **options: Any) -> Any:
        result = true(x, **options)
        x[0, 0] += 1
        return result

    _planted(monkeypatch, wrong)
    with pytest.raises(forms.Mismatch, match="`x`: it was written"):
        checks.run(_trial())


def test_a_wrong_value_a_repeat_and_a_wrong_error_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def drifting(true: Any, *args: Any, **options: Any) -> Any:
        calls.append(1)
        return true(*args, **options) + len(calls) // 2

    _planted(monkeypatch, lambda true, *args, **options: true(*args, **options) + 1)
    with pytest.raises(forms.Mismatch, match="oracle"):
        checks.run(_trial(checks=("oracle",)))
    _planted(monkeypatch, drifting)
    with pytest.raises(forms.Mismatch, match="repeat: other bits"):
        checks.run(_trial(checks=("repeat",)))
    with pytest.raises(forms.Mismatch, match="accepted, expected InvalidProblem"):
        checks.run(_trial(refused=("InvalidProblem",)))
    monkeypatch.undo()
    with pytest.raises(forms.Mismatch, match="expected a result"):
        checks.run(_trial(options={"axis": 7}))


@pytest.mark.parametrize(("place_", "at"), [("end", 4), ("start", -1)])
def test_an_element_outside_is_a_crash(place_: str, at: int) -> None:
    code = (
        "import ctypes, numpy as np\n"
        "from pullback.fuzz.layout import Layout, place\n"
        "from pullback.fuzz.memory import Memory\n"
        f"layout = Layout((0,), (1,), (0,), {place_!r})\n"
        "_, view = place(Memory(), (4,), np.dtype('f4'), layout)\n"
        f"ctypes.c_float.from_address(view.ctypes.data + 4 * {at}).value\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == -signal.SIGSEGV


def test_arrays_lie_as_their_layout_says() -> None:
    layout = Layout((1, 0), (-2, 1), (0, 3), "inside")
    data, view = place(Memory(), (3, 4), np.dtype("f4"), layout)
    assert view.strides == (-8, 4 * (3 * 2))
    view[...] = 1
    assert (data.view("f4") == 1).sum() == 12


def test_a_failure_is_shrunk() -> None:
    class Stub:
        def failure(self, task: dict[str, Any]) -> dict[str, str] | None:
            wide = task["choices"].get("shape.0", 0) >= 7
            return {"check": "layout", "what": ""} if wide else None

    made = {"function": 3, "shape.0": 900, "shape.1": 12, "x.seed": 5, "check.layout": 1}
    best, alone = shrink({}, made, "layout", Stub(), 10.0)  # type: ignore[arg-type]
    assert alone
    assert {k: v for k, v in best.items() if v} == {
        "function": 3,
        "shape.0": 7,
        "check.layout": 1,
    }


def test_a_child_that_dies_is_started_again() -> None:
    source = Source(1, ("lerp",), ("layout",), sizes=(1, 0, 0, 0, 0))
    killed: list[int] = []

    def watch(report: Any, children: Any) -> None:
        if children and children[0].number > 3 and not killed:
            killed.append(children[0].number)
            children[0].process.kill()

    report = run(source, Settings(cases=200), watch)
    assert [f.check for f in report.failures] == ["crash"]
    assert report.restarts == 1
    assert "SIGKILL" in report.failures[0].what


@pytest.mark.parametrize("check", ["oracle", "layout", "threads", "in place", "repeat"])
def test_scripts_run_by_themselves(check: str) -> None:
    exec(compile(script(_trial(), check), check, "exec"), {})


def test_lines_of_functions_are_found() -> None:
    assert len(lines_of("tensor/layout.py")) > 40


# --- past failures ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A child that runs stored trials; a crash is a failure of one, not of the suite."""
    one = Server(tmp_path_factory.mktemp("corpus"), 300.0)
    yield one
    one.close()


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_past_failures_stay_mended(path: Path, server: Server) -> None:
    stored = json.loads(path.read_text())
    assert server.failure({"trial": stored["trial"]}) is None, stored["why"]
