"""Products over sorted rows, and their gradients: the product of the other rows of a segment.

Backward, a block is walked twice: forwards for the product of the rows before each row, kept on the
stack, and backwards for that of the rows after. Blocks of long segments multiply the product of all
other blocks onto the gradient they start from. No row is ever divided by.
"""

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import word
from pullback.cpu.memory import as_f64_pointer, filled, get, get_first, on_stack, put
from pullback.cpu.vector import any_lane, splat, to_f64
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_engine import get_parts, put_parts, reduction, spread, write_segment
from pullback.ops.segment.cpu_list import fetch_listed
from pullback.ops.segment.cpu_panel import over_saved_panels_back, write_row
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
    fetch_strip,
    in_saved,
    in_source,
    load,
    others_lanes,
    product_lanes,
)
from pullback.ops.segment.cpu_walk import NARROW
from pullback.ops.segment.cpu_words import BLOCK, floats

PARTS = 3  # a product: float, rounding error, exponent
PARTS_BACKWARD = 6  # of a block, and of all the others
AT_A_TIME = 16  # rows multiplied before a look at the range; whole steps between normalisations
STACK = BLOCK * 96  # for a product before each row of a block: 3 parts of 32 lanes


@inlined
def fetch_products(task, part, cols):
    """Ask for products that are soon needed: blocks lie too far apart for the machine to guess."""
    p, columns = floats(task, at.PARTIALS_AT), word(task, at.COLUMNS)
    for k in range(PARTS_BACKWARD):
        fetch_strip(p, (part + k) * columns + cols[2], NARROW)


@inlined
def row(p, i, view):
    """One row; 1 in the lanes it has not."""
    base, along, count, n = view
    if count >= n:
        return to_f64(get(p, i + base, along, n))
    return to_f64(get_first(p, i + base, along, count, filled(p, 1.0, n)))


@inlined
def by_row(p, product, i, view):
    """A product times one row, not normalised."""
    v, k = factor(p, row(p, i, view))
    return times(p, product, (v, splat(-0.0, view[3]), k))


@inlined
def now_and_then(p, product, j):
    """Normalised after every few rows."""
    if j & steps_between(p) == steps_between(p):
        product = normalised(p, product)
    return product


@inlined
def multiply_rows(p, places, rows, view):
    """The product of the rows of a block in one strip, some of them at a time: in plain f64, unless
    that comes near the ends of its range. Normalising changes no bit but the exponent. Beside it,
    whether all was plain: then the float is the product."""
    product, plain = one(view[3]), steps_between(p) > 0
    for first in range(0, rows, AT_A_TIME):
        past = min(first + AT_A_TIME, rows)
        m, c, e = product
        m, in_range = plain_rows(p, places, first, past, m, view)
        if steps_between(p) > 0 and in_range:
            product = (m, c, e)
        else:
            product, plain = scaled_rows(p, places, first, past, product, view), False
    return product, plain


@inlined
def plain_rows(p, places, first, past, m, view):
    """A float times some rows, and whether it was in range after every few of them."""
    in_range, j = True, first
    while j < past:
        stop = min(j + steps_between(p) + 1, past)
        while j < stop:
            fetch_listed(p, places, j, view)
            m = m * row(p, places[j], view)
            j += 1
        in_range = in_range and not any_lane(is_wild(m))
    return m, in_range


@inlined
def scaled_rows(p, places, first, past, product, view):
    """A product times some rows, normalised."""
    for j in range(first, past):
        fetch_listed(p, places, j, view)
        product = by_row(p, product, places[j], view)
        if j & steps_between(p) == steps_between(p) and any_lane(is_wild(product[0])):
            product = normalised(p, product)
    return normalised(p, product)


# --- forward ------------------------------------------------------------------------------------


@inlined
def _total(task, state, block, cols):
    return multiply_rows(state[0], state[1][0], block[7], in_source(cols))


@inlined
def _write(task, state, block, cols, found):
    (source, target), (product, plain) = (state[0], state[2]), found
    y = product[0] if plain else valued(source, normalised(source, product))
    write_segment(task, target, block[0], cols, as_wide(target, y))


@inlined
def _parts(p, found):
    return normalised(p, found[0])


@inlined
def _join(task, target, block, cols):
    s, slot, blocks, _ = block
    product = one(cols[4])
    for k in range(slot, slot + blocks):
        other = get_parts(task, PARTS * k, cols)
        product = normalised(target, times(target, product, other))
    write_segment(task, target, s, cols, as_wide(target, valued(target, product)))


PRODUCTS = reduction(
    __name__,
    ("products", "combine_products"),
    total=_total,
    write=_write,
    parts=_parts,
    join=_join,
    many=PARTS,
    wide=product_lanes,
)

