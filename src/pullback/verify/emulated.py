"""Public functions answered by their Triton plans, compiled and executed by the emulator."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np

from pullback.contract.element import ElementKind
from pullback.contract.kinds import BackendKind
from pullback.gpu.emulator.launch import LIMIT, Span
from pullback.gpu.emulator.run import Emulation, emulating
from pullback.plan.stream import Stream, Workspace
from pullback.tensor.view import TensorMut
from pullback.verify.subject import Arguments, Subject


def span_of(view: Any, writable: bool) -> Span | None:
    """The memory between the first and the last element of a view."""
    if view is None:
        return None
    low, high = view.bounds()
    return Span(low, high - low, view.element.itemsize, writable)


def run_emulated(
    plan: Any, scratch: Any, tensors: dict[str, Any], target: str, limit: int = LIMIT
) -> Emulation:
    """Run a plan of the Triton backend on CPU memory, and say what it did."""
    slots = plan.record.slots
    spans = [span_of(tensors[slot.name], slot.written) for slot in slots]
    with emulating(target, spans, limit) as emulation:
        plan.run(Stream.cpu(), scratch, SimpleNamespace(**tensors))
    return emulation


def emulated(subject: Subject, arguments: Arguments, target: str) -> Emulation:
    """Answer a call by compiled kernels, into fresh memory; what was answered is left."""
    function = subject.function
    defaults = {
        name: parameter.default
        for name, parameter in function.binder.parameters.items()
        if parameter.default is not parameter.empty
    }
    call = function.body(**function.views({**defaults, **arguments}))
    plan = call.plan(call.descriptor, "cpu", BackendKind.TRITON)
    tensors = {slot.name: call.tensors.get(slot.name) for slot in plan.record.slots}
    for name, spec in zip(call.returns, call.specs, strict=True):
        tensors[name] = call.as_slot(name, TensorMut(np.zeros(spec.shape, spec.element.dtype)))
    buffer = np.zeros(plan.workspace_size, np.uint8)
    return run_emulated(plan, Workspace.of(buffer), tensors, target)


@dataclass(frozen=True, slots=True)
class Counted:
    """What a function did on its largest case: `elements` are those of the largest tensor,
    `minimum` the bytes of all its tensors."""

    name: str
    case: str
    elements: int
    minimum: int
    emulation: Emulation

    @property
    def excess(self) -> float:
        """Bytes from DRAM and back, each sector once a launch, over the fewest possible."""
        return self.emulation.counts.dram_bytes / max(self.minimum, 1)

    def instructions(self, kind: str) -> float:
        """Of a kind, for each element."""
        return self.emulation.counts.instructions[kind] / max(self.elements, 1)


def on_gpu(subject: Subject) -> bool:
    """Whether it has Triton kernels."""
    return find_spec(f"pullback.ops.{subject.family}.gpu") is not None


def counted(subject: Subject, element: ElementKind, target: str) -> Counted | None:
    """Run the largest case that the family gives its GPU kernels."""
    tiles = import_module(f"pullback.ops.{subject.family}.cases").TILES
    found: tuple[int, str, Arguments] | None = None
    for case in tiles.cases(np.random.default_rng(11)):
        arguments = subject.arguments(case, element, ElementKind.I64, subject.variants[0])
        if arguments is None or case.name.startswith("long"):
            continue
        size = max(value.size for value in arguments.values() if isinstance(value, np.ndarray))
        if found is None or size > found[0]:
            found = size, case.name, arguments
    if found is None:
        return None
    size, name, arguments = found
    emulation = emulated(subject, arguments, target)
    minimum = sum(span.nbytes for span in emulation.tensors if span is not None)
    return Counted(subject.name, name, size, minimum, emulation)
