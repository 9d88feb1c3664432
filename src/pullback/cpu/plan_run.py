"""`plan.run` for arguments like those of the run before: a C function of (stream, workspace, args)
that says whether it has run them. What it knows are the words of a record:

    DOOR              the record of the launch, see door.py
    THREADS           address of the number of threads, for streams that name none
    STREAM, WORKSPACE, ARGS   their types
    BYTES             the workspace must have
    THREADS_OF, BYTES_OF, ADDRESS_OF   names of attributes, and from NAMES on that of each slot
    NOTHING, NO, YES  None and the two answers
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numba.extending import register_jitable

from pullback.cpu.atomics import INT
from pullback.cpu.block import STRANGE
from pullback.cpu.door import MANY, SLOTS, Door, launch_with_lock, locate, slot_at
from pullback.cpu.headers import data_of, type_of
from pullback.cpu.interpreter import (
    Method,
    as_integer,
    attribute,
    clear_error,
    drop,
    fast_method,
    hold,
)
from pullback.cpu.interrupt import INTERRUPTED
from pullback.cpu.kernel import native
from pullback.cpu.pool import threads_address
from pullback.cpu.words import at, stack_words

DOOR, THREADS, STREAM, WORKSPACE, ARGS, BYTES, THREADS_OF, BYTES_OF, ADDRESS_OF = range(9)
NOTHING, NO, YES, NAMES = range(9, 13)


@register_jitable
def _number(value, name):
    """An attribute that is a whole number, or -1."""
    found = attribute(value, name)
    number = as_integer(found)
    if number == -1:
        clear_error()
    drop(found)
    return number


@register_jitable
def _threads(record, stream):
    """How many a stream has: its own number, or everybody's; -1 if that is no number."""
    found = attribute(stream, record[THREADS_OF])
    drop(found)  # the stream has it
    if found == record[NOTHING]:
        return at(record[THREADS])[0]
    number = as_integer(found)
    if number == -1:
        clear_error()
    return number


@register_jitable
def _find(record, args, values, tensors):
    """Write the arrays and where they are; how many of them are held now, fewer than there are
    slots if one is not laid out as the launch wants it."""
    door = record[DOOR]
    for number in range(at(door)[SLOTS]):
        value = values[number] = attribute(args, record[NAMES + number])
        if value == 0:  # deleted by somebody
            clear_error()
            return number
        tensors[number] = locate(slot_at(door, number), value)
        if tensors[number] == STRANGE:
            drop(value)
            return number
    return at(door)[SLOTS]


@register_jitable
def _status(record, stream, workspace, args):
    """Of the run; STRANGE if there was none."""
    if (
        type_of(stream) != record[STREAM]
        or type_of(workspace) != record[WORKSPACE]
        or type_of(args) != record[ARGS]
        or _number(workspace, record[BYTES_OF]) < record[BYTES]
    ):
        return STRANGE
    values, tensors = stack_words(MANY), stack_words(MANY)
    held, status = _find(record, args, values, tensors), STRANGE
    if held == at(record[DOOR])[SLOTS]:
        address, threads = _number(workspace, record[ADDRESS_OF]), _threads(record, stream)
        if threads > 0:
            status = launch_with_lock(record[DOOR], address, threads, tensors)
    for number in range(held):
        drop(values[number])
    return status


@native(INT(INT, INT, INT))
def _run(book, passed, count):
    """`self` is an array: the record."""
    record, given = at(data_of(book)), at(passed)
    status = _status(record, given[0], given[1], given[2]) if count == 3 else STRANGE
    if status == INTERRUPTED:
        return 0
    answer = record[YES] if status == 0 else record[NO]
    hold(answer)
    return answer


# --- as Python sees it ----------------------------------------------------------------------------


class _Book(np.ndarray[Any, Any]):
    """A record that keeps what its words point to."""

    kept: Any


@cache
def _method() -> Method:
    """One for all plans."""
    return fast_method(b"run", _run())


def quick_run(
    door: Door, stream: type, workspace: type, args: type, nbytes: int, names: Sequence[str]
) -> Callable[[Any, Any, Any], bool]:
    """How arguments are run for which `door` was opened: objects of these types, `nbytes` of
    workspace, and the names of the slots' arrays."""
    asked = ("threads", "nbytes", "address")
    kept = (door, stream, workspace, args, asked, names)
    types = (id(kind) for kind in (stream, workspace, args))
    known = (nbytes, *map(id, asked), id(None), id(False), id(True))
    words = (door.address, threads_address(), *types, *known, *map(id, names))
    book = np.array(words, np.int64).view(_Book)
    book.kept = kept
    return _method().of(book)
