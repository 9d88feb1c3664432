"""Running products of f16 and bf16: octets of steps in f32, carried from one to the next in f64.

An octet is *tame* if its factors are neither tiny nor huge: then its products are normal numbers of
f32, and a half has so few bits that their roundings do not show. Those of what is carried would, in
the end: the product of two halves has room in f32, of four in f64, so that only one rounding of f64
goes from octet to octet. An octet that is not tame goes step by step in f64. Which it is follows
from the factors of one line alone, so all layouts agree.
"""

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import pointer
from pullback.cpu.memory import fence
from pullback.cpu.program import TENSORS
from pullback.cpu.sweep import cursor, length, strip_of
from pullback.cpu.tile_blocks import in_blocks, opaque
from pullback.cpu.tiles import by_type, load, moved, spread, stack, store
from pullback.cpu.vector import (
    absolute,
    all_lanes,
    any_lane,
    is_nan,
    like,
    maximum,
    minimum,
    select,
    splat,
    to_f32,
    to_f64,
)
from pullback.ops.scan.cpu_octets import (
    OCTET,
    ROWS,
    both_quads,
    either_of,
    in_both_quads,
    is_tame,
    load_octets,
    octets_to_steps,
    quads,
    steps_to_octets,
    store_octets,
    sweep_octets,
)
from pullback.ops.scan.cpu_quads import chained, common_step, straight
from pullback.ops.scan.cpu_sum import one_nan

LEAST, LIMIT = 2.0**-14, 2.0**15

# What is carried has a wider range than f32: it is brought there, and the products back.
# Where it lies well inside, so do its products with a quad; nothing brings back what is next to 0.
LEAST_PLAIN, LIMIT_PLAIN, NOTHING = 2.0**-66, 2.0**64, 2.0**-270
SMALL, LARGE = 2.0**-126, 2.0**127
UP, DOWN = 2.0**126, 2.0**-120
UP_AGAIN, DOWN_AGAIN = 2.0**-126, 2.0**120


@inlined
def times(carry, totals):
    return carry * totals[0]


@inlined
def scaled(c, v):
    return c * v[0], c * v[1], c * v[2], c * v[3]


@inlined
def multiplied(u, v):
    return u[0] * v[0], u[1] * v[1], u[2] * v[2], u[3] * v[3]


@inlined
def selected(mask, u, v):
    return (
        select(mask, u[0], v[0]),
        select(mask, u[1], v[1]),
        select(mask, u[2], v[2]),
        select(mask, u[3], v[3]),
    )


@inlined
def products(v):
    """Of the steps of each quad so far."""
    second = v[0] * v[1]
    third = second * v[2]
    return v[0], second, third, third * v[3]


@inlined
def exact_quads(p, v, L):
    """The products of the first and of the second quads of octets, without a rounding."""
    whole = to_f64(v[0] * v[1]) * to_f64(v[2] * v[3])
    return quads(p, whole, 0, L), quads(p, whole, 1, L)


@inlined
def is_plain(c):
    """Whether what enters octets may be multiplied by their products one by one."""
    size = absolute(c)
    return (size >= LEAST_PLAIN) & (size < LIMIT_PLAIN) | (size < NOTHING)


@inlined
def plain(p, c, first, v, L):
    return scaled(both_quads(p, to_f32(c), to_f32(c * first), L), v)


@inlined
def scales(c):
    """What brings c into the range of f32, and what brings it back."""
    size, one = absolute(c), like(c, 1.0)
    small, large = size < SMALL, ~(size < LARGE)
    there, back = select(large, DOWN, one), select(large, DOWN_AGAIN, one)
    return select(small, UP, there), select(small, UP_AGAIN, back)


@inlined
def brought_back(p, c, first, v, L):
    """The same for any c."""
    there, back = scales(c)
    u, w = to_f32(c * there), to_f32(back)
    inside = scaled(both_quads(p, like(u, 1.0), to_f32(first), L), v)
    far = scaled(both_quads(p, w, w, L), scaled(both_quads(p, u, u, L), inside))
    one_by_one = is_plain(c)
    return selected(both_quads(p, one_by_one, one_by_one, L), plain(p, c, first, v, L), far)


