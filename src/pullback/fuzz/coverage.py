"""What a run reached: kernels by element, and lines of the code that lays out and recognises calls.

Kernels are counted when a program is laid out to be launched. Lines are counted by a trace function
that only ever looks at the watched files, so that the rest runs at its own speed.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pullback

ROOT = Path(pullback.__file__).parent
WATCHED = (
    "tensor/layout.py",
    "tensor/view.py",
    "plan/launch.py",
    "plan/function.py",
    "plan/plan.py",
    "plan/public.py",
    "frontends/ready.py",
    "frontends/numpy.py",
    "frontends/torch.py",
    "frontends/torch_launch.py",
)


@cache
def all_kernels() -> tuple[str, ...]:
    """The name of every kernel that there is, whatever holds it."""
    from pullback.cpu.kernel import Kernel
    from pullback.fuzz.thresholds import kernel_modules

    for name in kernel_modules():
        import_module(name)
    found = {thing.name for thing in gc.get_objects() if issubclass(type(thing), Kernel)}
    return tuple(sorted(name.removeprefix("pullback.") for name in found))


@cache
def lines_of(path: str) -> frozenset[int]:
    """Lines of the functions of a file: what is there besides is run by importing it."""
    text = (ROOT / path).read_text()
    whole = compile(text, path, "exec")
    return frozenset(line for code in _functions(whole) for line in _body(code))


def _functions(code: CodeType) -> Iterator[CodeType]:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            if "CodeType" not in part.co_name and part.co_flags & 0x2:  # not the body of a class
                yield part
            yield from _functions(part)


def _body(code: CodeType) -> Iterator[int]:
    lines = {line for _, _, line in code.co_lines() if line is not None}
    lines.discard(code.co_firstlineno)  # `def` itself
    return iter(lines)


@dataclass(slots=True)
class Covered:
    """Hits: of (kernel, element), and of (file, line)."""

    kernels: Counter[tuple[str, str]] = field(default_factory=Counter)
    lines: Counter[tuple[str, int]] = field(default_factory=Counter)
    known: Counter[bool] = field(default_factory=Counter)

    def add(self, found: dict[str, Any] | None) -> None:
        if found is None:
            return
        for kernel, element, hits in found["kernels"]:
            self.kernels[kernel, element] += hits
        for file, line, hits in found["lines"]:
            self.lines[file, line] += hits

    def to_json(self) -> dict[str, Any]:
        return {
            "kernels": [[*key, hits] for key, hits in sorted(self.kernels.items())],
            "lines": [[*key, hits] for key, hits in sorted(self.lines.items())],
        }

    def missed_kernels(self) -> list[str]:
        reached = {kernel for kernel, _ in self.kernels}
        return [name for name in all_kernels() if name not in reached]

    def missed_lines(self, path: str) -> list[int]:
        return sorted(line for line in lines_of(path) if not self.lines[path, line])


class Coverage:
    """Counts from now on, in this process."""

    def __init__(self) -> None:
        from pullback.plan import launch

        self._found = Covered()
        self._paths = {str(ROOT / path): path for path in WATCHED}
        before = launch.NativeRunner.__init__

        def counted(runner: Any, program: Any, element: Any, *rest: Any, **named: Any) -> None:
            self.count(program, element)
            before(runner, program, element, *rest, **named)

        launch.NativeRunner.__init__ = counted  # type: ignore[assignment, method-assign]
        sys.settrace(self._trace)

    def count(self, program: Any, element: Any) -> None:
        for phase in program.phases:
            name = phase.kernel.name.removeprefix("pullback.")
            self._found.kernels[name, (phase.element or element).value] += 1

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        path = self._paths.get(frame.f_code.co_filename)
        if path is None:
            return None
        lines = self._found.lines

        def line(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "line":
                lines[path, frame.f_lineno] += 1
            return line

        return line

    def taken(self) -> dict[str, Any]:
        """What was found since the last time."""
        found, self._found = self._found, Covered()
        return found.to_json()
