"""Turning a tile along the axis: steps in memory to columns, and back, for cpu_quads.

Column k holds step k of each quad. A walk against the order of memory has its rows and its columns
in the other order, which costs nothing.
"""

from typing import Final

from llvmlite import ir

from pullback.cpu.emit import I64, shuffle
from pullback.cpu.tiles import _joined, _Tile
from pullback.cpu.transfer import block_at, by_step, gathered, lane_bytes, lowest, scattered, stored
from pullback.ops.scan.cpu_pairs import joined_words, parted_words

STEPS: Final = 4

# A square of four rows: pairs of rows exchange elements, then pairs of pairs. Lanes of 32 bits stay
# within 128 bits that way.
_LOW, _HIGH, _LEFT, _RIGHT = (0, 4, 1, 5), (2, 6, 3, 7), (0, 1, 4, 5), (2, 3, 6, 7)


def _square(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Four rows of four as four columns, and back."""
    pairs = [
        (shuffle(b, rows[0], rows[1], half), shuffle(b, rows[2], rows[3], half))
        for half in (_LOW, _HIGH)
    ]
    return [shuffle(b, u, v, half) for u, v in pairs for half in (_LEFT, _RIGHT)]


_PAIRED = (0, 4, 1, 5, 2, 6, 3, 7)  # two rows of four 16-bit lanes, element by element
_SWAPPED = (4, 0, 5, 1, 6, 2, 7, 3)
_UNPAIRED = (0, 2, 4, 6, 1, 3, 5, 7)
_UNSWAPPED = (1, 3, 5, 7, 0, 2, 4, 6)


def _as(b: ir.IRBuilder, v: ir.Value, bits: int) -> ir.Value:
    """The same 128 bits in lanes of so many bits."""
    return b.bitcast(v, ir.VectorType(ir.IntType(bits), 128 // bits))


def _columns_of_halves(b: ir.IRBuilder, pairs: list[ir.Value], back: bool) -> ir.Value:
    """Four rows of four 16-bit lanes, two to a vector, as their columns one after the other."""
    u, v = (_as(b, shuffle(b, v, v, _SWAPPED if back else _PAIRED), 32) for v in pairs)
    low, high = (_as(b, shuffle(b, u, v, k), 64) for k in ((0, 4, 1, 5), (2, 6, 3, 7)))
    whole = shuffle(b, low, high, (3, 2, 1, 0) if back else (0, 1, 2, 3))
    return b.bitcast(whole, ir.VectorType(ir.IntType(16), 16))


def _pairs_of_halves(b: ir.IRBuilder, whole: ir.Value, back: bool) -> list[ir.Value]:
    """The way back."""
    whole = b.bitcast(whole, ir.VectorType(I64, 4))
    halves = ((3, 2), (1, 0)) if back else ((0, 1), (2, 3))
    u, v = (_as(b, shuffle(b, whole, whole, half), 32) for half in halves)
    pairs = (_as(b, shuffle(b, u, v, k), 16) for k in ((0, 2, 4, 6), (1, 3, 5, 7)))
    return [shuffle(b, v, v, _UNSWAPPED if back else _UNPAIRED) for v in pairs]


# bf16 is the upper half of f32: a shift and a mask part the two steps of each word of 32 bits.


def columns_of_words(b: ir.IRBuilder, raw: ir.Value, back: bool, element: ir.Type) -> ir.Value:
    even, odd = parted_words(b, raw)
    first = (2, 0, 10, 8, 6, 4, 14, 12) if back else (0, 2, 8, 10, 4, 6, 12, 14)
    columns = []
    for shift in (0, 1):
        v = shuffle(b, even, odd, [k + shift for k in first])
        if element != v.type.element:
            v = b.fpext(v, ir.VectorType(element, v.type.count))
        for k in (0, 2):
            low, high = (k, k + 1), (k + 4, k + 5)
            columns.append(shuffle(b, v, v, high + low if back else low + high))
    return _joined(b, columns[::-1] if back else columns)


def words_of_columns(b: ir.IRBuilder, columns: list[ir.Value], back: bool) -> ir.Value:
    order = (3, 7, 2, 6, 1, 5, 0, 4) if back else (0, 4, 1, 5, 2, 6, 3, 7)
    columns = columns[::-1] if back else columns
    return joined_words(
        b, shuffle(b, columns[0], columns[2], order), shuffle(b, columns[1], columns[3], order)
    )


class Turned:
    """A tile along the axis: its lanes in memory, and as columns one after the other."""

    def __init__(self, b: ir.IRBuilder, tile: _Tile, W: int):
        self.b, self.tile, self.W = b, tile, W
        self.halves = lane_bytes(tile.raw) == 2
        self.row = ir.VectorType(tile.raw.element, 8 if self.halves else 4)

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
        if self.halves:
            return _columns_of_halves(b, rows, back)
        columns = _square(b, rows)
        return _joined(b, columns[::-1] if back else columns)

    def _store_contiguous(self, v: ir.Value, back: bool) -> None:
        b, W = self.b, self.W
        if self.halves:
            rows = _pairs_of_halves(b, v, back)
        else:
            columns = [shuffle(b, v, v, range(k * W, (k + 1) * W)) for k in range(STEPS)]
            rows = _square(b, columns[::-1] if back else columns)
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
