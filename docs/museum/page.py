"""The page of the museum, made of its cases: `python docs/museum/page.py` writes it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import scans
import segments
import simplex
from case import SEEN, Case, evaluate

CASES: list[Case] = [*scans.CASES, *segments.CASES, *simplex.CASES]
GROUPS = {"Scans": scans.CASES, "Segments": segments.CASES, "Maps, lookups, lerp": simplex.CASES}
PAGE = HERE / "index.md"
MOST = 24  # numbers of a list on the page

OPENING = """# The museum of faults

{count} faults that people reported of libraries they use, each with what the library answers, what pullback answers and
what is true. Cases of libraries that are installed with the extras are run by the tests ({live} of them), and the version
that gave the answer is named; where the fault needs a GPU or another library, the reported answer is quoted. "Fixed" says
that this version answers rightly. Truth is exact arithmetic, or the rule that is stated.

Written by `python docs/museum/page.py` from the tables beside it.
"""


def number(value: Any) -> str:
    """A number of few digits, a list of them, a word."""
    if isinstance(value, list):
        shown = [number(v) for v in value]
        if len(shown) > MOST:  # the test compares all of them
            shown = [*shown[:3], "...", shown[-1]]
        return f"[{', '.join(shown)}]"
    if isinstance(value, (str, bool)):
        return str(value)
    return f"{value:.7g}"


def row(case: Case) -> str:
    if case.quoted:
        theirs = f"{case.peer}, quoted: {case.quoted}"
    else:
        word = ", fixed" if case.fixed else ""
        theirs = f"{case.peer} {SEEN[case.peer]}{word}: {number(case.shown)}"
    truth = number(evaluate(case.truth))
    ours = f"`{case.ours}` gives {truth}" + (f" ({case.why})" if case.why else "")
    return f"| {case.what} ([{case.label}]({case.url})) | {theirs} | {ours} |"


def page() -> str:
    live = sum(not case.quoted for case in CASES)
    parts = [OPENING.format(count=len(CASES), live=live)]
    for title, cases in GROUPS.items():
        head = "| what was reported | answer | pullback, which is the truth |\n|---|---|---|\n"
        parts.append(f"## {title}\n\n{head}" + "\n".join(map(row, cases)) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
