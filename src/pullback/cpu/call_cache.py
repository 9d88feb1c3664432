"""Fast path for repeated calls of a function, and for repeated runs of a plan.

A cache holds the records of the last validated calls (call_record.py), the latest first. `lookup`
is a METH_FASTCALL function, compiled by Numba: it compares the arguments of a call with those of
each record. On a hit it allocates the outputs and launches without running Python (about 1 µs); on
a miss it returns None and has no side effect. PULLBACK_SAFE=1 leaves every cache empty.
Gain (repeated calls in native code): cumsum 4x16 f32 8.89.

All of it runs with the GIL held, but for a launch that may take long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from numba.extending import register_jitable

from pullback.cpu.atomics import INT
from pullback.cpu.block import MISMATCH
from pullback.cpu.buffer_pool_native import allocate
from pullback.cpu.call_match import argument_at, fresh_at, locate_all, release, spread
from pullback.cpu.call_record import (
    ADDRESS_OF,
    ALLOCATOR,
    ARRAY,
    BYTES_OF,
    FRESH,
    GUARD,
    KIND,
    LAUNCH,
    MOST,
    NEEDED,
    NOTHING,
    NOWHERE,
    OWNER,
    PASSED,
    PLAN,
    POSITION,
    RECORD,
    RECORDER,
    RESULTS,
    SCRATCH,
    STACK_BYTES,
    THREADS,
    THREADS_OF,
    TYPE,
    UNREAD,
    WRITTEN,
    CallRecord,
)
from pullback.cpu.dispatch_guard import NEEDS_GRAD, NO_GRAD, is_plain_call, is_recording, state_of
from pullback.cpu.headers import data_of
from pullback.cpu.interpreter import (
    as_integer,
    attribute,
    call_object,
    call_with,
    call_with_all,
    clear_error,
    drop,
    hold,
    new_tuple,
    set_item,
)
from pullback.cpu.interrupt import INTERRUPTED
from pullback.cpu.kernel import native
from pullback.cpu.native_launch import MANY, launch_with_lock, operand_at
from pullback.cpu.operands import locate
from pullback.cpu.words import address_of, at, stack_words
from pullback.internals.cpython import Method, fast_method

CAPACITY: Final = 64  # records of a cache; comparing with one that differs takes about 10 ns


# --- running --------------------------------------------------------------------------------------


@register_jitable
def _allocate_all(record, values, count, tensors):
    """Allocate the fresh arrays: how many there are now, fewer if memory ran out. (One that is not
    an array the launch knows is at an odd address, which no launch accepts.)"""
    for number in range(record[FRESH]):
        fresh = fresh_at(record, number)
        if fresh[ALLOCATOR] == 0:
            value = allocate(at(fresh[RECORD]))
        else:
            value = call_object(fresh[ALLOCATOR])
        values[count + number] = value
        if value == 0:
            return number
        if fresh[POSITION] != NOWHERE:
            tensors[fresh[POSITION]] = locate(operand_at(record[LAUNCH], fresh[POSITION]), value)
    return record[FRESH]


@register_jitable
def _launch(record, values, tensors):
    """Run a function's launch on the tensors: its status."""
    few = address_of(stack_words(STACK_BYTES // 8))
    scratch = record[SCRATCH]
    workspace = few if scratch == NOWHERE else data_of(values[scratch])
    return launch_with_lock(record[LAUNCH], workspace, at(record[THREADS])[0], tensors)


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
    """Threads of a stream: its own number, or the process's; -1 if that is not a number."""
    plan = at(record[PLAN])
    found = attribute(stream, plan[THREADS_OF])
    drop(found)  # the stream has it
    if found == plan[NOTHING]:
        return at(record[THREADS])[0]
    number = as_integer(found)
    if number == -1:
        clear_error()
    return number


@register_jitable
def _launch_plan(record, values, tensors):
    """Run a plan's launch on its stream and workspace: the status, or MISMATCH."""
    plan, stream, workspace = at(record[PLAN]), values[0], values[1]
    threads = _threads(record, stream)
    if _number(workspace, plan[BYTES_OF]) < plan[NEEDED] or threads < 1:
        return MISMATCH
    address = _number(workspace, plan[ADDRESS_OF])
    return launch_with_lock(record[LAUNCH], address, threads, tensors)


@register_jitable
def _result(record, values):
    """What the call returns: the array at a place, a tuple of several, and of a plan, which
    returns nothing, any object but None."""
    places, several = fresh_at(record, record[FRESH]), record[RESULTS]
    if several == 0:
        hold(record[OWNER])
        return record[OWNER]
    for number in range(several):
        hold(values[places[number]])
    if several == 1:
        return values[places[0]]
    result = new_tuple(several)
    for number in range(several):
        set_item(result, number, values[places[number]])
    return result


@register_jitable
def _run(record, values, count, tensors):
    """The result; 0 with an error set; or MISMATCH if the launch fails or does not begin."""
    done, result = _allocate_all(record, values, count, tensors), 0
    if done == record[FRESH]:
        if record[PLAN] == 0:
            status = _launch(record, values, tensors)
        else:
            status = _launch_plan(record, values, tensors)
        if status == 0:
            result = _result(record, values)
        elif status != INTERRUPTED:
            result = MISMATCH
    for number in range(done):
        drop(values[count + number])
    return result


@register_jitable
def _state(record, passed):
    """NO_GRAD, NEEDS_GRAD if autograd is to record, or MISMATCH."""
    guard = at(record[GUARD])
    if not is_plain_call(guard):
        return MISMATCH
    found = NO_GRAD
    for number in range(record[PASSED]):
        argument = argument_at(record, number)
        if argument[TYPE] != 0 and (argument[KIND] == ARRAY or argument[KIND] == UNREAD):
            state = state_of(guard, passed[number])
            if state == MISMATCH:
                return MISMATCH
            found |= state
    return NEEDS_GRAD if found == NEEDS_GRAD and is_recording(guard) else NO_GRAD


@register_jitable
def _call_recorder(record, passed):
    """The result of the recorder; MISMATCH if there is none."""
    recorder = record[RECORDER]
    if recorder == 0:
        return MISMATCH
    hold(recorder)
    result = call_with_all(recorder, address_of(passed), record[PASSED], 0)
    drop(recorder)
    return result


@register_jitable
def _tell_written(record, result):
    """Tell the library of a tensor that it was written; an error of that is the call's."""
    if record[WRITTEN] == 0 or result == 0 or result == MISMATCH:
        return result
    answer = call_with(record[WRITTEN], result)
    if answer == 0:
        drop(result)
        return 0
    drop(answer)
    return result


@register_jitable
def _repeat(record, passed, values, count, tensors):
    """Make a call that matches a record: its result; 0 with an error set; or MISMATCH. The record
    is kept alive: others may replace it while the launch runs without the GIL."""
    owner, result, state = record[OWNER], MISMATCH, NO_GRAD
    hold(owner)
    if record[GUARD] != 0:
        state = _state(record, passed)
    if state == NO_GRAD:
        result = _tell_written(record, _run(record, values, count, tensors))
    elif state == NEEDS_GRAD:
        result = _call_recorder(record, passed)
    release(record, values, count)
    drop(owner)
    return result


# --- the cache ------------------------------------------------------------------------------------

# A cache is an object array: the records, the latest first, then the array of their addresses. Both
# are read and written by native code under the GIL only, so they agree at all times; NumPy drops
# the references when the array dies. Behind the addresses stands where the last hit was: calls of
# n layouts in rotation, as in a loop over the tensors of a model, always hit the n-th record.
# Gain (the place of the last hit is tried first): lerp with out= over 64 shapes of tensors 3.05.
_NONE, _ADDRESSES, _LENGTH = CAPACITY, CAPACITY + 1, CAPACITY + 2
_USUAL = CAPACITY


@register_jitable
def _move_to_front(words, number):
    found = words[number]
    while number > 0:
        words[number] = words[number - 1]
        number -= 1
    words[0] = found


@native(INT(INT, INT, INT))
def _lookup(table, passed, count):
    """The result of a call with all its arguments, or None."""
    records = at(data_of(table))
    addresses, values, tensors = (
        at(data_of(records[_ADDRESSES])),
        stack_words(MOST),
        stack_words(MANY),
    )
    usual = addresses[_USUAL]
    for turn in range(-1, CAPACITY):
        if turn == usual:
            continue
        number = usual if turn < 0 else turn
        if addresses[number] == 0:
            break
        record = at(addresses[number])
        places = spread(record, at(passed), values) if count == record[PASSED] else NOWHERE
        if places == NOWHERE:
            continue
        if not locate_all(record, values, places, tensors):
            release(record, values, places)
            continue
        if number > 0:
            _move_to_front(records, number)
            _move_to_front(addresses, number)
        addresses[_USUAL] = number
        result = _repeat(record, at(passed), values, places, tensors)
        if result != MISMATCH:
            return result
        break
    hold(records[_NONE])
    return records[_NONE]


@native(INT(INT, INT, INT))
def _insert(table, passed, count):
    """Put a record, passed with its address, first in place of the one unused for longest."""
    records = at(data_of(table))
    addresses, record, address = (
        at(data_of(records[_ADDRESSES])),
        at(passed)[0],
        as_integer(at(passed)[1]),
    )
    known = False
    for number in range(CAPACITY):
        known |= addresses[number] == address
    if not known:
        last, gone = CAPACITY - 1, records[CAPACITY - 1]
        hold(record)
        records[last], addresses[last] = record, address
        _move_to_front(records, last)
        _move_to_front(addresses, last)
        drop(gone)
    hold(records[_NONE])
    return records[_NONE]


@cache
def _methods() -> tuple[Method, Method]:
    """One pair for all caches."""
    return fast_method(b"lookup", _lookup()), fast_method(b"insert", _insert())


class CallCache:
    """The latest calls of one function, or the latest runs of one plan."""

    __slots__ = ("_insert", "lookup")

    def __init__(self) -> None:
        table = np.empty(_LENGTH, object)
        table[_ADDRESSES] = np.zeros(CAPACITY + 1, np.int64)
        lookup, insert = _methods()
        # With all arguments of a call: its result, or None for a miss.
        self.lookup: Callable[..., Any] = lookup.of(table)
        self._insert: Callable[[CallRecord, int], None] = insert.of(table)

    def insert(self, record: CallRecord) -> None:
        """Hold this record from now on; the one unused for longest goes."""
        self._insert(record, record.address)
