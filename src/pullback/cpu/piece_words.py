"""Words of an extended program, from where word EXTENSION says: see cpu/extended, cpu/piecewise."""

from typing import Final

from pullback.cpu.block import WORKSPACE
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import word
from pullback.cpu.scan_words import EXTENSION

# LENGTH of the block; PIECES; STEPS of the axis; MORE elements scanned in each piece; whether it is
# REVERSED, and whether the plain scan walks BACK; where the BORDERS are in the workspace, or -1;
# the slot of the offsets and their step; the layout words of the plain scan (AXIS_AT) and how many
# tensors they have (WALKED); where its own workspace is (INNER), and how many bytes of it are for
# how many steps of all lines (KEPT_BYTES, KEPT_STEPS); staged tensors (ROWS); their LAYOUT words;
# the slot of the initial value, that of its gradient or, in the workspace, its place; how many sums
# there are, and their words; how many steps are copied AT_ONCE, of COLUMNS lines that are
# neighbours in the staged shape; the address of the kernel of the PLAIN scan, and of the one that
# takes short pieces TOGETHER, or 0. What that is given: the address of the borders of its pieces,
# in the order of the walk, and how many pieces there are; how many steps fewer than up to the next
# each has, and how many are left out before it. Which of the tensors walked are initial values and
# what is asked for at the end, if the scan knows them itself, and whether there is the latter.
# Whether each line JOINS the next in memory, and so do the values of its pieces.
_NAMED: Final = 32
LENGTH, PIECES, STEPS, MORE, REVERSED, BACK, BORDERS, OFFSETS, OFFSETS_STEP, AXIS_AT = range(10)
WALKED, INNER, KEPT_BYTES, KEPT_STEPS, ROWS, LAYOUT, INITIAL, GRADIENT = range(10, 18)
GRADIENT_AT, SUMS, SUM_WORDS, AT_ONCE, COLUMNS, PLAIN, TOGETHER = range(18, 25)
RUN_BORDERS, RUN_PIECES, RUN_LESS, RUN_LATE, OF_EDGES, ENDS, JOINS = range(25, _NAMED)
HEAD: Final = _NAMED


@inlined
def base_of(task):
    return (word(task, WORKSPACE) + 63) & ~63


@inlined
def field(task, which):
    return word(task, word(task, EXTENSION) + which)
