"""What a run reached: kernels by element, lines and branches of the code that lays out and
recognises calls.

Kernels are counted when a program is laid out to be launched. Lines and branches are counted by a
trace function that only ever looks at the watched files, so that the rest runs at its own speed.
A branch is a condition and what it came to, wherever it stands: `if`, `and`, a conditional
expression, the filter of a comprehension. Native code that recognises calls is run by the
interpreter meanwhile (`fuzz/interpreted.py`).
"""

from __future__ import annotations

import dis
import gc
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

import pullback
from pullback.fuzz import interpreted

ROOT = Path(pullback.__file__).parent
# What chooses kernels for a layout, and what makes and recognises calls.
LAYOUTS = tuple(sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("ops/*/cpu.py")))
CALLS = (
    "tensor/layout.py",
    "tensor/view.py",
    "cpu/program.py",
    "cpu/call_record.py",
    "plan/launch.py",
    "plan/function.py",
    "plan/plan.py",
    "plan/public.py",
    "frontends/prepared.py",
    "frontends/numpy.py",
    "frontends/torch.py",
    "frontends/torch_launch.py",
)
NATIVE = tuple(f"cpu/{name}.py" for name in interpreted.MODULES if name != "headers")
WATCHED = LAYOUTS + CALLS + NATIVE


