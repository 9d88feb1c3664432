"""Planted faults: what the checks of this repository must be able to see.

A mutant is one small edit of the library that breaks a promise, with the cheapest checks that
should notice it. `make mutants` applies them one at a time to a copy of the tree and runs those
checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

SOURCES = Path("src/pullback")


@dataclass(frozen=True)
class Suite:
    """Tests of a file, those whose name has `only` in it (an expression as of `pytest -k`)."""

    file: str
    only: str = ""

    def command(self) -> list[str]:
        chosen = ["-k", self.only] if self.only else []
        quiet = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", "not gpu and not slow"]
        return ["-m", "pytest", *quiet, f"tests/{self.file}", *chosen]

    def __str__(self) -> str:
        return f"{self.file} -k '{self.only}'" if self.only else self.file


# `pullback fuzz`, but the first failure is enough, as it is.
_FUZZ = """
from pullback.fuzz import run
run.MOST_FAILURES, run.SHRUNK = 1, 0
from pullback.cli import main
raise SystemExit(main())
"""


@dataclass(frozen=True)
class Fuzz:
    """Random cases of one function, with a fixed seed."""

    op: str
    cases: int = 2000
    seed: int = 1

    def command(self) -> list[str]:
        words = {"--op": self.op, "--cases": self.cases, "--seed": self.seed}
        return ["-c", _FUZZ, "fuzz", *(str(word) for pair in words.items() for word in pair)]

    def __str__(self) -> str:
        return f"fuzz --op {self.op} --cases {self.cases} --seed {self.seed}"


Check = Suite | Fuzz


@dataclass(frozen=True)
class Mutant:
    """`old` occurs once in the module and becomes `new`. `equivalent` is the reason why no check
    can see it, where none can."""

    name: str
    module: str
    old: str
    new: str
    breaks: str
    checks: tuple[Check, ...]
    equivalent: str = ""

    @property
    def path(self) -> Path:
        return SOURCES / self.module

    @property
    def area(self) -> str:
        """The family, or the layer, that it is in."""
        parts = Path(self.module).parts
        return f"ops/{parts[1]}" if parts[0] == "ops" and len(parts) > 2 else parts[0]

    def applied(self, text: str) -> str:
        count = text.count(self.old)
        if count != 1:
            raise ValueError(
                f"{self.name}: its text occurs {count} times in {self.module}, not once"
            )
        return text.replace(self.old, self.new)


def laws(op: str, element: str = "f32") -> Suite:
    """The laws of one function in one element."""
    return Suite("test_laws.py", f"[{op}-{element}]")


@cache
def mutants() -> tuple[Mutant, ...]:
    """All tables of this folder."""
    names = sorted(module.name for module in iter_modules(__path__) if module.name != "__main__")
    tables = (import_module(f"{__name__}.{name}") for name in names)
    return tuple(mutant for table in tables for mutant in table.MUTANTS)
