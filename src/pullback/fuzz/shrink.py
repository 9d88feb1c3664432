"""A failing case made smaller: choices are replaced by plainer ones as long as it still fails."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pullback.fuzz.process import Child

CRASH, HANG = "crash", "hang"
_KEPT = ("function",)  # a case of another function is another case


@dataclass(slots=True)
class Server:
    """Runs one trial after the other in a child, and a new one after a crash."""

    folder: Path
    timeout: float
    child: Child | None = None

    def failure(self, task: dict[str, Any]) -> dict[str, Any] | None:
        """What the trial fails of; None if it passes."""
        if self.child is None:
            self.child = Child({"do": "serve"}, self.folder)
        self.child.send(task)
        try:
            answer = self.child.lines.get(timeout=self.timeout)
        except queue.Empty:
            self.close()
            return {"check": HANG, "what": f"no answer in {self.timeout:.0f} s"}
        if answer is None:
            what = self.child.died_of()
            self.close()
            return {"check": CRASH, "what": what}
        return answer or None

    def close(self) -> None:
        if self.child is not None:
            self.child.end()
            self.child = None


def shrink(
    task: dict[str, Any], made: dict[str, int], check: str, server: Server, seconds: float
) -> tuple[dict[str, int], bool]:
    """The plainest choices found that fail of the same, and whether the case fails by itself."""
    best = dict(made)

    def fails(tried: dict[str, int]) -> bool:
        found = server.failure({**task, "choices": tried})
        return found is not None and found["check"] == check

    if not fails(best):
        return best, False
    alone = {k: v for k, v in best.items() if not k.startswith("check.")} | {f"check.{check}": 1}
    if check != CRASH and fails(alone):
        best = alone
    deadline = time.monotonic() + seconds
    changed = True
    while changed and time.monotonic() < deadline:
        changed = False
        for label in sorted(best, key=_order):
            for value in _plainer(label, best[label]):
                if time.monotonic() > deadline:
                    break
                tried = {**best, label: value}
                if fails(tried):
                    best, changed = tried, True
                    break
    return best, True


def _order(label: str) -> tuple[int, str]:
    """What makes a case large goes first, values last."""
    kinds = ("rank", "size", "known", "layout", "style", "special", "seed")
    return next((i for i, kind in enumerate(kinds) if kind in label), 1), label


def _plainer(label: str, value: int) -> Iterator[int]:
    if label in _KEPT or not value or label.startswith("check."):
        return
    yield 0
    if not label.endswith(("seed", "order")):
        if value > 3:
            yield value // 2
            yield value - value // 4
        if value > 1:
            yield value - 1
