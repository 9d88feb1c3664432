"""CUDA and ROCm tensors: through the plans of the Triton backend, where there is one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from pullback.frontends.torch_launch import DTYPES
from pullback.plan.function import Function
from pullback.plan.stream import Stream, Workspace
from pullback.tensor.view import TensorMut


def on_gpu(function: Function, **arguments: Any) -> Any:
    """Select a plan for the tensors' device, allocate, run. Refused without the extra `gpu`."""
    call = function.body(**function.views(arguments))
    tensor = next(a for a in arguments.values() if isinstance(a, torch.Tensor))
    stream = Stream.current(tensor)
    plan = call.select(function.name, stream)
    slots = {slot.name: slot for slot in plan.record.slots}
    given: dict[str, Any] = {name: call.tensors.get(name) for name in slots}
    results = []
    for name, spec in zip(call.returns, call.specs, strict=True):
        if name in call.tensors:  # an argument that is updated in place
            results.append(given[name].array)
            continue
        result = torch.empty(spec.shape, dtype=DTYPES[spec.element], device=tensor.device)
        # A function's result may have more axes than the plan's, which folds them.
        given[name] = call.as_slot(name, TensorMut(result))
        results.append(result)
    plan.run(stream, Workspace.allocate(plan), SimpleNamespace(**given))
    return results[0] if len(results) == 1 else tuple(results)
