"""Threads that share a line: every chunk waits for the value of the chunks before it.

Items of such a kernel are chunks, and threads take items in order, so whoever holds the chunk
before this one is at work on it or done: waiting ends. A *link* is a few words of the task for each
line, zero at the start of a run: which chunk's turn it is, then the carried values as f64, which
holds what any accumulator does.

    link_of(task, links, line, carried)   its address; word `links` says where the first begins
    is_turn(link, chunk)                  whether everything before the chunk is known
    wait_for_turn(link, chunk)
    received(link, carried)               what was published last, as values like `carried`
    publish(link, chunk, carried)         hand it to the next chunk
"""

from typing import Final

from llvmlite import ir
from numba import types

from pullback.cpu.atomics import give_way, load, pause, store
from pullback.cpu.emit import I32, I64, inlined, op, splatted
from pullback.cpu.kernel import word, words
from pullback.cpu.memory import address
from pullback.cpu.tile_rows import packed

CARRIED: Final = 4  # values at most
LINK_WORDS: Final = 1 + CARRIED
SPINS: Final = 1024  # rounds of `pause`, some 25 to 50 microseconds


@inlined
def link_of(task, links, line, carried):
    return address(words(task, word(task, links) + LINK_WORDS * line))


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


def _value_at(b: ir.IRBuilder, link: ir.Value, t: int) -> ir.Value:
    where = b.inttoptr(link, ir.DoubleType().as_pointer())
    return b.gep(where, [I64(1 + t)])


@op
def received(link: types.Integer, carried: types.BaseTuple):
    def emit(b, link_, _carried):
        values = []
        for t, vec in enumerate(carried):
            value = b.load(_value_at(b, link_, t))
            if vec.dtype != types.float64:
                value = b.fptrunc(value, vec.llvm.element)
            values.append(splatted(b, value, vec.n))
        return packed(b, values)

    return carried(types.int64, carried), emit


@op
def _put(link: types.Integer, carried: types.BaseTuple):
    def emit(b, link_, carried_):
        for t, vec in enumerate(carried):
            value = b.extract_element(b.extract_value(carried_, t), I32(0))
            if vec.dtype != types.float64:
                value = b.fpext(value, ir.DoubleType())
            b.store(value, _value_at(b, link_, t))

    return types.void(types.int64, carried), emit


@inlined
def publish(link, chunk, carried):
    _put(link, carried)
    store(link, chunk + 1)
