"""A table of hashes: what every function gives, bit for bit, on every machine.

    python -m pullback.verify.hashes                  compare this machine with the table
    python -m pullback.verify.hashes --cpu haswell    the same, compiled for another processor
    python -m pullback.verify.hashes --write          make the table anew, for kernels that changed

A row is a function in one element; its hashes are those of the results of all trials of a group. In
the table is what the records say is the same on any machine. Any NaN counts as any other: which one
an operation gives differs between processors.

Inputs must be the same everywhere too, but NumPy draws normal numbers with the help of the system's
logarithm, the last bit of which is nobody's promise. So they are rounded to fewer bits, and the
table has their hashes as well.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pullback.contract.element import FLOATS, ElementKind
from pullback.contract.kinds import Reproducibility
from pullback.ops.case import Case
from pullback.verify.layouts import LAYOUTS
from pullback.verify.subject import Arguments, Subject, subjects

TABLE = Path(__file__).with_name("hashes.json")
WRITE = "python -m pullback.verify.hashes --write"
INPUT_BITS = 32  # of a mantissa
DIGITS = 12  # of a hash

Table = dict[str, dict[str, str]]


@dataclass(frozen=True)
class Group:
    """Trials that share a hash: whose cases, how many of them, how their arrays lie, and whether
    each meets every option, or these are dealt out in turn."""

    cases: Callable[[Subject], tuple[Case, ...]]
    every: int = 1
    layouts: tuple[str, ...] = ()
    all_options: bool = False


GROUPS = {
    "cases": Group(Subject.plain_cases, every=3),
    "large": Group(Subject.large_cases, all_options=True),
    "extended": Group(Subject.extended_cases),
    "strided": Group(Subject.large_cases, layouts=("column-major", "every other element")),
}


@dataclass(frozen=True)
class Row:
    """A function in one element."""

    subject: Subject
    element: ElementKind

    def __str__(self) -> str:
        return f"{self.subject.name} {self.element.value}"


def rows() -> Iterator[Row]:
    for name in sorted(subjects()):
        yield from (Row(subjects()[name], element) for element in FLOATS)


# --- inputs ---------------------------------------------------------------------------------------


def _rounded(array: Any) -> Any:
    """Few bits of each number, the same whoever computed the others."""
    if array.dtype.kind != "f":
        return array
    fraction, exponent = np.frexp(array)
    return np.ldexp(np.rint(fraction * 2.0**INPUT_BITS) / 2.0**INPUT_BITS, exponent)


@cache
def _inputs(family: str, group: str) -> tuple[Case, ...]:
    subject = next(s for s in subjects().values() if s.family == family)
    return tuple(
        Case(case.name, {k: _rounded(v) for k, v in case.arrays.items()}, case.options)
        for case in GROUPS[group].cases(subject)
    )


def trials(row: Row, group: str) -> Iterator[tuple[str, Arguments]]:
    """Named arguments; saved results among them are our own."""
    found, variants = GROUPS[group], row.subject.variants
    taken = [case for case in _inputs(row.subject.family, group) if row.subject.takes(case)]
    for number, case in enumerate(taken[:: found.every]):
        index = (ElementKind.I64, ElementKind.I32)[number // 2 % 2]
        for variant in variants if found.all_options else (variants[number % len(variants)],):
            arguments = row.subject.arguments(case, row.element, index, variant, exact=False)
            if arguments is not None and _the_same_everywhere(row.subject, arguments):
                if found.layouts:
                    layout = LAYOUTS[found.layouts[number % len(found.layouts)]]
                    arguments = {k: _laid_out(v, layout) for k, v in arguments.items()}
                yield f"{case.name} {variant}", arguments


def _laid_out(value: Any, layout: Callable[[Any], Any]) -> Any:
    return layout(value) if isinstance(value, np.ndarray) and value.ndim else value


def _the_same_everywhere(subject: Subject, arguments: Arguments) -> bool:
    dense = {**arguments, "sparse": False} if arguments.get("sparse") else arguments
    call = subject.function.body(**subject.function.views(dense))
    guarantee = call.plan.record.guarantee(call.descriptor)
    return guarantee.reproducibility is Reproducibility.ANY_MACHINE


# --- hashes ---------------------------------------------------------------------------------------


def _plain(array: Any) -> bytes:
    array = np.ascontiguousarray(array)
    if array.dtype.kind not in "iu":
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return f"{array.dtype.name}{array.shape}".encode() + bytes(array.tobytes())


def _hash(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:DIGITS]


def hashed(*arrays: Any) -> str:
    return _hash(map(_plain, arrays))


def of_trial(subject: Subject, arguments: Arguments) -> str:
    return hashed(*subject.answer(arguments))


def of_row(row: Row) -> dict[str, str]:
    """A hash for each group that has trials."""
    found = {}
    for group in GROUPS:
        each = [of_trial(row.subject, arguments) for _, arguments in trials(row, group)]
        if each:
            found[group] = _hash(text.encode() for text in each)
    return found


def of_inputs() -> Table:
    found: Table = {}
    for family in dict.fromkeys(subject.family for subject in subjects().values()):
        found[f"inputs of {family}"] = {
            group: hashed(*(a for case in _inputs(family, group) for a in case.arrays.values()))
            for group in GROUPS
            if not GROUPS[group].layouts and _inputs(family, group)
        }
    return found


# --- the table ------------------------------------------------------------------------------------


@cache
def table() -> Table:
    found: Table = json.loads(TABLE.read_text())
    return found


def fault(name: str, found: dict[str, str]) -> str:
    """What is wrong with a row, in a sentence; nothing if it stands in the table."""
    known = table().get(name, {})
    if known == found:
        return ""
    if known.keys() != found.keys():
        return f"{name}: the table has {_listed(known)}, not {_listed(found)}; run `{WRITE}`"
    groups = _listed(group for group in found if found[group] != known[group])
    return f"{name}: other bits than in the table ({groups}); if that is meant, run `{WRITE}`"


def stale() -> str:
    """Rows of the table that nothing answers to, in a sentence."""
    names = {str(row) for row in rows()} | of_inputs().keys()
    gone = sorted(table().keys() - names)
    return f"{gone[0]}: in the table, but there is no such function; run `{WRITE}`" if gone else ""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pullback.verify.hashes", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", help="rows, as 'cumsum f32'; all of them")
    parser.add_argument("--cpu", help="compile for this processor of LLVM's")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each Nth of the rows")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="from this one on")
    parser.add_argument("--write", action="store_true", help="make the table, or rows of it, anew")
    parser.add_argument("--trials", action="store_true", help="print the hash of each trial")
    return parser.parse_args()


def _compared(wanted: list[Row]) -> int:
    faults = [text for name, found in of_inputs().items() if (text := fault(name, found))]
    for number, row in enumerate(wanted, 1):
        text = fault(str(row), of_row(row))
        faults += [text] if text else []
        print(f"{number}/{len(wanted)} {row}: {text or 'equal'}", flush=True)
    for text in faults:
        print(text, file=sys.stderr)
    print(f"{len(wanted)} rows, {len(faults)} faults")
    return 1 if faults else 0


def main() -> int:
    asked = _arguments()
    if asked.cpu:  # read by Numba, which nobody has needed so far
        assert "numba" not in sys.modules
        os.environ |= {"NUMBA_CPU_NAME": asked.cpu, "NUMBA_CPU_FEATURES": ""}
    known = {str(row): row for row in rows()}
    unknown = [name for name in asked.names if name not in known]
    if unknown:
        print(f"{unknown[0]}: no such row; one is called {next(iter(known))}", file=sys.stderr)
        return 2
    wanted = [known[name] for name in asked.names or known][asked.first :: asked.every]
    if asked.trials:
        for row in wanted:
            for group in GROUPS:
                for name, arguments in trials(row, group):
                    print(row, group, name, of_trial(row.subject, arguments), sep="\t")
        return 0
    if not asked.write:
        return _compared(wanted)
    made = of_inputs() if len(wanted) == len(known) else table() | of_inputs()
    made |= {str(row): found for row in wanted if (found := of_row(row))}
    lines = (f"{json.dumps(name)}: {json.dumps(found)}" for name, found in made.items())
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(made)} rows in {TABLE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
