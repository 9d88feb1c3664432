"""From step to step and from block to block: what the definitions of scans are made of.

running(f, v)           v0, f(v0, v1), f(f(v0, v1), v2), ... over the columns of a block
each(f, c, v)           f(c, v0), f(c, v1), ...
both(f, u, v)           f(u0, v0), f(u1, v1), ...
passed_on(combine, p, state, total, walk)
                        what enters the block of each lane, and the state after all of them
step_numbers(p, first, v, walk)         the number of each lane's first step, as int64
"""

from llvmlite import ir
from numba import types

from pullback.cpu.emit import Lane, Vec, op, shuffle, splatted
from pullback.cpu.tile_rows import ALONG, packed, size_of, steps_of_block
from pullback.cpu.tiles import Pointer, by_type
from pullback.cpu.transpose import lane_order


@by_type
def running(f, v):
    if len(v) == 4:

        def four(f, v):
            b = f(v[0], v[1])
            c = f(b, v[2])
            return v[0], b, c, f(c, v[3])

        return four

    def eight(f, v):
        u = running(f, (v[0], v[1], v[2], v[3]))
        e = f(u[3], v[4])
        g = f(e, v[5])
        h = f(g, v[6])
        return u[0], u[1], u[2], u[3], e, g, h, f(h, v[7])

    return eight


@by_type
def each(f, c, v):
    if len(v) == 4:
        return lambda f, c, v: (f(c, v[0]), f(c, v[1]), f(c, v[2]), f(c, v[3]))
    return lambda f, c, v: each(f, c, v[:4]) + each(f, c, v[4:])


@by_type
def both(f, u, v):
    if len(v) == 4:
        return lambda f, u, v: (f(u[0], v[0]), f(u[1], v[1]), f(u[2], v[2]), f(u[3], v[3]))
    return lambda f, u, v: both(f, u[:4], v[:4]) + both(f, u[4:], v[4:])


@op
def _part(tiles: types.BaseTuple, k: Lane):
    """The lower (0) or upper (1) half of the lanes of each."""
    parts = types.Tuple([Vec(t.dtype, t.n // 2) for t in tiles])

    def emit(b, tiles_, _k):
        values = []
        for i, t in enumerate(parts):
            whole, start = b.extract_value(tiles_, i), k.literal_value * t.n
            values.append(shuffle(b, whole, whole, range(start, start + t.n)))
        return packed(b, values)

    return parts(tiles, k), emit


@op
def _joined(u: types.BaseTuple, v: types.BaseTuple):
    wholes = types.Tuple([Vec(t.dtype, 2 * t.n) for t in u])

    def emit(b, u_, v_):
        pairs = ((b.extract_value(u_, i), b.extract_value(v_, i)) for i in range(len(u)))
        return packed(b, [shuffle(b, x, y, range(2 * x.type.count)) for x, y in pairs])

    return wholes(u, v), emit


@by_type
def _chained(combine, state, total):
    """Lane after lane."""
    if total[0].n == 1:
        return lambda combine, state, total: (state, combine(state, total))

    def by_halves(combine, state, total):
        u, state = _chained(combine, state, _part(total, 0))
        v, state = _chained(combine, state, _part(total, 1))
        return _joined(u, v), state

    return by_halves


@op
def _in_order(p: Pointer, v: types.BaseTuple, there: Lane):
    """Lanes from the order of a tile to that of blocks (1), and back (0)."""
    order = lane_order(size_of(p), v[0].n)
    lanes = order if there.literal_value else [order.index(k) for k in range(len(order))]

    def emit(b, _p, v_, *_):
        parts = (b.extract_value(v_, i) for i in range(len(v)))
        return packed(b, [shuffle(b, x, x, lanes) for x in parts])

    return v(p, v, there), emit


@by_type
def passed_on(combine, p, state, total, walk):
    if walk.literal_value != ALONG:
        return lambda combine, p, state, total, walk: (state, combine(state, total))

    def lane_by_lane(combine, p, state, total, walk):
        entering, state = _chained(combine, state, _in_order(p, total, 1))
        return _in_order(p, entering, 0), state

    return lane_by_lane


@op
def step_numbers(p: Pointer, first: object, v: Vec, walk: Lane):
    numbers = Vec(types.int64, v.n)
    if isinstance(first, Vec):
        return numbers(p, first, v, walk), lambda b, _p, first_, *_: b.sext(first_, numbers.llvm)
    order = lane_order(size_of(p), v.n)
    apart = steps_of_block(p) if walk.literal_value == ALONG else 0

    def emit(b, _p, first_, *_):
        own = ir.Constant(numbers.llvm, [apart * order.index(k) for k in range(v.n)])
        return b.add(splatted(b, first_, v.n), own)

    return numbers(p, types.int64, v, walk), emit
