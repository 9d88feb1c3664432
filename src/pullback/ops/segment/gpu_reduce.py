"""A reduction over groups as steps: shared by segments, and by embeddings and their bags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pullback.contract.element import ElementKind
from pullback.gpu.program import ALIGNMENT, Arena, Scratch, Sort, Step, Steps, Tile, ceil_div
from pullback.gpu.tile import wide
from pullback.ops.segment.gpu_kernels import finish, reduce
from pullback.tensor.layout import merge

# By columns: rows of a group at a time, and columns.
ROWS = Steps(
    (1, Tile(128, 1, 4)), (8, Tile(64, 8, 4)), (32, Tile(16, 32, 4)), (None, Tile(8, 128, 4))
)
# The same where only pieces are wanted: products in f64, which would spill.
PIECES = Steps(*ROWS.entries[:-1], (None, Tile(16, 64, 4)))
# Groups at a time, where their pieces are joined: two cells a thread, more would spill in f64.
GROUPS = Steps((1, Tile(128, 1, 4)), (8, Tile(32, 8, 4)), (None, Tile(8, 32, 4)))
PIECE = 1024  # positions of a piece


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


def dense(name: str, rows: int, columns: int) -> dict[str, Any]:
    """The same for scratch of rows by columns."""
    return {
        f"{name}_extents": (rows,),
        f"{name}_strides": (columns,),
        f"{name}_columns": (columns,),
        f"{name}_steps": (1,),
    }


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
    divide: bool = False
    fill: float | None = None
    keep: bool = False
    winners: bool = False
    piece: int = PIECE

    @property
    def pieces(self) -> int:
        return self.groups + self.positions // self.piece

    @property
    def is_cut(self) -> bool:
        """Whether a group may have more than one piece."""
        return self.positions >= self.piece

    @property
    def nbytes(self) -> int:
        size = self.pieces * (2 * 8 * self.columns + 8) if self.is_cut else 0
        return size + 4 * ALIGNMENT

    def parts(self, arena: Arena) -> dict[str, Scratch]:
        count = self.pieces if self.is_cut else 0
        return {
            "part_u": arena.take(self.carried, count * self.columns),
            "part_v": arena.take(ElementKind.I64, count * self.columns),
            "part_held": arena.take(ElementKind.I64, count),
        }

    def steps(self, arena: Arena, tensors: dict[str, Any]) -> list[Step | Sort]:
        """`tensors`: source, out, index, offsets, order, rows, factor, gate, and their loops."""
        if not self.groups * self.columns:
            return []
        pieces_only = tensors["out"] is None
        tile = (PIECES if pieces_only else ROWS)[self.columns]
        joint = GROUPS[self.columns]
        shared = {
            "index_strides": tensors["out_strides"],
            "index_steps": tensors["out_steps"],
            **tensors,
            **self.parts(arena),
            "groups": self.groups,
            "columns": self.columns,
            "empty": 0.0 if self.fill is None else float(self.fill),
            "STATE": self.state,
            "MEAN": self.mean,
            "FILL": self.fill is not None,
            "KEEP": self.keep,
            "WINNERS": self.winners,
            "WIDE": wide(self.carried),
            "L": self.piece,
        }
        blocks = ceil_div(self.columns, tile.block)
        own = {
            "blocks": blocks,
            "bits": self.groups.bit_length(),
            "factor_extents": (),
            "factor_strides": (),
            **{name: tensors[name] for name in tensors if name.startswith("factor_")},
            "SIGN": self.sign,
            "DIVIDE": self.divide,
            "P": min(tile.rows, self.piece),
            "B": tile.block,
        }
        size = self.element.itemsize
        traffic = (self.positions + self.groups) * self.columns * size + 8 * self.positions
        found: list[Step | Sort] = [
            Step(reduce, self.pieces * blocks, {**shared, **own}, tile.warps, traffic)
        ]
        if self.is_cut and not pieces_only:
            blocks = ceil_div(self.columns, joint.block)
            own = {"blocks": blocks, "P": joint.rows, "B": joint.block}
            left = {k: v for k, v in shared.items() if k != "order" and not k.startswith("factor")}
            grid = ceil_div(self.groups, joint.rows) * blocks
            traffic = 16 * self.positions // self.piece * self.columns + 16 * self.groups
            found.append(Step(finish, grid, {**left, **own}, joint.warps, traffic))
        return found
