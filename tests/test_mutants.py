"""The table of planted faults fits the sources, and reaches every family and layer. `make mutants`
runs it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import pullback
from mutants import Fuzz, Mutant, Suite, mutants
from pullback.verify.subject import subjects

ROOT = Path(__file__).parents[1]
LAYERS = ("contract", "tensor", "cpu", "gpu", "plan", "frontends", "torch")


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_the_text_of_a_mutant_occurs_once(mutant: Mutant) -> None:
    text = (ROOT / mutant.path).read_text()
    changed = mutant.applied(text)
    assert changed != text
    compile(changed, mutant.module, "exec")


def test_every_family_and_layer_has_mutants() -> None:
    areas = Counter(mutant.area for mutant in mutants())
    assert sum(areas.values()) >= 80
    assert {*LAYERS, *(f"ops/{family}" for family in pullback._FAMILIES)} <= areas.keys()


def test_names_are_unique_and_reasons_are_given() -> None:
    assert max(Counter(mutant.name for mutant in mutants()).values()) == 1
    assert all(mutant.breaks and mutant.checks for mutant in mutants())
    assert sum(bool(mutant.equivalent) for mutant in mutants()) * 20 <= len(mutants())


def test_checks_name_what_there_is() -> None:
    checks = {check for mutant in mutants() for check in mutant.checks}
    files = {check.file for check in checks if isinstance(check, Suite)}
    assert {name for name in files if not (ROOT / "tests" / name).exists()} == set()
    assert {check.op for check in checks if isinstance(check, Fuzz)} <= subjects().keys()


def test_checks_choose_tests(request: pytest.FixtureRequest) -> None:
    """Of the files that pytest has collected; a name that has changed chooses nothing."""
    chosen = [item for item in request.session.items if not item.get_closest_marker("slow")]
    names: dict[str, list[str]] = {}
    for item in chosen:
        names.setdefault(item.path.name, []).append(item.nodeid.partition("::")[2].lower())
    suites = {c for m in mutants() for c in m.checks if isinstance(c, Suite) and c.file in names}
    assert [
        str(suite) for suite in suites if not any(map(_matching(suite), names[suite.file]))
    ] == []


def _matching(suite: Suite) -> Callable[[str], bool]:
    """Whether the expression of a suite holds of a test's name: words are parts of it."""
    word = re.compile(r"[^\s()]+")
    operators = {"and", "or", "not"}

    def holds(name: str) -> bool:
        said = word.sub(
            lambda m: m[0] if m[0] in operators else str(m[0].lower() in name), suite.only
        )
        return bool(eval(said or "True"))

    return holds
