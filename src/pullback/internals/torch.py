"""What is used of PyTorch beyond its documented API: which modes and transforms are active, and
shortcuts past the dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch.autograd import forward_ad, profiler

MISSING: list[str] = []


def _found(path: str, fallback: Any = None) -> Any:
    """An attribute of the package, or what serves in its place."""
    try:
        return reduce(getattr, path.split("."), torch)
    except AttributeError:
        MISSING.append(path)
        return fallback


def _required(path: str) -> Any:
    found = _found(path)
    if found is None:
        raise ImportError(
            f"pullback: torch {torch.__version__} has no torch.{path}; tried with torch 2.13"
        )
    return found


def _none() -> None:
    return None


def _some() -> int:
    return 1


# --- what is active -----------------------------------------------------------------------------

# Dispatch modes, and transforms of torch.func. Where either cannot be asked for, there may be one:
# then every call goes through the dispatcher, which knows.
modes: Callable[[], int] = _found("_C._len_torch_dispatch_stack", _some)
transforms: Callable[[], Any] = _found("_C._functorch.peek_interpreter_stack", _none)
if transforms is _none:
    modes = _some
tracing: Callable[[], bool] = _found("_C._is_tracing", torch.jit.is_tracing)

_levels: Callable[[], Any] = _found("_C._functorch.get_interpreter_stack", _none)
_jvp: Any = _found("_C._functorch.TransformType.Jvp")

_functionalize: Any = _found("_C._functorch.TransformType.Functionalize")


def functionalizing(transform: Any) -> bool:
    """Whether a transform is torch.func.functionalize."""
    return _functionalize is not None and transform.key() == _functionalize


_forward_enabled: Callable[[], bool] = _required("_C._is_fwd_grad_enabled")
_required("autograd.forward_ad._current_level")


def forward_mode() -> bool:
    """Whether tensors may carry tangents of forward mode."""
    return forward_ad._current_level >= 0 and _forward_enabled()


def jvp_levels() -> int:
    """How many transforms of forward mode there are, one within the other."""
    return [level.key() for level in _levels() or ()].count(_jvp)


_found("autograd.profiler._is_profiler_enabled")


def profiling() -> bool:
    """Whether the profiler records; where that cannot be asked for, calls have no names in it."""
    return bool(getattr(profiler, "_is_profiler_enabled", False))


def plain_call_conditions() -> tuple[dict[Callable[[], Any], Any], tuple[Any, ...]] | None:
    """What native code calls and looks at to know that nothing is active, each with its answer.
    None where something cannot be asked for."""
    if MISSING:
        return None
    asked = {modes: 0, transforms: None, tracing: False}
    settings = (forward_ad, "_current_level", -1), (profiler, "_is_profiler_enabled", False)
    return asked, settings


# --- shortcuts ----------------------------------------------------------------------------------

below_autograd: Any = _required("_C._AutoDispatchBelowAutograd")


def _same(value: Any) -> Any:
    return value


# The value of a tensor whose transform has ended.
unwrap_if_dead: Callable[[Any], Any] = _found("_C._functorch.unwrap_if_dead", _same)


def _empty_strided(shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype)


# The allocator without the dispatcher in front of it.
empty_strided: Callable[..., torch.Tensor] = _found(
    "_C._dynamo.guards._empty_strided_cpu", _empty_strided
)


def on_compile_end(told: Callable[[Any], None]) -> None:
    """Have a function called when torch.compile has made a graph; never, where it cannot be asked.
    Loads what takes seconds: for whoever is being compiled."""
    try:
        from torch._dynamo.callback import on_compile_end as register
    except ImportError:
        MISSING.append("_dynamo.callback.on_compile_end")
        return
    register(told)


# --- collectives --------------------------------------------------------------------------------


def all_gather_tensor(x: torch.Tensor, axis: int, group: Any) -> torch.Tensor:
    """What all ranks have, along an axis: a functional collective, which graphs can hold, or else
    one that writes."""
    import torch.distributed as dist

    try:
        from torch.distributed import _functional_collectives as functional
    except ImportError:
        MISSING.append("distributed._functional_collectives")
        shape = (x.shape[0] * dist.get_world_size(group), *x.shape[1:])
        found = x.new_empty(shape)
        dist.all_gather_into_tensor(found, x, group)
        return found
    # Renamed in PyTorch 2.13.
    gather = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor
    return functional.wait_tensor(gather(x, axis, group))


def all_to_all_single(
    x: torch.Tensor, receives: list[int] | None, sends: list[int] | None, group: Any
) -> torch.Tensor:
    """So many rows of each rank, for so many to each; as many of all if not said."""
    import torch.distributed as dist

    found = x.new_empty((len(x) if receives is None else sum(receives), *x.shape[1:]))
    dist.all_to_all_single(found, x, receives, sends, group)
    return found


def store_of(group: Any) -> Any:
    """The store through which the ranks of a group met, keys of its own; None where this PyTorch
    does not say, and where ranks are not real."""
    import torch.distributed as dist

    try:
        store = dist.distributed_c10d._get_process_group_store(group)
    except (AttributeError, KeyError):
        MISSING.append("distributed.distributed_c10d._get_process_group_store")
        return None
    return None if dist.get_backend(group) == "fake" else store
