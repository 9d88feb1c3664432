"""A reduction over runs of keys as steps: shared by segments, and by embeddings and their bags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pullback.contract.element import ElementKind
from pullback.gpu.program import (
    ALIGNMENT,
    Arena,
    Operand,
    Scratch,
    Sort,
    Step,
    Steps,
    Tile,
    ceil_div,
    power_of_two,
)
from pullback.gpu.tile import wide
from pullback.ops.segment.gpu_kernels import reduce
from pullback.tensor.layout import merge

# By columns: rows of a group at a time, and columns.
ROWS = Steps(
    (1, Tile(128, 1, 4)), (8, Tile(64, 8, 4)), (32, Tile(16, 32, 4)), (None, Tile(8, 128, 4))
)
# The same where runs are scanned, which takes more registers.
RUNS = Steps(
    (1, Tile(256, 1, 4)), (8, Tile(64, 8, 4)), (32, Tile(16, 32, 2)), (None, Tile(8, 128, 2))
)
# Sums in pairs of f32 hold twice as much.
PAIRS = Steps(*RUNS.entries[:-1], (None, Tile(8, 128, 4)))
SHORTEST, LONGEST = 64, 1024  # positions of a block
PROGRAMS = 2048  # as many as keep a large GPU busy, as these have few warps


_LOOPS = ("extents", "strides", "columns", "steps")
NO_FACTOR: dict[str, Any] = {f"factor_{part}": () for part in _LOOPS}


def table(name: str, view: Any, lead: int = 1) -> dict[str, Any]:
    """A view of rows by columns as kernels name its loops; its first `lead` true axes are rows."""
    outer = merge(view.extents[:lead], [view.strides[:lead]], ordered=True)
    inner = merge(view.extents[lead:], [view.strides[lead:]], ordered=True)
    return {
        f"{name}_extents": outer.extents,
        f"{name}_strides": outer.strides[0],
        f"{name}_columns": inner.extents,
        f"{name}_steps": inner.strides[0],
    }


def tables(names: Sequence[str], views: Sequence[Any], lead: int = 1) -> dict[str, Any]:
    """The same for several views with common loops, which bear the first name."""
    found: dict[str, Any] = {}
    parts = ("extents", "strides", slice(0, lead)), ("columns", "steps", slice(lead, None))
    for extents, strides, axes in parts:
        own = [view.strides[axes] for view in views]
        loops = merge(views[0].extents[axes], own, ordered=True)
        found[f"{names[0]}_{extents}"] = loops.extents
        found |= {f"{name}_{strides}": s for name, s in zip(names, loops.strides, strict=True)}
    return found


def _result(out: Operand | Scratch | None) -> ElementKind:
    """What sums in pairs end as."""
    wanted = ElementKind.F32 if out is None else out.element
    return ElementKind.F64 if wanted is ElementKind.F64 else ElementKind.F32


def dense(name: str, rows: int, columns: int) -> dict[str, Any]:
    """The same for scratch of rows by columns."""
    return {
        f"{name}_extents": (rows,),
        f"{name}_strides": (columns,),
        f"{name}_columns": (columns,),
        f"{name}_steps": (1,),
    }


@dataclass(frozen=True, slots=True)
class Level:
    """One launch: so many positions, or parts of the level before, in blocks of `length`."""

    positions: int
    length: int

    @property
    def blocks(self) -> int:
        return ceil_div(self.positions, self.length)


def levels_of(positions: int, columns: int, length: int | None = None) -> list[Level]:
    """Blocks of positions, of their parts (two a block), and so on, until one block is left."""
    found: list[Level] = []
    across = ceil_div(columns, RUNS[columns].block)
    while not found or found[-1].blocks > 1:
        wanted = power_of_two(positions * across // PROGRAMS)
        found.append(Level(positions, length or min(max(wanted, SHORTEST), LONGEST)))
        positions, length = 2 * found[-1].blocks, None
    return found


@dataclass(frozen=True, slots=True)
class Reduction:
    """What is reduced and how; see the kernel `reduce` for its options."""

    groups: int
    columns: int
    positions: int
    element: ElementKind
    carried: ElementKind
    state: str
    sign: int = 1
    mean: bool = False
    root: bool = False
    divide: bool = False
    keep: bool = False
    winners: bool = False
    length: int | None = None  # of the blocks of the first level, where it matters

    @property
    def levels(self) -> list[Level]:
        return levels_of(self.positions, self.columns, self.length)

    @property
    def _tracked(self) -> bool:
        """Whether a part has a second number: who holds it, or how many do."""
        return self.state not in ("sum", "prod")

    @property
    def nbytes(self) -> int:
        """Scratch for parts: two for each block, of levels with several."""
        cell = self.carried.itemsize + 8 * self._tracked
        parts = sum(2 * level.blocks for level in self.levels[:-1])
        return parts * (self.columns * cell + 16) + 4 * ALIGNMENT * len(self.levels)

    def parts(self, arena: Arena, blocks: int) -> dict[str, Scratch | None]:
        if blocks == 1:
            return dict.fromkeys(("part_key", "part_u", "part_v", "part_held"))
        cells = 2 * blocks * self.columns
        return {
            "part_key": arena.take(ElementKind.I64, 2 * blocks),
            "part_u": arena.take(self.carried, cells),
            "part_v": arena.take(ElementKind.I64, cells) if self._tracked else None,
            "part_held": arena.take(ElementKind.I64, 2 * blocks),
        }

    def steps(self, arena: Arena, tensors: dict[str, Any]) -> list[Step | Sort]:
        """`tensors`: source, out, index, grad, keys, order, rows, factor, gate, and their loops.
        Without `out` parts are made, at one level."""
        if not self.positions * self.columns * self.groups:
            return []
        pairs = self.state == "sum" and self.element is ElementKind.F32
        tile = (PAIRS if pairs else RUNS)[self.columns]
        across = ceil_div(self.columns, tile.block)
        arguments = {
            "grad": None,
            "padding": None,
            "ddof": None,
            "mean": None,
            "own": None,
            "SHIFT": None,
            **{f"{name}_{part}": () for name in ("grad", "own") for part in _LOOPS},
            "shift": None,
            **NO_FACTOR,
            "index_strides": tensors["out_strides"],
            "index_steps": tensors["out_steps"],
            **tensors,
            "groups": self.groups,
            "columns": self.columns,
            "blocks": across,
            "STATE": self.state,
            "SIGN": self.sign,
            "MEAN": self.mean,
            "ROOT": self.root,
            "DIVIDE": self.divide,
            "KEEP": self.keep,
            "WINNERS": self.winners,
            "WIDE": wide(self.carried),
            "OUT": wide(_result(tensors["out"])),
            "P": tile.rows,
            "B": tile.block,
        }
        found: list[Step | Sort] = []
        old: dict[str, Any] = dict.fromkeys(("old_u", "old_v", "old_held"))
        for level in self.levels[: 1 if tensors["out"] is None else None]:
            parts = self.parts(arena, level.blocks)
            own = {**old, **parts, "count": level.positions, "length": level.length}
            grid = level.blocks * across
            traffic = self._traffic(level, bool(found))
            found.append(Step(reduce, grid, {**arguments, **own}, tile.warps, traffic))
            old = {f"old_{part}": parts[f"part_{part}"] for part in ("u", "v", "held")}
            arguments |= {"keys": parts["part_key"], "order": None, "factor": None}
            arguments |= {"shift": None, "mean": None, "own": None, "SHIFT": None}
            arguments |= {f"own_{part}": () for part in _LOOPS}
            arguments |= {"keys_extents": (2 * level.blocks,), "keys_strides": (1,)}
            arguments |= NO_FACTOR
        return found

    def _traffic(self, level: Level, parts: bool) -> int:
        """Rows of positions and of groups; or two parts of every block, read and written."""
        cell = self.carried.itemsize + 8 * self._tracked
        if parts:
            return level.positions * (self.columns * cell + 16)
        groups = min(self.groups, self.positions)
        size = (self.positions + groups) * self.columns * self.element.itemsize
        return size + 16 * self.positions + 2 * level.blocks * self.columns * cell
