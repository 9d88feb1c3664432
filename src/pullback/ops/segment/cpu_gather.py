"""Rows handed out: each position receives the row its id names (sums backward, lookups), or each
segment hands its gradient, or a share of it, to its rows (means backward, sums of CSR rows).

Gain (rows copied whole): segment_sum backward sorted 1Mx5 f32 6.74.
"""

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I8, Lane, inlined, op
from pullback.cpu.kernel import index_pointer, kernel, pointer, real, word
from pullback.cpu.memory import (
    Pointer,
    as_i64_pointer,
    elements_in,
    fence,
    filled,
    filled_wide,
    line_elements,
    on_stack,
    prefetch_early,
    prefetch_written,
    read_wide,
    scalar,
    write,
)
from pullback.cpu.transfer import block_at
from pullback.cpu.vector import like
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_index import id_by_step, single_step
from pullback.ops.segment.cpu_panel import over_panels, write_row
from pullback.ops.segment.cpu_strip import (
    MANY_LOOPS,
    fetch_strip,
    in_source,
    in_target,
    lanes,
    load,
    load_wide,
    store,
    stream_line,
    streams_lines,
    tile_elements,
)
from pullback.ops.segment.cpu_walk import columns_of, over_columns, over_segments
from pullback.ops.segment.cpu_words import (
    LISTED,
    has_order,
    offsets_of,
    order_of,
    position_offset,
)

near_elements = elements_in(1 << 19)  # a table of no more is found without asking ahead
written_ahead = elements_in(1 << 12)  # lines that are written in part are asked for, too
two_lines, half_line, quarter_line, eighth_line = map(elements_in, (128, 32, 16, 8))

NO_ROW = MANY_LOOPS  # no offset is that low, whichever way the rows run


@inlined
def copy_strip(task, state, block, cols):
    source, target = state
    row, ahead, where = block
    v, view = filled(source, 0.0, cols[4]), in_source(cols)
    if row != NO_ROW:
        v = load(source, row, view)
    fetch_strip(source, ahead + view[0], cols[4])
    store(task, target, where, in_target(cols), v)


@inlined
def copy_lines(source, row, ahead, target, where, count):
    """A row of whole cache lines."""
    line = line_elements(source)
    for c in range(0, count, line):
        prefetch_early(source, ahead + c)
        stream_line(target, where + c, source, row + c)
    prefetch_early(source, ahead + count - 1)


@op
def copy_piece(p: Pointer, i: types.Integer, q: Pointer, j: types.Integer, n: Lane):
    """n elements from q[j] on to p[i], at once."""
    size = q.dtype.bitwidth // 8
    piece = ir.VectorType(I8, size * n.literal_value)

    def emit(b, p_, i_, q_, j_, _n):
        v = b.load(block_at(b, q_, j_, piece), align=size)
        b.store(v, block_at(b, p_, i_, piece), align=size)

    return types.void(p, types.int64, q, types.int64, n), emit


@inlined
def copy_ends(target, where, source, row, count, n):
    """n to 2 n elements: the first n and the last n, which may overlap."""
    copy_piece(target, where, source, row, n)
    copy_piece(target, where + count - n, source, row + count - n, n)


@inlined
def copy_short(target, where, source, row, count):
    """A row without gaps of at most two lines."""
    if count >= line_elements(source):
        copy_ends(target, where, source, row, count, line_elements(source))
    elif count >= half_line(source):
        copy_ends(target, where, source, row, count, half_line(source))
    elif count >= quarter_line(source):
        copy_ends(target, where, source, row, count, quarter_line(source))
    elif count >= eighth_line(source):
        copy_ends(target, where, source, row, count, eighth_line(source))
    else:
        for c in range(count):
            copy_piece(target, where + c, source, row + c, 1)


@inlined
def copy_long(target, where, source, row, count, ahead, far):
    """A longer one, in few large pieces, the last of which overlaps the one before; meanwhile the
    row at `ahead` is asked for, if the table is `far`."""
    wide, line, c = two_lines(source), line_elements(source), 0
    while c + wide <= count:
        if far:
            prefetch_early(source, ahead + c)
            prefetch_early(source, ahead + c + line)
        copy_piece(target, where + c, source, row + c, wide)
        c += wide
    if far:
        prefetch_early(source, ahead + count - 1)
    if c < count:  # a last piece that is always there takes longer (measured)
        copy_piece(target, where + count - wide, source, row + count - wide, wide)


@inlined
def clear_row(target, where, count):
    for c in range(count):
        write(target, where + c, scalar(target, 0.0))


@inlined
def copy_slim(task, source, target, ids, lo, hi, count, far):
    """Rows of at most half a line, written one after the other: half a line of each, since what is
    too much the next one writes over. Gives the first position that is left."""
    stride, segments = word(task, at.SEGMENT_ROW), word(task, at.SEGMENTS)
    padding = word(task, at.PADDING)
    step, size, n = single_step(task), half_line(source), lo
    last = (segments - 1) * stride + count - size  # where half a line is still of the table
    highest = last // stride if last >= 0 else -1
    while n * count + size <= hi * count:
        s, where = read_wide(ids, n * step), n * count
        if s < 0 or s > highest or s == padding:
            break
        if far:
            prefetch_early(source, read_wide(ids, min(n + at.FAR, hi - 1) * step) * stride)
        prefetch_written(target, where + written_ahead(target))
        copy_piece(target, where, source, s * stride, size)
        n += 1
    return n


