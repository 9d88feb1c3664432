"""The public wrapper of a function: a plain Python function of its signature.

An object with `__call__(*args, **options)` packs every call into a tuple and a dict, and unpacking
that again takes longer than the call cache does. So each signature gets a function of its own,
generated below: arguments go from the caller to native code as they are. Editors, `help`, pickle
and torch.compile find what they expect.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from dataclasses import MISSING, dataclass
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from pullback.plan.docstring import docstring

_SOURCE = """\
def {name}({signature}, **unknown):
    if extra or unknown:
        function.refuse(extra, unknown, {stated})
    torch = LOADED.torch or "torch" in MODULES and MODULES["torch"]
    if torch and torch.compiler.is_dynamo_compiling():
        from pullback.frontends.torch_graph import in_graph
        return in_graph(function, {values})
    if type({first}) in CACHEABLE:
        result = function.lookup({values})
        if result is not None:
            return result
    if {missing}:
        function.refuse(extra, unknown, {stated})
    options = {{}}
    {options}
    return function.dispatch(({positional},), options, out)
"""
_OPTION = """\
if {name} is not default_{name}:
        options["{name}"] = {name}"""


# Whatever kind of array goes in comes out.
Array = TypeVar("Array")


@dataclass(frozen=True)
class Results:
    """What a function returns: `ways` lists the types of the parameter that decides it, with what
    is returned for each. A type of a parameter that starts with None is its default."""

    ways: tuple[tuple[str, str], ...]
    by: str = ""

    @property
    def union(self) -> str:
        return " | ".join(dict.fromkeys(result for _, result in self.ways))


_ONE, _TWO, _THREE = "Array", "tuple[Array, Array]", "tuple[Array, Array, Array]"
_GIVEN = "Array | float"

# By the annotation of the body; positions and rows, which options add, have a dtype of their own.
RETURNS = {
    "Call": Results((("", _ONE),)),
    "AndInitial": Results((("None", _ONE), (_GIVEN, _TWO)), "initial"),
    "PairAndInitial": Results((("None", _TWO), (_GIVEN, _THREE)), "initial"),
    "PairAndWeight": Results((("float", _TWO), ("Array", _THREE)), "weight"),
    "AndAlpha": Results((("float", _ONE), ("Array", _TWO)), "alpha"),
}
SECOND = {
    "return_indices": "tuple[Array, Any]",
    "return_probabilities": _TWO,
    "sparse": "tuple[Any, Array]",
}


def results_of(function: Any) -> Results:
    """What a function returns, and by which of its arguments."""
    option = next((name for name in SECOND if name in function.parameters), "")
    if not option:
        return RETURNS[function.returns]
    one = RETURNS[function.returns].union
    return Results((("Literal[False]", one), ("Literal[True]", SECOND[option])), option)


class Loaded:
    """Torch, once it is known to be there. Where torch.compile would look into `sys.modules`, every
    module of the process would become something that a graph depends on."""

    __slots__ = ("torch",)

    def __init__(self) -> None:
        self.torch = sys.modules.get("torch")


LOADED = Loaded()

# Types of arrays that call caches hold: those of other libraries once a call was made on one.
CACHEABLE: set[type] = {np.ndarray}


def make_wrapper(function: Any) -> FunctionType:
    """A Python function that looks a call up in the cache of `function`, and else dispatches it."""
    parameters = [*function.__signature__.parameters.values()]
    required = [p.name for p in parameters if p.default is p.empty]
    positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    options = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "out"]
    source = _SOURCE.format(
        name=function.name,
        signature=", ".join(_parameter_source(parameters)),
        stated=", ".join(f"{p.name}={p.name}" for p in parameters),
        missing=" or ".join(f"{name} is MISSING" for name in required),
        first=positional[0],
        values=", ".join(p.name for p in parameters),
        options="\n    ".join(_OPTION.format(name=name) for name in options),
        positional=", ".join(positional),
    )
    scope = {"CACHEABLE": CACHEABLE, "LOADED": LOADED, "MODULES": sys.modules, "function": function}
    scope["MISSING"] = MISSING
    scope |= {f"default_{p.name}": MISSING if p.name in required else p.default for p in parameters}
    file = f"<pullback.{function.name}>"
    linecache.cache[file] = len(source), None, source.splitlines(True), file  # for tracebacks
    exec(compile(source, file, "exec"), scope)
    wrapper = scope[function.name]
    assert isinstance(wrapper, FunctionType)
    wrapper.__module__, wrapper.__doc__ = "pullback", docstring(function)
    wrapper.__annotations__ = hints = _annotations(function)
    shown = [p.replace(annotation=hints[p.name]) for p in parameters]
    wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        shown, return_annotation=hints["return"]
    )
    wrapper.function = function  # type: ignore[attr-defined]
    return wrapper


def _annotations(function: Any) -> dict[str, Any]:
    """Types of arguments and results as callers see them: a body takes views and returns a call."""
    names = {"Array": Array, "Tensor": Array, "Indices": Array | Any, "Number": float}
    known = function.body.__globals__ | names
    texts = function.body.__annotations__.items()
    written = {name: eval(text, known) for name, text in texts if name != "return"}
    return {
        **written,
        "out": Any,
        "return": eval(results_of(function).union, {**known, "Any": Any}),
    }


def _parameter_source(parameters: list[inspect.Parameter]) -> list[str]:
    """Parameters as a `def` has them. Defaults are objects, so they are named. Those without one
    have MISSING: Python would say that they are missing before it is known what was meant."""
    words = [f"{p.name}=default_{p.name}" for p in parameters]
    first = next(i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY)
    return [*words[:first], "*extra", *words[first:]]
