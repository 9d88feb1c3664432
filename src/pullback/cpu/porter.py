"""The porter of a function: who has called like this before is let in without a word of Python.

A public function asks its porter first. The porter is a C function of the interpreter's fast
calling convention, made by Numba: it takes the arguments as they are, compares them with those of
the last few calls it was introduced to (see guest.py), makes the results, and runs the launch. Of
all other calls it says None, and nothing is done.

All of it runs with the interpreter's lock held, but for a launch that may take long."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from numba.extending import register_jitable

from pullback.cpu.atomics import INT
from pullback.cpu.block import STRANGE
from pullback.cpu.door import MANY, OBJECT, SLOTS, launch_with_lock, locate, slot_at
from pullback.cpu.guest import (
    ARGUMENT_WORDS,
    ARGUMENTS,
    ARRAY,
    BITS,
    DOOR,
    EQUAL,
    FACT,
    FRESH,
    FRESH_WORDS,
    HIDDEN,
    KEEPER,
    KIND,
    MAKER,
    MANNERS,
    MOST,
    NOWHERE,
    PASSED,
    POSITION,
    RECORD,
    RESULTS,
    SAME,
    SCRATCH,
    STACK_BYTES,
    THREADS,
    TUPLE,
    TYPE,
    WITNESS,
    Guest,
)
from pullback.cpu.headers import data_of, type_of
from pullback.cpu.interpreter import (
    EQ,
    FLOAT,
    Method,
    call_object,
    call_with_all,
    compare,
    drop,
    fast_method,
    hold,
    new_tuple,
    set_item,
    tuple_item,
    tuple_size,
)
from pullback.cpu.interrupt import INTERRUPTED
from pullback.cpu.kernel import native
from pullback.cpu.manners import GRADED, STILL, is_plain_call, is_recording, state_of
from pullback.cpu.shelf import made
from pullback.cpu.words import address_of, at, stack_words

GUESTS: Final = 8  # so many a porter remembers


@register_jitable
def _is_as_known(argument, value):
    """Whether a value is what the launch was laid out for; arrays are looked at later."""
    kind, fact = argument[KIND], argument[FACT]
    if kind == ARRAY:
        return True
    if kind == HIDDEN:
        return locate(at(fact), value) != STRANGE
    if kind == SAME or type_of(value) != argument[TYPE]:
        return value == fact
    if kind == EQUAL:
        return value == fact or compare(value, fact, EQ) == 1
    return at(value)[FLOAT] == fact if kind == BITS else tuple_size(value) == fact


@register_jitable
def _argument(guest, number):
    return at(address_of(guest) + 8 * (ARGUMENTS + ARGUMENT_WORDS * number))


@register_jitable
def _spread(guest, passed, values):
    """Write what was passed to its places; how many there are, or NOWHERE for a stranger."""
    count = 0
    for number in range(guest[PASSED]):
        argument, value = _argument(guest, number), passed[number]
        if not _is_as_known(argument, value):
            return NOWHERE
        values[count] = value
        count += 1
        if argument[KIND] == TUPLE:
            for item in range(argument[FACT]):
                values[count] = tuple_item(value, item)
                count += 1
    return count


@register_jitable
def _fresh(guest, number):
    """What is known of a fresh array; behind the last of them, the places of the results and those
    of the slots."""
    return at(address_of(_argument(guest, guest[PASSED])) + 8 * FRESH_WORDS * number)


@register_jitable
def _find(guest, values, count, tensors):
    """Write where the arrays passed are; False if one is not laid out as the launch wants it."""
    door, sources = guest[DOOR], at(address_of(_fresh(guest, guest[FRESH])) + 8 * guest[RESULTS])
    for number in range(at(door)[SLOTS]):
        slot, source = slot_at(door, number), sources[number]
        if source < count:
            word = slot[OBJECT] if source == NOWHERE else values[source]
            tensors[number] = locate(slot, word)
            if tensors[number] == STRANGE:
                return False
    return True


@register_jitable
def _made(fresh):
    """A fresh array; 0 with an error set."""
    return made(at(fresh[RECORD])) if fresh[MAKER] == 0 else call_object(fresh[MAKER])


@register_jitable
def _make_all(guest, values, count, tensors):
    """Make the fresh arrays; how many there are now, fewer if memory ran out. (One that is none
    the launch knows is at an odd address, which it does not take.)"""
    for number in range(guest[FRESH]):
        fresh = _fresh(guest, number)
        value = values[count + number] = _made(fresh)
        if value == 0:
            return number
        if fresh[POSITION] != NOWHERE:
            tensors[fresh[POSITION]] = locate(slot_at(guest[DOOR], fresh[POSITION]), value)
    return guest[FRESH]


@register_jitable
def _launch(guest, values, tensors):
    """Run on the tensors; the status."""
    few = address_of(stack_words(STACK_BYTES // 8))
    scratch = guest[SCRATCH]
    workspace = few if scratch == NOWHERE else data_of(values[scratch])
    return launch_with_lock(guest[DOOR], workspace, at(guest[THREADS])[0], tensors)


@register_jitable
def _result(guest, values):
    """What the function returns: the array at a place, or a tuple of several."""
    places, several = _fresh(guest, guest[FRESH]), guest[RESULTS]
    for number in range(several):
        hold(values[places[number]])
    if several == 1:
        return values[places[0]]
    result = new_tuple(several)
    for number in range(several):
        set_item(result, number, values[places[number]])
    return result


@register_jitable
def _serve(guest, values, count, tensors):
    """The result; 0 with an error set; or STRANGE if the launch would not have it."""
    done, result = _make_all(guest, values, count, tensors), 0
    if done == guest[FRESH]:
        status = _launch(guest, values, tensors)
        if status == 0:
            result = _result(guest, values)
        elif status != INTERRUPTED:
            result = STRANGE
    for number in range(done):
        drop(values[count + number])
    return result


@register_jitable
def _state(guest, passed):
    """STILL, GRADED if a gradient is to be recorded, or STRANGE."""
    manners = at(guest[MANNERS])
    if not is_plain_call(manners):
        return STRANGE
    found = STILL
    for number in range(guest[PASSED]):
        argument = _argument(guest, number)
        if argument[TYPE] != 0 and (argument[KIND] == ARRAY or argument[KIND] == HIDDEN):
            state = state_of(manners, passed[number])
            if state == STRANGE:
                return STRANGE
            found |= state
    return GRADED if found == GRADED and is_recording(manners) else STILL


@register_jitable
def _witnessed(guest, passed):
    """What the witness says of a call; STRANGE if there is none."""
    witness = guest[WITNESS]
    if witness == 0:
        return STRANGE
    hold(witness)
    result = call_with_all(witness, address_of(passed), guest[PASSED], 0)
    drop(witness)
    return result


@register_jitable
def _receive(guest, passed, values, count, tensors):
    """The result; 0 with an error set; or STRANGE if it has to go the long way."""
    keeper, result, state = guest[KEEPER], STRANGE, STILL
    hold(keeper)
    if guest[MANNERS] != 0:
        state = _state(guest, passed)
    if state == STILL:
        result = _serve(guest, values, count, tensors)
    elif state == GRADED:
        result = _witnessed(guest, passed)
    drop(keeper)
    return result


@native(INT(INT, INT, INT))
def _ask(book, passed, count):
    """`self` is an array: the records of guests, then None. The count is the signature's, as that
    of any guest."""
    guests, values, tensors = at(data_of(book)), stack_words(MOST), stack_words(MANY)
    for number in range(GUESTS):
        if guests[number] == 0:
            break
        guest = at(guests[number])
        count = _spread(guest, at(passed), values)
        if count != NOWHERE and _find(guest, values, count, tensors):
            result = _receive(guest, at(passed), values, count, tensors)
            if result != STRANGE:
                return result
            break
    hold(guests[GUESTS])
    return guests[GUESTS]


# --- as Python sees it ----------------------------------------------------------------------------


@cache
def _method() -> Method:
    """One for all porters."""
    return fast_method(b"ask", _ask())


class Porter:
    """Knows the latest guests of one function."""

    __slots__ = ("_book", "_guests", "_turn", "ask")

    def __init__(self) -> None:
        self._book = np.zeros(GUESTS + 1, np.int64)
        self._book[GUESTS] = id(None)
        self._guests: list[Guest | None] = [None] * GUESTS
        self._turn = itertools.cycle(range(GUESTS))
        # What the function calls: the result for a guest, None for a stranger.
        self.ask: Callable[..., Any] = _method().of(self._book)

    def introduce(self, guest: Guest) -> None:
        """Know this guest from now on, and forget the one introduced longest ago."""
        if guest not in self._guests:
            place = next(self._turn)
            self._book[place] = guest.address
            self._guests[place] = guest
