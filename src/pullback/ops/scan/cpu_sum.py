"""Running sums: y[j] = x[0] + … + x[j]. The backward is the same walk from the far end."""

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer
from pullback.cpu.memory import fence, filled_wide
from pullback.cpu.program import TENSORS
from pullback.cpu.sweep import cursor, length, strip_of, sweep
from pullback.cpu.tiles import earlier, last, lines_across, load_wide, spread, stack, store

ROWS = 8
CELLS = 256


@inlined
def sums(v, L):
    """The sums of each line's steps so far, by doubling."""
    v += earlier(v, -0.0, 1, L)
    v += earlier(v, -0.0, 2, L)
    return v + earlier(v, -0.0, 4, L)


@inlined
def sum_tile(at, size, state, L):
    x, y = at
    carry = state[0]
    v = sums(load_wide(x, size, -0.0, ROWS, L), L)
    store(y, size, spread(carry, v) + v, L)
    return (carry + last(v, L),)


@inlined
def _cumsum(task, lo, hi, cells, L):
    p, q = pointer(task, TENSORS), pointer(task, TENSORS + 1)
    # -0.0 is what changes no sum: 0.0 would turn a sum of negative zeros positive.
    start = (filled_wide(p, -0.0, L),)
    states = stack(start, cells)
    for item in range(lo, hi):
        line, lines = strip_of(task, item)
        for c in range(0, lines, L):
            states[c // L] = start
        at = cursor(task, p, 0, line, L), cursor(task, q, 1, line, L)
        sweep(sum_tile, at, length(task), lines, states, ROWS, 0, L)
    fence()


@kernel
def cumsum_along(task, lo, hi):
    _cumsum(task, lo, hi, 1, 1)


@kernel
def cumsum_across(task, lo, hi):
    _cumsum(task, lo, hi, CELLS, lines_across(pointer(task, TENSORS)))
