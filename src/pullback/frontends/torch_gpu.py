"""CUDA and ROCm tensors: through the plans of the Triton backend, where there is one.

The first call of a kind (shapes, strides, dtypes, options) validates, lays out and launches; a
repeated one fetches addresses and launches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from pullback.contract.element import describe
from pullback.contract.errors import InvalidProblem, Unsupported
from pullback.frontends.torch_launch import DTYPES, PLAIN
from pullback.plan.function import Call, Function
from pullback.plan.launch import Launch
from pullback.plan.plan import Plan, remember
from pullback.plan.stream import Stream, Workspace
from pullback.tensor.adapters import torch_reach
from pullback.tensor.view import TensorMut, TensorRef, TensorSpec

# Calls by their key, or False where a call depends on more than that.
_PREPARED: dict[Any, Any] = {}


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
    values = (*args, *options.values())
    key = _key(function, values, options, out)
    prepared = None if key is None else _PREPARED.get(key)
    if prepared and prepared.holds(values, out):
        return prepared.run(values, out)
    bound = function.bind(args, options)
    arguments = function.completed(bound)
    result, *made = _on_gpu(function, out, arguments)
    if prepared is None and key is not None:
        # What was found in arrays is not in the key.
        known = all(arguments[name] is value for name, value in bound.items())
        names = (*function.parameters[: len(args)], *options)
        remember(_PREPARED, key, _Prepared.of(names, *made) if known else False)
    return result


def _key(function: Function, values: Iterable[Any], options: Iterable[str], out: Any) -> Any:
    """All that a call depends on but addresses; None where that cannot be told."""
    key: list[Any] = [function, *options, type(out)]
    for value in (*values, *(out if type(out) is tuple else (out,))):
        if isinstance(value, torch.Tensor):
            key += (value.shape, value.stride(), value.dtype, value.device)
        elif value is None or type(value) in (int, float, bool, str):
            key += (type(value), value)
        else:
            return None
    return tuple(key)


def on_gpu(function: Function, out: Any = None, /, **arguments: Any) -> Any:
    """Select a plan for the tensors' device, allocate, run. Refused without the extra `gpu`."""
    return _on_gpu(function, out, arguments)[0]


def _on_gpu(
    function: Function, out: Any, arguments: dict[str, Any]
) -> tuple[Any, Call, Plan[Any, Any], Any]:
    """The results, and what made them: the call, its plan, the plan's arguments."""
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
    taken = SimpleNamespace(**given)
    plan.run(stream, Workspace.allocate(plan), taken)
    if out is None:
        out = results[0] if len(results) == 1 else tuple(results)
    return out, call, plan, taken


@dataclass(slots=True)
class _Prepared:
    """A call that was made before: where the array of each slot comes from, what to allocate, what
    to launch. Sources are places among the arguments, results are slots."""

    launch: Launch
    plan: Plan[Any, Any]
    device: torch.device
    workspace: int
    blank: list[None]
    sources: list[tuple[int, int]]
    reaches: list[tuple[int, int]]
    offsets: list[tuple[int, int]]
    fresh: list[tuple[int, tuple[int, ...], torch.dtype]]
    results: list[int]

    @staticmethod
    def of(names: Sequence[str], call: Call, plan: Plan[Any, Any], taken: Any) -> Any:
        """False where what a slot gets is no argument."""
        launch, _, arrays = plan._prepare(taken)
        slots = [slot.name for slot in plan.record.slots]
        sources, reaches, offsets = [], [], []
        for position, name in enumerate(slots):
            view = call.tensors.get(name)
            if view is None:
                continue
            origin = view.origin if isinstance(view, TensorRef) else None
            if origin is None or origin[1] is not None:
                return False
            sources.append((position, names.index(origin[0])))
            reaches.append((sources[-1][1], torch_reach(view.array)))  # type: ignore[union-attr]
            offsets.append((position, view.offset))  # type: ignore[union-attr]
        fresh = [
            (slots.index(name), tuple(map(int, spec.shape)), DTYPES[spec.element])
            for name, spec in zip(call.returns, call.specs, strict=True)
            if name not in call.tensors
        ]
        return _Prepared(
            launch,
            plan,
            torch.device(plan.device),
            plan.workspace_size,
            [None] * len(arrays),
            sources,
            reaches,
            [(position, offset) for position, offset in offsets if offset],
            fresh,
            [slots.index(name) for name in call.returns],
        )

    def holds(self, values: Sequence[Any], out: Any) -> bool:
        """Whether the storage of every tensor still has what its shape says: it may be resized."""
        for place, reach in self.reaches:
            tensor = values[place]
            storage = tensor.untyped_storage()
            if not 0 <= tensor.data_ptr() - storage.data_ptr() <= storage.nbytes() - reach:
                return False
        for tensor in out if type(out) is tuple else (out,):
            if tensor is not None:
                storage, needed = tensor.untyped_storage(), torch_reach(tensor)
                if tensor.data_ptr() - storage.data_ptr() > storage.nbytes() - needed:
                    return False
        return True

    def run(self, values: Sequence[Any], out: Any) -> Any:
        arrays: list[Any] = self.blank.copy()
        for position, place in self.sources:
            arrays[position] = values[place]
        outs: Any = () if out is None else out if type(out) is tuple else (out,)
        for number, (position, shape, dtype) in enumerate(self.fresh):
            if outs:
                arrays[position] = outs[number]
            else:
                arrays[position] = torch.empty(shape, dtype=dtype, device=self.device)
        addresses = [0] * len(arrays)
        for position, array in enumerate(arrays):
            if array is not None:
                addresses[position] = array.data_ptr()
        for position, offset in self.offsets:
            addresses[position] += offset
        scratch, address = None, 0  # held until all is launched
        if self.workspace:
            scratch = torch.empty(self.workspace, dtype=torch.uint8, device=self.device)
            address = scratch.data_ptr()
        status = self.launch.run(addresses, arrays, address, 1)
        if status[0]:
            self.plan.fail(*status)
        if out is not None:
            return out
        if len(self.results) == 1:
            return arrays[self.results[0]]
        return tuple([arrays[position] for position in self.results])


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
