"""A line on stderr when a first call takes long because kernels are being compiled."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

from pullback.contract.settings import NOTICE

AFTER = 1.0  # seconds


class compiling:  # noqa: N801 - reads as a statement
    """Says so once in a process, if it takes more than a second to compile or load `name`."""

    told = False

    def __init__(self, name: str) -> None:
        self._name = name
        self._timer: threading.Timer | None = None

    def __enter__(self) -> None:
        if not NOTICE or compiling.told:
            return
        timer = threading.Timer(AFTER, self._tell)
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:  # no thread to be had: then nothing is said
            return
        self._timer = timer

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self) -> None:
        if not compiling.told and sys.stderr is not None:
            compiling.told = True
            print(
                f"pullback: compiling {self._name} and what it needs, some seconds at the first"
                " call; `pullback warm` compiles all ahead (PULLBACK_NOTICE=0: no such line)",
                file=sys.stderr,
                flush=True,
            )
