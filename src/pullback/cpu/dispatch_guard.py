"""What must hold for a call on the tensors of a library to go straight to the kernel, as words:

NEGATIVE     an object to call with a tensor: whether its memory holds the negative of its values
WANTS        the name of the attribute of a tensor that requires a gradient
RECORDING    an object to call: whether autograd records at all
FALSE        that object
CONDITIONS   how many objects to call follow, each with its answer, and after them
SETTINGS     how many triples: an object, the name of an attribute, and its value
             another answer or value (a dispatch mode, a transform) means the slow path
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numba.extending import register_jitable

from pullback.cpu.block import MISMATCH
from pullback.cpu.interpreter import attribute, call_object, call_with, clear_error, drop

NEGATIVE, WANTS, RECORDING, FALSE, CONDITIONS, SETTINGS, FIRST = range(7)

NO_GRAD, NEEDS_GRAD = 0, 1


@register_jitable
def _is(answer, expected):
    """Whether an answer is this very object; an error is cleared and is none."""
    if answer == 0:
        clear_error()
        return False
    drop(answer)  # it has another owner, or it is not the object expected
    return answer == expected


@register_jitable
def is_plain_call(guard):
    settings = FIRST + 2 * guard[CONDITIONS]
    for number in range(FIRST, settings, 2):
        if not _is(call_object(guard[number]), guard[number + 1]):
            return False
    for number in range(settings, settings + 3 * guard[SETTINGS], 3):
        if not _is(attribute(guard[number], guard[number + 1]), guard[number + 2]):
            return False
    return True


@register_jitable
def state_of(guard, tensor):
    """NO_GRAD, NEEDS_GRAD if the tensor requires a gradient, or MISMATCH."""
    if not _is(call_with(guard[NEGATIVE], tensor), guard[FALSE]):
        return MISMATCH
    return NO_GRAD if _is(attribute(tensor, guard[WANTS]), guard[FALSE]) else NEEDS_GRAD


@register_jitable
def is_recording(guard):
    return not _is(call_object(guard[RECORDING]), guard[FALSE])


class DispatchGuard:
    """The guard of one library; answers and values are objects that exist once."""

    __slots__ = ("_kept", "_words", "address")

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
        self._words = (ctypes.c_int64 * len(words))(*words)
        self.address = ctypes.addressof(self._words)
        self._kept = negative, wants, recording, conditions, settings  # what words point to
