"""A race of two versions: what is sent, what is judged, what becomes of a failure. No times."""

from __future__ import annotations

import gc
import json
import math
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pullback.bench import versions
from pullback.bench.race import Effort
from pullback.bench.version_worker import WAYS, Worker
from pullback.bench.versions import (
    Outcome,
    RowRace,
    Track,
    Version,
    checkout,
    described,
    summarised,
)
from pullback.bench.workload import BF16, F32, Draw, Row
from pullback.contract.element import ElementKind

HASTE = Effort(rounds=2, seconds=0.0, least=1, sample=1e-5)
TINY = "lerp backward 8x8 f32|segment_sum forward 16x4 f32"


@pytest.fixture(autouse=True)
def _no_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers collect garbage between rows: among the objects of a whole suite that takes long."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


def _track(base: Version | None = None, **more: Any) -> Track:
    here = versions.this_version()
    return Track(base or here, here, 1, effort=HASTE, **more)


def _named(pattern: str) -> list[Row]:
    found = versions.rows(pattern)
    assert found
    return found


def test_a_version_races_itself() -> None:
    found = list(_track().run(_named(TINY)))
    assert [row.row for row in found] == [row.title for row in _named(TINY)]
    for row in found:
        assert not row.failed
        assert row.same_bits
        assert row.low <= row.ratio <= row.high
        assert row.rounds >= versions.PLACES
        assert row.races == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("element", [F32, BF16])
def test_every_way_gives_the_same_bits(way: str, element: ElementKind) -> None:
    if way == "torch":
        pytest.importorskip("torch")
    for row in _named(TINY):
        problem, _ = replace(row, element=element).problems(Draw(element))
        sent = pickle.loads(pickle.dumps({"do": "row", "row": described(problem, way)}))
        worker = Worker()
        assert worker.row(sent) == worker.renew({})
        assert worker.sample({"repeats": 2, "clock": "cpu"})["seconds"] >= 0
        plain = Worker().row({"row": described(problem, "call")})
        assert way == "torch" or worker.renew({}) == plain
        worker.drop({})
        assert worker.run is None


def test_rows_are_chosen_by_regular_expression() -> None:
    assert {row.op for row in versions.rows("^LERP ")} == {"lerp"}
    assert versions.rows("no such row") == []


def test_a_prepared_index_and_a_sparse_gradient_are_sent_as_plain_data() -> None:
    (row,) = _named("segment_sum forward prepared 1Mx64 f32")
    small = replace(row, workload=replace(row.workload, make=_small_segments))
    problem, _ = small.problems(Draw(row.element))
    sent = described(problem, "out")
    assert sent is not None
    ids = sent["arguments"]["segment_ids"]
    assert ids["public"] == "prepare_segments"
    assert ids["given"][0].tolist() == [1, 0, 1]
    plan = described(problem, "plan")
    assert plan is not None
    assert plan["descriptor"]["element"] == {"public": "ElementKind.F32"}
    (row,) = _named("embedding backward 8x4, 16 f32")
    sparse = replace(row, workload=replace(row.workload, backward_options={"sparse": True}))
    problem, _ = sparse.problems(Draw(row.element))
    sent = described(problem, "out")
    assert sent is not None
    assert sent["way"] == "call"
    assert described(problem, "plan") is None
    assert all(not race.failed for race in _track().run([small, sparse]))


def _small_segments(draw: Draw, op: str) -> dict[str, Any]:
    import numpy as np

    ids = np.array([1, 0, 1])
    return {"x": draw.normal(3, 2), "segment_ids": ids, "num_segments": 2}


# --- versions -------------------------------------------------------------------------------------


def _repository(folder: Path, text: str) -> Path:
    package = folder / "src" / "pullback"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "Add"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    return folder


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_commit_is_unpacked_beside_the_work_tree(tmp_path: Path) -> None:
    repository = _repository(tmp_path / "repository", "version = 1\n")
    (repository / "src" / "pullback" / "__init__.py").write_text("version = 2\n")
    for _ in range(2):  # the second time it is there already
        version = checkout("HEAD", tmp_path / "build", repository)
        assert (version.src / "pullback" / "__init__.py").read_text() == "version = 1\n"
    assert len(list((tmp_path / "build").iterdir())) == 1
    with pytest.raises(LookupError, match="neither a commit here nor a folder"):
        checkout("nonsense", tmp_path / "build", repository)


def _tree(folder: Path, text: str) -> Version:
    package = folder / "src" / "pullback"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)
    return checkout(str(folder), folder / "build")


