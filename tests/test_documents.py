"""What the README shows runs, and what pages say is so."""

from __future__ import annotations

import re
import runpy
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import pullback
import pullback.torch.nn as ours
from pullback.bench.report.summary import standings
from pullback.bench.results import Results
from pullback.cli.app import COMMANDS

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_readme_runs_as_it_stands() -> None:
    """All of its Python, one block after the other; the plan's gradient is that of the function."""
    page, names = ROOT / "README.md", dict[str, Any]()
    text = page.read_text()
    blocks = [*re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
    for block in blocks:
        before = "\n" * text[: block.start(1)].count("\n")  # so that errors point to the line
        exec(compile(before + block[1], str(page), "exec"), names)
    assert len(blocks) == text.count("```python") >= 3
    want = names["pb"].cumprod_backward(names["dy"], names["x"], names["y"])
    np.testing.assert_array_equal(names["dx"], want)


def test_the_readme_promises_no_more_than_was_measured() -> None:
    """The median against each peer it names is at least what it says; files it links to exist."""
    text = (ROOT / "README.md").read_text()
    said = re.search(r"more than (\d+) times as fast as ([\w, ]+)\son", text)
    assert said
    peers = [name.lower().replace("pytorch", "torch") for name in re.findall(r"\w+", said[2])]
    results = Results.from_json((ROOT / "benchmarks" / "results.json").read_text())
    medians = {one.peer: one.median for one in standings(results)}
    assert min(medians[peer] for peer in peers if peer != "and") > float(said[1])
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 15
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_citation_names_this_version() -> None:
    assert f"version: {pullback.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_pages_do_not_promise_to_be_free_of_division() -> None:
    """Means, entmax15 and sparsemax divide, by counts and sums; nothing divides by an input."""
    assert not [page.name for page in DOCUMENTS if "division-free" in page.read_text()]


def test_the_picture_of_layers_is_what_the_imports_say() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "layers.py"))
    assert made["PICTURE"].read_text() == made["picture"](), "run `python tools/layers.py`"


def test_the_page_of_specialisations_is_what_the_source_says() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "specialisations.py"))
    assert made["PAGE"].read_text() == made["page"]()
    said = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py")).count("Gain (")
    ratios = [float(ratio) for *_, ratio in made["gains"]()]
    assert len(ratios) == said
    assert min(ratios) >= 1.15


def test_checks_that_the_guarantees_name_exist() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    named = set(re.findall(r"`([^`]+)`", page))
    sources = {path.name: path.read_text() for path in (ROOT / "tests").glob("test_*.py")}
    tests = {
        name for text in sources.values() for name in re.findall(r"^def (test_\w+)", text, re.M)
    }
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    here = {f"tests/{name}" for name in sources} | tests
    here |= {f"make {name}" for name in targets} | {f"pullback {name}" for name in COMMANDS}
    checks = {name for name in named if re.match(r"tests/|test_|make |pullback ", name)}
    assert len(checks) > 30
    assert checks - here == set()
    assert set(re.findall(r"^def (test_\w+)", sources["test_under_load.py"], re.M)) <= named
    rows = [line for line in page.splitlines() if re.match(r"\| (?!promise|situation)", line)]
    assert [row for row in rows if not re.search(r"`[^|]*\|$|the same \|$", row)] == []
    links = re.findall(r"\]\(([\w./]+)\)", page)
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


@pytest.mark.parametrize(
    ("nn", "gradient"), [(torch.nn, [1.0, 1 / 3, 1 / 3]), (ours, [1.0, 1.0, 1.0])]
)
def test_frequencies_of_bags_differ_as_stated(nn: Any, gradient: list[float]) -> None:
    """docs/differences.md: PyTorch divides by how often other rows occur."""
    bag = nn.EmbeddingBag(3, 1, mode="sum", scale_grad_by_freq=True)
    bag(torch.tensor([0, 0, 0, 1, 2]), torch.tensor([0])).sum().backward()
    torch.testing.assert_close(bag.weight.grad.ravel(), torch.tensor(gradient))


def test_lower_bounds_are_versions_to_install() -> None:
    """`tools/matrix.py` tries them. Known to fail: numba 0.61, and typer 0.13 with click 8.5."""
    tool = runpy.run_path(str(ROOT / "tools" / "matrix.py"))
    pins = {
        pin.partition("==")[0]: pin.partition("==")[2]
        for pin in tool["pins"]("cli", "oldest", False)
    }
    assert pins.keys() == {"numpy", "numba", "ml_dtypes", "rich", "typer"}
    assert pins["numba"] == "0.62"
    assert pins["typer"] == "0.16"
    assert all(map(_is_older, pins.items()))
    assert "numba" not in " ".join(tool["pins"]("jax", "newest", True))  # kernels compiled ahead
    with pytest.raises(SystemExit, match="must be a name and a lower bound"):
        tool["oldest"](["numpy"])


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64", "i32"])
def test_each_law_is_in_one_part_of_the_matrix(kind: str) -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "matrix.py"))
    named = {name: name in f"test_laws[cumsum-{kind}]" for name in ("f16", "bf16", "f32")}
    assert [eval(part, {}, named) for part in tool["PARTS"]].count(True) == 1
    asked = tool["parts"](tool["TESTS"]["cli"])
    assert {test for test, *_ in asked} == set(tool["TESTS"]["cli"])
    assert tool["summed"](["3 passed, 1 skipped in 2s", "2 passed", ""]) == "5 passed, 1 skipped"


def _is_older(pin: tuple[str, str]) -> bool:
    name, version = pin
    numbers = (re.findall(r"\d+", text) for text in (version, metadata.version(name)))
    oldest, here = (list(map(int, found)) for found in numbers)
    return oldest <= here
