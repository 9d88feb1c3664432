"""What the tensors of a library ask for besides their layout, as the words of a record:

NEGATIVE     an object to call with a tensor: its memory must be what it says
WANTS        the name of the attribute of a tensor that wants its gradient recorded
RECORDING    an object to call: whether gradients are recorded at all
FALSE        that object
CONDITIONS   how many there are of
  objects to call, each followed by its answer; any other means that this is no plain call
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from numba.extending import register_jitable

from pullback.cpu.block import STRANGE
from pullback.cpu.interpreter import attribute, call_object, call_with, clear_error, drop

NEGATIVE, WANTS, RECORDING, FALSE, CONDITIONS, FIRST = range(6)

STILL, GRADED = 0, 1


@register_jitable
def _is(answer, expected):
    """Whether an answer is this very object; of an error, no."""
    if answer == 0:
        clear_error()
        return False
    drop(answer)  # somebody else has it, or it is another one
    return answer == expected


@register_jitable
def is_plain_call(manners):
    for number in range(FIRST, FIRST + 2 * manners[CONDITIONS], 2):
        if not _is(call_object(manners[number]), manners[number + 1]):
            return False
    return True


@register_jitable
def state_of(manners, tensor):
    """STILL, GRADED if it wants its gradient recorded, or STRANGE."""
    if not _is(call_with(manners[NEGATIVE], tensor), manners[FALSE]):
        return STRANGE
    return STILL if _is(attribute(tensor, manners[WANTS]), manners[FALSE]) else GRADED


@register_jitable
def is_recording(manners):
    return not _is(call_object(manners[RECORDING]), manners[FALSE])


class Manners:
    """Of one library; conditions and their answers, which are objects of which there is one."""

    __slots__ = ("_kept", "_record", "address")

    def __init__(
        self,
        negative: Callable[[Any], bool],
        wants: str,
        recording: Callable[[], bool],
        conditions: Mapping[Callable[[], Any], Any],
    ) -> None:
        pairs = itertools.chain.from_iterable(conditions.items())
        head = (id(negative), id(wants), id(recording), id(False), len(conditions))
        words = (*head, *map(id, pairs))
        self._record = (ctypes.c_int64 * len(words))(*words)
        self.address = ctypes.addressof(self._record)
        self._kept = negative, wants, recording, conditions  # what words point to
