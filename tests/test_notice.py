"""A first call that compiles for long says so, once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from pullback.cpu import notice


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice, "AFTER", 0.01)
    monkeypatch.setattr(notice, "NOTICE", True)
    monkeypatch.setattr(notice.compiling, "told", False)


def compile_for(seconds: float, name: str = "cumsum_rows") -> None:
    with notice.compiling(name):
        time.sleep(seconds)


def test_once_and_with_the_command_that_avoids_it(capsys: pytest.CaptureFixture[str]) -> None:
    compile_for(0.5)
    compile_for(0.1, "another")
    said = capsys.readouterr().err
    assert said.startswith("pullback: compiling cumsum_rows and what it needs")
    assert "`pullback warm`" in said
    assert said.count("\n") == 1


def test_not_if_it_is_quick_or_switched_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notice, "AFTER", 5.0)
    compile_for(0.0)
    monkeypatch.setattr(notice, "AFTER", 0.01)
    monkeypatch.setattr(notice, "NOTICE", False)
    compile_for(0.1)
    assert capsys.readouterr().err == ""


def test_where_no_thread_can_be_had_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    compile_for(0.0)


def test_a_kernel_that_is_loaded_says_nothing() -> None:
    code = "import numpy, pullback; pullback.cumsum(numpy.ones(9, numpy.float32))"
    environment = {**os.environ, "PULLBACK_NOTICE": "1"}
    for _ in range(2):  # whatever the first has to compile, the second finds
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
    assert "compiling" not in done.stderr
