"""CUDA and ROCm tensors: through the plans of the Triton backend, where there is one."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch

from pullback.contract.element import describe
from pullback.contract.errors import InvalidProblem, Unsupported
from pullback.frontends.torch_launch import DTYPES, PLAIN
from pullback.plan.function import Call, Function
from pullback.plan.stream import Stream, Workspace
from pullback.tensor.view import TensorMut, TensorSpec


def is_plain_gpu(values: Iterable[Any], out: Any = None) -> bool:
    """Whether all tensors among these are plain ones on a GPU, with nothing to record. A prepared
    index counts as the tensors it holds."""
    recording, found = torch.is_grad_enabled(), False
    for value in (*values, *(out if type(out) is tuple else (out,))):
        if isinstance(value, torch.Tensor):
            if type(value) not in PLAIN or not value.is_cuda or value.is_neg():
                return False
            if recording and value.requires_grad:
                return False
            found = True
        elif hasattr(value, "bundle") and value.device == "cpu":
            return False
    return found


def call_on_gpu(
    function: Function, args: tuple[Any, ...], options: dict[str, Any], out: Any
) -> Any:
    """A call on plain tensors: results are written where they are wanted, nothing is copied."""
    arguments = function.completed(function.bind(args, options))
    return on_gpu(function, out, **arguments)


def on_gpu(function: Function, out: Any = None, /, **arguments: Any) -> Any:
    """Select a plan for the tensors' device, allocate, run. Refused without the extra `gpu`."""
    call = function.body(**function.views(arguments))
    tensor = next(a for a in arguments.values() if isinstance(a, torch.Tensor))
    stream = Stream.current(tensor)
    plan = call.select(function.name, stream)
    given: dict[str, Any] = {slot.name: call.tensors.get(slot.name) for slot in plan.record.slots}
    index = next((a for a in arguments.values() if hasattr(a, "bundle")), None)
    if index is not None:  # a plan takes its tables from it
        given |= {slot.name: index for slot in plan.record.slots if slot.part == "ids"}
    results = []
    wanted = _wanted(function.name, call, out, tensor.device)
    for name, spec, result in zip(call.returns, call.specs, wanted, strict=True):
        if name in call.tensors:  # an argument that is updated in place
            results.append(given[name].array)
            continue
        if result is None:
            result = torch.empty(spec.shape, dtype=DTYPES[spec.element], device=tensor.device)
        # A function's result may have more axes than the plan's, which folds them.
        given[name] = call.as_slot(name, TensorMut(result))
        results.append(result)
    plan.run(stream, Workspace.allocate(plan), SimpleNamespace(**given))
    if out is not None:
        return out
    return results[0] if len(results) == 1 else tuple(results)


def _wanted(op: str, call: Call, out: Any, device: Any) -> tuple[Any, ...]:
    """What was given for the results, checked; None for each where nothing was."""
    count = len(call.returns)
    if out is None:
        return (None,) * count
    given = (out,) if count == 1 else out
    if not isinstance(given, tuple) or len(given) != count:
        got = f"a tuple of {len(given)}" if isinstance(given, tuple) else describe(given)
        raise InvalidProblem(op, "out", f"a tuple of {count} arrays", got)
    for target, spec in zip(given, call.specs, strict=True):
        _check_target(op, target, spec, device)
    return given


def _check_target(op: str, target: Any, spec: TensorSpec, device: Any) -> None:
    if not isinstance(target, torch.Tensor):
        raise Unsupported(op, "out", "a torch array, as the others", describe(target))
    if tuple(target.shape) != tuple(spec.shape):
        raise InvalidProblem(op, "out", f"of shape {spec.shape}", f"shape {tuple(target.shape)}")
    wanted = DTYPES[spec.element]
    if target.dtype != wanted:
        raise Unsupported(op, "out", f"of dtype {wanted}", f"{target.dtype}")
    if target.device != device:
        raise Unsupported(op, "out", f"of device {device}", f"{target.device}")
