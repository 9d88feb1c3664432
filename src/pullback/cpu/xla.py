"""The native side of XLA's foreign function interface: one handler for every plan.

XLA calls `handle` with a frame that names the buffers of a call and its attributes; its layout is
that of XLA_FFI_CallFrame in XLA's c_api.h, which promises to keep it. The attribute `launch` is a
whole launch but for addresses:

    block length, number of places, number of phases,
    the words of the block,
    places: (word of the block, operand, byte offset, bytes); operands count the inputs, then the
    results, whose sizes in bytes matter to the memory below them
    phases: (kernel key, items, grain, word of the block that gets the address of the kernel, or 0)

An executable may be stored and loaded in another process, so nothing in it is an address. Kernels
go by a key, which `enrol` enters in a table of this process; the handler finds addresses there.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from functools import cache
from typing import Any, Final

from numba.extending import register_jitable

from pullback.contract.element import ElementKind
from pullback.contract.imports import IMPORTS
from pullback.cpu.atomics import INT, load
from pullback.cpu.block import DETAIL, STATUS
from pullback.cpu.kernel import Kernel, native, source_hash
from pullback.cpu.pool import execute_address, shared_memory, threads_address
from pullback.cpu.words import address_of, at, call, stack_words, symbol
from pullback.cpu.xla_frame import (
    ARGS,
    ATTRIBUTES,
    DATA,
    EXTENSION,
    INTERFACE,
    METADATA,
    RESULTS,
    TRAITS,
    VERSION,
)

SYMBOL: Final = "pullback_xla"

# Words of the state: addresses of `execute`, of the thread count, of `explain` and of `madvise` (or
# 0), then the table of kernels.
EXECUTE, THREADS, EXPLAIN, ADVISE, TABLE = range(5)
CAPACITY: Final = 1 << 13  # pairs (key, address); far more than there are kernels

MEMORY: Final = {SYMBOL: 8 * (TABLE + 2 * CAPACITY)}

# A status no kernel has: the handler met a key that is not in the table.
UNKNOWN_KERNEL: Final = -1

# XLA hands out results in fresh memory, and the system's first touch of it takes as long as many a
# kernel. From this size on it is worth a hint that huge pages will do: a tenth of the faults.
_HUGE: Final = 1 << 22
_PAGE: Final = 4096
_MADV_HUGEPAGE: Final = 14

ABOUT, LAUNCH = range(2)  # attributes come sorted by name


@register_jitable
def _find(state, key):
    """Address of an enrolled kernel, or 0."""
    place = key % CAPACITY
    while True:
        entry = state + (TABLE + 2 * place) * 8
        known = load(entry)
        if known == key:
            return load(entry + 8)
        if known == 0:
            return 0
        place = (place + 1) % CAPACITY


@register_jitable
def _answer_query(extension):
    """What XLA asks once, before anything runs: which version of its interface this is."""
    metadata = at(at(extension)[METADATA])
    metadata[VERSION] = INTERFACE
    metadata[TRAITS] = 0


@register_jitable
def _failure(frame, block):
    """The XLA error that explains the status of a block."""
    return call(at(symbol(SYMBOL))[EXPLAIN], (frame, address_of(block)))


@native(INT(INT))
def handle(address):
    frame = at(address)
    if frame[EXTENSION] != 0 and at(frame[EXTENSION])[1] & 0xFFFFFFFF == 1:
        _answer_query(frame[EXTENSION])
        return 0
    launch = at(at(at(frame[ATTRIBUTES + 3])[LAUNCH])[2])
    length, places, phases = launch[0], launch[1], launch[2]
    block, state = stack_words(length + 4 * phases), symbol(SYMBOL)
    words = at(state)
    for word in range(length):
        block[word] = launch[3 + word]
    cursor, inputs = 3 + length, frame[ARGS]
    for _ in range(places):
        operand = launch[cursor + 1]
        if operand < inputs:
            buffer = at(frame[ARGS + 2])[operand]
        else:
            buffer = at(frame[RESULTS + 2])[operand - inputs]
        data, size = at(buffer)[DATA], launch[cursor + 3]
        if size >= _HUGE and words[ADVISE] != 0:
            start = (data + _PAGE - 1) // _PAGE * _PAGE
            call(words[ADVISE], (start, (data + size - start) // _PAGE * _PAGE, _MADV_HUGEPAGE))
        block[launch[cursor]] = data + launch[cursor + 2]
        cursor += 4
    for word in range(length, length + 4 * phases, 4):
        kernel = _find(state, launch[cursor])
        if kernel == 0:
            block[STATUS], block[DETAIL] = UNKNOWN_KERNEL, launch[cursor]
            return _failure(address, block)
        block[word] = kernel
        block[word + 1], block[word + 2] = launch[cursor + 1], launch[cursor + 2]
        block[word + 3] = launch[cursor + 3]
        cursor += 4
    program = address_of(block) + 8 * length
    threads = load(words[THREADS])
    if call(words[EXECUTE], (program, phases, address_of(block), threads)) != 0:
        return _failure(address, block)
    return 0


# --- the state, as Python fills it ----------------------------------------------------------------


@cache
def _words() -> Any:
    """The state of this process."""
    size = MEMORY[SYMBOL]
    words = (ctypes.c_int64 * (size // 8)).from_address(shared_memory(SYMBOL, size))
    words[EXECUTE], words[THREADS] = execute_address(), threads_address()
    words[ADVISE] = _address_of_madvise()
    return words


def _address_of_madvise() -> int:
    advise = getattr(ctypes.pythonapi, "madvise", None) if sys.platform == "linux" else None
    return ctypes.cast(advise, ctypes.c_void_p).value or 0 if advise else 0


def handler_address(explain: int) -> int:
    """Address of the handler. `explain(frame, block)`, a C function, makes the XLA error that
    stands for the status of a block."""
    _words()[EXPLAIN] = explain
    return handle()


@cache
def kernel_key(name: str, element: ElementKind, index: ElementKind) -> int:
    """The same in every process that has the same sources, and never 0."""
    text = f"{source_hash()} {name} {element.value} {index.value}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little") + 1


def _place(key: int) -> int:
    """The word of the table that holds a key, or where it goes."""
    words, place = _words(), key % CAPACITY
    while words[TABLE + 2 * place] not in (0, key):
        place = (place + 1) % CAPACITY
    return TABLE + 2 * place


def enrolled(key: int) -> bool:
    return bool(_words()[_place(key)] == key)


def enrol(kernel: Kernel, element: ElementKind, index: ElementKind) -> int:
    """Make a kernel known to the handler; its key."""
    key, address = kernel_key(kernel.name, element, index), kernel.address(element, index)
    with IMPORTS:
        place = _place(key)
        # The address first: the handler looks for keys without the lock.
        _words()[place + 1] = address
        _words()[place] = key
    return key
