"""Products over sorted rows, and their gradients: the product of the other rows of a segment.

Backward, a block is walked twice: forwards for the product of the rows before each row, kept on the
stack, and backwards for that of the rows after. Blocks of long segments multiply the product of all
other blocks onto the gradient they start from. No row is ever divided by.
"""

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, real, word
from pullback.cpu.memory import (
    as_f64_pointer,
    as_i64_pointer,
    filled,
    filled_wide,
    get,
    get_first,
    on_stack,
    put,
    put_first,
)
from pullback.cpu.vector import any_lane, splat, to_f64
from pullback.ops.segment.cpu_list import fetch_listed, over_positions
from pullback.ops.segment.cpu_panel import over_saved_panels, write_tile
from pullback.ops.segment.cpu_scaled import (
    factor,
    is_wild,
    keep,
    kept,
    normalised,
    one,
    steps_between,
    times,
    valued,
    within_reach,
)
from pullback.ops.segment.cpu_strip import (
    as_wide,
    load,
    others_lanes,
    product_lanes,
    store,
    tile_elements,
)
from pullback.ops.segment.cpu_walk import over_long_blocks, over_long_segments, over_segments
from pullback.ops.segment.cpu_words import (
    BLOCK,
    COLUMNS,
    EMPTY,
    LISTED,
    PARTIALS_AT,
    SAVED,
    SEGMENT_ROW,
    SOURCE,
    TARGET,
    scratch,
)

PARTS = 3  # a product: float, rounding error, exponent
PARTS_BACKWARD = 6  # of a block, and of all the others
STACK = BLOCK * 64  # for a product before each row of a block: 2 parts of 32 lanes, or 3 of 16


@inlined
def get_product(task, part, column, count, n):
    """The product in three parts; 1 in the lanes beyond count."""
    p, columns = as_f64_pointer(scratch(task, PARTIALS_AT)), word(task, COLUMNS)
    m, c, e = one(n)
    here = part * columns + column
    return (
        get_first(p, here, 1, count, m),
        get_first(p, here + columns, 1, count, c),
        get_first(p, here + 2 * columns, 1, count, e),
    )


@inlined
def put_product(task, part, column, count, product):
    p, columns = as_f64_pointer(scratch(task, PARTIALS_AT)), word(task, COLUMNS)
    here = part * columns + column
    put_first(p, here, 1, count, product[0])
    put_first(p, here + columns, 1, count, product[1])
    put_first(p, here + 2 * columns, 1, count, product[2])


@inlined
def row(p, i, along, count, n):
    """One row; 1 in the lanes beyond count."""
    if count >= n:
        return to_f64(get(p, i, along, n))
    return to_f64(get_first(p, i, along, count, filled(p, 1.0, n)))


@inlined
def by_row(p, product, i, along, count, n):
    """A product times one row, not normalised."""
    v, k = factor(p, row(p, i, along, count, n))
    return times(p, product, (v, splat(-0.0, n), k))


@inlined
def now_and_then(p, product, j):
    """Normalised after every few rows."""
    if j & steps_between(p) == steps_between(p):
        product = normalised(p, product)
    return product


@inlined
def multiply_rows(p, places, rows, at, along, count, n):
    """The product of the rows of a block in one strip. Normalising changes no bit but the exponent,
    so it waits until it must be."""
    product = one(n)
    for j in range(rows):
        fetch_listed(p, places, j, at, n)
        product = by_row(p, product, places[j] + at, along, count, n)
        if j & steps_between(p) == steps_between(p) and any_lane(is_wild(p, product[0])):
            product = normalised(p, product)
    return normalised(p, product)


# --- forward ------------------------------------------------------------------------------------


@inlined
def product_strip(task, state, block, at, along, column, count, n):
    places, source, target = state
    s, _, start, end, size, slot, _ = block
    where = s * word(task, SEGMENT_ROW) + at[1]
    if size == 0:
        empty = filled_wide(target, real(task, EMPTY), n)
        store(task, target, where, along[1], count, n, empty)
        return
    product = multiply_rows(source, places, end - start, at[0], along[0], count, n)
    if slot < 0:
        y = as_wide(target, valued(source, product))
        store(task, target, where, along[1], count, n, y)
    else:
        put_product(task, PARTS * slot, column, count, product)


@kernel
def products(task, lo, hi):
    """Items are places of the walk over segments and their rows."""
    source, target = pointer(task, SOURCE), pointer(task, TARGET)
    state = (on_stack(as_i64_pointer(0), LISTED), source, target)
    over_segments(task, lo, hi, product_lanes(source), product_strip, state, over_positions)


@inlined
def combine_strip(task, target, block, at, along, column, count, n):
    s, slot, blocks, _ = block
    product = one(n)
    for k in range(slot, slot + blocks):
        other = get_product(task, PARTS * k, column, count, n)
        product = normalised(target, times(target, product, other))
    y = as_wide(target, valued(target, product))
    store(task, target, s * word(task, SEGMENT_ROW) + at[1], along[1], count, n, y)


@kernel
def combine_products(task, lo, hi):
    """Long segments: the products of their blocks, in order."""
    over_long_segments(task, lo, hi, combine_strip, pointer(task, TARGET))


# --- backward -----------------------------------------------------------------------------------


@inlined
def to_rows(state, block, g, at, along, count, n):
    """A gradient, as a product, times the product of the other rows to each row of a block."""
    memory = on_stack(as_f64_pointer(0), STACK)
    rows = block[3] - block[2]
    if steps_between(state[5]) == 0 or not plain_to_rows(
        state, rows, memory, g, at, along, count, n
    ):
        scaled_to_rows(state, rows, memory, g, at, along, count, n)


