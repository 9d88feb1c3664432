"""Docstrings of the functions, in NumPy's form: put together from a signature, which knows types
and defaults, and from the `docs.py` of the family, which knows what they mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from inspect import Parameter, cleandoc
from textwrap import fill, indent
from typing import Any

from pullback.contract.imports import resolve

WIDTH = 96
IMPORTS = ">>> import numpy as np, pullback as pb"


@dataclass(frozen=True)
class Doc:
    """What is to be said of a function beside its summary: the meaning of its parameters, what it
    returns, rules (special values, ties, empty axes), costs, and an example that runs."""

    parameters: Mapping[str, str] = field(default_factory=dict)
    returns: str = ""
    rules: str = ""
    cost: str = ""
    example: str = ""


# What parameters mean in every family that does not say otherwise.
COMMON = {
    "axis": "Negative ones count from the last. Rank 0 is a row of one and takes 0 and -1.",
    "out": "What to write the result to, of any strides; it is returned. A tuple where a tuple is "
    "returned. None: a new array, C-contiguous.",
}
_FLOATS, _INDICES = "array of float16, bfloat16, float32 or float64", "array of int32 or int64"


def documentation(function: Any) -> Doc:
    """The entry of a function in the `docs.py` of its family."""
    module = function.body.__module__.rpartition(".")[0] + ".docs"
    found: Mapping[str, Doc] = resolve(f"{module}:DOCS") if find_spec(module) else {}
    return found.get(function.name, Doc())


def docstring(function: Any) -> str:
    """The whole text, as `help` and editors show it."""
    doc = documentation(function)
    meanings = {**COMMON, **doc.parameters}
    lines = [cleandoc(function.__doc__ or ""), "", *_headed("Parameters")]
    for parameter in function.__signature__.parameters.values():
        lines += [f"{parameter.name} : {_type(function, parameter)}"]
        lines += _indented(meanings.get(parameter.name, ""))
    if doc.returns:
        lines += ["", *_headed("Returns"), *_results(doc.returns)]
    notes = [text for text in (doc.rules, doc.cost) if text]
    if notes:
        lines += ["", *_headed("Notes"), *"\n\n".join(map(_paragraph, notes)).split("\n")]
    if doc.example:
        lines += ["", *_headed("Examples"), IMPORTS, *cleandoc(doc.example).split("\n")]
    return "\n".join(lines) + "\n"


def _headed(title: str) -> list[str]:
    return [title, "-" * len(title)]


def _paragraph(text: str) -> str:
    """Text that is wrapped; lines that are indented, which hold formulas, stay as they are."""
    blocks = cleandoc(text).split("\n\n")
    return "\n\n".join(b if b.startswith("    ") else fill(b, WIDTH) for b in blocks)


def _indented(text: str) -> list[str]:
    return indent(fill(" ".join(text.split()), WIDTH - 4), "    ").split("\n") if text else []


def _results(text: str) -> list[str]:
    """One "name : meaning" to a line of the text, each as an entry of its own."""
    lines: list[str] = []
    for entry in cleandoc(text).split("\n"):
        name, _, meaning = entry.partition(" : ")
        lines += [name, *_indented(meaning)]
    return lines


def _type(function: Any, parameter: Parameter) -> str:
    """The type of an argument in words, and its default."""
    name, written = parameter.name, str(parameter.annotation)
    if name == "out":
        return "array or tuple of arrays, optional"
    optional = "None" in written
    if name in function.either:
        text = f"{_FLOATS}, or {_INDICES.removeprefix('array ')}"
    elif name in function.indices:
        text = _INDICES
    elif name in function.tensors:
        text = _FLOATS + ", or number" * ("Number" in written or "float" in written)
    elif "Literal" in written:
        text = "{" + ", ".join(map(repr, re.findall(r"[\"'](\w+)[\"']", written))) + "}"
    else:
        text = written.removesuffix(" | None")
    if parameter.default is Parameter.empty:
        return text
    return f"{text}, optional" if optional else f"{text}, default {parameter.default!r}"
