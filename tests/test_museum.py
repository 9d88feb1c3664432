"""Reported faults of peers: ours is right, and the version that the page names answers as it says.
A newer version that answers otherwise is skipped, with what it does."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

for name in ("torch", "jax", "entmax", "numbagg", "scipy"):
    pytest.importorskip(name)

FOLDER = Path(__file__).parent.parent / "docs" / "museum"
sys.path.insert(0, str(FOLDER))
from case import SEEN, Case, agrees, change, evaluate, version
from page import CASES, PAGE, page

sys.path.remove(str(FOLDER))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.label} {case.what}")
def test_ours_is_the_truth_and_the_peer_is_quoted_rightly(case: Case) -> None:
    truth, ours = evaluate(case.truth), evaluate(case.ours)
    given = (case.tolerance, case.smallest)
    assert agrees(ours, truth, *given), f"ours {ours}, truth {truth}"
    if case.theirs:
        theirs, installed = evaluate(case.theirs), version(case.peer)
        other = change(case, theirs, installed)
        if other and installed != SEEN[case.peer]:
            pytest.skip(f"{other}, {case.shown} in {SEEN[case.peer]}")
        assert not other, f"{case.peer} gives {theirs}"
        assert agrees(theirs, truth, *given) == case.fixed, (theirs, truth)


def test_a_peer_that_has_fixed_a_fault_is_said_to() -> None:
    case = Case("", "a/b#1", "jax", "1", "[1.0, 2.0]", theirs="1", shown=["nan", 2.0])
    assert change(case, [float("nan"), 2.0], "0.11") == ""
    assert change(case, [1.0, 2.0], "0.11") == "fixed in jax 0.11"
    assert change(case, [1.0, 3.0], "0.11") == "[1.0, 3.0] in jax 0.11"


def test_the_museum_is_large_and_its_page_fresh() -> None:
    assert len(CASES) >= 60
    said = re.search(r"shows (\d+) faults", (FOLDER.parents[1] / "README.md").read_text())
    assert said
    assert int(said[1]) <= len(CASES)
    assert sum(bool(case.theirs) for case in CASES) >= 25
    assert len({(case.link, case.what, case.peer) for case in CASES}) == len(CASES)
    assert PAGE.read_text() == page(), "run `python docs/museum/page.py`"


def test_a_case_that_is_wrong_is_seen() -> None:
    assert not agrees([1.0, float("nan")], [1.0, 0.0], 1e-6)
    assert not agrees([1.0], [1.0, 1.0], 1e-6)
    assert not agrees("TypeError", [0.0], 1e-6)
    assert agrees([float("nan"), 1.0], [float("nan"), 1.0 + 1e-9], 1e-6)
