"""Child processes seen from the parent: started, listened to, ended."""

from __future__ import annotations

import json
import queue
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_TAIL = 2000  # characters of what a child said before it died


class Child:
    """A child with a task. `lines` are its reports; `silent` says for how long it has been at the
    same case."""

    def __init__(self, task: dict[str, Any], folder: Path) -> None:
        self.task = task
        handle, name = tempfile.mkstemp(dir=folder)
        self._shared = Path(name)
        with open(handle, "wb") as file:
            file.write(struct.pack("q", task.get("first", 0)))
        self._errors = tempfile.TemporaryFile("w+", dir=folder)  # noqa: SIM115 - closed by `end`
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pullback.fuzz.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._seen, self._since = -1, time.monotonic()
        self.send({**task, "shared": name})
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, line: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead: whoever waits for its answer finds out
            self.process.stdin.write(json.dumps(line) + "\n")
            self.process.stdin.flush()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(json.loads(line))
        self.process.wait()
        self.lines.put(None)

    @property
    def number(self) -> int:
        """The case it is at."""
        found: int = struct.unpack("q", self._shared.read_bytes())[0]
        return found

    @property
    def silent(self) -> float:
        if self.number != self._seen:
            self._seen, self._since = self.number, time.monotonic()
        return time.monotonic() - self._since

    def died_of(self) -> str:
        """How it ended, and the last words of the interpreter."""
        code = self.process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._errors.seek(0)
        said = self._errors.read()[-_TAIL:]
        return f"{how}\n{said}".strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # closing flushes what nobody reads any more
                    pipe.close()
        self._errors.close()
