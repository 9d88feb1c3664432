"""Calls in windows: plans of scans that carry a state, and segments that stay open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import pullback
from pullback.distributed.windows import REDUCTIONS, reduced
from pullback.fuzz import forms
from pullback.fuzz.forms import Mismatch, Outcome, alike, difference
from pullback.fuzz.layout import Layout, place
from pullback.fuzz.memory import Memory
from pullback.fuzz.trial import Trial
from pullback.plan.stream import Stream, Workspace
from pullback.tensor.view import TensorRef
from pullback.verify.laws import LawBroken, compare

_ALIGNED = 64  # bytes, of a workspace


def windows(trial: Trial, want: Outcome, memory: Memory) -> bool | None:
    """Sorted segments have the bits of the whole; for scans see below."""
    if trial.function in REDUCTIONS:
        return _segments(trial, want)
    return _scans(trial, want, memory)


def _segments(trial: Trial, want: Outcome) -> bool | None:
    """A third of the rows, none, and the rest: the segments that they have to do with."""
    given = {**trial.subject.function.defaults, **trial.options, **trial.arrays}
    x, ids = given["x"], given["segment_ids"]
    if trial.mistake or want.error is not None or not isinstance(ids, np.ndarray):
        return False
    if not len(ids) or ids.ndim != 1 or ids[0] < 0 or bool((ids[1:] < ids[:-1]).any()):
        return False
    whole, count = want.results[0], want.results[0].shape[given["axis"]]
    if given.get("ties") == "split" or int(ids[-1]) >= count:
        return False
    rows, whole = (np.moveaxis(a, given["axis"], 0) for a in (x, whole))
    # Windows tell positions, which decide whose value is copied; without them it is the first's.
    positions = bool(given.get("return_indices"))
    state, ties = None, {"ties": given["ties"]} if positions else {}
    cut = len(ids) // 3
    for at in (slice(0, cut), slice(cut, cut), slice(cut, len(ids))):
        found = reduced(
            getattr(pullback, trial.function),
            rows[at],
            ids[at],
            state,
            empty=given["empty"],
            **ties,
        )
        state = found.state
    own = whole[found.first : found.first + len(found.values)]
    if not alike(found.values, np.ascontiguousarray(own)):
        raise Mismatch("windows", difference(found.values, np.ascontiguousarray(own)))
    return None


def _scans(trial: Trial, want: Outcome, memory: Memory) -> bool | None:
    """A plan that carries a state from one part of the axis to the next: within the error of the
    whole, at its positions. A plan that only says what a window leaves leaves the same."""
    call = forms.planned(trial, {k: v.copy() for k, v in trial.arrays.items()} | trial.options)
    if trial.mistake or want.error is not None or call is None:
        return False
    whole = forms.carrying_state(call)
    if whole is None or not whole.input_shape:
        return False
    axis, shape = whole.scan_axis, whole.input_shape
    tensors = {k: given_array(v) for k, v in call.tensors.items() if v is not None}
    if not all(isinstance(v, np.ndarray) and v.shape == shape for v in tensors.values()):
        return False
    for name, spec in zip(call.returns, call.specs, strict=True):
        tensors[name] = place(memory, shape, spec.element.dtype, Layout.plain(len(shape)))[1]
    lines = shape[:axis] + shape[axis + 1 :]
    state = place(memory, lines, np.float64, Layout.plain(len(lines)))[1]
    shown, places = state.copy(), np.zeros((2, *lines), np.int64)
    places[1] = shape[axis] if whole.reverse else 0
    shown_places = places.copy()
    # The first to run has a step: one from a state takes its factor, the very first does not.
    cut = shape[axis] // 3 if whole.reverse else -(-shape[axis] // 3)
    first, second = slice(0, cut), slice(cut, shape[axis])
    at = (slice(None),) * axis
    for number, window in enumerate((second, first) if whole.reverse else (first, second)):
        parts = {k: v[(*at, window)] for k, v in tensors.items()}
        steps = window.stop - window.start
        descriptor = replace(whole, input_shape=(*shape[:axis], steps, *shape[axis + 1 :]))
        given = {**parts, "state": state if number else None}
        for left, held, results in ((shown, shown_places, False), (state, places, True)):
            if len(call.returns) > 1:
                given["positions"] = held
            chosen = call.plan.select(Stream.cpu(), replace(descriptor, results=results))
            args = getattr(pullback, f"{chosen.record.name}Args")(**given, final_state=left)
            chosen.run(Stream.cpu(), scratch(chosen, memory), args)
        if (shown.tobytes(), shown_places.tobytes()) != (state.tobytes(), places.tobytes()):
            raise Mismatch("windows", f"{shown} without results, {state} with them")
    found = tuple(call.as_result(name, tensors[name]) for name in call.returns)
    try:
        compare(trial.subject, trial.arguments, found)
    except LawBroken as broken:
        raise Mismatch("windows", str(broken).partition(": ")[2]) from None
    return None


def given_array(view: Any) -> Any:
    """The array itself where the plan takes it in its own shape."""
    array = getattr(view, "array", None)
    if array is None or view.offset:
        return view
    own = TensorRef(array)
    return array if (view.shape, view.strides) == (own.shape, own.strides) else view


def scratch(chosen: Any, memory: Memory) -> Workspace:
    """Exactly as much scratch memory as is asked for, up to a forbidden page."""
    size = chosen.workspace_size
    if not size:
        return Workspace.NONE
    buffer = -(-size // _ALIGNED) * _ALIGNED
    data = memory.take(buffer, 0xFF)
    start = data.size - buffer
    return Workspace.of(data[start : start + size])
