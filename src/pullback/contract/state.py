"""Scans that carry a state from one run to the next.

A state is one float64 for each line, whatever the element: what was scanned so far. A run starts
from the state it is given, as from an initial value, and leaves the one after its last element.
Sequences that are longer than memory, or not there yet, are scanned in windows that way. A run
without `results` only says what state a window leaves.

Of extrema a state may have positions beside it: where what it holds stands in the whole sequence,
and where the next window begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.errors import InvalidProblem, Unsupported
from pullback.contract.extension import ALIGNED, TOTAL, Extension, Shape, Staged
from pullback.contract.record import Role, Slot, check_flag


def check_stateful(op: str, desc: Any, backward: bool = False) -> None:
    """What the field `stateful` may be; those of the extension are checked already."""
    check_flag(op, "stateful", desc.stateful)
    check_flag(op, "results", desc.results)
    if not desc.stateful:
        if not desc.results:
            raise InvalidProblem(op, "results", "True where no state is left", "False")
        return
    if backward:
        raise Unsupported(op, "stateful", "False: only forward scans carry a state", "True")
    if desc.initial_shape is not None:
        expected = "None where a state is carried, which is what the scan starts from"
        raise InvalidProblem(op, "initial", expected, f"shape {desc.initial_shape}")
    if desc.num_pieces is not None:
        expected = "None where a state is carried: it is that of one sequence"
        raise InvalidProblem(op, "offsets", expected, f"{desc.num_pieces} pieces")


def staged_shape(extension: Extension, leads: int) -> Shape:
    """What is scanned in the workspace."""
    axis, shape = extension.axis, extension.shape
    return (*shape[:axis], extension.steps + leads, *shape[axis + 1 :])


def staged_places(desc: Any, tensors: Sequence[Staged], own: bool) -> dict[str, int]:
    """Where tensors are in the workspace, by name: none of float64 if the scan takes and leaves
    states itself. The state may lead each line."""
    in_place = own and desc.element is ElementKind.F64
    size = 8 * prod(staged_shape(Extension.of(desc), int(not own)))
    at = 0
    found: dict[str, int] = {}
    for tensor in tensors:
        if own and (tensor.index or (in_place and (desc.results or not tensor.written))):
            continue
        if tensor.over in found:
            found[tensor.name] = found[tensor.over]
        else:
            found[tensor.name] = at
            at += -(-size // ALIGNED) * ALIGNED
    return {**found, TOTAL: at + ALIGNED} if found else {}


def state_bytes(desc: Any, tensors: Sequence[Staged], own: bool) -> int:
    return staged_places(desc, tensors, own).get(TOTAL, 0)


# --- slots of plans -------------------------------------------------------------------------------


def _lines(desc: Any) -> Shape:
    axis = desc.scan_axis
    shape: Shape = desc.input_shape
    return shape[:axis] + shape[axis + 1 :]


def _is_stateful(desc: Any) -> bool:
    return bool(desc.stateful)


def gives_results(desc: Any) -> bool:
    return bool(desc.results)


_F64 = (ElementKind.F64,)
STATE = Slot("state", _lines, holds=_F64, needed=lambda _: False, used=_is_stateful)
FINAL_STATE = Slot(
    "final_state",
    _lines,
    Role.OUT,
    holds=_F64,
    needed=_is_stateful,
    used=_is_stateful,
    in_place_of=("state",),
    why_needed="memory for the state that is left",
)


def positions(used: Callable[[Any], bool]) -> Slot:
    """Of each line, where the extremum that a state holds stands, and where the next window begins
    (of a reverse scan: where the last one began)."""
    return Slot(
        "positions",
        lambda desc: (2, *_lines(desc)),
        Role.ACCUMULATE,
        holds=(ElementKind.I64,),
        needed=lambda _: False,
        used=lambda desc: desc.stateful and used(desc),
    )