@kernel
def copy_rows(task, lo, hi):
    """target[n] = source[ids[n]], zeros where that is no row; rows without gaps, ids and results
    each one stride apart. Items are positions."""
    source, target = pointer(task, at.SOURCE), pointer(task, at.TARGET)
    ids = index_pointer(task, at.IDS)
    stride, segments = word(task, at.SEGMENT_ROW), word(task, at.SEGMENTS)
    padding = word(task, at.PADDING)
    step, between, count = single_step(task), word(task, at.POSITION_ROW), word(task, at.COLUMNS)
    last, large = word(task, at.ROWS) - 1, segments * count > near_elements(source)
    far = large and word(task, at.ASCENDING) == 0  # what comes in order is foreseen by hardware
    slim = between == count and count <= half_line(source) and stride > 0
    n = lo
    while n < hi:
        if slim:
            n = copy_slim(task, source, target, ids, n, hi, count, far)
            if n == hi:
                break
        s, where = read_wide(ids, n * step), n * between
        # Only asked for, never read: any address will do.
        ahead = read_wide(ids, min(n + at.FAR, last) * step) * stride if far else 0
        if s < 0 or s >= segments or s == padding:
            clear_row(target, where, count)
        elif count > two_lines(source):
            copy_long(target, where, source, s * stride, count, ahead, far)
        else:
            if far:
                prefetch_early(source, ahead)
                prefetch_early(source, ahead + count - 1)
            prefetch_written(target, where + written_ahead(target))
            copy_short(target, where, source, s * stride, count)
        n += 1


@kernel
def gather_rows(task, lo, hi):
    """The same for rows of any layout, or written past the caches."""
    source, target = pointer(task, at.SOURCE), pointer(task, at.TARGET)
    ids = index_pointer(task, at.IDS)
    stride, segments = word(task, at.SEGMENT_ROW), word(task, at.SEGMENTS)
    padding = word(task, at.PADDING)
    last, between, columns = word(task, at.ROWS) - 1, word(task, at.POSITION_ROW), columns_of(task)
    step, (_, inner, runs, _, unit) = single_step(task), columns
    along = 1 if unit and runs == 1 else 0
    for n in range(lo, hi):
        s = id_by_step(task, ids, n, step)
        ahead = id_by_step(task, ids, min(n + at.FAR, last), step) * stride
        inside = s >= 0 and s < segments and s != padding
        row = s * stride if inside else NO_ROW
        where = n * between if between != MANY_LOOPS else position_offset(task, 1, n)
        if inside and streams_lines(task, target, where, along, inner):
            copy_lines(source, row, ahead, target, where, inner)
        else:
            block = (row, ahead, where)
            over_columns(task, columns, lanes(source), copy_strip, (source, target), block)
    if word(task, at.STREAMING):
        fence()


# --- by segment -----------------------------------------------------------------------------------


@inlined
def share_strip(task, state, block, cols):
    """source, or source / size, to each of the rows."""
    _, _, sheet, source = state
    s, _, start, end, size, _, _ = block
    v = load_wide(source, s * word(task, at.SEGMENT_ROW), in_source(cols))
    if word(task, at.DIVIDE):
        v = v / like(v, size)
    for j in range(end - start):
        write_row(sheet, j, cols, v)
    return end > start


@kernel
def share_segments(task, lo, hi):
    """target[n] = source[s], or that over how many rows s has. Items are places of the walk over
    segments."""
    source, target = pointer(task, at.SOURCE), pointer(task, at.TARGET)
    places = on_stack(as_i64_pointer(0), LISTED)
    state = (places, target, on_stack(target, tile_elements(target)), source)
    over_segments(task, lo, hi, lanes(source), share_strip, state, over_panels)


@inlined
def clear_strip(task, target, where, cols):
    skipped = filled_wide(target, real(task, at.EMPTY), cols[4])
    store(task, target, where, in_target(cols), skipped)


@kernel
def clear_skipped(task, lo, hi):
    """target[n] = EMPTY, mostly 0, where n belongs to no segment: the rows before the first and
    after the last. Items are sorted rows."""
    target, offsets = pointer(task, at.TARGET), offsets_of(task)
    order, indirect = order_of(task), has_order(task)
    first, past, columns = offsets[0], offsets[word(task, at.SEGMENTS)], columns_of(task)
    for i in range(lo, hi):
        if i < first or i >= past:
            where = position_offset(task, 1, order[i] if indirect else i)
            over_columns(task, columns, lanes(target), clear_strip, target, where)
    if word(task, at.STREAMING):
        fence()