@inlined
def plain_to_rows(state, rows, memory, g, at, along, count, n):
    """In plain f64, unless a product of rows comes near the ends of its range: then False. As
    powers of two change no other bit, both ways agree.

    Every four rows the product of those before lies within 2^+-90, so it never leaves 2^+-537, and
    that of the rows after stays within 2^+-627: a gradient within 2^+-390 keeps it normal. One that
    is held there only leaves no trace, since the product of all others lies within 2^+-239."""
    _, target, tile, places, _, saved = state
    before, wild = splat(1.0, n), False
    for j in range(rows):
        fetch_listed(saved, places, j, at[2], n)
        put(memory, j * n, 1, before, False)
        before = before * row(saved, places[j] + at[2], along[2], count, n)
        if j & steps_between(saved) == steps_between(saved):
            wild = wild or any_lane(is_wild(saved, before))
    if wild or any_lane(is_wild(saved, before)):
        return False
    after = valued(saved, within_reach(g))
    for i in range(rows):
        j = rows - 1 - i
        y = after * get(memory, j * n, 1, n)
        write_tile(tile, j, at, count, n, as_wide(target, y))
        after = after * row(saved, places[j] + at[2], along[2], count, n)
    return True


@inlined
def scaled_to_rows(state, rows, memory, g, at, along, count, n):
    _, target, tile, places, _, saved = state
    before, after = one(n), g
    for j in range(rows):
        keep(saved, memory, j, before, n)
        before = by_row(saved, before, places[j] + at[2], along[2], count, n)
        before = now_and_then(saved, before, j)
    for i in range(rows):
        j = rows - 1 - i
        y = valued(saved, times(saved, after, kept(saved, memory, j, n)))
        write_tile(tile, j, at, count, n, as_wide(target, y))
        after = by_row(saved, after, places[j] + at[2], along[2], count, n)
        after = now_and_then(saved, after, i)


@inlined
def gradient_of(task, state, block, at, along, count, n):
    """The gradient of a segment as a product."""
    source = state[4]
    v = load(source, block[0] * word(task, SEGMENT_ROW) + at[0], along[0], count, n)
    g, k = factor(source, to_f64(v))
    return normalised(source, (g, splat(-0.0, n), k))


@inlined
def gradient_strip(task, state, block, at, along, column, count, n):
    """One strip of one block: the gradient to its rows, or the product of the block."""
    _, _, _, places, _, saved = state
    _, _, start, end, size, slot, _ = block
    if size == 0:
        return False
    if slot < 0:
        g = gradient_of(task, state, block, at, along, count, n)
        to_rows(state, block, g, at, along, count, n)
    else:
        product = multiply_rows(saved, places, end - start, at[2], along[2], count, n)
        put_product(task, PARTS_BACKWARD * slot, column, count, product)
    return slot < 0


@inlined
def gradient_state(task, places, tile, saved_places):
    target, source, saved = pointer(task, TARGET), pointer(task, SOURCE), pointer(task, SAVED)
    return places, target, tile, saved_places, source, saved


@kernel
def product_gradients(task, lo, hi):
    """Short segments whole, long ones to the products of their blocks. Items are places of the
    walk."""
    target, places = pointer(task, TARGET), on_stack(as_i64_pointer(0), LISTED)
    tile, saved_places = on_stack(target, tile_elements(target)), on_stack(places, LISTED)
    state = gradient_state(task, places, tile, saved_places)
    over_segments(task, lo, hi, others_lanes(target), gradient_strip, state, over_saved_panels)


@inlined
def combine_others_strip(task, saved, block, at, along, column, count, n):
    _, slot, blocks, _ = block
    before = one(n)
    for k in range(slot, slot + blocks):
        put_product(task, PARTS_BACKWARD * k + PARTS, column, count, before)
        other = get_product(task, PARTS_BACKWARD * k, column, count, n)
        before = normalised(saved, times(saved, before, other))
    after = one(n)
    for k in range(slot + blocks - 1, slot - 1, -1):
        before = get_product(task, PARTS_BACKWARD * k + PARTS, column, count, n)
        whole = normalised(saved, times(saved, before, after))
        put_product(task, PARTS_BACKWARD * k + PARTS, column, count, whole)
        other = get_product(task, PARTS_BACKWARD * k, column, count, n)
        after = normalised(saved, times(saved, after, other))


@kernel
def combine_others(task, lo, hi):
    """Long segments: for each block the product of all others."""
    over_long_segments(task, lo, hi, combine_others_strip, pointer(task, SAVED))


@inlined
def hand_out_strip(task, state, block, at, along, column, count, n):
    saved, slot = state[5], block[5]
    others = get_product(task, PARTS_BACKWARD * slot + PARTS, column, count, n)
    g = times(saved, gradient_of(task, state, block, at, along, count, n), others)
    to_rows(state, block, normalised(saved, g), at, along, count, n)
    return True


@kernel
def hand_out_products(task, lo, hi):
    """Long segments: the gradient to their rows. Items are block numbers."""
    target, places = pointer(task, TARGET), on_stack(as_i64_pointer(0), LISTED)
    tile, saved_places = on_stack(target, tile_elements(target)), on_stack(places, LISTED)
    state = gradient_state(task, places, tile, saved_places)
    over_long_blocks(task, lo, hi, others_lanes(target), hand_out_strip, state, over_saved_panels)
