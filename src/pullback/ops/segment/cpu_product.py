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
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_list import fetch_listed, over_positions
from pullback.ops.segment.cpu_panel import over_saved_panels_back, write_row
from pullback.ops.segment.cpu_scaled import (
    SEEN,
    factor,
    highest,
    is_wild,
    keep,
    kept,
    lowest,
    normalised,
    one,
    steps_between,
    times,
    valued,
    within_range,
    within_reach,
)
from pullback.ops.segment.cpu_strip import (
    as_wide,
    fetch_strip,
    load,
    others_lanes,
    product_lanes,
    store,
    tile_elements,
)
from pullback.ops.segment.cpu_walk import (
    NARROW,
    over_long_blocks,
    over_long_segments,
    over_segments,
)
from pullback.ops.segment.cpu_words import BLOCK, LISTED, floats

PARTS = 3  # a product: float, rounding error, exponent
PARTS_BACKWARD = 6  # of a block, and of all the others
AT_A_TIME = 16  # rows multiplied before a look at the range; whole steps between normalisations
STACK = BLOCK * 64  # for a product before each row of a block: 2 parts of 32 lanes, or 3 of 16


@inlined
def get_product(task, part, column, count, n):
    """The product in three parts; 1 in the lanes beyond count."""
    p, columns = floats(task, at.PARTIALS_AT), word(task, at.COLUMNS)
    m, c, e = one(n)
    here = part * columns + column
    return (
        get_first(p, here, 1, count, m),
        get_first(p, here + columns, 1, count, c),
        get_first(p, here + 2 * columns, 1, count, e),
    )


@inlined
def fetch_product(task, part, column):
    """Ask for a product that is soon needed: blocks lie too far apart for the machine to guess."""
    p, columns = floats(task, at.PARTIALS_AT), word(task, at.COLUMNS)
    for k in range(PARTS):
        fetch_strip(p, (part + k) * columns + column, NARROW)


@inlined
def put_product(task, part, column, count, product):
    p, columns = floats(task, at.PARTIALS_AT), word(task, at.COLUMNS)
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
def multiply_rows(p, places, rows, base, along, count, n):
    """The product of the rows of a block in one strip, some of them at a time: in plain f64, unless
    that comes near the ends of its range. Normalising changes no bit but the exponent. Beside it,
    whether all was plain: then the float is the product."""
    product, plain = one(n), steps_between(p) > 0
    for first in range(0, rows, AT_A_TIME):
        past = min(first + AT_A_TIME, rows)
        m, c, e = product
        m, in_range = plain_rows(p, places, first, past, m, base, along, count, n)
        if steps_between(p) > 0 and in_range:
            product = (m, c, e)
        else:
            product, plain = (
                scaled_rows(p, places, first, past, product, base, along, count, n),
                False,
            )
    return product, plain


@inlined
def plain_rows(p, places, first, past, m, base, along, count, n):
    """A float times some rows, and whether it was in range after every few of them."""
    low, high, j = splat(-1, SEEN), splat(0, SEEN), first
    while j < past:
        stop = min(j + steps_between(p) + 1, past)
        while j < stop:
            fetch_listed(p, places, j, base, n)
            m = m * row(p, places[j] + base, along, count, n)
            j += 1
        low, high = lowest(m, low), highest(m, high)
    return m, within_range(low, high)


@inlined
def scaled_rows(p, places, first, past, product, base, along, count, n):
    """A product times some rows, normalised."""
    for j in range(first, past):
        fetch_listed(p, places, j, base, n)
        product = by_row(p, product, places[j] + base, along, count, n)
        if j & steps_between(p) == steps_between(p) and any_lane(is_wild(p, product[0])):
            product = normalised(p, product)
    return normalised(p, product)


# --- forward ------------------------------------------------------------------------------------


