"""Which kernels a trial would launch: its program is laid out, and nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pullback.contract.errors import InvalidProblem
from pullback.fuzz import forms
from pullback.fuzz.layout import Layout, fits
from pullback.fuzz.trial import Trial
from pullback.plan.stream import Stream
from pullback.tensor.view import TensorRef


def _empty(shape: tuple[int, ...], dtype: Any, layout: Layout) -> Any:
    """Memory laid out so, that nobody has touched yet."""
    layout = layout if fits(layout, shape) else Layout.plain(len(shape))
    strides = layout.strides(shape)
    ends = [(n - 1) * s for n, s in zip(shape, strides, strict=True) if n]
    first = -sum(end for end in ends if end < 0)
    buffer = np.empty(first + sum(end for end in ends if end > 0) + 1, dtype)
    steps = tuple(s * buffer.itemsize for s in strides)
    return np.lib.stride_tricks.as_strided(buffer[first:], shape, steps)


def phases(trial: Trial) -> Sequence[Any]:
    """The phases of the program that the trial's plan lays out for its layouts, each with the
    element and the index that its kernel is compiled for."""
    if trial.refused:
        return ()
    arrays = {
        name: _empty(array.shape, array.dtype, trial.layout(name, array.ndim).apart())
        for name, array in trial.arrays.items()
    }
    call = forms.planned(trial, {**arrays, **trial.options}, any_plan=True)
    if call is None:
        return ()
    state = forms.carrying_state(call)
    found = [*_laid_out(trial, call, call.descriptor)]
    return found if state is None else [*found, *_laid_out(trial, call, state)]


def _laid_out(trial: Trial, call: Any, descriptor: Any) -> Sequence[Any]:
    plan = call.plan.select(Stream.cpu(), descriptor)
    outs = dict(zip(call.returns, call.specs, strict=True))
    tensors: list[Any] = []
    for slot in plan.record.slots:
        view = call.tensors.get(slot.name)
        if view is None and slot.name in outs:
            spec = outs[slot.name]
            layout = trial.layout("out", len(spec.shape))
            result = TensorRef(_empty(spec.shape, spec.element.dtype, layout))
            view = call.as_slot(slot.name, result)
        if view is None and slot.used(descriptor) and not slot.used(call.descriptor):  # a state
            shape, dtype = slot.shape(descriptor), slot.elements(descriptor.element)[0].dtype
            view = TensorRef(_empty(shape, dtype, Layout.plain(len(shape))))
        tensors.append(view)
    try:
        program = plan.program(tensors)
    except InvalidProblem:  # some results are for the library's own memory, and may not have gaps
        return ()
    return [
        replace(
            phase,
            element=phase.element or descriptor.element,
            index=phase.index or program.index,
        )
        for phase in program.phases
    ]
