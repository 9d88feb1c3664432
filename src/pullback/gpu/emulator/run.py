"""Programs on the emulator in place of Triton's interpreter: while `emulating` lasts, runners on
the CPU execute what is compiled for a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pullback.gpu.emulator.compile import compiled
from pullback.gpu.emulator.launch import LIMIT, Counts, Span, execute
from pullback.gpu.program import Operand, Scratch, Step
from pullback.gpu.runner import executing


class Emulation:
    """Launches on one target. `tensors` are the spans of a plan's slots: a launch may touch those
    it is given, and its scratch. `counts` is what they did, `steps` the same for each launch."""

    def __init__(self, target: str, tensors: Sequence[Span | None], limit: int = LIMIT) -> None:
        self.target, self.tensors, self.limit = target, tensors, limit
        self.counts, self.steps = Counts(), list[tuple[Step, Counts]]()

    def __call__(self, step: Step, arguments: Mapping[str, Any]) -> None:
        module, words = compiled(step, arguments, self.target)
        spans = list(self._spans(step, arguments))
        done = execute(module.code, step.grid, words, spans, module.shared, self.limit)
        self.counts.add(done)
        self.steps.append((step, done))

    def _spans(self, step: Step, arguments: Mapping[str, Any]) -> Iterator[Span]:
        for name, value in step.arguments.items():
            if isinstance(value, Scratch):
                size = value.element.itemsize
                yield Span(arguments[name].data_ptr(), value.count * size, size)
            elif isinstance(value, Operand):
                span = self.tensors[value.position]
                assert span is not None
                yield span


@contextmanager
def emulating(
    target: str, tensors: Sequence[Span | None], limit: int = LIMIT
) -> Iterator[Emulation]:
    """What runners on the CPU launch meanwhile is compiled for the target and emulated."""
    emulation = Emulation(target, tensors, limit)
    with executing(emulation):
        yield emulation