@inlined
def product_strip(task, state, block, base, along, column, count, n):
    places, source, target = state
    s, _, start, end, size, slot, _ = block
    where = s * word(task, at.SEGMENT_ROW) + base[1]
    if size == 0:
        empty = filled_wide(target, real(task, at.EMPTY), n)
        store(task, target, where, along[1], count, n, empty)
        return
    product, plain = multiply_rows(source, places, end - start, base[0], along[0], count, n)
    if slot >= 0:
        put_product(task, PARTS * slot, column, count, normalised(source, product))
    else:
        y = product[0] if plain else valued(source, normalised(source, product))
        store(task, target, where, along[1], count, n, as_wide(target, y))


@kernel
def products(task, lo, hi):
    """Items are places of the walk over segments and their rows."""
    source, target = pointer(task, at.SOURCE), pointer(task, at.TARGET)
    state = (on_stack(as_i64_pointer(0), LISTED), source, target)
    over_segments(task, lo, hi, product_lanes(source), product_strip, state, over_positions)


@inlined
def combine_strip(task, target, block, base, along, column, count, n):
    s, slot, blocks, _ = block
    product = one(n)
    for k in range(slot, slot + blocks):
        fetch_product(task, PARTS * (k + at.FAR), column)
        other = get_product(task, PARTS * k, column, count, n)
        product = normalised(target, times(target, product, other))
    y = as_wide(target, valued(target, product))
    store(task, target, s * word(task, at.SEGMENT_ROW) + base[1], along[1], count, n, y)


@kernel
def combine_products(task, lo, hi):
    """Long segments: the products of their blocks, in order."""
    over_long_segments(task, lo, hi, combine_strip, pointer(task, at.TARGET))


# --- backward -----------------------------------------------------------------------------------


@inlined
def to_rows(state, block, after, g, base, along, count, n):
    """A gradient, as a float and as a product, times the product of the other rows to each row of
    a block."""
    memory = on_stack(as_f64_pointer(0), STACK)
    rows = block[3] - block[2]
    if steps_between(state[5]) == 0 or not plain_to_rows(
        state, rows, memory, after, base, along, count, n
    ):
        scaled_to_rows(state, rows, memory, g, base, along, count, n)


@inlined
def plain_to_rows(state, rows, memory, after, base, along, count, n):
    """In plain f64, unless a product of rows comes near the ends of its range: then False. As
    powers of two change no other bit, both ways agree.

    Every four rows the product of those before lies within 2^+-90, so it never leaves 2^+-537, and
    that of the rows after stays within 2^+-627: a gradient within 2^+-390 keeps it normal. One that
    is held there only leaves no trace, since the product of all others lies within 2^+-239."""
    _, target, sheet, places, _, saved = state
    before, low, high, j = splat(1.0, n), splat(-1, SEEN), splat(0, SEEN), 0
    while j < rows:
        stop = min(j + steps_between(saved) + 1, rows)
        while j < stop:
            fetch_listed(saved, places, j, base[2], n)
            put(memory, j * n, 1, before, False)
            before = before * row(saved, places[j] + base[2], along[2], count, n)
            j += 1
        low, high = lowest(before, low), highest(before, high)
    if not within_range(low, high):
        return False
    for i in range(rows):
        j = rows - 1 - i
        y = after * get(memory, j * n, 1, n)
        write_row(sheet, j, base, count, n, as_wide(target, y))
        after = after * row(saved, places[j] + base[2], along[2], count, n)
    return True


@inlined
def scaled_to_rows(state, rows, memory, g, base, along, count, n):
    _, target, sheet, places, _, saved = state
    before, after = one(n), normalised(saved, g)
    for j in range(rows):
        keep(saved, memory, j, before, n)
        before = by_row(saved, before, places[j] + base[2], along[2], count, n)
        before = now_and_then(saved, before, j)
    for i in range(rows):
        j = rows - 1 - i
        y = valued(saved, times(saved, after, kept(saved, memory, j, n)))
        write_row(sheet, j, base, count, n, as_wide(target, y))
        after = by_row(saved, after, places[j] + base[2], along[2], count, n)
        after = now_and_then(saved, after, i)


