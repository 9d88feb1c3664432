"""The functions as torch.compile sees them: nodes of a graph, which it does not look into.

What it looks into it guards at every call of the graph. It is told as late as it can be, when it
first traces one of the functions, since to load it takes seconds; of that very call it then sees
the Python between the function and the node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pullback.frontends.torch_autograd import plain_ids
from pullback.frontends.torch_library import FUNCTIONS, dispatch
from pullback.internals.torch import on_compile_end
from pullback.plan.function import Function


def in_graph(function: Function, *values: Any) -> Any:
    """A call that is traced: what is given for all parameters, and for `out`."""
    return function.graphed(*values)


def _node(function: Function) -> Callable[..., Any]:
    """`dispatch` as one node."""

    def node(*values: Any) -> Any:
        given = dict(zip(function.parameters, values, strict=False))
        return dispatch(function, (), given, values[-1])

    return torch.compiler.allow_in_graph(node)  # type: ignore[no-any-return]


def _with_ids(node: Callable[..., Any], places: tuple[int, ...]) -> Callable[..., Any]:
    """A SegmentIndex cannot be part of a graph; its ids can."""

    def traced(*values: Any) -> Any:
        plain = list(values)
        for place in places:
            plain[place] = plain_ids(values[place])
        return node(*plain)

    return traced


def _bundled(function: Function) -> set[str]:
    """Arguments that may be a SegmentIndex; offsets are always a tensor."""
    return function.indices - {"offsets"}


for _function in FUNCTIONS.values():
    _function.graphed = _node(_function)
    if _bundled(_function):
        _places = tuple(map(_function.parameters.index, _bundled(_function)))
        _function.graphed = _with_ids(_function.graphed, _places)


@on_compile_end
def _without_looking(_: Any) -> None:
    """From the next graph on, functions without ids are nodes as they are. Not in the one that is
    traced now: where torch.compile begins it anew, it must come by the same calls again."""
    for function in FUNCTIONS.values():
        if not _bundled(function):
            torch.compiler.allow_in_graph(function.wrapper)
