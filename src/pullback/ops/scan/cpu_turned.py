"""Turning a tile along the axis: steps in memory to columns, and back, for cpu_quads.

Column k holds step k of each quad. A walk against the order of memory has its rows and its columns
in the other order, which costs nothing.
"""

from typing import Final

from llvmlite import ir

from pullback.cpu.emit import I64, shuffle
from pullback.cpu.tiles import Tile, joined
from pullback.cpu.transfer import block_at, by_step, gathered, lane_bytes, lowest, scattered, stored

STEPS: Final = 4

# A square of four rows: pairs of rows exchange elements, then pairs of pairs. Lanes of 32 bits stay
# within 128 bits that way.
_LOW, _HIGH, _LEFT, _RIGHT = (0, 4, 1, 5), (2, 6, 3, 7), (0, 1, 4, 5), (2, 3, 6, 7)


def square(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Four rows of four as four columns, and back."""
    pairs = [
        (shuffle(b, rows[0], rows[1], half), shuffle(b, rows[2], rows[3], half))
        for half in (_LOW, _HIGH)
    ]
    return [shuffle(b, u, v, half) for u, v in pairs for half in (_LEFT, _RIGHT)]


class Turned:
    """A tile along the axis: its lanes in memory, and as columns one after the other."""

    def __init__(self, b: ir.IRBuilder, tile: Tile, W: int):
        self.b, self.tile, self.W = b, tile, W
        self.row = ir.VectorType(tile.raw.element, STEPS)

    def _places(self, back: bool) -> list[ir.Value]:
        """Where the rows of the tile begin, in the order of the walk."""
        n = STEPS * self.W
        begin = lowest(self.b, self.tile.i, n) if back else self.tile.i
        places = [self.b.add(begin, I64(k)) for k in range(0, n, self.row.count)]
        return places[::-1] if back else places

    def _contiguous(self, back: bool) -> ir.Value:
        b = self.b
        rows = [
            b.load(block_at(b, self.tile.p, at, self.row), align=lane_bytes(self.row))
            for at in self._places(back)
        ]
        columns = square(b, rows)
        return joined(b, columns[::-1] if back else columns)

    def _store_contiguous(self, v: ir.Value, back: bool) -> None:
        b, W = self.b, self.W
        columns = [shuffle(b, v, v, range(k * W, (k + 1) * W)) for k in range(STEPS)]
        rows = square(b, columns[::-1] if back else columns)
        for at, row in _in_memory_order(zip(self._places(back), rows, strict=True), back):
            stored(b, self.tile.p, at, row, self.tile.streaming)

    def columns(self, v: ir.Value) -> ir.Value:
        """A tile in the order of the walk as its columns."""
        order = [l * STEPS + k for k in range(STEPS) for l in range(self.W)]
        return shuffle(self.b, v, v, order)

    def steps(self, v: ir.Value) -> ir.Value:
        order = [k * self.W + l for l in range(self.W) for k in range(STEPS)]
        return shuffle(self.b, v, v, order)

    def load(self) -> ir.Value:
        t, n = self.tile, I64(STEPS * self.W)
        return by_step(
            self.b,
            t.step,
            lambda: self._contiguous(False),
            lambda: self._contiguous(True),
            lambda: self.columns(gathered(self.b, t.p, t.i, t.step, n, t.raw)),
        )

    def store(self, v: ir.Value) -> None:
        t, n = self.tile, I64(STEPS * self.W)
        by_step(
            self.b,
            t.step,
            lambda: self._store_contiguous(v, False),
            lambda: self._store_contiguous(v, True),
            lambda: scattered(self.b, t.p, t.i, t.step, n, self.steps(v)),
        )


def _in_memory_order(rows, back: bool) -> list:
    """Stores in the order of memory: lines past the cache are then filled at once."""
    return list(rows)[::-1] if back else list(rows)
