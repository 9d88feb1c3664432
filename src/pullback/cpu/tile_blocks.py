"""Tiles in blocks: a tile holds several blocks of steps, and a block is what one tree covers.

in_blocks(f, tiles, state, block, L)       f(tiles, state, L) -> tile, state on each block
in_blocks_back(f, tiles, state, block, L)  the same, last block first
block_by_block(tile, cursors, size, state, rows, block, L)   a tile as several small ones
shortened(size, k)                         what is left of a size k steps on
"""

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I64, Lane, Vec, inlined, op, shuffle
from pullback.cpu.tiles import by_type, moved
from pullback.cpu.vector import join


@op
def halved(tiles: types.BaseTuple, k: Lane):
    """The earlier (0) or later (1) steps of each tile."""
    parts = types.Tuple([Vec(t.dtype, t.n // 2) for t in tiles])

    def emit(b, tiles_, _k):
        kinds = [t.llvm for t in parts]
        same = isinstance(parts, types.UniTuple)
        kind = ir.ArrayType(kinds[0], len(kinds)) if same else ir.LiteralStructType(kinds)
        out = ir.Constant(kind, ir.Undefined)
        for i, t in enumerate(parts):
            whole = b.extract_value(tiles_, i)
            start = k.literal_value * t.n
            out = b.insert_value(out, shuffle(b, whole, whole, range(start, start + t.n)), i)
        return out

    return parts(tiles, k), emit


@by_type
def in_blocks(f, tiles, state, block, L):
    """f(tiles, state, L) -> tile, state, block after block of that many steps: the order of the
    blocks is part of the result, how many there are to a tile is not."""
    if tiles[0].n == block.literal_value * L.literal_value:
        return lambda f, tiles, state, block, L: f(tiles, state, L)

    def halves(f, tiles, state, block, L):
        u, state = in_blocks(f, halved(tiles, 0), state, block, L)
        v, state = in_blocks(f, halved(tiles, 1), state, block, L)
        return join(u, v), state

    return halves


@by_type
def in_blocks_back(f, tiles, state, block, L):
    """The same, last block first."""
    if tiles[0].n == block.literal_value * L.literal_value:
        return lambda f, tiles, state, block, L: f(tiles, state, L)

    def halves(f, tiles, state, block, L):
        v, state = in_blocks_back(f, halved(tiles, 1), state, block, L)
        u, state = in_blocks_back(f, halved(tiles, 0), state, block, L)
        return join(u, v), state

    return halves


@by_type
def shortened(size, k):
    """What is left of a size k steps on."""
    if isinstance(size, types.NoneType):
        return lambda size, k: None
    return lambda size, k: (size[0] - k, size[1])


@by_type
def steps_of(size, rows):
    """How many of its steps a tile has."""
    if isinstance(size, types.NoneType):
        return lambda size, rows: rows
    return lambda size, rows: min(size[0], rows)


@op
def opaque(n: types.Integer):
    """n, as a number that the compiler does not know: a loop up to it is not unrolled."""

    def emit(b, n_):
        kind = ir.FunctionType(I64, [I64])
        return b.asm(kind, "", "=r,0", [n_], False)

    return types.int64(types.int64), emit


@inlined
def block_by_block(tile, cursors, size, state, rows, block, L):
    """A tile as several of `block` steps: for what is rare, in less code."""
    for k in range(0, opaque(steps_of(size, rows)), block):
        state = tile(moved(cursors, k, 0), shortened(size, k), state, L)
    return state
