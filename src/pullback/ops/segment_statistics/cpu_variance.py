"""segment_var, segment_std and their gradients in Numba.

Rows are taken relative to the first of their block, its pivot, so that an offset common to all of
them costs no digits, and equal rows have variance 0 exactly. All is computed in f64: the squares of
bf16 would leave the range of f32. A block leaves its pivot, the sum d of
its differences from it, and the sum of squares about its own mean. Blocks of a long segment are
joined by what lies between their means: a sum of squares again, so never negative.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import real, word
from pullback.cpu.memory import as_f64_pointer
from pullback.cpu.vector import like, select, sqrt, to_f64
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_engine import (
    first_slot,
    get_part,
    get_parts,
    put_parts,
    reduction,
    spread,
    write_segment,
)
from pullback.ops.segment.cpu_list import fetch_listed
from pullback.ops.segment.cpu_panel import write_row
from pullback.ops.segment.cpu_strip import as_wide, in_saved, in_source, load
from pullback.ops.segment.cpu_sum import finite_rest, none_of_blocks, plus, plus_block, summed
from pullback.ops.segment.cpu_words import BLOCK

PARTS = 4  # of a block: pivot, sum of differences, its correction, sum of squares
ROOT = at.SCALING  # this word says whether the root is wanted
DDOF = at.SIGN  # and this one what is taken off the number of rows


@inlined
def _moments(p, places, rows, view):
    """The pivot of a block, the sum of differences from it and its correction, and the sum of
    squares about their mean."""
    pivot = to_f64(load(p, places[0], view))
    total, rest = none_of_blocks(view[3])
    for j in range(rows):
        fetch_listed(p, places, j, view)
        total, rest = plus(p, total, rest, to_f64(load(p, places[j], view)) - pivot)
    mean = summed(p, total, rest) / like(pivot, rows)
    squares, lost = none_of_blocks(view[3])
    for j in range(rows):
        d = to_f64(load(p, places[j], view)) - pivot - mean
        squares, lost = plus(p, squares, lost, d * d)
    return pivot, total, rest, summed(p, squares, lost), mean


@inlined
def _parts(p, found):
    return found[0], found[1], finite_rest(found[2]), found[3]


@inlined
def _joined(task, p, block, cols):
    """The mean of a long segment, relative to the pivot of its first block, and its squares."""
    _, slot, blocks, size = block
    q, pivot = as_f64_pointer(0), get_part(task, PARTS * slot, cols)
    total, rest = none_of_blocks(cols[4])
    for k in range(slot, slot + blocks):
        rows = min(size - (k - slot) * BLOCK, BLOCK)
        off = get_part(task, PARTS * k, cols) - pivot
        total, rest = plus(q, total, rest, off * like(off, rows))
        total, rest = plus_block(task, q, PARTS * k + 1, cols, total, rest)
    mean = summed(q, total, rest) / like(total, size)
    squares, rest = none_of_blocks(cols[4])
    for k in range(slot, slot + blocks):
        rows = min(size - (k - slot) * BLOCK, BLOCK)
        own = get_part(task, PARTS * k + 1, cols)
        own = (own + get_part(task, PARTS * k + 2, cols)) / like(own, rows)
        d = (get_part(task, PARTS * k, cols) - pivot) + (own - mean)
        squares, rest = plus(q, squares, rest, d * d * like(d, rows))
        squares, rest = plus(q, squares, rest, get_part(task, PARTS * k + 3, cols))
    return pivot, mean, summed(q, squares, rest)


# --- forward ------------------------------------------------------------------------------------


@inlined
def _variance(task, squares, size):
    """Over the number of rows less ddof; 0 where that leaves none."""
    left = size - real(task, DDOF)
    v = select(like(squares, left) > 0, squares / like(squares, left), 0.0)
    return sqrt(v) if word(task, ROOT) != 0 else v


@inlined
def _total(task, state, block, cols):
    return _moments(state[0], state[1][0], block[7], in_source(cols))


@inlined
def _write(task, state, block, cols, found):
    v = as_wide(state[2], _variance(task, found[3], block[4]))
    write_segment(task, state[2], block[0], cols, v)


@inlined
def _join(task, target, block, cols):
    _, _, squares = _joined(task, target, block, cols)
    v = as_wide(target, _variance(task, squares, block[3]))
    write_segment(task, target, block[0], cols, v)


VARIANCES = reduction(
    __name__,
    ("variances", "combine_variances"),
    total=_total,
    write=_write,
    parts=_parts,
    join=_join,
    many=PARTS,
)

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
def _total_backward(task, state, block, cols):
    return _moments(state[5], state[3], block[3] - block[2], in_saved(cols))


@inlined
def _write_gradient(task, state, block, cols, whole):
    """dy·slope·(x - mean) to each row; where the slope is 0, so is the gradient."""
    sheet, places, source, saved = state[2], state[3], state[4], state[5]
    pivot, mean, squares = whole
    slope = _slope(task, squares, block[4])
    g = to_f64(load(source, block[0] * word(task, at.SEGMENT_ROW), in_source(cols)))
    for j in range(block[3] - block[2]):
        d = to_f64(load(saved, places[j], in_saved(cols))) - pivot - mean
        v = select(slope == 0, 0.0, d * slope * g)
        write_row(sheet, j, cols, as_wide(saved, v))


@inlined
def _join_backward(task, p, block, cols):
    put_parts(task, PARTS * block[1], cols, _joined(task, p, block, cols))


@inlined
def _again(task, state, block, cols):
    return get_parts(task, PARTS * first_slot(block), cols)


GRADIENTS = spread(
    __name__,
    ("variance_gradients", "combine_means", "variance_gradients_long"),
    total=_total_backward,
    whole=inlined(lambda p, found: (found[0], found[4], found[3])),
    write=_write_gradient,
    parts=_parts,
    join=_join_backward,
    again=_again,
    many=PARTS,
)
