"""The other libraries as contestants: arrays in, one timed call, arrays out.

Forwards are given by the families' tables. Backwards are what each library's own differentiation
makes of its forward, with everything the forward saves already saved."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np

from pullback.bench.problem import Array, Problem

Run = Callable[[], Any]
Fetch = Callable[[Any], tuple[Array, ...]]


@dataclass(frozen=True)
class Contestant:
    """`run` is what is timed; `fetch` turns what it returned into NumPy arrays, for checking."""

    name: str
    run: Run
    fetch: Fetch


@dataclass(frozen=True)
class Contest:
    """What a peer is asked: the problem of the row, the forward it belongs to, and with respect to
    which arguments the gradient is taken (none in a forward)."""

    problem: Problem
    forward: Problem
    wrt: tuple[str, ...]


def _split(arguments: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, Any]]:
    arrays = {k: v for k, v in arguments.items() if isinstance(v, np.ndarray)}
    return arrays, {k: v for k, v in arguments.items() if k not in arrays}


def _dy(problem: Problem) -> Array:
    """The gradient of the result: the first parameter of every backward."""
    found: Array = problem.arguments[problem.subject.function.parameters[0]]
    return found


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


# --- NumPy and what speaks its arrays: forwards only ----------------------------------------------


def plain(function: Callable[..., Any], contest: Contest) -> tuple[Run, Fetch] | None:
    if contest.wrt:
        return None
    run = partial(function, **contest.forward.arguments)
    return run, lambda value: tuple(np.asarray(v) for v in _tuple(value))


# --- PyTorch --------------------------------------------------------------------------------------


def to_torch(array: Array) -> Any:
    """The same memory as a torch tensor."""
    import torch

    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(tensor: Any) -> Array:
    import torch

    tensor = tensor.detach()
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    if tensor.dtype is torch.bfloat16:
        return np.asarray(tensor.contiguous().view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())


def _fetch_torch(value: Any) -> tuple[Array, ...]:
    return tuple(from_torch(tensor) for tensor in _tuple(value))


def eager(function: Callable[..., Any], contest: Contest) -> tuple[Run, Fetch]:
    import torch

    arrays, options = _split(contest.forward.arguments)
    tensors = {name: to_torch(array) for name, array in arrays.items()}
    if not contest.wrt:
        return partial(function, **tensors, **options), _fetch_torch
    inputs = [tensors[name].requires_grad_(True) for name in contest.wrt]
    y, dy = function(**tensors, **options), to_torch(_dy(contest.problem))
    return lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True), _fetch_torch


def compiled(function: Callable[..., Any], contest: Contest) -> tuple[Run, Fetch]:
    import torch

    torch._dynamo.reset()
    return eager(torch.compile(function), contest)


def into_given(function: Callable[..., Any], contest: Contest) -> tuple[Run, Fetch]:
    """Functions of PyTorch that write into `out`; backwards too, under their own names."""
    arrays, options = _split(contest.problem.arguments)
    tensors = {name: to_torch(array) for name, array in arrays.items()}
    (spec,) = contest.problem.call.specs
    out = to_torch(np.zeros(spec.shape, spec.element.dtype))
    return partial(function, **tensors, **options, out=out), _fetch_torch


# --- JAX ------------------------------------------------------------------------------------------


def jitted(function: Callable[..., Any], contest: Contest) -> tuple[Run, Fetch]:
    import jax
    import jax.numpy as jnp

    arrays, options = _split(contest.forward.arguments)
    values = {name: jnp.asarray(array) for name, array in arrays.items()}
    fixed = partial(function, **options)

    def fetch(value: Any) -> tuple[Array, ...]:
        return tuple(np.asarray(v) for v in _tuple(value))

    if not contest.wrt:
        forward = jax.jit(lambda given: fixed(**given))
        return lambda: jax.block_until_ready(forward(values)), fetch
    inputs = [values.pop(name) for name in contest.wrt]
    dy = jnp.asarray(_dy(contest.problem))

    def of_inputs(*given: Any) -> Any:
        return fixed(**dict(zip(contest.wrt, given, strict=True)), **values)

    # The saved residuals travel as arguments: only the backward is timed.
    _, pull = jax.jit(lambda *given: jax.vjp(of_inputs, *given))(*inputs)
    backward = jax.jit(lambda saved, g: saved(g))
    return lambda: jax.block_until_ready(backward(pull, dy)), fetch


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Library:
    """A column of the benchmark: the package it needs, whose table it uses, how it is called."""

    package: str
    table: str
    enter: Callable[[Callable[..., Any], Contest], tuple[Run, Fetch] | None]
    on_request: bool = False


LIBRARIES: dict[str, Library] = {
    "torch": Library("torch", "torch", eager),
    "torch out": Library("torch", "torch out", into_given),
    "torch.compile": Library("torch", "torch", compiled, on_request=True),
    "jax": Library("jax", "jax", jitted),
    "entmax": Library("entmax", "entmax", eager),
    "numpy": Library("numpy", "numpy", plain),
    "scipy": Library("scipy", "scipy", plain),
    "numbagg": Library("numbagg", "numbagg", plain),
}


def available(wanted: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """The columns whose packages are installed; slow ones only when asked for by name."""
    return tuple(
        name
        for name, library in LIBRARIES.items()
        if find_spec(library.package) is not None
        and (name in wanted if wanted is not None else not library.on_request)
    )


@cache
def prepare(package: str, threads: int) -> None:
    """Once per library: equal threads, all dtypes, no chatter."""
    if package in ("torch", "entmax"):
        import torch

        torch.set_num_threads(threads)
    if package == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_platforms", "cpu")


def enter(
    name: str, table: Mapping[str, Callable[..., Any]], op: str, contest: Contest, threads: int
) -> Contestant | None:
    """The library as a contestant of this row, or None where it has no such op."""
    library = LIBRARIES[name]
    key = contest.problem.subject.name if library.enter is into_given else op
    function = table.get(key)
    if function is None:
        return None
    prepare(library.package, threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pair = library.enter(function, contest)
    return Contestant(name, *pair) if pair else None
