"""Comparing the arguments of a call with those of a record (call_record.py), in native code.

The caller holds the GIL. A comparison that fails has no side effect.
"""

from __future__ import annotations

from numba.extending import register_jitable

from pullback.cpu.block import MISMATCH
from pullback.cpu.call_record import (
    ARGUMENT_WORDS,
    ARGUMENTS,
    ARRAY,
    BITS,
    EQUAL,
    FACT,
    FIELDS,
    FRESH,
    FRESH_WORDS,
    KIND,
    LAUNCH,
    NOWHERE,
    PASSED,
    PLAN,
    RESULTS,
    SAME,
    TUPLE,
    TYPE,
    TYPED,
    UNREAD,
)
from pullback.cpu.headers import type_of
from pullback.cpu.interpreter import (
    EQ,
    attribute,
    clear_error,
    compare,
    drop,
    tuple_item,
    tuple_size,
)
from pullback.cpu.native_launch import SLOTS, operand_at
from pullback.cpu.operands import OBJECT, locate
from pullback.cpu.words import address_of, at
from pullback.internals.cpython import FLOAT


@register_jitable
def _matches(argument, value):
    """Whether an argument is what the launch was validated for; arrays are compared later."""
    kind, fact = argument[KIND], argument[FACT]
    if kind == ARRAY:
        return True
    if kind == UNREAD:
        return locate(at(fact), value) != MISMATCH
    if kind >= TYPED:
        return type_of(value) == argument[TYPE]
    if kind == SAME or type_of(value) != argument[TYPE]:
        return value == fact
    if kind == EQUAL:
        return value == fact or compare(value, fact, EQ) == 1
    return at(value)[FLOAT] == fact if kind == BITS else tuple_size(value) == fact


@register_jitable
def argument_at(record, number):
    return at(address_of(record) + 8 * (ARGUMENTS + ARGUMENT_WORDS * number))


@register_jitable
def release(record, values, count):
    """Drop the attributes that were read; nothing else among the arguments is ours."""
    if record[PLAN] != 0:
        for place in range(record[PASSED], count):
            drop(values[place])


@register_jitable
def _read_fields(record, value, fields, values, count):
    """Write the attributes of a plan's args to their places: how many places are taken now, or
    NOWHERE if one is missing."""
    for field in range(fields[0]):
        values[count] = attribute(value, fields[1 + field])
        if values[count] == 0:  # deleted by somebody
            clear_error()
            release(record, values, count)
            return NOWHERE
        count += 1
    return count


@register_jitable
def spread(record, passed, values):
    """Write the arguments to their places: how many places are taken, or NOWHERE for a miss."""
    count = 0
    for number in range(record[PASSED]):
        argument, value = argument_at(record, number), passed[number]
        if not _matches(argument, value):
            return NOWHERE
        values[count] = value
        count += 1
        if argument[KIND] == TUPLE:
            for item in range(argument[FACT]):
                values[count] = tuple_item(value, item)
                count += 1
        elif argument[KIND] == FIELDS:  # the last one
            return _read_fields(record, value, at(argument[FACT]), values, count)
    return count


@register_jitable
def fresh_at(record, number):
    """The words of a fresh array; after the last of them, the places of results and slots."""
    return at(address_of(argument_at(record, record[PASSED])) + 8 * FRESH_WORDS * number)


@register_jitable
def locate_all(record, values, count, tensors):
    """Write the addresses of the arrays passed; False if one has another layout."""
    launch = record[LAUNCH]
    sources = at(address_of(fresh_at(record, record[FRESH])) + 8 * record[RESULTS])
    for slot in range(at(launch)[SLOTS]):
        operand, source = operand_at(launch, slot), sources[slot]
        if source < count:
            word = operand[OBJECT] if source == NOWHERE else values[source]
            tensors[slot] = locate(operand, word)
            if tensors[slot] == MISMATCH:
                return False
    return True
