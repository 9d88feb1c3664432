"""The porter of a function: who has called like this before is let in without a word of Python.

A public function asks its porter first. The porter is a C function of the interpreter's fast
calling convention, made by Numba: it takes the arguments as they are, compares them with those of
the last few calls it was introduced to, makes the results, and runs the launch. Of all other calls
it says None, and nothing is done.

What it knows of such a call, a *guest*, are the words of a record:

    KEEPER                  the object that owns the record, held while a launch runs
    DOOR                    the record of the launch, see door.py
    THREADS                 address of the number of threads
    SCRATCH                 the place of the workspace; NOWHERE if words of the stack will do
    PASSED, FRESH, RESULTS  how many there are of
      arguments, ARGUMENT_WORDS each: all of the function's, `out` last
      makers of fresh arrays, the workspace among them: objects to call
      results: places
      and a place for each slot of the launch: where its array comes from

Places count the arguments (a tuple, then its items), then the fresh arrays; NOWHERE is None.

All of it runs with the interpreter's lock held, but for the launch itself."""

from __future__ import annotations

import ctypes
import itertools
import struct
import weakref
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache, partial
from typing import Any, Final

import numpy as np
from numba import types
from numba.extending import register_jitable

from pullback.cpu.atomics import INT
from pullback.cpu.block import STRANGE
from pullback.cpu.door import (
    HEAD,
    MANY,
    OBJECT,
    SLOT_WORDS,
    SLOTS,
    Door,
    data_of,
    locate,
    pass_words,
    slot_of,
    type_of,
)
from pullback.cpu.kernel import native
from pullback.cpu.pool import threads_address
from pullback.cpu.words import address_of, at, stack_words

KEEPER, DOOR, THREADS, SCRATCH, PASSED, FRESH, RESULTS, ARGUMENTS = range(8)

# Words of an argument. Kinds: the launch looks at it, with the rest of the arrays; it must be the
# object named; equal to it, and of its type; a float of these bits; a tuple of so many items; an
# array that no launch looks at, of the header that is written there.
KIND, FACT, TYPE, ARGUMENT_WORDS = range(4)
ARRAY, SAME, EQUAL, BITS, TUPLE, HIDDEN = range(6)

NOWHERE: Final = -1
GUESTS: Final = 8  # so many a porter remembers
MOST: Final = 32  # places of a call
STACK_BYTES: Final = 1 << 12  # of workspace, at the most

_FLOAT: Final = object.__basicsize__ // 8  # the word of a float object that holds its bits
_EQ: Final = 2

_make = types.ExternalFunction("PyObject_CallNoArgs", INT(INT))
_hold = types.ExternalFunction("Py_IncRef", types.void(INT))
_drop = types.ExternalFunction("Py_DecRef", types.void(INT))
_compare = types.ExternalFunction("PyObject_RichCompareBool", types.int32(INT, INT, types.int32))
_tuple_size = types.ExternalFunction("PyTuple_Size", INT(INT))
_tuple_item = types.ExternalFunction("PyTuple_GetItem", INT(INT, INT))
_new_tuple = types.ExternalFunction("PyTuple_New", INT(INT))
_set_item = types.ExternalFunction("PyTuple_SetItem", types.int32(INT, INT, INT))
_unlock = types.ExternalFunction("PyEval_SaveThread", INT())
_lock = types.ExternalFunction("PyEval_RestoreThread", types.void(INT))


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
        return value == fact or _compare(value, fact, _EQ) == 1
    return at(value)[_FLOAT] == fact if kind == BITS else _tuple_size(value) == fact


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
                values[count] = _tuple_item(value, item)
                count += 1
    return count


@register_jitable
def _after_arguments(guest):
    """The words behind the arguments: makers, results, places of the slots."""
    return _argument(guest, guest[PASSED])


@register_jitable
def _slot(guest, number):
    """What the launch knows of a slot, and the place its array comes from."""
    source = _after_arguments(guest)[guest[FRESH] + guest[RESULTS] + number]
    return at(guest[DOOR] + 8 * (HEAD + SLOT_WORDS * number)), source


@register_jitable
def _are_known(guest, values, count):
    """Whether the arrays passed are laid out as the launch wants them."""
    for number in range(at(guest[DOOR])[SLOTS]):
        facts, source = _slot(guest, number)
        if 0 <= source < count and locate(facts, values[source]) == STRANGE:
            return False
    return True


