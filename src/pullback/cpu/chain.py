"""One line in chunks, each waiting for its turn: how several threads scan a long line.

Items of a chained kernel are chunks, and threads take items in order, so whoever holds the chunk
before this one is at work on it or done: waiting ends. A *link* is two words of the task for each
line, zero at the start of a run: which chunk's turn it is, and what the chunks before it sum up to.

    link_of(task, line)          its address
    is_turn(link, chunk)         whether everything before the chunk is known
    wait_for_turn(link, chunk)
    received(link, none)         what was passed on, as a vector like `none`
"""

from typing import Final

from pullback.cpu.atomics import give_way, load, pause
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import words
from pullback.cpu.memory import address, as_f64_pointer
from pullback.cpu.sweep import AXIS
from pullback.cpu.vector import like

LINK_WORDS: Final = 2
SPINS: Final = 1024  # rounds of `pause`, some 25 to 50 microseconds
TENSORS_WALKED: Final = 4  # how many tensors the axis words in front of the links describe


@inlined
def link_of(task, line):
    rank = words(task, AXIS)[1]
    end = AXIS + 2 + rank + TENSORS_WALKED * (rank + 2)
    return address(words(task, end + LINK_WORDS * line))


@inlined
def is_turn(link, chunk):
    return load(link) == chunk


@inlined
def wait_for_turn(link, chunk):
    """Whoever has it may have lost its core: after a while, offer ours."""
    spins = 0
    while load(link) != chunk:
        pause()
        spins += 1
        if spins % SPINS == 0:
            give_way()


@inlined
def received(link, none):
    """An f64 holds what any accumulator does."""
    return like(none, as_f64_pointer(link + 8)[0])