@inlined
def gradient_of(task, state, block, base, along, count, n):
    """The gradient of a segment, and the same as a product that is not normalised."""
    source = state[4]
    v = to_f64(load(source, block[0] * word(task, at.SEGMENT_ROW) + base[0], along[0], count, n))
    g, k = factor(source, v)
    return v, (g, splat(-0.0, n), k)


@inlined
def gradient_strip(task, state, block, base, along, column, count, n):
    """One strip of one block: the gradient to its rows, or the product of the block."""
    _, _, _, places, _, saved = state
    _, _, start, end, size, slot, _ = block
    if size == 0:
        return False
    if slot < 0:
        v, g = gradient_of(task, state, block, base, along, count, n)
        to_rows(state, block, v, g, base, along, count, n)
    else:
        product, _ = multiply_rows(saved, places, end - start, base[2], along[2], count, n)
        put_product(task, PARTS_BACKWARD * slot, column, count, normalised(saved, product))
    return slot < 0


@inlined
def gradient_state(task, places, tile, saved_places):
    target, source = pointer(task, at.TARGET), pointer(task, at.SOURCE)
    saved = pointer(task, at.SAVED)
    return places, target, tile, saved_places, source, saved


@kernel
def product_gradients(task, lo, hi):
    """Short segments whole, long ones to the products of their blocks. Items are places of the
    walk."""
    target, places = pointer(task, at.TARGET), on_stack(as_i64_pointer(0), LISTED)
    tile, saved_places = on_stack(target, tile_elements(target)), on_stack(places, LISTED)
    state = gradient_state(task, places, tile, saved_places)
    over_segments(task, lo, hi, others_lanes(target), gradient_strip, state, over_saved_panels_back)


@inlined
def combine_others_strip(task, saved, block, base, along, column, count, n):
    _, slot, blocks, _ = block
    before = one(n)
    for k in range(slot, slot + blocks):
        fetch_product(task, PARTS_BACKWARD * (k + at.FAR), column)
        fetch_product(task, PARTS_BACKWARD * (k + at.FAR) + PARTS, column)
        put_product(task, PARTS_BACKWARD * k + PARTS, column, count, before)
        other = get_product(task, PARTS_BACKWARD * k, column, count, n)
        before = normalised(saved, times(saved, before, other))
    after = one(n)
    for k in range(slot + blocks - 1, slot - 1, -1):
        fetch_product(task, PARTS_BACKWARD * (k - at.FAR), column)
        fetch_product(task, PARTS_BACKWARD * (k - at.FAR) + PARTS, column)
        before = get_product(task, PARTS_BACKWARD * k + PARTS, column, count, n)
        whole = normalised(saved, times(saved, before, after))
        put_product(task, PARTS_BACKWARD * k + PARTS, column, count, whole)
        other = get_product(task, PARTS_BACKWARD * k, column, count, n)
        after = normalised(saved, times(saved, after, other))


@kernel
def combine_others(task, lo, hi):
    """Long segments: for each block the product of all others."""
    over_long_segments(task, lo, hi, combine_others_strip, pointer(task, at.SAVED))


@inlined
def hand_out_strip(task, state, block, base, along, column, count, n):
    saved, slot = state[5], block[5]
    others = get_product(task, PARTS_BACKWARD * slot + PARTS, column, count, n)
    _, g = gradient_of(task, state, block, base, along, count, n)
    g = normalised(saved, times(saved, normalised(saved, g), others))
    to_rows(state, block, valued(saved, within_reach(g)), g, base, along, count, n)
    return True


@kernel
def hand_out_products(task, lo, hi):
    """Long segments: the gradient to their rows. Items are block numbers."""
    target, places = pointer(task, at.TARGET), on_stack(as_i64_pointer(0), LISTED)
    tile, saved_places = on_stack(target, tile_elements(target)), on_stack(places, LISTED)
    state = gradient_state(task, places, tile, saved_places)
    over_long_blocks(
        task, lo, hi, others_lanes(target), hand_out_strip, state, over_saved_panels_back
    )
