"""The backward of the running log-sum-exp over lines with y. Halves have none worth reading: see
cpu_logsumexp_recomputed."""

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, word
from pullback.cpu.memory import fence, filled_wide, on_stack
from pullback.cpu.program import TENSORS
from pullback.cpu.sweep import OPTION, cursor, length, strip_of
from pullback.cpu.tiles import load_wide, moved, stack
from pullback.cpu.vector import half, to_f64
from pullback.ops.scan.cpu_columns import (
    GROUPS,
    PARTS,
    STEPS,
    as_met,
    compute_lanes,
    zero_tile,
)
from pullback.ops.scan.cpu_decay_pairs import first_state, started
from pullback.ops.scan.cpu_decays import decay_tile, usual_decays
from pullback.ops.scan.cpu_groups import BOX_ACROSS, BOX_ALONG, sweep_groups
from pullback.ops.scan.cpu_logsumexp import CELLS
from pullback.ops.scan.cpu_panels import AS_BEFORE, in_panels


@inlined
def cursors_at(task, line, L):
    """dy, dx, x and y of a line; no sums taken again."""
    dy, dx = pointer(task, TENSORS), pointer(task, TENSORS + 1)
    x, y = pointer(task, TENSORS + 2), pointer(task, TENSORS + 3)
    given = cursor(task, dy, 0, line, L), cursor(task, dx, 1, line, L)
    return (*given, cursor(task, x, 2, line, L), cursor(task, y, 3, line, L), None, None)


@inlined
def _logcumsumexp_backward(task, lo, hi, cells, room, L):
    x = pointer(task, TENSORS + 2)
    states = stack(first_state(filled_wide(x, 0.0, L)), cells)
    W, box = compute_lanes(x), on_stack(x, room)
    part, few = half(zero_tile(x, 0, W), 0), half(half(half(zero_tile(x, 0, W), 0), 0), 0)
    rooms = (
        stack(part, PARTS),
        stack(zero_tile(x, 0, W), GROUPS),
        stack(few, GROUPS),
        stack(to_f64(few), GROUPS),
        stack(0, GROUPS),
        stack(part, PARTS),
    )
    for item in range(lo, hi):
        line, lines = strip_of(task, as_met(task, lo, hi, item))
        at = cursors_at(task, line, L)
        for c in range(0, lines, L):
            size = (1, min(lines - c, L))
            states[c // L] = started(x, load_wide(moved(at, 0, c)[3], size, 0.0, 1, L))
        steps = length(task), word(task, OPTION)
        sweep_groups(usual_decays, decay_tile, at, box, steps, lines, states, rooms, 1, W, L)
    fence()


@kernel
def logcumsumexp_backward_along(task, lo, hi):
    _logcumsumexp_backward(task, lo, hi, 1, BOX_ALONG, 1)


@inlined
def _across(task, lo, hi):
    _logcumsumexp_backward(task, lo, hi, CELLS, BOX_ACROSS, compute_lanes(pointer(task, TENSORS)))


_fills = {0: AS_BEFORE, 2: AS_BEFORE, 3: AS_BEFORE}
_in_panels = in_panels(_across, STEPS, _fills, spare=True)


@kernel
def logcumsumexp_backward_across(task, lo, hi):
    _in_panels(task, lo, hi)
