"""How scans are cut on the GPU, and what their steps share: tiles, chunks, states, edges.

Tiles run along the axis; few long rows are cut into chunks of tiles besides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from pullback.contract.element import ElementKind
from pullback.gpu.program import (
    ALIGNMENT,
    ENOUGH_PROGRAMS,
    Arena,
    Operand,
    Scratch,
    Step,
    Steps,
    Tile,
    ceil_div,
)
from pullback.ops.scan.gpu_kernels import edges, thread
from pullback.tensor.layout import AxisLoops

# Along the axis where its elements are neighbours, else across the rows, where those are.
ALONG = Steps(
    (16, Tile(64, 16, 4)),
    (64, Tile(16, 64, 4)),
    (128, Tile(8, 128, 4)),
    (256, Tile(4, 256, 4)),
    (None, Tile(1, 1024, 4)),
)
ACROSS = Steps((16, Tile(64, 16, 8)), (None, Tile(32, 32, 8)))
# Backwards hold more at a time.
ALONG_BACK = Steps(
    (16, Tile(32, 16, 4)), (64, Tile(8, 64, 4)), (128, Tile(4, 128, 4)), (None, Tile(1, 512, 4))
)
ACROSS_BACK = Steps((None, Tile(32, 32, 8)))
STATES = Tile(1, 512, 4)
SMALL = Tile(16, 64, 4)

# Shorter rows than this many tiles are not worth three passes.
CUT_FROM = 8


@dataclass(frozen=True)
class Cut:
    """How rows are cut: tiles along the axis, and chunks of tiles where rows are few and long."""

    rows: int
    extent: int
    tile: Tile

    @property
    def groups(self) -> int:
        return ceil_div(self.rows, self.tile.rows)

    @property
    def tiles(self) -> int:
        return ceil_div(self.extent, self.tile.block)

    @cached_property
    def chunk(self) -> int:
        """Tiles per chunk."""
        if self.groups >= ENOUGH_PROGRAMS or self.tiles < CUT_FROM:
            return max(self.tiles, 1)
        return ceil_div(self.tiles, ceil_div(2 * ENOUGH_PROGRAMS, self.groups))

    @property
    def chunks(self) -> int:
        return ceil_div(self.tiles, self.chunk)


_TABLES = {
    (False, False): ALONG,
    (False, True): ALONG_BACK,
    (True, False): ACROSS,
    (True, True): ACROSS_BACK,
}


def cut_of(desc: Any, columns: bool, backward: bool) -> Cut:
    """The cut for rows that lie along memory, or across it."""
    extent = desc.input_shape[desc.scan_axis] if desc.input_shape else 1
    rows = prod(n for axis, n in enumerate(desc.input_shape) if axis != desc.scan_axis)
    return Cut(rows, extent, _TABLES[columns, backward][extent])


def scratch_bytes(desc: Any, backward: bool) -> int:
    """Scratch for either orientation, so that it follows from the descriptor alone."""
    needs = []
    for columns in (False, True):
        cut = cut_of(desc, columns, backward)
        states = cut.chunks if cut.chunks > 1 else 0
        borders = cut.tiles if backward and cut.tiles > 1 else 0
        if states + borders:
            flags = 4 * (states + borders) * (desc.num_pieces is not None)
            parts = 16 * (states + borders) + 8 * borders + flags
            needs.append(cut.rows * parts + 8 * ALIGNMENT)
    return max(needs, default=0)


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor of a scan: in a slot of the plan, or staged in scratch."""

    operand: Operand | Scratch
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pieces:
    """A flag for each position at which a piece begins, and the status of the check of borders."""

    heads: Scratch | None = None
    gate: Scratch | None = None

    @property
    def arguments(self) -> dict[str, Scratch | None]:
        return {"heads": self.heads, "gate": self.gate}


WHOLE = Pieces()
NO_START: dict[str, Any] = {"start_u": None, "start_v": None}
NO_TOTAL: dict[str, Any] = {"total_u": None, "total_v": None, "total_f": None}


