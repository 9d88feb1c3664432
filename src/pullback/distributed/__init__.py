"""The functions on one rank's own part of an array: `cumsum(x, -1, over=group)`.

    from pullback import distributed as pbd

    pbd.cumsum(part, -1, over=mesh["sp"])     # PyTorch: a DeviceMesh of one dimension, or a group
    pbd.cumsum(part, -1, over="sp")           # JAX, inside of shard_map: the name of an axis

Parts are those of the axis that a function works along, in the order of ranks, of any extents.
Results are this rank's parts. Options are those of the function itself, but for `offsets` and
`out`. `exact=True` asks for the bits of one machine, whatever that takes (docs/distributed.md).

A table has parts by rows, in the order of ranks, each rank having indices of its own; segments have
parts by rows, and all ranks have the result. With `by="segments"` each rank has the result of its
share of the segments; with `by="borders"`, of ids that ascend over all ranks, that of the segments
that begin in its rows. With `by="columns"` (or "features") parts are those of
an axis that is free: the plain function, with no collective.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pullback
from pullback.contract.errors import InvalidProblem, Unsupported
from pullback.contract.imports import resolve
from pullback.tensor.adapters import family_of

BY = ("rows", "columns", "features", "segments", "borders")
_CALLS = {
    "torch": "pullback.distributed.torch_groups:call",
    "jax": "pullback.distributed.jax_axes:call",
}


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'pullback.distributed' has no attribute {name!r}")
    if not _is_spread(name):
        raise AttributeError(f"module 'pullback.distributed' has no attribute {name!r}")
    return _spread(getattr(pullback, name).function)


@cache
def _spread(function: Any) -> Any:
    """A function with `over` and `exact`."""

    def spread(
        *args: Any, over: Any = None, exact: bool = False, by: str = "rows", **options: Any
    ) -> Any:
        arguments = function.bind(*function.without_numbers(args, options))
        if over is None:
            expected = "given: a DeviceMesh or process group (PyTorch), the name of an axis (JAX)"
            raise InvalidProblem(function.name, "over", expected, "None")
        if by not in BY:
            raise InvalidProblem(function.name, "by", f"one of {BY}", repr(by))
        if by in ("columns", "features"):
            return function(**arguments)
        if by != "rows" and "segment_ids" not in function.tensors:
            got = f"{by!r}, which segments have"
            raise InvalidProblem(function.name, "by", "'rows', 'columns' or 'features'", got)
        if "axis" in function.parameters and arguments.get("offsets") is not None:
            raise Unsupported(function.name, "offsets", "None over ranks", "borders")
        adapter = family_of(args[0]) if args else None
        call = _CALLS.get(adapter.family if adapter else "")
        if call is None:
            expected = "a torch tensor or a JAX array"
            raise Unsupported(function.name, function.parameters[0], expected, "another")
        return resolve(call)(function, arguments, over, exact, by)

    spread.__name__ = spread.__qualname__ = function.name
    spread.__doc__ = f"`pullback.{function.name}` of arrays in parts over the ranks of `over`."
    return spread


def __dir__() -> list[str]:
    return [name for name in pullback.__all__ if _is_spread(name)]


def _is_spread(name: str) -> bool:
    """Whether there is such a function, with an axis or with a form of its own."""
    function = getattr(getattr(pullback, name, None), "function", None)
    if function is None or name.endswith("_backward"):
        return False
    known = (resolve(f"pullback.distributed.forms:{table}")() for table in ("forms", "composed"))
    return "axis" in function.parameters or any(name in table for table in known)
