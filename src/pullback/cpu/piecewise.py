"""Kernels of plain scans, run on each piece of a line by itself (contract/extension).

Items are those of the plain kernel times the pieces. The kernel gets a block of words of its own,
in which a line is the piece. Words of an extended program begin where word EXTENSION says.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

from numba.extending import intrinsic

from pullback.cpu.block import WORKSPACE
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import Kernel, word
from pullback.cpu.memory import as_i64_pointer
from pullback.cpu.scan_words import EXTENSION
from pullback.cpu.words import stack_words

CARRIED_STEPS: Final = 256  # steps for which the workspace of a plain scan has a place
# LENGTH of the block; PIECES; STEPS of the axis; MORE elements scanned in each piece; whether it is
# REVERSED, and whether the plain scan walks BACK; where the BORDERS are in the workspace, or -1;
# the slot of the offsets and their step; the layout words of the plain scan (AXIS_AT) and how many
# tensors they have (WALKED); where its own workspace is (INNER), and how many bytes of it are for
# each of CARRIED_STEPS; staged tensors (ROWS); their LAYOUT words; the slot of the initial value,
# that of its gradient or, in the workspace, its place; how many sums there are, and their words;
# how many steps are copied AT_ONCE, of COLUMNS lines that are neighbours in the staged shape.
_NAMED: Final = 22
LENGTH, PIECES, STEPS, MORE, REVERSED, BACK, BORDERS, OFFSETS, OFFSETS_STEP, AXIS_AT = range(10)
WALKED, INNER, INNER_BYTES, ROWS, LAYOUT, INITIAL, GRADIENT, GRADIENT_AT = range(10, 18)
SUMS, SUM_WORDS, AT_ONCE, COLUMNS = range(18, _NAMED)
HEAD: Final = _NAMED


@inlined
def base_of(task):
    return (word(task, WORKSPACE) + 63) & ~63


@inlined
def field(task, which):
    return word(task, word(task, EXTENSION) + which)


@inlined
def piece_of(task, p):
    """Begin and end of a piece, where it begins in the staged shape, and how many are scanned."""
    more = field(task, MORE)
    begin, end = 0, field(task, STEPS)
    if field(task, BORDERS) >= 0:
        borders = as_i64_pointer(base_of(task) + field(task, BORDERS))
        begin, end = borders[p], borders[p + 1]
    return begin, end, begin + max(more, 0) * p, max(end - begin + more, 0)


@intrinsic
def _as_task(typing_context, task, block):
    return task(task, block), lambda context, builder, signature, args: args[1]


def over_pieces(body: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of a plain scan, run on each piece by itself: items are its items times pieces."""
    plain = inlined(body)

    @inlined
    def run(task, lo, hi):
        length, pieces, back = field(task, LENGTH), field(task, PIECES), field(task, BACK)
        block = stack_words(length)
        for k in range(length):
            block[k] = word(task, k)
        axis, there = field(task, AXIS_AT), _as_task(task, block)
        rank = block[axis + 1]
        for item in range(lo, hi):
            inner = item // pieces
            piece = item - inner * pieces
            _, _, begin, count = piece_of(task, piece)
            if count == 0:
                continue
            first = begin + count - 1 if back != 0 else begin
            block[axis] = count
            for t in range(field(task, WALKED)):
                at = axis + 2 + rank + t * (rank + 2)
                block[at] = -first * block[at + 1] if back != 0 else first * block[at + 1]
            carried = (begin // CARRIED_STEPS + piece) * field(task, INNER_BYTES)
            block[WORKSPACE] = base_of(task) + field(task, INNER) + carried
            plain(there, inner, inner + 1)

    return run


def _template(task, lo, hi):
    body(task, lo, hi)  # noqa: F821


# By the kernel of a plain scan, the one that runs it on pieces, and where its layout words begin.
PIECEWISE: dict[Kernel, tuple[Kernel, int]] = {}


def add_piecewise(plain: Kernel, body: Callable[..., Any], axis: int, module: str) -> Kernel:
    """Make a kernel for pieces, found on disk by its name as any is."""
    name = f"{plain.name.rpartition('.')[2]}_pieces"
    function = FunctionType(
        _template.__code__, {"body": over_pieces(body), "__name__": module}, name
    )
    function.__module__, function.__qualname__ = module, name
    found = Kernel(function)
    PIECEWISE[plain] = found, axis
    return found
