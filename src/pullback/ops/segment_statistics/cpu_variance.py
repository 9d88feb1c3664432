"""segment_var, segment_std and their gradients in Numba.

Rows are taken relative to the first of their block, its pivot, so that an offset common to all of
them costs no digits, and equal rows have variance 0 exactly. All is computed in f64: the squares of
bf16 would leave the range of f32. A block leaves its pivot, the sum d of
its differences from it, and the sum of squares about its own mean. Blocks of a long segment are
joined by what lies between their means: a sum of squares again, so never negative.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, real, word
from pullback.cpu.memory import as_f64_pointer, as_i64_pointer, filled_wide, on_stack
from pullback.cpu.vector import like, select, splat, sqrt, to_f64
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_extremum import get_part, put_part
from pullback.ops.segment.cpu_list import fetch_listed, over_positions
from pullback.ops.segment.cpu_panel import over_saved_panels, write_row
from pullback.ops.segment.cpu_strip import as_wide, lanes, load, store, tile_elements
from pullback.ops.segment.cpu_sum import finite_rest, plus, summed
from pullback.ops.segment.cpu_walk import over_long_blocks, over_long_segments, over_segments
from pullback.ops.segment.cpu_words import BLOCK, LISTED

PARTS = 4  # of a block: pivot, sum of differences, its correction, sum of squares
ROOT = at.SCALING  # this word says whether the root is wanted
DDOF = at.SIGN  # and this one what is taken off the number of rows


@inlined
def _mean(p, places, rows, base, along, count, n):
    """The pivot of a block, the sum of differences from it and its correction."""
    pivot = to_f64(load(p, places[0] + base, along, count, n))
    total, rest = splat(-0.0, n), splat(-0.0, n)
    for j in range(rows):
        fetch_listed(p, places, j, base, n)
        x = to_f64(load(p, places[j] + base, along, count, n))
        total, rest = plus(p, total, rest, x - pivot)
    return pivot, total, rest


@inlined
def _squares(p, places, rows, pivot, mean, base, along, count, n):
    """The sum of squares about pivot + mean."""
    total, rest = splat(-0.0, n), splat(-0.0, n)
    for j in range(rows):
        d = to_f64(load(p, places[j] + base, along, count, n)) - pivot - mean
        total, rest = plus(p, total, rest, d * d)
    return summed(p, total, rest)


@inlined
def _variance(task, squares, size):
    """Over the number of rows less ddof; 0 where that leaves none."""
    left = size - real(task, DDOF)
    v = select(like(squares, left) > 0, squares / like(squares, left), 0.0)
    return sqrt(v) if word(task, ROOT) != 0 else v


# --- forward ------------------------------------------------------------------------------------


@inlined
def _forward_strip(task, state, block, base, along, column, count, n):
    places, source, target = state
    s, _, start, end, size, slot, _ = block
    where, rows = s * word(task, at.SEGMENT_ROW) + base[1], end - start
    if size == 0:
        empty = filled_wide(target, real(task, at.EMPTY), n)
        store(task, target, where, along[1], count, n, empty)
        return
    pivot, total, rest = _mean(source, places, rows, base[0], along[0], count, n)
    sum = summed(source, total, rest)
    mean = sum / like(sum, rows)
    squares = _squares(source, places, rows, pivot, mean, base[0], along[0], count, n)
    if slot < 0:
        v = as_wide(target, _variance(task, squares, size))
        store(task, target, where, along[1], count, n, v)
    else:
        _put(task, slot, column, count, pivot, total, rest, squares)


@inlined
def _put(task, slot, column, count, pivot, total, rest, squares):
    put_part(task, PARTS * slot, column, count, pivot)
    put_part(task, PARTS * slot + 1, column, count, total)
    put_part(task, PARTS * slot + 2, column, count, finite_rest(rest))
    put_part(task, PARTS * slot + 3, column, count, squares)


@kernel
def variances(task, lo, hi):
    """Items are places of the walk over segments and their rows."""
    source, target = pointer(task, at.SOURCE), pointer(task, at.TARGET)
    state = (on_stack(as_i64_pointer(0), LISTED), source, target)
    over_segments(task, lo, hi, lanes(source), _forward_strip, state, over_positions)


@inlined
def _joined(task, p, slot, blocks, size, column, count, n):
    """The mean of a long segment, relative to the pivot of its first block, and its squares."""
    q = as_f64_pointer(0)
    pivot = get_part(task, PARTS * slot, column, count, n)
    total, rest = splat(-0.0, n), splat(-0.0, n)
    for k in range(slot, slot + blocks):
        rows = min(size - (k - slot) * BLOCK, BLOCK)
        off = get_part(task, PARTS * k, column, count, n) - pivot
        total, rest = plus(q, total, rest, off * like(off, rows))
        v = get_part(task, PARTS * k + 1, column, count, n)
        total, rest = plus(q, total, rest, v)
        v = get_part(task, PARTS * k + 2, column, count, n)
        total, rest = plus(q, total, rest, v)
    mean = summed(q, total, rest) / like(total, size)
    squares, rest = splat(-0.0, n), splat(-0.0, n)
    for k in range(slot, slot + blocks):
        rows = min(size - (k - slot) * BLOCK, BLOCK)
        own = get_part(task, PARTS * k + 1, column, count, n)
        own = (own + get_part(task, PARTS * k + 2, column, count, n)) / like(own, rows)
        d = (get_part(task, PARTS * k, column, count, n) - pivot) + (own - mean)
        squares, rest = plus(q, squares, rest, d * d * like(d, rows))
        v = get_part(task, PARTS * k + 3, column, count, n)
        squares, rest = plus(q, squares, rest, v)
    return pivot, mean, summed(q, squares, rest)


@inlined
def _combine_strip(task, target, block, base, along, column, count, n):
    s, slot, blocks, size = block
    _, _, squares = _joined(task, target, slot, blocks, size, column, count, n)
    where, v = s * word(task, at.SEGMENT_ROW) + base[1], _variance(task, squares, size)
    store(task, target, where, along[1], count, n, as_wide(target, v))


@kernel
def combine_variances(task, lo, hi):
    """Long segments: what their blocks leave, joined."""
    over_long_segments(task, lo, hi, _combine_strip, pointer(task, at.TARGET))


# --- backward -----------------------------------------------------------------------------------


@inlined
def _slope(task, squares, size):
    """What x - mean is multiplied by: 2 / (size - ddof), or 1 / ((size - ddof)·std); 0 where there
    is no variance to speak of."""
    left = size - real(task, DDOF)
    some = like(squares, left) > 0
    if word(task, ROOT) == 0:
        return select(some, like(squares, 2.0) / like(squares, left), 0.0)
    root = sqrt(squares / like(squares, left))
    return select(some & ~(squares == 0), 1.0 / (root * like(squares, left)), 0.0)


@inlined
def _write(task, state, block, pivot, mean, slope, base, along, count, n):
    """dy·slope·(x - mean) to each row; where the slope is 0, so is the gradient."""
    _, _, sheet, places, saved, source = state
    g = to_f64(load(source, block[0] * word(task, at.SEGMENT_ROW) + base[0], along[0], count, n))
    for j in range(block[3] - block[2]):
        d = to_f64(load(saved, places[j] + base[2], along[2], count, n)) - pivot - mean
        v = select(slope == 0, 0.0, d * slope * g)
        write_row(sheet, j, base, count, n, as_wide(saved, v))


@inlined
def _short_strip(task, state, block, base, along, column, count, n):
    _, _, _, places, saved, _ = state
    rows, size, slot = block[3] - block[2], block[4], block[5]
    if size == 0:
        return False
    pivot, total, rest = _mean(saved, places, rows, base[2], along[2], count, n)
    sum = summed(saved, total, rest)
    mean = sum / like(sum, rows)
    squares = _squares(saved, places, rows, pivot, mean, base[2], along[2], count, n)
    if slot < 0:
        slope = _slope(task, squares, size)
        _write(task, state, block, pivot, mean, slope, base, along, count, n)
    else:
        _put(task, slot, column, count, pivot, total, rest, squares)
    return slot < 0


@inlined
def _long_strip(task, state, block, base, along, column, count, n):
    slot = block[5] - (block[2] - block[1]) // BLOCK
    pivot = get_part(task, PARTS * slot, column, count, n)
    mean = get_part(task, PARTS * slot + 1, column, count, n)
    squares = get_part(task, PARTS * slot + 3, column, count, n)
    slope = _slope(task, squares, block[4])
    _write(task, state, block, pivot, mean, slope, base, along, count, n)
    return True


@inlined
def _walk(task, lo, hi, strip, over):
    source, target = pointer(task, at.SOURCE), pointer(task, at.TARGET)
    saved = pointer(task, at.SAVED)
    places = on_stack(as_i64_pointer(0), LISTED)
    tile, listed = on_stack(target, tile_elements(target)), on_stack(places, LISTED)
    state = (places, target, tile, listed, saved, source)
    over(task, lo, hi, lanes(target), strip, state, over_saved_panels)


@kernel
def variance_gradients(task, lo, hi):
    """Items are places of the walk over segments and their rows."""
    _walk(task, lo, hi, _short_strip, over_segments)


@inlined
def _combine_means_strip(task, target, block, base, along, column, count, n):
    _, slot, blocks, size = block
    pivot, mean, squares = _joined(task, target, slot, blocks, size, column, count, n)
    put_part(task, PARTS * slot, column, count, pivot)
    put_part(task, PARTS * slot + 1, column, count, mean)
    put_part(task, PARTS * slot + 3, column, count, squares)


@kernel
def combine_means(task, lo, hi):
    """Long segments: what their blocks leave, joined for the gradients of these."""
    over_long_segments(task, lo, hi, _combine_means_strip, pointer(task, at.TARGET))


@kernel
def variance_gradients_long(task, lo, hi):
    """Items are blocks of long segments."""
    _walk(task, lo, hi, _long_strip, over_long_blocks)
