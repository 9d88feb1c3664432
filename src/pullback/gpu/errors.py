"""Checks that failed on a GPU, reported without waiting for it.

A program that checks ids writes three words: a status, a position, a value. They are a slot in a
table on the device, and nobody reads them before somebody waits for the device anyway: `check()`,
a call whose result has a size that only the device knows, or a call that finds all slots taken. A
slot that a captured graph writes stays the graph's, and is read again after every replay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from pullback.contract.errors import Unsupported

SLOTS, WORDS = 1024, 3

Fail = Callable[[int, int, int], None]


class ErrorTable:
    """The slots of one device."""

    def __init__(self, words: Any) -> None:
        self.words = words  # SLOTS x WORDS of int64, zeros
        self.free = deque(range(SLOTS))
        self.pending: deque[tuple[int, Fail]] = deque()
        self.captured: list[tuple[int, Fail]] = []

    def take(self, fail: Fail, capturing: bool) -> int:
        """The address of a slot for a program that is about to run; `fail` raises its error."""
        if not self.free and not capturing:
            self.check()
        if not self.free:
            expected = f"at most {SLOTS}, graphs included, until pullback.gpu.check() reads them"
            raise Unsupported("gpu.check", "unread checks", expected, f"{SLOTS + 1}")
        slot = self.free.popleft()
        (self.captured if capturing else self.pending).append((slot, fail))
        return int(self.words.data_ptr()) + 8 * WORDS * slot

    def check(self) -> None:
        """Raise the error of the first program that failed; those after it stay for the next
        check."""
        if not self.pending and not self.captured:
            return
        found = self.words.cpu().tolist()  # waits
        while self.pending:
            slot, fail = self.pending.popleft()
            self.free.append(slot)
            self._raise(slot, fail, found)
        for slot, fail in self.captured:
            self._raise(slot, fail, found)

    def _raise(self, slot: int, fail: Fail, found: list[list[int]]) -> None:
        if found[slot][0]:
            self.words[slot].zero_()
            fail(*found[slot])


_TABLES: dict[str, ErrorTable] = {}


def table_of(device: str) -> ErrorTable:
    """The table of a device, made when a program that checks is first laid out for it."""
    if device not in _TABLES:
        import torch

        words = torch.zeros((SLOTS, WORDS), dtype=torch.int64, device=device)
        _TABLES.setdefault(device, ErrorTable(words))
    return _TABLES[device]


def check() -> None:
    """Wait for the GPUs, and raise what their checks of indices, segment ids and offsets found.

    Without a failed check, or without a GPU, nothing happens. Outputs of a call whose check failed
    were not written."""
    for table in list(_TABLES.values()):
        table.check()