_ALMOST = "def get_num_threads():\n    return 1\n"
_DIES = f"import os\n{_ALMOST}\ndef lerp(*_, **__):\n    os._exit(3)\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (_ALMOST, "base: AttributeError: module 'pullback' has no attribute 'lerp'"),
        (_DIES, "base: the process ended with 3"),
    ],
)
def test_a_row_the_base_cannot_run_is_named_and_not_timed(
    tmp_path: Path, text: str, sentence: str
) -> None:
    found = list(_track(_tree(tmp_path, text)).run(_named("lerp forward 8x8 f32") * 2))
    assert [row.failed for row in found] == [sentence] * 2
    outcome = Outcome(tuple(found))
    assert outcome.broken(0.95, None) == []
    assert outcome.broken(None, 1.0) == ["geometric mean nan is below the floor 1"]


def test_a_row_the_new_version_cannot_run_breaks_the_race(tmp_path: Path) -> None:
    new = _tree(tmp_path, _ALMOST)
    (found,) = Track(versions.this_version(), new, 1, effort=HASTE).run(
        _named("lerp forward 8x8 f32")
    )
    assert found.new_failed
    assert "has no attribute 'lerp'" in Outcome((found,)).broken(None, None)[0]


# --- floors ---------------------------------------------------------------------------------------


def _row(name: str, ratio: float) -> RowRace:
    return summarised(name, [2 * ratio, ratio, 3 * ratio], [2.0, 1.0, 3.0], True)


def test_ratio_and_spread_are_of_rounds() -> None:
    found = summarised("row", [1.0, 9.0, 2.0, 3.0], [2.0, 9.0, 2.0, 2.0], False)
    assert (found.ratio, found.low, found.high) == (1.0, 0.875, 1.125)
    assert (found.base, found.new, found.rounds) == (2.5, 2.0, 4)
    assert not found.same_bits


def test_floors_decide() -> None:
    outcome = Outcome((_row("a", 2.0), _row("b", 0.9), _row("c", 0.5)))
    assert math.isclose(outcome.mean, 0.9 ** (1 / 3))
    assert [row.row for row in outcome.worst(2)] == ["c", "b"]
    assert outcome.broken(None, None) == []
    assert outcome.broken(0.5, 0.9) == []
    assert outcome.broken(0.95, 1.0) == [
        "c: ratio 0.500 is below the floor 0.95",
        "b: ratio 0.900 is below the floor 0.95",
        "geometric mean 0.965 is below the floor 1",
    ]


def test_a_row_below_the_floor_is_raced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = iter([0.5, 0.99, 0.97])
    monkeypatch.setattr(Track, "_start", lambda self, stack, swapped: {})
    monkeypatch.setattr(Track, "_race", lambda self, pair, title, row: _row(title, next(ratios)))
    (found,) = _track(floor=0.95).run(_named("lerp forward 8x8 f32"))
    assert found.races == versions.RACES
    assert math.isclose(found.ratio, 0.97)


# --- the command ----------------------------------------------------------------------------------


def _command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    pytest.importorskip("typer")
    from pullback.cli import app

    monkeypatch.setattr(sys, "argv", ["pullback", "race", *words])
    return app.run()


def test_the_command_prints_json_and_exits_by_the_floors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        Track, "run", lambda self, rows: iter([_row(row.title, 0.9) for row in rows])
    )
    tree = str(versions.this_version().src.parent)
    words = (tree, "--rows", "lerp forward 8x8 f32", "--threads", "1")
    assert _command(monkeypatch, *words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["base"] == tree
    assert math.isclose(found["geometric mean"], 0.9)
    assert [row["row"] for row in found["rows"]] == ["lerp forward 8x8 f32"]
    assert _command(monkeypatch, *words, "--floor", "0.95") == 1
    said = capsys.readouterr()
    assert "0.900" in said.out
    assert "below the floor 0.95" in said.err
    assert _command(monkeypatch, *words, "--floor", "0.9", "--mean-floor", "0.5") == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("HEAD", "--rows", "("), "is not a regular expression"),
        (("HEAD", "--rows", "no such row"), "no row has 'no such row' in its title"),
        (("HEAD", "--way", "tensor"), "no way is called 'tensor'"),
        (("HEAD", "--clock", "sun"), "no clock is called 'sun'"),
        (("no-such-commit",), "neither a commit here nor a folder"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: tuple[str, ...],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _command(monkeypatch, *words) == 2
    assert sentence in capsys.readouterr().err.replace("\n", " ")
