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
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

_SOURCE = """\
def {name}({signature}):
    torch = LOADED.torch or "torch" in MODULES and MODULES["torch"]
    if torch and torch.compiler.is_dynamo_compiling():
        from pullback.frontends.torch_graph import in_graph
        return in_graph(function, {values})
    if type({first}) in CACHEABLE:
        result = function.lookup({values})
        if result is not None:
            return result
    options = {{}}
    {options}
    return function.dispatch(({positional},), options, out)
"""
_OPTION = """\
if {name} is not default_{name}:
        options["{name}"] = {name}"""


# Whatever kind of array goes in comes out.
Array = TypeVar("Array")

# What a function returns, by the annotation of its body, and options that add a second result.
RETURNS = {
    "Call": "Array",
    "Pair": "tuple[Array, Array]",
    "Several": "tuple[Array, ...]",
    "OneOrTwo": "Array | tuple[Array, Array]",
    "AndInitial": "Array | tuple[Array, Array]",
}
SECOND = ("return_indices", "return_probabilities", "sparse")


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
    positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    options = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "out"]
    source = _SOURCE.format(
        name=function.name,
        signature=", ".join(_parameter_source(parameters)),
        first=positional[0],
        values=", ".join(p.name for p in parameters),
        options="\n    ".join(_OPTION.format(name=name) for name in options),
        positional=", ".join(positional),
    )
    scope = {"CACHEABLE": CACHEABLE, "LOADED": LOADED, "MODULES": sys.modules, "function": function}
    scope |= {f"default_{p.name}": p.default for p in parameters}
    file = f"<pullback.{function.name}>"
    linecache.cache[file] = len(source), None, source.splitlines(True), file  # for tracebacks
    exec(compile(source, file, "exec"), scope)
    wrapper = scope[function.name]
    assert isinstance(wrapper, FunctionType)
    wrapper.__module__, wrapper.__doc__ = "pullback", function.__doc__
    wrapper.__annotations__ = _annotations(function)
    wrapper.function = function  # type: ignore[attr-defined]
    return wrapper


def _annotations(function: Any) -> dict[str, Any]:
    """Types of arguments and results as callers see them: a body takes views and returns a call."""
    names = {"Array": Array, "Tensor": Array, "Indices": Array | Any, "Number": float}
    written = {**function.body.__annotations__, "return": RETURNS[function.returns]}
    if any(name in written for name in SECOND):
        written["return"] += f" | {RETURNS['Pair']}"
    known = function.body.__globals__ | names
    hints = {name: eval(text, known) for name, text in written.items() if name != "return"}
    return {**hints, "out": Any, "return": eval(written["return"], known)}


def _parameter_source(parameters: list[inspect.Parameter]) -> list[str]:
    """Parameters as a `def` has them; defaults are objects, so they are named."""
    words = [p.name if p.default is p.empty else f"{p.name}=default_{p.name}" for p in parameters]
    first = next(i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY)
    return [*words[:first], "*", *words[first:]]
