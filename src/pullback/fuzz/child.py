"""The process in which trials run: it may crash or hang, and is then started again by `run`.

It reads one line of JSON that says what to do, and reports in lines of JSON. Before each case it
writes the number of the case into shared memory, so that the parent knows which one it died of.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

EVERY = 0.5  # seconds between reports
Report = Callable[[dict[str, Any]], None]


def run(task: dict[str, Any], report: Report, now_at: Callable[[int], None]) -> None:
    """Cases `first`, `first + step`, ... up to `until` or the deadline."""
    from pullback.fuzz.coverage import Coverage
    from pullback.fuzz.generate import Source

    source = Source.of(task)
    coverage = Coverage() if task["coverage"] else None
    made: Counter[str] = Counter()
    cases, last = 0, time.monotonic()

    def tell() -> None:
        nonlocal cases, last
        report({"cases": cases, "checks": made, "covered": coverage.taken() if coverage else None})
        made.clear()
        cases, last = 0, time.monotonic()

    for number in range(task["first"], task["until"], task["step"]):
        if time.time() > task["deadline"]:
            break
        now_at(number)
        failed = attempt(partial(_check, source, source.choices(number)), made)
        cases += 1
        if failed is not None:
            report({"number": number, **failed})
        if time.monotonic() - last > EVERY:
            tell()
    tell()


def _check(source: Any, choices: Any) -> list[str]:
    from pullback.fuzz import checks

    return checks.run(source.trial(choices))


def attempt(call: Callable[[], list[str]], made: Counter[str]) -> dict[str, str] | None:
    """What a trial fails of, if it does. A fault of the generator is a fault too."""
    from pullback.fuzz.forms import Mismatch

    try:
        made.update(call())
    except Mismatch as found:
        return {"check": found.check, "what": found.what}
    except Exception as error:
        return {"check": "generate", "what": f"{type(error).__name__}: {error}"}
    return None


def serve(report: Report) -> None:
    """One trial for each line of JSON: by its number, as choices, or in full. With `tell` it is
    described instead of run."""
    from pullback.fuzz import checks
    from pullback.fuzz.generate import Source
    from pullback.fuzz.script import script
    from pullback.fuzz.trial import Trial
    from pullback.ops.draw import Choices

    for line in sys.stdin:
        task = json.loads(line)
        if "trial" in task:
            stored = Trial.from_json(task["trial"])
            report(attempt(partial(checks.run, stored), Counter()) or {})
            continue
        source = Source.of(task)
        known = "choices" in task
        choices = Choices(None, task["choices"]) if known else source.choices(task["number"])
        if "tell" not in task:
            report(attempt(partial(_check, source, choices), Counter()) or {})
            continue
        trial = source.trial(choices)
        report(
            {
                "choices": choices.made,
                "function": trial.function,
                "trial": trial.to_json(),
                "script": script(trial, task["tell"]),
            }
        )


def main() -> None:
    faulthandler.enable()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # What libraries print must not come between the lines of the report.
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def report(found: dict[str, Any]) -> None:
        lines.write(json.dumps(found) + "\n")

    task = json.loads(sys.stdin.readline())
    if task["do"] == "serve":
        serve(report)
        return
    with open(task["shared"], "r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
        run(task, report, lambda number: struct.pack_into("q", shared, 0, number))


if __name__ == "__main__":
    main()
