"""A validated call, as the words by which native code recognises and repeats it.

    OWNER                   the object that owns the record, kept alive while a launch runs
    LAUNCH                  the record of the launch, see native_launch.py
    THREADS                 address of the number of threads
    SCRATCH                 the place of the workspace; NOWHERE if the stack has enough
    GUARD                   a dispatch guard (dispatch_guard.py) for its tensors, or 0
    RECORDER                an object to call instead where autograd records, or 0
    PLAN                    of a plan's run: address of its words; of a function's call, 0
    WRITTEN                 an object to call with the result, which is an argument, or 0
    PASSED, FRESH, RESULTS  how many there are of
      arguments, ARGUMENT_WORDS each: all of the function's, `out` last
      fresh arrays, FRESH_WORDS each, the workspace among them
      results: places
      and a place for each slot of the launch: where its array comes from

Places count the arguments (a tuple, then its items; the args of a plan, then their attributes),
then the fresh arrays; NOWHERE is None.

A plan's run is a call with the arguments (stream, workspace, args) and no result.
"""

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

from pullback.cpu.buffer_pool import OutputAllocator
from pullback.cpu.dispatch_guard import DispatchGuard
from pullback.cpu.headers import DESCRIBERS
from pullback.cpu.native_launch import NativeLaunch
from pullback.cpu.operands import OPERAND_WORDS, operand_of
from pullback.cpu.pool import threads_address

OWNER, LAUNCH, THREADS, SCRATCH, GUARD, RECORDER, PLAN, WRITTEN = range(8)
PASSED, FRESH, RESULTS, ARGUMENTS = range(8, 12)

# Words of an argument. Kinds: the launch compares it, with the other arrays; it must be the object
# named; equal to it, and of its type; a float of these bits; a tuple of so many items; an array
# that no launch reads, laid out as the operand at this address; an object of this type; an object
# of this type whose attributes, named by the words at this address, are arrays. Tensors under a
# guard have a TYPE, NumPy arrays none.
KIND, FACT, TYPE, ARGUMENT_WORDS = range(4)
ARRAY, SAME, EQUAL, BITS, TUPLE, UNREAD, TYPED, FIELDS = range(8)  # the last two of plans

# Words of a fresh array: an object to call, or 0 for a NumPy array; the record to allocate that
# by (buffer_pool_native.py); its slot, or NOWHERE for the workspace.
ALLOCATOR, RECORD, POSITION, FRESH_WORDS = range(4)

# Words of a plan: bytes of workspace it needs; names of the attributes of a stream and a workspace;
# None; how many attributes its args have, and their names.
NEEDED, THREADS_OF, BYTES_OF, ADDRESS_OF, NOTHING, FIELD_COUNT, FIELD_NAMES = range(7)

NOWHERE: Final = -1
MOST: Final = 32  # places of a call
STACK_BYTES: Final = 1 << 12  # of workspace, at the most

# Types of options that native code compares; it knows enums and arrays as well.
_KINDS: Final = {type(None): SAME, bool: SAME, int: EQUAL, str: EQUAL, float: BITS, tuple: TUPLE}


class Fresh(NamedTuple):
    """A fresh array: what allocates it, and its slot, if it has one."""

    allocator: Callable[[], Any]
    position: int = NOWHERE

    @property
    def words(self) -> tuple[int, int, int]:
        """ALLOCATOR, RECORD and POSITION."""
        if isinstance(self.allocator, OutputAllocator):
            return 0, self.allocator.address, self.position
        return id(self.allocator), 0, self.position


def is_comparable(value: Any) -> bool:
    """Whether native code can recognise such an argument."""
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


