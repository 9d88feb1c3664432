"""CUDA and ROCm tensors: through the plans of the Triton backend, where there is one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from pullback.frontends.torch_launch import DTYPES
from pullback.plan.function import Function
from pullback.plan.stream import Stream, Workspace


def on_gpu(function: Function, **arguments: Any) -> Any:
    """Select a plan for the tensors' device, allocate, run. Refused without the extra `gpu`."""
    call = function.body(**function.views(arguments))
    tensor = next(a for a in arguments.values() if isinstance(a, torch.Tensor))
    stream = Stream.current(tensor)
    plan = call.plan.select(stream, call.descriptor)
    results = {
        name: torch.empty(spec.shape, dtype=DTYPES[spec.element], device=tensor.device)
        for name, spec in zip(call.returns, call.specs, strict=True)
    }
    slots = {slot.name: None for slot in plan.record.slots}
    given = SimpleNamespace(**{**slots, **call.tensors, **results})
    plan.run(stream, Workspace.allocate(plan), given)
    several = tuple(results.values())
    return several[0] if len(several) == 1 else several
