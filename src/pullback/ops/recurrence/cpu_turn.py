"""Turning tiles: rows of a tensor become lanes of vectors, and the other way round."""

from llvmlite import ir
from numba import types
from numba.extending import register_jitable

from pullback.cpu.emit import I64, LLVM_ELEMENT, op, shuffle
from pullback.cpu.memory import Index, Pointer
from pullback.cpu.transfer import block_at, lane_bytes

LANES = 16  # rows of a tile
TILE = 64  # elements along the axis
SIDE = 8  # of the squares a tile is turned in

# Rows meet in pairs (r, r + 1), then (r, r + 2), then (r, r + 4); each pair exchanges halves of
# ever larger groups of lanes, within 128 bits of f32 as long as it can.
_ROUNDS = (
    (1, (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)),
    (2, (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)),
    (4, (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)),
)
# Where the rounds leave row r of the result.
_PLACES = (0, 2, 1, 3, 4, 6, 5, 7)


@op
def turn_square(p: Pointer, i: Index, row: Index, q: Pointer, j: Index, target_row: Index):
    """SIDE rows of SIDE elements, from p[i] on `row` apart, become columns from q[j] on."""
    kind = ir.VectorType(LLVM_ELEMENT[p.dtype], SIDE)

    def emit(b, p_, i_, row_, q_, j_, target_):
        def place(memory, start, stride, r):
            return block_at(b, memory, b.add(start, b.mul(stride, I64(r))), kind)

        size = lane_bytes(kind)
        v = [b.load(place(p_, i_, row_, r), align=size) for r in range(SIDE)]
        for apart, low, high in _ROUNDS:
            for r in (r for r in range(SIDE) if not r & apart):
                pair = v[r], v[r + apart]
                v[r], v[r + apart] = shuffle(b, *pair, low), shuffle(b, *pair, high)
        for r in range(SIDE):
            b.store(v[_PLACES[r]], place(q_, j_, target_, r), align=size)

    if p.dtype != q.dtype:
        return None
    return types.void(p, types.int64, types.int64, q, types.int64, types.int64), emit


@register_jitable
def squares(walk, rows, count):
    """How many rows, and how many elements of each, go in squares."""
    _, _, along, _ = walk
    if along != 1 and along != -1:
        return 0, 0
    return rows & -SIDE, count & -SIDE


@register_jitable
def turn_in(walk, tile, rows, first, past):
    """Elements first..past of each row into the tile, the rows as lanes."""
    p, start, along, across = walk
    whole_rows, whole = squares(walk, rows, past - first)
    for r in range(0, whole_rows, SIDE):
        for n in range(0, whole, SIDE):
            here, there = start + r * across + (first + n) * along, n * LANES + r
            if along == 1:
                turn_square(p, here, across, tile, there, LANES)
            else:
                last = SIDE - 1
                turn_square(p, here - last, across, tile, there + last * LANES, -LANES)
    for r in range(rows):
        here = start + r * across + first * along
        for n in range(whole if r < whole_rows else 0, past - first):
            tile[n * LANES + r] = p[here + n * along]


@register_jitable
def turn_out(walk, tile, rows, first, past):
    """The lanes of the tile to elements first..past of each row."""
    p, start, along, across = walk
    whole_rows, whole = squares(walk, rows, past - first)
    for r in range(0, whole_rows, SIDE):
        for n in range(0, whole, SIDE):
            here, there = start + r * across + (first + n) * along, n * LANES + r
            if along == 1:
                turn_square(tile, there, LANES, p, here, across)
            else:
                last = SIDE - 1
                turn_square(tile, there + last * LANES, -LANES, p, here - last, across)
    for r in range(rows):
        here = start + r * across + first * along
        for n in range(whole if r < whole_rows else 0, past - first):
            p[here + n * along] = tile[n * LANES + r]
