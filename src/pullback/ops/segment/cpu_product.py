"""Products over sorted rows, and their gradients: the product of the other rows of a segment.

Backward, a block is walked twice: forwards for the product of the rows before each row, kept on the
stack, and backwards for that of the rows after. Blocks of long segments multiply the product of all
other blocks onto the gradient they start from. No row is ever divided by.
"""

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, real, word
from pullback.cpu.memory import as_f64_pointer, filled_wide, get_first, on_stack, put_first
from pullback.cpu.vector import splat, to_f64
from pullback.ops.segment.cpu_scaled import (
    factor,
    keep,
    kept,
    normalised,
    one,
    steps_between,
    times,
    valued,
)
from pullback.ops.segment.cpu_strip import (
    as_wide,
    fetch_ahead,
    load,
    product_lanes,
    row_at,
    rows_of,
    store,
    tile_elements,
)
from pullback.ops.segment.cpu_walk import (
    over_columns,
    over_long_blocks,
    over_long_segments,
    over_panels,
    over_segments,
    write_tile,
)
from pullback.ops.segment.cpu_words import (
    BLOCK,
    COLUMNS,
    EMPTY,
    PARTIALS_AT,
    POSITION_ROW,
    SAVED,
    SAVED_ROW,
    SEGMENT_ROW,
    SOURCE,
    TARGET,
    scratch,
)

PARTS = 3  # a product: float, rounding error, exponent
PARTS_BACKWARD = 6  # of a block, and of all the others
LANES_AT_MOST = 16
STACK = BLOCK * PARTS * LANES_AT_MOST  # for a product before each row of a block


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
def by_row(p, product, i, along, count, n):
    """A product times one row, not normalised."""
    v, k = factor(p, to_f64(load(p, i, along, count, n)))
    return times(p, product, (v, splat(-0.0, n), k))


@inlined
def now_and_then(p, product, j):
    """Normalised after every few rows."""
    if j & steps_between(p) == steps_between(p):
        product = normalised(p, product)
    return product


@inlined
def multiply_rows(task, p, rows, start, end, last, at, along, count, n):
    """The product of the rows of a block in one strip."""
    product = one(n)
    for i in range(start, end):
        fetch_ahead(task, rows, p, i, at, last, n)
        product = by_row(p, product, row_at(task, rows, i) + at, along, count, n)
        product = now_and_then(p, product, i - start)
    return normalised(p, product)


# --- forward ------------------------------------------------------------------------------------


@inlined
def product_strip(task, state, block, at, along, column, count, n):
    source, target, rows = state
    s, _, start, end, size, slot, last = block
    where = s * word(task, SEGMENT_ROW) + at[1]
    if size == 0:
        empty = filled_wide(target, real(task, EMPTY), n)
        store(task, target, where, along[1], count, n, empty)
        return
    product = multiply_rows(task, source, rows, start, end, last, at[0], along[0], count, n)
    if slot < 0:
        y = as_wide(target, valued(source, product))
        store(task, target, where, along[1], count, n, y)
    else:
        put_product(task, PARTS * slot, column, count, product)


@kernel
def products(task, lo, hi):
    """Items are places of the walk over segments and their rows."""
    source, target = pointer(task, SOURCE), pointer(task, TARGET)
    state = (source, target, rows_of(task, POSITION_ROW))
    over_segments(task, lo, hi, product_lanes(source), product_strip, state, over_columns)


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
def to_rows(task, state, block, g, at, along, count, n):
    """A gradient, as a product, times the product of the other rows to each row of a block."""
    target, _, buffer, _, saved, saved_rows = state
    _, _, start, end, _, _, last = block
    before, memory = one(n), on_stack(as_f64_pointer(0), STACK)
    for i in range(start, end):
        fetch_ahead(task, saved_rows, saved, i, at[2], last, n)
        keep(saved, memory, i - start, before, n)
        where = row_at(task, saved_rows, i) + at[2]
        before = by_row(saved, before, where, along[2], count, n)
        before = now_and_then(saved, before, i - start)
    after = g
    for j in range(end - start):
        i = end - 1 - j
        y = valued(saved, times(saved, after, kept(saved, memory, i - start, n)))
        write_tile(buffer, i - start, at, count, n, as_wide(target, y))
        where = row_at(task, saved_rows, i) + at[2]
        after = by_row(saved, after, where, along[2], count, n)
        after = now_and_then(saved, after, j)


@inlined
def gradient_of(task, state, block, at, along, count, n):
    """The gradient of a segment as a product."""
    source = state[3]
    v = load(source, block[0] * word(task, SEGMENT_ROW) + at[0], along[0], count, n)
    g, k = factor(source, to_f64(v))
    return normalised(source, (g, splat(-0.0, n), k))


@inlined
def gradient_strip(task, state, block, at, along, column, count, n):
    """One strip of one block: the gradient to its rows, or the product of the block."""
    _, _, _, _, saved, saved_rows = state
    _, _, start, end, size, slot, last = block
    if size == 0:
        return False
    if slot < 0:
        g = gradient_of(task, state, block, at, along, count, n)
        to_rows(task, state, block, g, at, along, count, n)
    else:
        product = multiply_rows(
            task, saved, saved_rows, start, end, last, at[2], along[2], count, n
        )
        put_product(task, PARTS_BACKWARD * slot, column, count, product)
    return slot < 0


@inlined
def gradient_state(task, buffer):
    return (
        pointer(task, TARGET),
        rows_of(task, POSITION_ROW),
        buffer,
        pointer(task, SOURCE),
        pointer(task, SAVED),
        rows_of(task, SAVED_ROW),
    )


@kernel
def product_gradients(task, lo, hi):
    """Short segments whole, long ones to the products of their blocks. Items are places of the
    walk."""
    target = pointer(task, TARGET)
    state = gradient_state(task, on_stack(target, tile_elements(target)))
    over_segments(task, lo, hi, product_lanes(state[0]), gradient_strip, state, over_panels)


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
    saved, slot = state[4], block[5]
    others = get_product(task, PARTS_BACKWARD * slot + PARTS, column, count, n)
    g = times(saved, gradient_of(task, state, block, at, along, count, n), others)
    to_rows(task, state, block, normalised(saved, g), at, along, count, n)
    return True


@kernel
def hand_out_products(task, lo, hi):
    """Long segments: the gradient to their rows. Items are block numbers."""
    target = pointer(task, TARGET)
    state = gradient_state(task, on_stack(target, tile_elements(target)))
    over_long_blocks(task, lo, hi, product_lanes(state[0]), hand_out_strip, state)