class Builder:
    """Collects the steps of one scan and the scratch they share."""

    def __init__(self, desc: Any, cut: Cut, state: str, arena: Arena, pieces: Pieces) -> None:
        self.desc, self.cut, self.state = desc, cut, state
        self.steps: list[Step] = []
        self.arena, self.pieces = arena, pieces

    def other(self, carried: ElementKind) -> ElementKind:
        """The type of the second half of a state: positions of extrema."""
        if self.state not in ("first", "last"):
            return carried
        return ElementKind.I32 if self.cut.extent < 2**31 else ElementKind.I64

    def totals(self, count: int, u: ElementKind, v: ElementKind) -> dict[str, Any]:
        """Scratch for the states of `count` parts of every row, and for their flags."""
        size = self.cut.rows * count
        cut = self.pieces.heads is not None
        return {
            "total_u": self.arena.take(u, size),
            "total_v": self.arena.take(v, size),
            "total_f": self.arena.take(ElementKind.I32, size) if cut else None,
        }

    def add(self, kernel: Any, grid: int, reads: float, arguments: dict[str, Any]) -> None:
        """A step over tiles; `reads` counts passes over a tensor of the plan's element."""
        size = self.cut.rows * self.cut.extent * self.desc.element.itemsize
        tile = {"R": self.cut.tile.rows, "B": self.cut.tile.block}
        step = Step(kernel, grid, {**arguments, **tile}, self.cut.tile.warps, int(reads * size))
        self.steps.append(step)

    def join(self, totals: dict[str, Any], count: int, state: str) -> dict[str, Any]:
        """Join the states of parts along their rows: what comes before the parts after them."""
        tile = SMALL if count <= SMALL.block else STATES
        us, vs, fs = totals.values()
        arguments = {"us": us, "vs": vs, "fs": fs, "rows": self.cut.rows, "count": count}
        arguments["STATE"] = state
        shape = {"R": tile.rows, "B": tile.block}
        grid = ceil_div(self.cut.rows, tile.rows)
        traffic = 2 * (us.count * us.element.itemsize + vs.count * vs.element.itemsize)
        self.steps.append(Step(thread, grid, {**arguments, **shape}, tile.warps, traffic))
        return {"start_u": us, "start_v": vs}

    def edges(self, tensors: dict[str, Any], name: str, last: bool) -> Scratch:
        """The first or last element of every tile, in the order of the forward scan."""
        cut = self.cut
        taken = self.arena.take(self.desc.element, cut.rows * cut.tiles)
        arguments = {
            "source": tensors[name],
            "step_source": tensors[f"step_{name}"],
            "strides": tensors[f"strides_{name}"],
            "extents": tensors["extents"],
            "edge": taken,
            "block": cut.tile.block,
            "shift": cut.tile.block - 1 if last != self.desc.reverse else 0,
            "REVERSE": self.desc.reverse,
            **self.extents,
            "R": SMALL.rows,
            "B": SMALL.block,
        }
        grid = ceil_div(cut.rows, SMALL.rows) * ceil_div(cut.tiles, SMALL.block)
        traffic = 2 * taken.count * taken.element.itemsize
        self.steps.append(Step(edges, grid, arguments, SMALL.warps, traffic))
        return taken

    @property
    def extents(self) -> dict[str, int]:
        return {"n": self.cut.extent, "rows": self.cut.rows, "tiles": self.cut.tiles}

    def whole(self) -> dict[str, int]:
        return {"chunks": self.cut.chunks, "chunk": self.cut.chunk}


def tensor_arguments(
    name: str, operand: Operand | Scratch | None, loops: AxisLoops, number: int
) -> dict[str, Any]:
    """A tensor's pointer, step and strides, as kernels name them."""
    short = "i" if name == "indices" else name
    return {
        name: operand,
        f"step_{short}": loops.steps[number],
        f"strides_{short}": loops.rest.strides[number],
    }
