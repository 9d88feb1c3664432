"""The launch of a program by native code: check the addresses, fill a block, execute it.

What a launch depends on is laid out once, as the words of a record:

    PROGRAM, PHASES      what to run
    EXECUTE              address of the thread pool's `execute`
    SHORT                whether it finishes sooner than releasing the GIL would take
    SLOTS, LENGTH, ALIGNED, PAIRS   how many there are of
      operands, one for each slot of the plan: OPERAND_WORDS each, see operands.py
      words of the block, the first of which are replaced by addresses
      (word of the block, low bits that must be zero)
      (word, first byte, end, other word, first byte, end, whether they may be one and the same):
      memory that must not overlap
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from numba.extending import register_jitable

from pullback.cpu.atomics import INT
from pullback.cpu.block import DETAIL, NEEDS_CHECK, TENSORS, WORKSPACE
from pullback.cpu.interpreter import as_integer, from_integer, lock, new_tuple, set_item, unlock
from pullback.cpu.interrupt import INTERRUPTED
from pullback.cpu.kernel import native
from pullback.cpu.operands import ADDRESS, OPERAND_WORDS, operand, operand_of
from pullback.cpu.pool import execute_address, interruptible_address
from pullback.cpu.program import encode
from pullback.cpu.words import address_of, at, call, stack_words
from pullback.internals.cpython import fast_method

PROGRAM, PHASES, EXECUTE, SHORT, SLOTS, LENGTH, ALIGNED, PAIRS, HEAD = range(9)

SHORT_BYTES: Final = 1 << 14  # of all tensors, at the most

Status = tuple[int, int, int]


@register_jitable
def _are_apart(block, aligned, pairs, rules):
    """Whether every tensor has memory, is aligned, and no output overlaps another tensor."""
    for _ in range(aligned):
        place = block[rules[0]]
        if place & rules[1] != 0 or place == 0:  # freed by its library
            return False
        rules = at(address_of(rules) + 16)
    for _ in range(pairs):
        distance = block[rules[3]] - block[rules[0]]
        near = distance + rules[4] < rules[2] and rules[1] < distance + rules[5]
        if near and (distance != 0 or rules[6] == 0):
            return False
        rules = at(address_of(rules) + 56)
    return True


@register_jitable
def operand_at(address, slot):
    """The operand of a slot of the launch at this address."""
    return at(address + 8 * (HEAD + OPERAND_WORDS * slot))


@register_jitable
def launch_at(address, workspace, threads, checked, places):
    """Run a launch on tensors at these addresses: its status, and the two words that explain it."""
    record = at(address)
    slots, length = record[SLOTS], record[LENGTH]
    template = operand_at(address, slots)  # after the last operand
    block = stack_words(length)
    for word in range(length):
        block[word] = template[word]
    for slot in range(slots):
        block[TENSORS + slot] = places[slot]
    block[WORKSPACE] = workspace
    rules = at(address_of(template) + 8 * length)
    if checked == 0 and not _are_apart(block, record[ALIGNED], record[PAIRS], rules):
        return NEEDS_CHECK, 0, 0
    status = call(record[EXECUTE], (record[PROGRAM], record[PHASES], address_of(block), threads))
    return status, block[DETAIL], block[DETAIL + 1]


@register_jitable
def launch_with_lock(address, workspace, threads, places):
    """The same for callers that hold the GIL: the status, with an error set if it is INTERRUPTED.
    A long launch releases the GIL."""
    if at(address)[SHORT] != 0:
        return launch_at(address, workspace, threads, 0, places)[0]
    held = unlock()
    status = launch_at(address, workspace, threads, 0, places)[0]
    lock(held)
    return status


MANY: Final = 11  # slots, at the most
_WORKSPACE, _THREADS, _CHECKED, _PLACES = range(1, 5)  # arguments after the record


@native(INT(INT, INT, INT))
def _launch(owner, passed, count):
    """A launch as Python calls it: with its record, and what `launch_at` takes, one number each.
    The three numbers of its result; 0 with an error set if a signal handler raised."""
    given, places = at(passed), stack_words(MANY)
    for argument in range(_PLACES, count):
        places[argument - _PLACES] = as_integer(given[argument])
    record, workspace = as_integer(given[0]), as_integer(given[_WORKSPACE])
    threads, checked = as_integer(given[_THREADS]), as_integer(given[_CHECKED])
    held = unlock()
    status, detail, more = launch_at(record, workspace, threads, checked, places)
    lock(held)
    if status == INTERRUPTED:
        return 0
    result = new_tuple(3)
    if result != 0:
        set_item(result, 0, from_integer(status))
        set_item(result, 1, from_integer(detail))
        set_item(result, 2, from_integer(more))
    return result


@cache
def _entry() -> Callable[..., Status]:
    return fast_method(b"launch", _launch()).of(None)


class NativeLaunch:
    """A program of Numba kernels and the rules its tensors keep, as native code reads them.

    Called with (workspace, threads, checked, addresses), it runs on the thread pool and returns its
    status; unless the addresses are `checked`, it returns NEEDS_CHECK where they break a rule.
    `for_arrays` is the same launch with operands, for the call cache."""

    __slots__ = ("_entry", "_kept", "_parts", "_record", "address")

    def __init__(
        self,
        program: tuple[int, int],
        operands: Sequence[Sequence[int]],
        block: Sequence[int],
        aligned: Sequence[tuple[int, int]],
        pairs: Sequence[tuple[int, ...]],
        short: bool,
        kept: Any,
    ) -> None:
        counts = (len(operands), len(block), len(aligned), len(pairs))
        # Looking for signals takes 50 ns, a sixth of a small call, which is over before any comes.
        execute = execute_address() if short else interruptible_address()
        head = (*program, execute, int(short), *counts)
        parts = head, *operands, block, *aligned, *pairs
        words = tuple(itertools.chain.from_iterable(parts))
        self._record = (ctypes.c_int64 * len(words))(*words)
        self.address, self._kept = ctypes.addressof(self._record), kept  # what words point to
        self._parts = program, block, aligned, pairs
        if len(operands) > MANY:
            raise ValueError(f"a plan has at most {MANY} slots, not {len(operands)}")
        self._entry = _entry()

    @classmethod
    def of(
        cls,
        program: Any,
        element: Any,
        slots: int,
        aligned: Iterable[tuple[int, int]] = (),
        pairs: Iterable[tuple[int, ...]] = (),
    ) -> NativeLaunch:
        """Lay out a program over tensors passed by address. Positions in the rules are slots."""
        words = tuple(encode(program.phases, element, program.index))
        phases = (ctypes.c_int64 * len(words))(*words)
        return cls(
            (ctypes.addressof(phases), len(program.phases)),
            [operand(ADDRESS)] * slots,
            (0,) * (TENSORS + slots) + program.words,
            [(TENSORS + i, low_bits) for i, low_bits in aligned],
            [
                (TENSORS + out, low, high, TENSORS + other, *rest)
                for out, low, high, other, *rest in pairs
            ],
            False,
            phases,
        )

    def for_arrays(self, values: Sequence[Any], offsets: Mapping[int, int]) -> NativeLaunch | None:
        """This launch over arrays laid out like these, passed as objects; None if native code
        cannot read one of them. `offsets` are bytes from an array's data to what the kernel sees,
        by position."""
        operands = [operand_of(value, offsets.get(i, 0)) for i, value in enumerate(values)]
        known = [words for words in operands if words is not None]
        if len(known) < len(operands):
            return None
        short = sum(getattr(value, "nbytes", 0) for value in values) <= SHORT_BYTES
        program, block, aligned, pairs = self._parts
        kept = self._kept, [getattr(value, "dtype", None) for value in values]
        return NativeLaunch(program, known, block, aligned, pairs, short, kept)

    def __call__(self, workspace: int, threads: int, checked: int, places: Iterable[int]) -> Status:
        return self._entry(self.address, workspace, threads, checked, *places)
