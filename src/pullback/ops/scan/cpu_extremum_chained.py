"""The gradient of running extrema of few long lines, shared by threads, with the bits of one.

A span of several chunks passes two things on: the extremum after it, as soon as it is known, and
the record that holds it with its sum so far, when the gradients of the span are written. A span
that has to wait for its turn finds its own extremum meanwhile; if that is no record, none of its
steps is.
"""

from pullback.cpu.chain import is_turn, link_of, pass_on, received, wait_for_turn
from pullback.cpu.emit import Vec, inlined
from pullback.cpu.kernel import kernel, pointer, word
from pullback.cpu.memory import advance, fence, filled_wide, on_stack
from pullback.cpu.program import TENSORS
from pullback.cpu.staging import sweep_back
from pullback.cpu.sweep import OPTION, STRIP, cursor, length, sweep
from pullback.cpu.tiles import by_type, last, load, long_rows, moved, stack
from pullback.cpu.vector import any_lane, lane, select, splat
from pullback.ops.scan.cpu_block_sums import no_sum
from pullback.ops.scan.cpu_extremum import (
    first_extrema,
    first_wins,
    flipped,
    last_extrema,
    last_wins,
)
from pullback.ops.scan.cpu_extremum_backward import (
    CHUNK,
    LAST,
    ROWS,
    gradient_tile,
    line_end,
    record_tile,
    settled,
)

CHUNKS = 8
SPAN = CHUNKS * CHUNK  # steps of a turn
# Of a line: the extremum; the place of the record that holds it; its sum, of one vector or two.
LINKS = 4
WORDS = CHUNK // ROWS
ENTRIES = CHUNKS * WORDS


@by_type
def _received(task, link, none):
    if isinstance(none, Vec):
        return lambda task, link, none: received(link_of(task, link), none)
    return lambda task, link, none: (
        received(link_of(task, link), none[0]),
        received(link_of(task, link + 1), none[1]),
    )


@by_type
def _pass_on(task, link, number, total):
    """The last of the links that `_received` reads is that of the turn."""
    if isinstance(total, Vec):
        return lambda task, link, number, total: pass_on(link_of(task, link), number, total)

    def both(task, link, number, total):
        pass_on(link_of(task, link + 1), number, total[1])
        pass_on(link_of(task, link), number, total[0])

    return both


@inlined
def _wins(b, a, last_too):
    return last_wins(b, a) if last_too != 0 else first_wins(b, a)


@inlined
def extremum_tile(at, size, state, L):
    x, sign, last_too = at
    v = flipped(load(x, size, 0.0, long_rows(x[0], L), L), sign)
    if last_too != 0:
        return (last(last_extrema(v, state[0], L)[0], L),)
    return (last(first_extrema(v, state[0], L)[0], L),)


@kernel
def extremum_backward_chained(task, lo, hi):
    p, q, r = pointer(task, TENSORS), pointer(task, TENSORS + 1), pointer(task, TENSORS + 2)
    sign, last_too = word(task, OPTION), word(task, LAST)
    n, lines = length(task), word(task, STRIP)
    nothing, nowhere, none = filled_wide(p, -0.0, 1), splat(0.0, 1), no_sum(p, 1)
    bests = stack((load(cursor(task, r, 2, 0, 1), (1, 1), 0.0, 1, 1),), 1)
    sums, words = stack((none, 0, nothing), 1), stack(0, ENTRIES)
    ends, box = stack((none, 0, 0, 0, nothing), CHUNKS), on_stack(p, 1)
    rows = long_rows(p, 1)
    for item in range(lo, hi):
        number = item // lines
        line = item - number * lines
        begin = number * SPAN
        steps = min(SPAN, n - begin)
        extremum, where = link_of(task, LINKS * line), link_of(task, LINKS * line + 1)
        holder = LINKS * line + 2
        dx = cursor(task, q, 1, line, 1)
        walk = cursor(task, p, 0, line, 1), dx, cursor(task, r, 2, line, 1)
        dy_, dx_, x_ = moved(walk, begin, 0)
        bests[0] = (flipped(load(x_, (1, 1), 0.0, 1, 1), sign),)
        early = not is_turn(extremum, number)
        if early:
            sweep(extremum_tile, (x_, sign, last_too), steps, 1, bests, rows, 0, 0, 1)
        own = bests[0][0]
        wait_for_turn(extremum, number)
        best = received(extremum, own) if number > 0 else own
        if early:
            pass_on(extremum, number, select(_wins(own, best, last_too), own, best))
        if early and not any_lane(_wins(own, best, last_too)):
            for k in range(ENTRIES):
                words[k] = 0
        else:
            bests[0] = (best,)
            at = x_, (words, 0, 1, False), sign, dy_, last_too
            sweep(record_tile, at, steps, 1, bests, rows, 0, 0, 1)
        if not early:
            pass_on(extremum, number, bests[0][0])
        if begin == 0:
            words[0] |= 1
        for i in range((steps + CHUNK - 1) // CHUNK):
            count = min(CHUNK, steps - i * CHUNK)
            sums[0] = none, 0, nothing
            to, dy, marks = moved((dx_, dy_, (words, 0, 1, False)), i * CHUNK, 0)
            back = dy, marks, moved((dy,), CHUNK, 0)[0]
            sweep_back(gradient_tile, to, box, 0, back, count, 1, sums, rows, 1)
            there = begin + i * CHUNK
            ends[i] = line_end(sums[0], advance(words, i * WORDS), 1, 0, there, count, 1)
        # What goes past the caches is written before the next span adds to a record of this.
        fence()
        wait_for_turn(link_of(task, holder), number)
        total = _received(task, holder, none) if number > 0 else none
        place = int(lane(received(where, nowhere), 0)) if number > 0 else 0
        for i in range((steps + CHUNK - 1) // CHUNK):
            count = min(CHUNK, steps - i * CHUNK)
            place, total = settled(dx, begin + i * CHUNK, count, n, ends[i], place, total)
        pass_on(where, number, splat(place * 1.0, 1))
        _pass_on(task, holder, number, total)
    fence()
