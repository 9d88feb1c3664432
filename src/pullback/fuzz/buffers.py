"""The arrays of a trial as they lie in guarded memory, and what must not change there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pullback.fuzz import forms
from pullback.fuzz.forms import Mismatch, Outcome
from pullback.fuzz.layout import Layout, fits, place, put
from pullback.fuzz.memory import Bytes, Memory
from pullback.fuzz.trial import Trial


@dataclass(slots=True)
class Laid:
    """Arrays by name, results in order, and the memory of each with what it held before."""

    arrays: dict[str, Any] = field(default_factory=dict)
    outs: list[Any] = field(default_factory=list)
    updated: tuple[str, ...] = ()
    buffers: dict[str, Bytes] = field(default_factory=dict)
    blank: dict[str, Bytes] = field(default_factory=dict)

    def refill(self) -> None:
        """As before the first call."""
        for name, buffer in self.buffers.items():
            buffer[:] = self.blank[name]

    def share(self, position: int, source: str) -> None:
        """Let a result be the very buffer of an input."""
        del self.buffers[f"out.{position}"]
        self.outs[position] = self.arrays[source]
        self.updated += (source,)

    def expect_untouched(self, check: str, refused: bool) -> None:
        """Only elements of results may have changed; nothing, if the call was refused."""
        for name, buffer in self.buffers.items():
            before, view = self.blank[name], self._written(name)
            if view is None or refused:
                changed = not np.array_equal(buffer, before)
            else:
                expected = before.copy()
                _moved(view, buffer, expected)[...] = view
                changed = not np.array_equal(buffer, expected)
            if changed:
                what = "a refused call wrote into it" if refused else "memory outside was written"
                raise Mismatch(check, f"`{name}`: {what if view is not None else 'it was written'}")

    def _written(self, name: str) -> Any:
        if name.startswith("out."):
            return self.outs[int(name[4:])]
        return self.arrays[name] if name in self.updated else None


def _moved(view: Any, buffer: Bytes, other: Bytes) -> Any:
    """The view of `other` that `view` is of `buffer`."""
    if not view.size:
        return view
    words = view.view(f"u{view.itemsize}")
    address = other.ctypes.data + view.ctypes.data - buffer.ctypes.data
    facts = {**words.__array_interface__, "data": (address, False), "strides": view.strides}
    holder = type("Holder", (), {"__array_interface__": facts, "owner": other})()
    return np.asarray(holder).view(view.dtype)


def lay_out(
    trial: Trial,
    want: Outcome | None,
    memory: Memory,
    *,
    forwards: bool = False,
    given: bool | None = None,
) -> Laid:
    """The arrays of the trial as its layouts say, and results if it gives them (or `given`)."""
    laid = Laid()
    call = forms.planned(trial, trial.arguments)
    laid.updated = () if call is None else tuple(forms.updated(call).values())
    for name, array in trial.arrays.items():
        how = trial.layout(name, array.ndim)
        how = how.apart() if name in laid.updated else how
        how = how.forwards() if forwards else how
        if name in laid.updated and not fits(how, array.shape):
            how = Layout.plain(array.ndim)
        buffer, laid.arrays[name] = put(memory, array, how)
        laid.buffers[name], laid.blank[name] = buffer, buffer.copy()
    for position, (shape, dtype) in enumerate(_results(trial, call, want, given)):
        how = trial.layout("out", len(shape)).apart()
        how = how.forwards() if forwards else how
        how = how if fits(how, shape) else Layout.plain(len(shape))
        buffer, view = place(memory, shape, dtype, how)
        laid.outs.append(view)
        laid.buffers[f"out.{position}"] = buffer
        laid.blank[f"out.{position}"] = buffer.copy()
    return laid


def _results(
    trial: Trial, call: Any, want: Outcome | None, given: bool | None
) -> list[tuple[tuple[int, ...], Any]]:
    """Shape and dtype of the results that are given; none where the call makes its own."""
    if call is None or forms.updated(call) or not (trial.out if given is None else given):
        return []
    if want is not None and want.error is None:
        return [(part.shape, part.dtype) for part in want.results]
    return [(spec.shape, spec.element.dtype) for spec in call.specs]
