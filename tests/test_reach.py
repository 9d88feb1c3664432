"""Every line and branch of the code that lays out, recognises and launches calls is reached."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pullback

pytest.importorskip("torch")

# By file, and the text of a line or of a condition with what it never came to: what nothing here
# reaches, and why.
_GPU = "a tensor on a GPU, of which there is none here"
_SIGNAL = "signals come in tests/test_under_load.py, to the compiled code"
_ENTRY = "the entry of the compiled code, which is replaced here"
_NO_ERROR = "an error that Python or PyTorch would have to raise where they never do"
_REASONS: dict[str, dict[str, tuple[str, ...]]] = {
    "ops/embedding/cpu.py": {
        "only a plan can be given rows with gaps": (
            'raise InvalidProblem(op, "rows", "contiguous", f"element strides {rows.strides}")',
            "rows.strides != (1,) is True",
        ),
        "functions always ask for the table's gradient": ("dweight is None is True",),
    },
    "cpu/operands.py": {
        _GPU: (
            "return None",
            "tensor[TENSOR_DEVICE] != CPU is True",
            "words[TENSOR_DEVICE] != CPU is True",
        ),
    },
    "cpu/native_launch.py": {
        _SIGNAL: ("return 0", "status == INTERRUPTED is True"),
        _ENTRY: ('return fast_method(b"launch", _launch()).of(None)',),
        "no memory for three numbers": ("result != 0 is False",),
    },
    "cpu/dispatch_guard.py": {
        _NO_ERROR: ("clear_error()", "return False", "answer == 0 is True"),
    },
    "cpu/call_cache.py": {
        _NO_ERROR: (
            "clear_error()",
            "drop(result)",
            "return 0",
            "number == -1 is True",
            "result == 0 is True",
            "answer == 0 is True",
        ),
        _ENTRY: ('return fast_method(b"lookup", _lookup()), fast_method(b"insert", _insert())',),
        _SIGNAL: ("status != INTERRUPTED is False",),
        "streams refuse such a number": ("threads < 1 is True",),
        "every kind of array has a type": ("argument[TYPE] != 0 is False",),
        "functions pass all their parameters": ("count == record[PASSED] is False",),
    },
    "cpu/call_record.py": {
        "a property that is only set": ("return self._written", "return self._recorder"),
        "an assertion": ("max(*sources, *results, sum(counts)) < MOST is False",),
        "arrays that go to no slot are known to be arrays": (
            "operand_of(passed[i]) or () is False",
        ),
    },
}
EXCUSED = {
    (path, text)
    for path, reasons in _REASONS.items()
    for texts in reasons.values()
    for text in texts
}


def _line(path: str, number: int) -> str:
    text = (Path(pullback.__file__).parent / path).read_text()
    return text.splitlines()[number - 1].strip()


def test_every_line_and_branch_of_layouts_and_call_caches_is_reached() -> None:
    script = Path(__file__).with_name("reached.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["failed"] == 0
    missed = {
        (path, text)
        for path, parts in found["missing"].items()
        for text in (
            *(_line(path, number) for number in parts["lines"]),
            *(f"{condition} is {came_to}" for _, condition, came_to in parts["branches"]),
        )
    }
    assert sorted(missed - EXCUSED) == []
    assert sorted(EXCUSED - missed) == []  # an excuse that is not needed any more
