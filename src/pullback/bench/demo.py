"""The main job: every op, forward and backward, at a training size, checked and timed."""

from __future__ import annotations

from pullback.bench.race import Effort
from pullback.bench.workload import BOTH, Row, families
from pullback.contract.element import ElementKind
from pullback.verify.subject import subjects

# About half a second for a row, most of it spent on making its inputs and asking the oracle.
EFFORT = Effort(rounds=9, seconds=0.06, least=2)


def rows(elements: tuple[ElementKind, ...] = (ElementKind.F32,)) -> list[Row]:
    """One row per op, direction and element, on the family's own training-size inputs."""
    return [
        Row(family.name, workload, op, direction, element)
        for family in families().values()
        for workload in family.demo
        for op in workload.ops
        for element in elements
        for direction in BOTH
        if op in subjects() and (direction == "forward" or f"{op}_backward" in subjects())
    ]


_SOON_COMPILED = ("scan", "segment", "segment_gather", "simplex")


def in_turns(todo: list[Row]) -> list[Row]:
    """The first op of every family, then the second of each: some rows of it stand for all. An op's
    directions stay together; families whose kernels take few seconds to compile come first."""
    ops: dict[str, list[str]] = {}
    for row in todo:
        known = ops.setdefault(row.family, [])
        known += [row.op] * (row.op not in known)
    return sorted(
        todo,
        key=lambda row: (ops[row.family].index(row.op), row.family not in _SOON_COMPILED),
    )