class CallRecord:
    """A call that a cache can hold: the launch, the words of its arguments, the fresh arrays, the
    places of results and of the launch's slots."""

    __slots__ = ("_kept", "_recorder", "_watched", "_words", "_written", "address")

    def __init__(
        self,
        launch: NativeLaunch,
        arguments: Sequence[tuple[int, int, int]],
        sources: Sequence[int],
        fresh: Sequence[Fresh] = (),
        results: Sequence[int] = (),
        scratch: int = NOWHERE,
        guard: DispatchGuard | None = None,
        plan: int = 0,
        kept: Any = None,
    ) -> None:
        guarded = guard.address if guard else 0
        head = (id(self), launch.address, threads_address(), scratch, guarded, 0, plan, 0)
        counts = (len(arguments), len(fresh), len(results))
        assert max(*sources, *results, sum(counts)) < MOST
        flat = itertools.chain.from_iterable((*arguments, *(array.words for array in fresh)))
        words = (*head, *counts, *flat, *results, *sources)
        self._words = (ctypes.c_int64 * len(words))(*words)
        self.address = ctypes.addressof(self._words)
        self._kept = launch, fresh, guard, kept  # what words point to
        self._watched: list[Any] = []
        self._recorder: Callable[..., Any] | None = None
        self._written: Callable[[Any], Any] | None = None

    @property
    def written(self) -> Callable[[Any], Any] | None:
        """Called with a result that was passed in to be written."""
        return self._written

    @written.setter
    def written(self, call: Callable[[Any], Any]) -> None:
        self._written = call  # before a cache holds the record
        self._words[WRITTEN] = id(call)

    @property
    def recorder(self) -> Callable[..., Any] | None:
        """Called with all arguments where autograd records; without one, such calls miss."""
        return self._recorder

    @recorder.setter
    def recorder(self, call: Callable[..., Any]) -> None:
        before, self._recorder = self._recorder, call
        self._words[RECORDER] = id(call)
        del before  # only now: native code may read the record at any time

    def watch(self, number: int, bundle: Any) -> None:
        """Let argument `number` match this object while it lives, without keeping it alive."""
        fact = ARGUMENTS + ARGUMENT_WORDS * number + FACT
        self._watched.append(weakref.ref(bundle, partial(_forget, self._words, fact)))


def _forget(words: Any, fact: int, _: Any) -> None:
    """No object is at address 0."""
    words[fact] = 0


def function_record(
    launch: NativeLaunch,
    passed: Sequence[Any],
    unread: Sequence[int],
    fresh: Sequence[Fresh],
    results: Sequence[int],
    sources: Sequence[int],
    scratch: int,
    guard: DispatchGuard | None,
) -> CallRecord:
    """The record of a function's call with these arguments; `unread` are the numbers of those that
    are arrays and passed to no slot."""
    arguments = [_facts(value) for value in passed]
    operands = [(ctypes.c_int64 * OPERAND_WORDS)(*operand_of(passed[i]) or ()) for i in unread]
    for number, expected in zip(unread, operands, strict=True):
        arguments[number] = UNREAD, ctypes.addressof(expected), arguments[number][2]
    bundles = [(number, value) for number, value in enumerate(passed) if _is_bundle(value)]
    numbers = {number for number, _ in bundles}
    options = [
        value
        for number, value in enumerate(passed)
        if number not in numbers and arguments[number][0] in (SAME, EQUAL)
    ]
    kept = options, operands
    record = CallRecord(launch, arguments, sources, fresh, results, scratch, guard, kept=kept)
    for number, bundle in bundles:
        record.watch(number, bundle)
    return record


def plan_record(
    launch: NativeLaunch,
    stream: type,
    workspace: type,
    args: type,
    nbytes: int,
    names: Sequence[str],
) -> CallRecord:
    """The record of a plan's run: objects of these types, `nbytes` of workspace, and the names of
    the attributes that hold the arrays of the slots."""
    asked = ("threads", "nbytes", "address")
    words = (nbytes, *map(id, asked), id(None), len(names), *map(id, names))
    plan = (ctypes.c_int64 * len(words))(*words)
    fields = ctypes.addressof(plan) + 8 * FIELD_COUNT
    arguments = [(TYPED, 0, id(stream)), (TYPED, 0, id(workspace)), (FIELDS, fields, id(args))]
    sources = range(len(arguments), len(arguments) + len(names))
    kept = plan, asked, names, stream, workspace, args
    return CallRecord(launch, arguments, sources, plan=ctypes.addressof(plan), kept=kept)
