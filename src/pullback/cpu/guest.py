"""A call as a porter knows it again, a *guest*: the words of a record.

    KEEPER                  the object that owns the record, held while a launch runs
    DOOR                    the record of the launch, see door.py
    THREADS                 address of the number of threads
    SCRATCH                 the place of the workspace; NOWHERE if words of the stack will do
    MANNERS                 a record of what its tensors ask for besides (manners.py), or 0
    WITNESS                 an object to call in its place where a gradient is recorded, or 0
    PASSED, FRESH, RESULTS  how many there are of
      arguments, ARGUMENT_WORDS each: all of the function's, `out` last
      fresh arrays, FRESH_WORDS each, the workspace among them
      results: places
      and a place for each slot of the launch: where its array comes from

Places count the arguments (a tuple, then its items), then the fresh arrays; NOWHERE is None."""

from __future__ import annotations

import ctypes
import itertools
import struct
import weakref
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from pullback.cpu.door import SLOT_WORDS, Door, slot_of
from pullback.cpu.headers import DESCRIBERS
from pullback.cpu.manners import Manners
from pullback.cpu.pool import threads_address
from pullback.cpu.recycle import Maker

KEEPER, DOOR, THREADS, SCRATCH, MANNERS, WITNESS = range(6)
PASSED, FRESH, RESULTS, ARGUMENTS = range(6, 10)

# Words of an argument. Kinds: the launch looks at it, with the rest of the arrays; it must be the
# object named; equal to it, and of its type; a float of these bits; a tuple of so many items; an
# array that no launch looks at, of the header that is written there. Arrays with manners have a
# TYPE, those of NumPy's none.
KIND, FACT, TYPE, ARGUMENT_WORDS = range(4)
ARRAY, SAME, EQUAL, BITS, TUPLE, HIDDEN = range(6)

# Words of a fresh array: an object to call, or 0 for an array of NumPy's; the record to make that
# by (shelf.py); its slot, or NOWHERE for the workspace.
MAKER, RECORD, POSITION, FRESH_WORDS = range(4)

NOWHERE: Final = -1
MOST: Final = 32  # places of a call
STACK_BYTES: Final = 1 << 12  # of workspace, at the most

# What an option may be for the porter to know it again; enums and arrays he knows as well.
_KINDS: Final = {type(None): SAME, bool: SAME, int: EQUAL, str: EQUAL, float: BITS, tuple: TUPLE}


class Fresh(NamedTuple):
    """A fresh array: what makes it, and its slot, if it has one."""

    maker: Callable[[], Any]
    position: int = NOWHERE

    @property
    def words(self) -> tuple[int, int, int]:
        """MAKER, RECORD and POSITION."""
        if isinstance(self.maker, Maker):
            return 0, self.maker.address, self.position
        return id(self.maker), 0, self.position


def is_plain(value: Any) -> bool:
    """Whether the porter can know such an argument again."""
    if type(value) is tuple:
        return all(type(item) is np.ndarray for item in value)
    known = type(value) in (np.ndarray, *_KINDS) or type(value) in DESCRIBERS
    return known or isinstance(value, Enum) or _is_bundle(value)


def _is_bundle(value: Any) -> bool:
    """Whether this is one object to the caller and several arrays to a plan."""
    return hasattr(value, "bundle")


def _facts(value: Any) -> tuple[int, int, int]:
    """KIND, FACT and TYPE of an argument."""
    if type(value) is np.ndarray:
        return ARRAY, 0, 0
    if type(value) in DESCRIBERS:
        return ARRAY, 0, id(type(value))
    kind = _KINDS.get(type(value), SAME)
    if kind == BITS:
        return kind, *struct.unpack("q", struct.pack("d", value)), id(float)
    return kind, len(value) if kind == TUPLE else id(value), id(type(value))


class Guest:
    """A call the porter may be introduced to: what was passed, the fresh arrays, the places of
    results and slots, and the manners of its tensors."""

    __slots__ = ("_kept", "_record", "_witness", "address")

    def __init__(
        self,
        door: Door,
        passed: Sequence[Any],
        fresh: Sequence[Fresh],
        results: Sequence[int],
        sources: Sequence[int],
        scratch: int,
        hidden: Sequence[int],
        manners: Manners | None,
    ) -> None:
        asked = manners.address if manners else 0
        head = (id(self), door.address, threads_address(), scratch, asked, 0)
        counts = (len(passed), len(fresh), len(results))
        assert max(*sources, *results, sum(counts)) < MOST
        facts = [_facts(value) for value in passed]
        headers = [(ctypes.c_int64 * SLOT_WORDS)(*slot_of(passed[i]) or ()) for i in hidden]
        for number, header in zip(hidden, headers, strict=True):
            facts[number] = HIDDEN, ctypes.addressof(header), facts[number][2]
        flat = itertools.chain.from_iterable((*facts, *(array.words for array in fresh)))
        words = (*head, *counts, *flat, *results, *sources)
        self._record = (ctypes.c_int64 * len(words))(*words)
        self.address = ctypes.addressof(self._record)
        options, bundles = [], []
        for number, value in enumerate(passed):
            if _is_bundle(value):  # known while it lives, but not kept alive
                fact = ARGUMENTS + ARGUMENT_WORDS * number + FACT
                bundles.append(weakref.ref(value, partial(_forget, self._record, fact)))
            elif facts[number][0] in (SAME, EQUAL):
                options.append(value)
        self._kept = door, fresh, options, headers, bundles, manners  # what words point to
        self._witness: Callable[..., Any] | None = None

    @property
    def witness(self) -> Callable[..., Any] | None:
        """Called with all arguments where a gradient is recorded; without one, the porter leaves
        such calls alone."""
        return self._witness

    @witness.setter
    def witness(self, call: Callable[..., Any]) -> None:
        before, self._witness = self._witness, call
        self._record[WITNESS] = id(call)
        del before  # only now: the record is read at any time


def _forget(record: Any, fact: int, _: Any) -> None:
    """No object is at address 0."""
    record[fact] = 0