class Branch(NamedTuple):
    """A condition of a file, by where it begins and ends in it, and what it came to."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    came_to: bool

    @property
    def condition(self) -> str:
        """Its source, or the first line of it."""
        line = (ROOT / self.path).read_bytes().splitlines()[self.line - 1]
        end = self.end_column if self.end_line == self.line else None
        return line[self.column : end].decode().rstrip(" :")


@cache
def all_kernels() -> tuple[str, ...]:
    """The name of every kernel that there is, whatever holds it."""
    from pullback.cpu.kernel import Kernel
    from pullback.fuzz.thresholds import kernel_modules

    for name in kernel_modules():
        _make_all(import_module(name))
    found = {thing.name for thing in _objects() if issubclass(type(thing), Kernel)}
    return tuple(sorted(name.removeprefix("pullback.") for name in found))


def _objects() -> list[Any]:
    """Those of the collector, and those that were frozen: `gc.get_objects` leaves them out."""
    frozen = gc.get_freeze_count() > 0
    if frozen:
        gc.unfreeze()
    try:
        return gc.get_objects()
    finally:
        if frozen:
            gc.freeze()


def _make_all(module: ModuleType) -> None:
    """The kernels that a module makes when they are asked for, by flags."""
    for made in [*vars(module).values()]:
        if hasattr(made, "cache_info") and made.__module__ == module.__name__:
            flags = inspect.signature(made).parameters.values()
            if flags and all(flag.annotation in (bool, "bool") for flag in flags):
                for given in product((False, True), repeat=len(flags)):
                    made(*given)


@cache
def lines_of(path: str) -> frozenset[int]:
    """Lines of the functions of a file: what is there besides is run by importing it."""
    return frozenset(line for code in _functions(path) for line in _body(code))


@cache
def branches_of(path: str) -> frozenset[Branch]:
    """Branches of the functions of a file."""
    return frozenset(b for code in _functions(path) for b in _branches(code, path).values())


# Functions that Numba compiles: but for those of NATIVE they are never run as they stand.
_COMPILED = re.compile(r"\s*@(kernel|register_jitable|intrinsic|inlined|native|by_type|op)\b")


def _functions(path: str) -> Iterator[CodeType]:
    text = (ROOT / path).read_text()
    lines = text.splitlines()

    def is_compiled(code: CodeType) -> bool:
        return path not in NATIVE and bool(_COMPILED.match(lines[code.co_firstlineno - 1]))

    def within(code: CodeType) -> Iterator[CodeType]:
        for part in code.co_consts:
            if isinstance(part, CodeType) and not is_compiled(part):
                if part.co_flags & inspect.CO_NEWLOCALS:  # not the body of a class
                    yield part
                yield from within(part)

    return within(compile(text, path, "exec"))


def _body(code: CodeType) -> Iterator[int]:
    lines = {line for _, _, line in code.co_lines() if line is not None}
    lines.discard(code.co_firstlineno)  # `def` itself
    return iter(lines)


# What decides whether an exception is another's: the ways it may come are no branches.
_HANDLING = ("CHECK_EXC_MATCH", "WITH_EXCEPT_START")


@cache
def _branches(code: CodeType, path: str) -> dict[tuple[int, int], Branch]:
    """Each branch by the offsets of the jump and of the instruction that follows it there."""
    found: dict[tuple[int, int], Branch] = {}
    steps = [*dis.get_instructions(code)]
    for before, step, after in zip(steps, steps[1:], steps[2:], strict=False):
        name, where = step.opname, step.positions
        if "JUMP" not in name or "_IF_" not in name or before.opname in _HANDLING:
            continue
        if where is None or None in where:
            continue
        line, end_line, column, end_column = where
        place = path, line, column, end_line, end_column
        jumps_if = "FALSE" not in name and "NOT_NONE" not in name
        for to, came_to in ((step.argval, jumps_if), (after.offset, not jumps_if)):
            found[step.offset, to] = Branch(*place, came_to)  # type: ignore[arg-type]
    return found


@dataclass(slots=True)
class Covered:
    """Hits: of (kernel, element), of (file, line), of branches."""

    kernels: Counter[tuple[str, str]] = field(default_factory=Counter)
    lines: Counter[tuple[str, int]] = field(default_factory=Counter)
    branches: Counter[Branch] = field(default_factory=Counter)

    def add(self, found: dict[str, Any] | None) -> None:
        if found is None:
            return
        for kernel, element, hits in found["kernels"]:
            self.kernels[kernel, element] += hits
        for file, line, hits in found["lines"]:
            self.lines[file, line] += hits
        for *place, hits in found["branches"]:
            self.branches[Branch(*place)] += hits

    def to_json(self) -> dict[str, Any]:
        return {
            "kernels": [[*key, hits] for key, hits in sorted(self.kernels.items())],
            "lines": [[*key, hits] for key, hits in sorted(self.lines.items())],
            "branches": [[*key, hits] for key, hits in sorted(self.branches.items())],
        }

    def missed_lines(self, path: str) -> list[int]:
        return sorted(line for line in lines_of(path) if not self.lines[path, line])

    def missed_branches(self, path: str) -> list[Branch]:
        """Those of conditions that were met; what was never met is among the missed lines."""
        found = sorted(branch for branch in branches_of(path) if not self.branches[branch])
        return [b for b in found if self.branches[b._replace(came_to=not b.came_to)]]


class Coverage:
    """Counts from now on, in this process."""

    def __init__(self) -> None:
        from pullback.cpu.native_launch import NativeLaunch

        self._found = Covered()
        self._paths = {str(ROOT / path): path for path in WATCHED}
        before = NativeLaunch.of

        def counted(program: Any, element: Any, *rest: Any, **named: Any) -> NativeLaunch:
            self.count(program, element)
            return before(program, element, *rest, **named)

        NativeLaunch.of = counted  # type: ignore[method-assign]
        interpreted.install()
        sys.settrace(self._trace)

    def count(self, program: Any, element: Any) -> None:
        for phase in program.phases:
            name = phase.kernel.name.removeprefix("pullback.")
            self._found.kernels[name, (phase.element or element).value] += 1

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        path = self._paths.get(frame.f_code.co_filename)
        if path is None:
            return None
        lines, branches = self._found.lines, self._found.branches
        known, last = _branches(frame.f_code, path), 0
        frame.f_trace_opcodes = True

        def step(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal last
            if event == "line":
                lines[path, frame.f_lineno] += 1
            elif event == "opcode":
                branch = known.get((last, frame.f_lasti))
                if branch is not None:
                    branches[branch] += 1
                last = frame.f_lasti
            return step

        return step

    def taken(self) -> dict[str, Any]:
        """What was found since the last time."""
        found, self._found = self._found, Covered()
        return found.to_json()
