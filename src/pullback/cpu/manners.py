"""What the tensors of a library ask for besides their layout, as the words of a record:

NEGATIVE     an object to call with a tensor: its memory must be what it says
WANTS        the name of the attribute of a tensor that wants its gradient recorded
RECORDING    an object to call: whether gradients are recorded at all
FALSE        that object
CONDITIONS   how many objects to call follow, each with its answer, and after them
SETTINGS     how many triples: an object, the name of an attribute, and its value
             another answer or value means that this is no plain call
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numba.extending import register_jitable

from pullback.cpu.block import STRANGE
from pullback.cpu.interpreter import attribute, call_object, call_with, clear_error, drop

NEGATIVE, WANTS, RECORDING, FALSE, CONDITIONS, SETTINGS, FIRST = range(7)

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
    settings = FIRST + 2 * manners[CONDITIONS]
    for number in range(FIRST, settings, 2):
        if not _is(call_object(manners[number]), manners[number + 1]):
            return False
    for number in range(settings, settings + 3 * manners[SETTINGS], 3):
        if not _is(attribute(manners[number], manners[number + 1]), manners[number + 2]):
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
    """Of one library; conditions and settings with their answers, which are objects of which there
    is one."""

    __slots__ = ("_kept", "_record", "address")

    def __init__(
        self,
        negative: Callable[[Any], bool],
        wants: str,
        recording: Callable[[], bool],
        conditions: Mapping[Callable[[], Any], Any],
        settings: Sequence[tuple[Any, str, Any]] = (),
    ) -> None:
        objects = itertools.chain(*conditions.items(), *settings)
        head = (id(negative), id(wants), id(recording), id(False), len(conditions), len(settings))
        words = (*head, *map(id, objects))
        self._record = (ctypes.c_int64 * len(words))(*words)
        self.address = ctypes.addressof(self._record)
        self._kept = negative, wants, recording, conditions, settings  # what words point to