# --- backward -----------------------------------------------------------------------------------


@inlined
def _to_rows(task, state, block, cols, whole):
    """The gradient times the product of all other rows, to each row of a block. `whole` is that
    times the product of all other blocks, plainly and as a product."""
    memory = on_stack(as_f64_pointer(0), STACK)
    if steps_between(state[5]) == 0 or not plain_to_rows(state, block, memory, whole[0], cols):
        scaled_to_rows(state, block, memory, whole[1], cols)


@inlined
def plain_to_rows(state, block, memory, after, cols):
    """In plain f64, unless a product of rows comes near the ends of its range: then False. As
    powers of two change no other bit, both ways agree.

    Every four rows the product of those before lies within 2^+-90, so it never leaves 2^+-537, and
    that of the rows after stays within 2^+-627: a gradient within 2^+-390 keeps it normal. One that
    is held there only leaves no trace, since the product of all others lies within 2^+-239."""
    target, sheet, places, saved = state[1], state[2], state[3], state[5]
    view, n, rows = in_saved(cols), cols[4], block[3] - block[2]
    before, j = splat(1.0, n), 0
    while j < rows:
        stop = min(j + steps_between(saved) + 1, rows)
        while j < stop:
            fetch_listed(saved, places, j, view)
            put(memory, j * n, 1, before, False)
            before = before * row(saved, places[j], view)
            j += 1
        if any_lane(is_wild(before)):
            return False
    for i in range(rows):
        j = rows - 1 - i
        write_row(sheet, j, cols, as_wide(target, after * get(memory, j * n, 1, n)))
        after = after * row(saved, places[j], view)
    return True


@inlined
def scaled_to_rows(state, block, memory, g, cols):
    target, sheet, places, saved = state[1], state[2], state[3], state[5]
    view, n, rows = in_saved(cols), cols[4], block[3] - block[2]
    before, after = one(n), normalised(saved, g)
    for j in range(rows):
        keep(memory, j, before, n)
        before = now_and_then(saved, by_row(saved, before, places[j], view), j)
    for i in range(rows):
        j = rows - 1 - i
        y = valued(saved, times(saved, after, kept(memory, j, n)))
        write_row(sheet, j, cols, as_wide(target, y))
        after = now_and_then(saved, by_row(saved, after, places[j], view), i)


@inlined
def gradient_of(task, state, block, cols):
    """The gradient of a segment, and the same as a product that is not normalised."""
    source = state[4]
    v = to_f64(load(source, block[0] * word(task, at.SEGMENT_ROW), in_source(cols)))
    g, k = factor(source, v)
    return v, (g, splat(-0.0, cols[4]), k)


@inlined
def _total_backward(task, state, block, cols):
    """Short segments have no other block; of long ones the product of the block."""
    if block[5] < 0:
        return gradient_of(task, state, block, cols)
    product, _ = multiply_rows(state[5], state[3], block[3] - block[2], in_saved(cols))
    return product[0], product


@inlined
def _join_others(task, saved, block, cols):
    """For each block the product of all others, behind its own."""
    _, slot, blocks, _ = block
    before, after = one(cols[4]), one(cols[4])
    for k in range(slot, slot + blocks):
        part = PARTS_BACKWARD * k
        fetch_products(task, part + PARTS_BACKWARD * at.FAR, cols)
        put_parts(task, part + PARTS, cols, before)
        before = normalised(saved, times(saved, before, get_parts(task, part, cols)))
    for k in range(slot + blocks - 1, slot - 1, -1):
        part = PARTS_BACKWARD * k
        fetch_products(task, part - PARTS_BACKWARD * at.FAR, cols)
        before = get_parts(task, part + PARTS, cols)
        whole = normalised(saved, times(saved, before, after))
        put_parts(task, part + PARTS, cols, whole)
        after = normalised(saved, times(saved, after, get_parts(task, part, cols)))


@inlined
def _again(task, state, block, cols):
    saved = state[5]
    others = get_parts(task, PARTS_BACKWARD * block[5] + PARTS, cols)
    _, g = gradient_of(task, state, block, cols)
    g = normalised(saved, times(saved, normalised(saved, g), others))
    return valued(saved, within_reach(g)), g


GRADIENTS = spread(
    __name__,
    ("product_gradients", "combine_others", "hand_out_products"),
    total=_total_backward,
    whole=inlined(lambda p, found: found),
    write=_to_rows,
    parts=inlined(lambda p, found: normalised(p, found[1])),
    join=_join_others,
    again=_again,
    many=PARTS_BACKWARD,
    wide=others_lanes,
    over=over_saved_panels_back,
    over_long=over_saved_panels_back,
)
