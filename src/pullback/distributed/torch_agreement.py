"""What ranks agree upon before they exchange anything: shapes, dtypes and options.

Collectives of unequal sizes end processes or hang. At the first call of a function over a group
every rank writes what it was called with to the store that the group was made with, and all raise
the same sentence if it differs, or if one of them would raise anyway. It is no collective.
PULLBACK_RANK_CHECKS=always does so at every call, =never at none.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from pullback.contract.errors import InvalidProblem, PullbackError
from pullback.distributed.forms import has_own_indices
from pullback.internals.torch import store_of
from pullback.ops.axes import axes_of

_CALLS: Counter[tuple[str, str]] = Counter()  # by group and function
_SAME, _ERROR = "the same", "error: "


def agree(group: Any, function: Any, arguments: Mapping[str, Any]) -> None:
    """Raise on all ranks what is wrong on one of them."""
    when = os.environ.get("PULLBACK_RANK_CHECKS", "first")
    if when == "never" or torch.compiler.is_compiling():
        return
    key = (str(getattr(group, "group_name", "")), function.name)
    _CALLS[key] += 1
    if (_CALLS[key] > 1 and when != "always") or (store := store_of(group)) is None:
        return
    own = _signature(function, arguments)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    place = f"pullback/{function.name}/{_CALLS[key]}"
    if rank == 0:
        store.set(f"{place}/first", own)
    first = store.get(f"{place}/first").decode()
    if own != first or own.startswith(_ERROR):
        store.set(f"{place}/differs/{rank}", own)
        store.set(f"{place}/differs", str(rank))
    if store.add(f"{place}/count", 1) == size:  # the last one says what all have found
        found = _SAME
        if store.check([f"{place}/differs"]):
            other = store.get(f"{place}/differs").decode()
            found = f"{other}:{store.get(f'{place}/differs/{other}').decode()}"
        store.set(f"{place}/found", found)
    found = store.get(f"{place}/found").decode()
    if found != _SAME:
        other, _, theirs = found.partition(":")
        _raise(function.name, first, other, theirs)


def together(rank: Any, call: Callable[[], Any], like: Any) -> Any:
    """A call that a rank may find something wrong with by itself, at its end: then all raise that.
    One all-gather of a number, and only then of errors."""
    if os.environ.get("PULLBACK_RANK_CHECKS", "first") == "never":
        return call()
    error: PullbackError | None = None
    try:
        found = call()
    except PullbackError as caught:
        error = caught
    (failed,) = rank.gather(rank.filled((), float(error is not None), like))
    if not bool((failed > 0).any()):
        return found
    errors: list[Any] = [None] * rank.size
    dist.all_gather_object(errors, error, rank.group)
    first = next(i for i, e in enumerate(errors) if e is not None)
    if None in errors:  # else all know already
        errors[first].got = f"{errors[first].got} on rank {first}"
    raise type(errors[first])(*errors[first].__reduce__()[1])


def _raise(op: str, first: str, other: str, theirs: str) -> None:
    for number, said in (("0", first), (other, theirs)):
        if said.startswith(_ERROR):
            text = said.removeprefix(_ERROR)
            raise InvalidProblem(
                op, "over", "called alike on all ranks", f"on rank {number}: {text}"
            )
    expected = f"called alike on all ranks ({first} on rank 0)"
    raise InvalidProblem(op, "over", expected, f"{theirs} on rank {other}")


def _signature(function: Any, arguments: Mapping[str, Any]) -> str:
    """What has to be equal on all ranks: shapes but for extents of parts, dtypes, options."""
    tensors = {n: t for n in function.tensors if hasattr(t := arguments[n], "shape")}
    options = {n: v for n, v in arguments.items() if n not in tensors}
    try:
        axes = axes_of(function, {n: tuple(t.shape) for n, t in tensors.items()}, options)
    except PullbackError as error:
        return f"{_ERROR}{error}"
    parts = []
    for name, tensor in tensors.items():
        names = axes.arguments.get(name, ()) if axes else ()
        # Extents of parts differ, and so may those of a rank's own indices and of a table's rows.
        # A part of one step looks as if it were stretched.
        known = bool(axes and axes.along) and not has_own_indices(function)
        free = [not known or n == axes.along or n.startswith("one") for n in names]  # type: ignore[union-attr]
        free += [True] * (len(tensor.shape) - len(free))
        pairs = zip(tensor.shape, free, strict=True)
        extents = ("?" if any_extent else str(n) for n, any_extent in pairs)
        parts.append(f"{name} {str(tensor.dtype).removeprefix('torch.')}[{', '.join(extents)}]")
    given = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return ", ".join(parts) + (f" with {given}" if given else "")
