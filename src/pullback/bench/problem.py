"""One function and its arguments: everything a contest needs follows from the function's record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

import pullback
from pullback.contract.element import ElementKind
from pullback.contract.record import Role, resolve
from pullback.plan.function import Call
from pullback.plan.plan import Plan
from pullback.plan.stream import Stream, Workspace
from pullback.tensor.view import TensorRef
from pullback.verify.accuracy import bound_of
from pullback.verify.subject import Arguments, Subject
from pullback.verify.ulp import ulp_error

Array = npt.NDArray[Any]
Take = Callable[[Array], Array]
"""A part of every float tensor of a call that the function maps to the same part of its result."""


def is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind not in "iub"


@dataclass(frozen=True)
class Problem:
    """`arguments` by name. `prepared` replaces some of them in the calls that are timed: an index
    made ahead. Of the tensors named in `gathered` only that many rows are touched."""

    subject: Subject
    arguments: Arguments
    prepared: Arguments = field(default_factory=dict)
    gathered: dict[str, int] = field(default_factory=dict)

    @cached_property
    def given(self) -> Arguments:
        """The arguments of the calls that are timed."""
        return {**self.arguments, **self.prepared}

    def answer(self) -> tuple[Any, ...]:
        """The function's results, newly allocated."""
        return self.subject.answer(self.given)

    @cached_property
    def allocating(self) -> Callable[[], Any]:
        """The call people write."""
        function, given = self.subject.function.wrapper, self.given
        return lambda: function(**given)

    @cached_property
    def call(self) -> Call:
        """What the function asks of a plan."""
        function = self.subject.function
        bound = function.bind((), self.given)
        return function.body(**function.views(bound))

    @property
    def dy(self) -> Array:
        """The gradient of the result: the first parameter of every backward."""
        found: Array = self.arguments[self.subject.function.parameters[0]]
        return found

    @property
    def planned(self) -> bool:
        """Whether one plan answers the call; a sparse gradient has no size before it is known."""
        return not self.arguments.get("sparse")

    def into_outputs(self, threads: int | None = None) -> tuple[Callable[[], None], list[Array]]:
        """The plan behind the call, run into outputs allocated once."""
        call, stream = self.call, Stream.cpu(threads)
        plan = call.plan.select(stream, call.descriptor)
        tensors, outs = self.plan_tensors()
        views = [outs[n].reshape(s.shape) for n, s in zip(call.returns, call.specs, strict=True)]
        args = args_class(call.plan)(**{**tensors, **outs})
        workspace = Workspace.allocate(plan)
        return lambda: plan.run(stream, workspace, args), views

    def plan_tensors(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """The arguments of the plan behind the call, and new outputs for it, by name."""
        call = self.call
        record = call.plan.record
        outs = {
            name: np.zeros(record.slot(name).shape(call.descriptor), spec.element.dtype)
            for name, spec in zip(call.returns, call.specs, strict=True)
        }
        # An index made ahead goes in whole; the slots of its parts are no arguments.
        named = [slot.name for slot in record.slots if not slot.part_of]
        tensors = {name: _as_given(call.tensors.get(name)) for name in named if name not in outs}
        tensors.update({k: v for k, v in self.prepared.items() if k in named})
        return tensors, outs

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the tensors read and written, each once."""
        if not self.planned:
            arrays = (*self.arguments.values(), *self.answer())
            return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
        call, total = self.call, 0
        for slot in call.plan.record.slots:
            view = call.tensors.get(slot.name)
            if isinstance(view, TensorRef) and slot.used(call.descriptor):
                rows = self.gathered.get(slot.name)
                total += _touched(view) if rows is None else rows * _touched(view) // len_of(view)
        for name, spec in zip(call.returns, call.specs, strict=True):
            passes = 2 if call.plan.record.slot(name).role is Role.ACCUMULATE else 1
            total += passes * prod(spec.shape) * spec.element.itemsize
        return total

    @property
    def element(self) -> ElementKind:
        return ElementKind.of(next(v for v in self.arguments.values() if is_float(v)))

    @cached_property
    def elements(self) -> int:
        """Elements of the largest tensor: what a cost per element is counted in."""
        if not self.planned:
            return max(v.size for v in self.arguments.values() if isinstance(v, np.ndarray))
        shapes = [spec.shape for spec in self.call.specs]
        shapes += [v.shape for v in self.call.tensors.values() if isinstance(v, TensorRef)]
        return max(prod(shape) for shape in shapes)

    def part(self, take: Take) -> Problem:
        """The same problem on a part of every float tensor, and of the indices that lie beside one,
        for the oracle."""
        beside = {v.shape for v in self.arguments.values() if is_float(v) and v.ndim > 1}
        arguments = {
            k: take(v) if is_float(v) or getattr(v, "shape", ()) in beside else v
            for k, v in self.arguments.items()
        }
        return Problem(self.subject, arguments)

    def errors(self, results: tuple[Any, ...]) -> list[Any]:
        """Error of each float result in ulp, by element; indices count as 0 or infinite."""
        truths = self.subject.truth(self.arguments)
        scales = bound_of(self.subject).scale(self.subject, self.arguments)
        found = []
        for got, want, scale in zip(results, truths, scales, strict=False):
            if got.shape != want.shape:
                found.append(np.full(1, np.inf))
            elif is_float(got):
                found.append(ulp_error(got, want, scale))
            else:
                found.append(np.where(got == want, 0.0, np.inf))
        return found


def args_class(plan: type[Plan[Any, Any]]) -> Any:
    """The args of a plan: public, but for plans that only functions use."""
    name = f"{plan.record.name}Args"
    return getattr(pullback, name, None) or resolve(f"{plan.__module__}:{name}")


def len_of(view: TensorRef) -> int:
    return max(view.shape[0], 1) if view.shape else 1


def _touched(view: TensorRef) -> int:
    """Bytes behind a view; what a stride of zero repeats counts once."""
    strides = zip(view.shape, view.strides, strict=True)
    return prod(extent if stride else 1 for extent, stride in strides) * view.element.itemsize


def _as_given(view: Any) -> Any:
    """The array itself where a plan takes it as it is, as a user would pass it."""
    whole = isinstance(view, TensorRef) and view.shape == view.array.shape
    return view.array if whole else view