@register_jitable
def _launch(guest, values):
    """Run on the arrays at their places; the status."""
    words, scratch = stack_words(MANY), guest[SCRATCH]
    few = address_of(stack_words(STACK_BYTES // 8))
    workspace = few if scratch == NOWHERE else data_of(values[scratch])
    for number in range(at(guest[DOOR])[SLOTS]):
        facts, source = _slot(guest, number)
        words[number] = facts[OBJECT] if source == NOWHERE else values[source]
    held = _unlock()
    status = pass_words(guest[DOOR], workspace, at(guest[THREADS])[0], 0, words)[0]
    _lock(held)
    return status


@register_jitable
def _make_all(guest, values, count):
    """Make the fresh arrays; how many there are now, fewer if memory ran out."""
    makers = _after_arguments(guest)
    for number in range(guest[FRESH]):
        values[count + number] = _make(makers[number])
        if values[count + number] == 0:
            return number
    return guest[FRESH]


@register_jitable
def _result(guest, values):
    """What the function returns: the array at a place, or a tuple of several."""
    places, several = _after_arguments(guest), guest[RESULTS]
    first = guest[FRESH]
    for number in range(several):
        _hold(values[places[first + number]])
    if several == 1:
        return values[places[first]]
    result = _new_tuple(several)
    for number in range(several):
        _set_item(result, number, values[places[first + number]])
    return result


@register_jitable
def _serve(guest, values, count):
    """The result; 0 with an error set; or STRANGE if the launch would not have it."""
    keeper, result = guest[KEEPER], 0
    _hold(keeper)
    made = _make_all(guest, values, count)
    if made == guest[FRESH]:
        result = _result(guest, values) if _launch(guest, values) == 0 else STRANGE
    for number in range(made):
        _drop(values[count + number])
    _drop(keeper)
    return result


@native(INT(INT, INT, INT))
def _ask(book, passed, count):
    """`PyObject *ask(PyObject *self, PyObject *const *passed, Py_ssize_t count)`; `self` is an
    array: the records of guests, then None. The count is the signature's, as that of any guest."""
    guests, values = at(data_of(book)), stack_words(MOST)
    for number in range(GUESTS):
        if guests[number] == 0:
            break
        guest = at(guests[number])
        count = _spread(guest, at(passed), values)
        if count != NOWHERE and _are_known(guest, values, count):
            result = _serve(guest, values, count)
            if result != STRANGE:
                return result
            break
    _hold(guests[GUESTS])
    return guests[GUESTS]


# --- as Python sees it ----------------------------------------------------------------------------

# What an option may be for the porter to know it again; enums and arrays he knows as well.
_KINDS: Final = {type(None): SAME, bool: SAME, int: EQUAL, str: EQUAL, float: BITS, tuple: TUPLE}


def is_plain(value: Any) -> bool:
    """Whether the porter can know such an argument again."""
    if type(value) is tuple:
        return all(type(item) is np.ndarray for item in value)
    return type(value) in (np.ndarray, *_KINDS) or isinstance(value, Enum) or _is_bundle(value)


def _is_bundle(value: Any) -> bool:
    """Whether this is one object to the caller and several arrays to a plan."""
    return hasattr(value, "bundle")


def _facts(value: Any) -> tuple[int, int, int]:
    """KIND, FACT and TYPE of an argument."""
    if type(value) is np.ndarray:
        return ARRAY, 0, 0
    kind = _KINDS.get(type(value), SAME)
    if kind == BITS:
        return kind, *struct.unpack("q", struct.pack("d", value)), id(float)
    return kind, len(value) if kind == TUPLE else id(value), id(type(value))


class Guest:
    """A call the porter may be introduced to: what was passed, what makes the fresh arrays, and the
    places of results and slots."""

    __slots__ = ("_kept", "_record", "address")

    def __init__(
        self,
        door: Door,
        passed: Sequence[Any],
        makers: Sequence[Callable[[], Any]],
        results: Sequence[int],
        sources: Sequence[int],
        scratch: int,
        hidden: Sequence[int],
    ) -> None:
        head = (id(self), door.address, threads_address(), scratch)
        counts = (len(passed), len(makers), len(results))
        assert max(*sources, *results, sum(counts)) < MOST
        facts = [_facts(value) for value in passed]
        headers = [(ctypes.c_int64 * SLOT_WORDS)(*slot_of(passed[i]) or ()) for i in hidden]
        for number, header in zip(hidden, headers, strict=True):
            facts[number] = HIDDEN, ctypes.addressof(header), 0
        flat = itertools.chain.from_iterable(facts)
        words = (*head, *counts, *flat, *map(id, makers), *results, *sources)
        self._record = (ctypes.c_int64 * len(words))(*words)
        self.address = ctypes.addressof(self._record)
        options, bundles = [], []
        for number, value in enumerate(passed):
            if _is_bundle(value):  # known while it lives, but not kept alive
                fact = ARGUMENTS + ARGUMENT_WORDS * number + FACT
                bundles.append(weakref.ref(value, partial(_forget, self._record, fact)))
            elif facts[number][0] in (SAME, EQUAL):
                options.append(value)
        self._kept = door, makers, options, headers, bundles  # what words point to


def _forget(record: Any, fact: int, _: Any) -> None:
    """No object is at address 0."""
    record[fact] = 0


class Porter:
    """Knows the latest guests of one function."""

    __slots__ = ("_book", "_guests", "_turn", "ask")

    def __init__(self) -> None:
        self._book = np.zeros(GUESTS + 1, np.int64)
        self._book[GUESTS] = id(None)
        self._guests: list[Guest | None] = [None] * GUESTS
        self._turn = itertools.cycle(range(GUESTS))
        # What the function calls: the result for a guest, None for a stranger.
        self.ask: Callable[..., Any] = _c_function(self._book)

    def introduce(self, guest: Guest) -> None:
        """Know this guest from now on, and forget the one introduced longest ago."""
        if guest not in self._guests:
            place = next(self._turn)
            self._book[place] = guest.address
            self._guests[place] = guest


class _Method(ctypes.Structure):
    """How the interpreter is told of a C function."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_FASTCALL: Final = 0x80


@cache
def _method() -> _Method:
    """Of this process; the interpreter may look at it for ever."""
    return _Method(b"ask", _ask(), _FASTCALL, None)


def _c_function(book: Any) -> Callable[..., Any]:
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes = ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
    make.restype = ctypes.py_object
    return make(ctypes.addressof(_method()), book, None)
