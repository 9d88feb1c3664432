"""Docstrings say all there is to say, and their examples run."""

from __future__ import annotations

import doctest
import inspect
import pydoc
import re
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.contract.kinds import Reproducibility
from pullback.plan.docstring import documentation
from pullback.verify.subject import Subject, subjects

SUBJECTS = list(subjects().values())
SECTIONS = ("Parameters", "Returns", "Notes", "Examples")


def run_examples(name: str, text: str) -> tuple[int, str]:
    """How many examples of a docstring were run, and what those that failed printed."""
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    said: list[str] = []
    with np.errstate(all="ignore"):
        done = doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    return done.attempted, "".join(said)


def sections(text: str) -> dict[str, list[str]]:
    """The lines under each title."""
    found: dict[str, list[str]] = {"": []}
    title, lines = "", text.split("\n")
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if below and set(below) == {"-"} and len(below) == len(line):
            title = line
            found[title] = []
        elif not (title and line and set(line) == {"-"}):
            found[title].append(line)
    return found


@pytest.mark.parametrize("subject", SUBJECTS)
def test_examples_run(subject: Subject) -> None:
    attempted, said = run_examples(subject.name, getattr(pb, subject.name).__doc__)
    assert attempted > 1, "no example"
    assert not said, said


def test_wrong_and_missing_examples_are_found() -> None:
    text = pb.cumsum.__doc__
    assert text is not None
    wrong = text.replace("15.]", "16.]")
    assert wrong != text
    assert "16.]" in run_examples("cumsum", wrong)[1]
    assert "NameError" in run_examples("cumsum", text.replace("pb.", "pd."))[1]
    assert run_examples("cumsum", text.replace(">>>", "$")) == (0, "")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_docstrings_are_whole(subject: Subject) -> None:
    """Each parameter is described once, in the order of the signature; nothing else is."""
    function = getattr(pb, subject.name)
    found = sections(inspect.getdoc(function) or "")
    assert [*found] == ["", *SECTIONS]
    entries = [line for line in found["Parameters"] if line and not line.startswith(" ")]
    assert [entry.partition(" : ")[0] for entry in entries] == [*subject.function.parameters, "out"]
    for entry, below in zip(found["Parameters"], found["Parameters"][1:], strict=False):
        assert not entry or entry[0] == " " or below.startswith("    "), f"{entry}: no meaning"
    assert all(any(lines) for lines in found.values())
    assert max(map(len, "\n".join(found["Parameters"] + found["Notes"]).split("\n"))) <= 96
    unknown = {*documentation(subject.function).parameters} - {*subject.function.parameters}
    shared = {name for other in SUBJECTS for name in other.function.parameters}
    assert unknown <= shared, "parameters of no function"


def test_words_for_types_and_options() -> None:
    text = pydoc.render_doc(pb.cummax, renderer=pydoc.plaintext)
    assert "x : array of float16, bfloat16, float32 or float64\n" in text
    assert "axis : int, default -1\n" in text
    assert "ties : {'first', 'last'}, default 'first'\n" in text
    assert "offsets : array of int32 or int64, optional\n" in text
    assert "initial : array of float16, bfloat16, float32 or float64, or number, optional" in text


def test_docs_of_families_have_no_other_functions() -> None:
    for family in pb._FAMILIES:
        docs: dict[str, Any] = pydoc.locate(f"pullback.ops.{family}.docs").DOCS  # type: ignore[union-attr]
        assert docs.keys() == {s.name for s in SUBJECTS if s.family == family}


def test_bits_are_promised_as_the_records_do() -> None:
    """Notes say that bits depend on no machine: the records of all plans do."""
    from pullback.bench.inventory import entries

    weakest = {
        entry.op: min(sku.precision_guarantee.reproducibility for sku in entry.skus)
        for entry in entries()
    }
    for subject in SUBJECTS:
        text = " ".join(getattr(pb, subject.name).__doc__.split())
        promised = re.search(r"bits do not depend[^.]*\bmachine", text)
        level = weakest.get(subject.name, Reproducibility.ANY_MACHINE)
        assert bool(promised) == (level is Reproducibility.ANY_MACHINE), subject.name