@inlined
def product_tile(at, place, state, rows, L):
    """Whether the tile is tame, and what is carried out of it; if not, nothing is written."""
    x, _ = at
    if not is_tame(x, rows, L):
        return False, state
    found, after = _found(x, state, rows, L)
    if any_lane(is_nan(after[0])):
        return False, state
    _store_found(at, found, L)
    return True, after


@inlined
def _found(x, state, rows, L):
    """What enters the octets of a tame tile, their first quads and products; and the state."""
    factors = load_octets(x, None, 1.0, rows, L)
    first, second = exact_quads(x[0], factors, L)
    c, carry = chained(times, state[0], (first * second,), L)
    return (c, first, products(factors)), (carry,)


@inlined
def _store_found(at, found, L):
    (x, y), (c, first, v) = at, found
    if all_lanes(is_plain(c)):
        store_octets(y, None, plain(x[0], c, first, v, L), 1, L)
    else:
        store_octets(y, None, brought_back(x[0], c, first, v, L), 1, L)


@inlined
def _tame_tiles(at, k, n, state, way):
    """Tame tiles from step k on. One is begun before the one before it is finished: what a tile
    takes from its beginning to its end takes longer than to do as much at once."""
    none = splat(0.0, 4)
    zeros = to_f32(splat(0.0, OCTET))
    found, begun, tame = (none, none, (zeros, zeros, zeros, zeros)), False, True
    while tame:
        here = straight(at, k, way)
        tame = k + ROWS <= n and is_tame(here[0], ROWS, 1)
        old, after = found, state
        if tame:
            found, after = _found(here[0], state, ROWS, 1)
            tame = not any_lane(is_nan(after[0]))
        if begun:
            _store_found(straight(at, k - ROWS, way), old, 1)
        if tame:
            state, begun, k = after, True, k + ROWS
    return k, state


@by_type
def _sweep(at, n, lines, states, L):
    if L.literal_value == 1:
        return _along
    return lambda at, n, lines, states, L: sweep_octets(
        product_tile, product_octet, product_either, at, n, lines, states, L
    )


def _along(at, n, lines, states, L):
    state, k, step = states[0], 0, common_step(at)
    while k < n:
        if step == 1:
            k, state = _tame_tiles(at, k, n, state, 1)
        elif step == -1:
            k, state = _tame_tiles(at, k, n, state, -1)
        for _ in range(opaque(min(n - k + OCTET - 1, ROWS) // OCTET)):
            state = product_octet(moved(at, k, 0), (k, 0), (n - k, 1), state, L)
            k += OCTET
    states[0] = state


@inlined
def next_product(tiles, carry, L):
    carry = carry * tiles[0]
    return carry, carry


@inlined
def tame_lines(v, L):
    u = absolute(v[0]), absolute(v[1]), absolute(v[2]), absolute(v[3])
    least = minimum(minimum(u[0], u[1]), minimum(u[2], u[3]))
    most = maximum(maximum(u[0], u[1]), maximum(u[2], u[3]))
    return in_both_quads((least >= LEAST) & (most < LIMIT), L)


@inlined
def product_octet(at, place, size, state, L):
    """The same for a single octet, tame or not."""
    x, y = at
    steps = load(x, size, 1.0, OCTET, L)
    u = steps_to_octets(steps, L)
    tame, v = tame_lines(u, L), products(u)
    first, second = exact_quads(x[0], u, L)
    carry = times(state[0], (first * second,))
    fast = octets_to_steps(brought_back(x[0], state[0], first, v, L), L)
    slow, after = in_blocks(next_product, (to_f64(steps),), state[0], 1, L)
    store(y, size, one_nan(select(spread(tame, steps), fast, to_f32(slow))), L)
    return (select(tame, carry, after),)


product_either = either_of(product_tile, product_octet)


@inlined
def cumprod_of_halves(task, lo, hi, cells, L):
    p, q = pointer(task, TENSORS), pointer(task, TENSORS + 1)
    start = (splat(1.0, L),)
    states = stack(start, cells)
    for item in range(lo, hi):
        line, lines = strip_of(task, item)
        for c in range(0, lines, L):
            states[c // L] = start
        at = cursor(task, p, 0, line, L), cursor(task, q, 1, line, L)
        _sweep(at, length(task), lines, states, L)
    fence()
