"""Reported faults of peers: ours is right, and the peer still answers as the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

for name in ("torch", "jax", "entmax", "numbagg", "scipy"):
    pytest.importorskip(name)

FOLDER = Path(__file__).parent.parent / "docs" / "museum"
sys.path.insert(0, str(FOLDER))
from case import Case, agrees, evaluate
from page import CASES, PAGE, page

sys.path.remove(str(FOLDER))


def shown(case: Case) -> object:
    """What the peer is recorded to give, NaN written as a word."""
    return evaluate(repr(case.shown).replace("'nan'", "nan"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.label} {case.what}")
def test_ours_is_the_truth_and_the_peer_is_quoted_rightly(case: Case) -> None:
    truth, ours = evaluate(case.truth), evaluate(case.ours)
    given = (case.tolerance, case.smallest)
    assert agrees(ours, truth, *given), f"ours {ours}, truth {truth}"
    if case.theirs:
        theirs = evaluate(case.theirs)
        near = max(1e-6, case.tolerance / 4)  # PyTorch's own sums differ between processors
        assert agrees(theirs, shown(case), near), f"{case.peer} gives {theirs}"
        assert agrees(theirs, truth, *given) == case.mended, (theirs, truth)


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
