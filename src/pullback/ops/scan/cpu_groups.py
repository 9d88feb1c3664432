"""Walking over lines in groups of tiles (cpu_columns): each pass over a group is a short loop whose
turns do not wait for each other.

Across the axis outputs wait in a box and leave as whole rows: rows a power of two apart meet in the
same set of the cache. Along it, what does not fill a tile, or has another step than one, is brought
to the box and back.
"""

from typing import Final

from pullback.cpu.emit import inlined
from pullback.cpu.memory import advance
from pullback.cpu.staging import move_row
from pullback.cpu.tiles import by_type, moved
from pullback.ops.scan.cpu_columns import GROUPS, STEPS, columns_rows
from pullback.ops.scan.cpu_quads import common_step

PITCH: Final = 1024 + 32  # elements between rows of a box
BOX_ACROSS: Final = STEPS * PITCH
BOX_ALONG: Final = 4 * 64  # a tile of each tensor


@by_type
def sweep_groups(usual, tile, cursors, box, steps, lines, states, rooms, left, W, L):
    """usual(cursors, groups, states, first, rooms, L) -> whether all was done, over groups of whole
    tiles; what it leaves by tile(cursors, size, state, L) -> state. The last `left` steps belong to
    a part then: a tile that looks one step ahead stays inside. The second cursor is the output's.
    After the last step of a line its state is no longer of use. `steps`: how many a line has, and
    how many more usual tiles may walk across."""
    return _along if L.literal_value == 1 else _across


def _along(usual, tile, cursors, box, steps, lines, states, rooms, left, W, L):
    rows, straight, n = columns_rows(W, L), common_step(cursors) != 0, steps[0]
    k = 0
    while k < n:
        whole = min((n - k) // rows, GROUPS) if straight else 0
        some, here = min(whole * rows if whole > 0 else rows, n - k), moved(cursors, k, 0)
        at = here if whole > 0 else brought(here, box, some, rows)
        if usual(at, max(whole, 1), states, 0, rooms, L):
            if whole == 0:
                bring_back(here[1], at[1], some)
        else:
            for g in range(0, some, rows):
                at = moved(here, g, 0)
                if straight and k + g + rows + left <= n:
                    states[0] = tile(at, None, states[0], L)
                else:
                    states[0] = tile(at, (n - k - g, 1), states[0], L)
        k += some


@inlined
def brought_one(cursor, box, steps, rows):
    """A tile of a tensor in the box; its last step stands for those that it lacks."""
    p, i, step, _ = cursor
    for k in range(rows):
        box[k] = p[i + min(k, steps - 1) * step]
    return moved(((box, 0, 1, False),), 0, 0)


@by_type
def brought(cursors, box, steps, rows):
    """The cursors in the box: the output, or gradients as well, and x and y."""
    if len(cursors) == 4:
        return lambda cursors, box, steps, rows: (
            brought_one(cursors[0], box, steps, rows)
            + moved(((box, rows, 1, False),), 0, 0)
            + cursors[2:]
        )
    return lambda cursors, box, steps, rows: (
        brought_one(cursors[0], box, steps, rows)
        + moved(((box, rows, 1, False),), 0, 0)
        + brought_one(cursors[2], advance(box, 2 * rows), steps, rows)
        + brought_one(cursors[3], advance(box, 3 * rows), steps, rows)
        + cursors[4:]
    )


@inlined
def bring_back(out, kept, steps):
    p, i, step, _ = out
    box, j, _, _ = kept
    for k in range(steps):
        p[i + k * step] = box[j + k]


def _across(usual, tile, cursors, box, steps, lines, states, rooms, left, W, L):
    out, first, step, streaming = cursors[1]
    n, spare = steps
    for k in range(0, n, STEPS):
        whole = lines // L if k + STEPS <= n + spare else 0
        for c in range(0, lines, GROUPS * L):
            groups, here = min(GROUPS, whole - c // L), boxed(cursors, box, k, c)
            done = 0
            if groups > 0 and usual(here, groups, states, c // L, rooms, L):
                done = groups * L
            for line in range(c + done, min(c + GROUPS * L, lines), L):
                at, size = boxed(cursors, box, k, line), (n - k, min(lines - line, L))
                states[line // L] = tile(at, size, states[line // L], L)
        for row in range(min(STEPS, n - k)):
            move_row(box, row * PITCH, out, first + (k + row) * step, lines, streaming)


@inlined
def boxed(cursors, box, k, c):
    """The cursors k steps and c lines further on, the output's in the box."""
    there = moved(((box, c, PITCH, False),), 0, 0)
    return moved(cursors[:1], k, c) + there + moved(cursors[2:], k, c)
