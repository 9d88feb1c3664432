"""Which lines and branches of the code that lays out, recognises and launches calls nothing
reaches: the tests of call caches are run here with that code uncompiled, and random cases are laid
out. Prints what is missing as JSON; see test_reach.py."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from pullback.cpu import program
from pullback.fuzz.coverage import LAYOUTS, NATIVE, Coverage, Covered
from pullback.fuzz.generate import Source
from pullback.fuzz.reach import phases
from pullback.verify.subject import subjects

HERE = Path(__file__).parent
TESTS = ("test_call_cache.py", "test_call_cache_torch.py", "test_plan_run.py")
PREPARED = (
    "test_embedding_laws.py::test_prepared_is_raw",
    "test_embedding_laws.py::test_prepared_indices_are_checked_once",
    "test_segment_direct.py::test_bits_are_those_of_sorted_rows",
    "test_segment_gather.py::test_gradients_have_the_bits_of_the_composed_form",
)
# What takes long, or starts processes and threads, and reaches nothing more.
# References are counted by tests of the compiled code.
LEFT_OUT = " and ".join(
    f"not {word}"
    for word in ("threads", "come_at_once", "second", "recorded", "behind", "references")
)
HELD = (*LAYOUTS, *NATIVE, "cpu/program.py", "cpu/call_record.py")
TURNS = 60


def lay_out() -> None:
    """Cases of every function, of which nothing is run; in every third, results are as if they
    were too large for caches."""
    names, usual = tuple(sorted(subjects())), program.STREAM_BYTES
    for number in range(TURNS * len(names)):
        name = names[number % len(names)]
        source = Source(6, (name,), sizes=(1, 3, 1, 2, 1), blank=True)
        program.STREAM_BYTES = 0 if number // len(names) % 3 == 0 else usual
        phases(source.trial(source.choices(number)))


def main() -> int:
    coverage = Coverage()
    tests = [str(HERE / name) for name in (*TESTS, *PREPARED)]
    with open(os.devnull, "w") as nowhere:
        shown, sys.stdout = sys.stdout, nowhere
        failed = pytest.main([*tests, "-q", "-n0", "-p", "no:cacheprovider", "-k", LEFT_OUT])
        sys.stdout = shown
    lay_out()
    covered = Covered()
    covered.add(coverage.taken())
    missing = {
        path: {
            "lines": covered.missed_lines(path),
            "branches": [(b.line, b.condition, b.came_to) for b in covered.missed_branches(path)],
        }
        for path in HELD
    }
    print(json.dumps({"failed": int(failed), "missing": missing}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
