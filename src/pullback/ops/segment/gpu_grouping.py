"""How the rows of a plan are grouped on the GPU, whichever way it is given: by ids in any order, by
sorted ids, by borders, or by a prepared index."""

from __future__ import annotations

from typing import Any

from pullback.contract.kinds import IndexPolicy
from pullback.gpu.program import Arena, Operand
from pullback.ops.segment.gpu_borders import border_bytes, of_borders
from pullback.ops.segment.gpu_groups import Groups, check_bytes, flat_keys, sort_bytes, walk

IDS, ORDER = 1, 3  # slots of the plans


def grouped(
    desc: Any, ids: Any, order: Any, offsets: Any, ascending: bool, by_id: bool = False
) -> tuple[Groups, dict[str, Any]]:
    """Groups, and the id of each row. A prepared index was checked when it was given. `by_id`: ids
    are all that is needed."""
    groups = Groups(desc.num_inputs, desc.num_segments, Arena(), [])
    operand, prepared = Operand(IDS, ids.element), offsets is not None
    if desc.borders:
        keys = of_borders(groups, operand, ids)
        groups.sorted = flat_keys(keys, desc.num_inputs)
        return groups, {name.replace("keys", "ids"): v for name, v in groups.sorted.items()}
    own = {"ids": operand, **walk("ids", ids)}
    if not prepared:
        groups.check(operand, ids, desc.policy is IndexPolicy.ERROR, ascending)
    if by_id:
        return groups, own
    if prepared and order is not None:
        groups.take_order(operand, ids, Operand(ORDER, order.element))
    elif prepared or ascending:
        groups.take_sorted(operand, ids)
    else:
        groups.sort(operand, ids)
    return groups, own


def lookup(groups: Groups) -> dict[str, Any]:
    """The sorted keys, as kernels name them."""
    return {**groups.sorted, "order": groups.order, "gate": groups.status}


def grouped_bytes(desc: Any) -> int:
    """Scratch for it."""
    if desc.borders:
        return border_bytes(desc.num_inputs, desc.num_segments)
    return check_bytes(desc.num_inputs) + sort_bytes(desc.num_inputs, desc.num_segments)
