"""The report in a real browser: whole, silent, drawn, sortable, filterable."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

pytest.importorskip("altair")

from pullback.bench.race import Timing
from pullback.bench.report.charts import PICTURES, caption, charts, picture
from pullback.bench.report.page import page
from pullback.bench.report.summary import behind, standings, wrong
from pullback.bench.results import (
    Accuracy,
    FigureResult,
    Growth,
    Memory,
    Overhead,
    Results,
    RowResult,
    Scaling,
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--virtual-time-budget=20000", "--enable-logging=stderr",
)  # fmt: skip

MACHINE = {
    "cpu": "a <test> CPU", "threads": 2, "cores": 2, "system": "Linux", "commit": "abc",
    "when": "2026-01-01T00:00:00Z", "versions": {"pullback": "0", "torch": "2.13"},
}  # fmt: skip


def _row(op: str, direction: str, shape: tuple[int, int], number: int) -> RowResult:
    nbytes = 8 * shape[0] * shape[1]
    copy = nbytes / 2e10 + 1e-6
    times = {
        "pullback": 1.4, "pullback out": 1.2 + number / 20, "copy": 1.0,
        "torch": 6.0 + number, "jax": 4.0,
    }  # fmt: skip
    timings = {name: Timing(t * copy, t * copy, t * copy, 9) for name, t in times.items()}
    small = nbytes < 1 << 22
    verdicts = {"numpy": "wrong: NaN at zeros"} if number == 1 else {}
    return RowResult(
        "scan" if number % 2 else "lerp", op, direction, "x".join(map(str, shape)), "f32", nbytes,
        nbytes // 8, 0.5, True, 0.0, timings, verdicts, ("small",) if small else (),
    )  # fmt: skip


def results() -> Results:
    found = Results(dict(MACHINE))
    ways = [(op, way) for op in ("cumsum", "cumprod", "lerp") for way in ("forward", "backward")]
    for number, (op, way) in enumerate(ways):
        for shape in ((4096, 4096), (8, 32), (256, 256)):
            found.add(_row(op, way, shape, number))
        for along in ("axis", "batch"):
            found.add(Growth("scan", op, way, along, (2048, 8192, 32768), (0.4, 0.42, 0.41)))
        found.add(Scaling("scan", op, way, "4096x4096", 2e-2, 1.1e-2, 2, True))
        found.add(
            Accuracy(
                "scan", op, way, "random", "f32",
                {"pullback": (0.5, 0.1), "torch": (float("inf"), 3.0)}, {"jax": "wrong: NaN"},
            )
        )  # fmt: skip
    found.add(Memory("scan", "cumsum", "4096x4096", {"pullback": 1 << 27, "torch": 1 << 28}))
    found.add(Overhead("function on 4x8 f32", 5e-6, 6e-6))
    found.add(FigureResult("scan", "cumsum, into given outputs", ">=", 0.75, 0.9, "of copy"))
    found.add(FigureResult("lerp", "lerp against torch", ">=", 2.0, 1.5))
    return found


def test_results_survive_the_file() -> None:
    once = results()
    text = once.as_json()
    again = Results.from_json(text)
    assert again.as_json() == text
    assert again.growth == once.growth
    assert again.accuracy == once.accuracy
    for row, first in zip(again.rows, once.rows, strict=True):
        assert (row.key, row.verdicts, row.tags) == (first.key, first.verdicts, first.tags)
        for name, timing in row.timings.items():
            assert timing.samples == first.timings[name].samples
            assert timing.median == pytest.approx(first.time(name), rel=1e-3)
    assert max(len(line) for line in text.split("\n")) < 1000


def test_older_result_files_are_read() -> None:
    """Format 1 had an object for each timing."""
    body = json.loads(results().as_json())
    body["format"] = 1
    for row in body["rows"]:
        names = ("median", "low", "high", "samples")
        row["timings"] = {k: dict(zip(names, t, strict=True)) for k, t in row["timings"].items()}
    assert Results.from_json(json.dumps(body)).as_json() == results().as_json()
    with pytest.raises(ValueError, match="format"):
        Results.from_json(json.dumps({**body, "format": 0}))


def test_the_results_of_this_tree_are_small_and_in_one_file() -> None:
    folder = Path(__file__).parent.parent / "benchmarks"
    text = (folder / "results.json").read_text()
    assert len(text) < 300_000
    assert Results.from_json(text).as_json() == text
    assert sorted(p.suffix for p in folder.iterdir() if p.is_file()) == [
        ".json",
        ".md",
        ".svg",
        ".svg",
    ]


def test_what_the_report_opens_with() -> None:
    found = results()
    slow = found.rows[0].timings
    slow["torch"] = replace(slow["torch"], median=slow["pullback"].median / 2)
    (first, *_) = [one for one in standings(found) if one.peer == "torch"]
    assert (first.rows, first.behind, first.wrong) == (len(found.rows), 1, 0)
    assert first.worst == pytest.approx(0.5)
    assert first.median > 3
    (one,) = behind(found)
    assert (one.row.key, one.peer) == (found.rows[0].key, "torch")
    peers = [entry.peer for _, _, entry in wrong(found)]
    assert peers.count("numpy") == 3
    assert peers.count("jax") == 6
    text = page(found)
    opening = text[: text.index('id="roof"')]
    for name in ("standing", "behind", "wrong"):
        assert f'<section class="table" id="{name}"' in opening
    links = set(re.findall(r'<td><a href="#([^"]+)"', opening))
    assert len(links) >= 4
    assert all(f'id="{link}"' in text for link in links)


def test_charts_and_pictures() -> None:
    drawn = charts(results())
    assert set(PICTURES) <= set(drawn)
    for name, (width, title) in PICTURES.items():
        svg = picture(drawn[name], width, title, caption(results(), name))
        assert svg.startswith("<svg")
        assert title in svg
        assert "a &lt;test&gt; CPU, 2 threads" in svg
    said = " ".join(caption(results(), "speedups"))
    assert "float32" in said
    assert "4096x4096" in said


# Runs after the page: uses it as a reader would, and leaves what it saw in the document.
PROBE = """
<script>
addEventListener("load", () => setTimeout(() => {
  const all = (where, what) => [...where.querySelectorAll(what)];
  const set = (field, value, event) => {
    field.value = value;
    field.dispatchEvent(new Event(event));
  };
  const page = document.documentElement;
  const seen = { drawn: page.dataset.drawn };
  seen.charts = all(document, ".chart").map((chart) => all(chart, "svg path").length);
  seen.requests = performance.getEntriesByType("resource").map((entry) => entry.name);
  const table = document.querySelector("#speed");
  const rows = () => all(table, "tbody tr").filter((row) => !row.hidden);
  const column = (n) => rows().map((row) => row.cells[n].textContent);
  const heads = all(table, "thead button");
  const ms = heads.findIndex((button) => button.textContent === "ms");
  heads[ms].click(); seen.up = column(ms).map(Number);
  heads[ms].click(); seen.down = column(ms).map(Number);
  seen.sorted = heads[ms].parentElement.getAttribute("aria-sort");
  seen.focusable = heads[0].tabIndex === 0;
  set(table.querySelector("input"), "cumprod backward", "input");
  seen.found = column(0);
  seen.count = table.querySelector(".count").textContent;
  set(table.querySelector("input"), "", "input");
  set(table.querySelector("select"), "lerp", "change");
  seen.families = rows().map((row) => row.dataset.family);
  const before = getComputedStyle(document.body).backgroundColor;
  document.getElementById("theme").click();
  seen.themed = getComputedStyle(document.body).backgroundColor !== before;
  seen.lost = all(document, "nav a").map((link) => link.hash)
    .filter((hash) => !document.querySelector(hash));
  seen.linked = all(document, "nav a").length;
  seen.wide = page.scrollWidth - page.clientWidth;
  const note = document.createElement("pre");
  note.id = "seen";
  note.textContent = JSON.stringify(seen);
  document.body.append(note);
}, 4000));
</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("size", ["1280,900", "390,844"], ids=["desktop", "phone"])
def test_the_page_works_in_a_browser(tmp_path: Path, size: str) -> None:
    text = page(results())
    assert "http://" not in re.sub(r"http://www\.w3\.org/\S*", "", text.split("<script>")[0])
    file = tmp_path / "report.html"
    body, end, _ = text.rpartition("</body>")
    file.write_text(body + PROBE + end)
    done = subprocess.run(
        [
            str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={size}", "--dump-dom", file.as_uri(),
        ],
        capture_output=True, text=True, timeout=90, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr, done.stderr
    note = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout)
    assert note, done.stdout[-2000:]
    seen = json.loads(unescape(note.group(1)))
    assert seen["drawn"] == "yes"
    assert seen["requests"] == []
    assert all(seen["charts"])
    assert seen["up"] == sorted(seen["up"])
    assert seen["down"] == sorted(seen["down"], reverse=True)
    assert seen["sorted"] == "descending"
    assert set(seen["found"]) == {"cumprod"}
    assert seen["count"].startswith("3 of")
    assert set(seen["families"]) == {"lerp"}
    assert seen["themed"]
    assert seen["focusable"]
    assert seen["lost"] == []
    assert seen["linked"] >= 10
    assert seen["wide"] <= 0, "the page scrolls sideways"
