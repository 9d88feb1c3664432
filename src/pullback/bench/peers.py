"""The other libraries as contestants: arrays in, one timed call, arrays out.

Forwards are given by the families' tables. Backwards are what each library's own differentiation
makes of its forward, with everything the forward saves already saved."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
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
    y, dy = function(**tensors, **options), to_torch(contest.problem.dy)
    return lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True), _fetch_torch


def compiled(function: Callable[..., Any], contest: Contest) -> tuple[Run, Fetch]:
    import torch

    torch._dynamo.reset()
    run, fetch = eager(torch.compile(function), contest)
    run()  # compiles: what is checked and timed later is only the compiled code
    return run, fetch


def _no_compiler() -> str:
    """What keeps torch.compile from working, if anything does."""
    names = [os.environ.get("CXX"), "g++", "clang++"]
    found = any(name and shutil.which(name) for name in names)
    return "" if found else "it needs a C++ compiler: g++, clang++ or the one CXX names"


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
    dy = jnp.asarray(contest.problem.dy)

    def of_inputs(*given: Any) -> Any:
        return fixed(**dict(zip(contest.wrt, given, strict=True)), **values)

    # The saved residuals travel as arguments: only the backward is timed.
    _, pull = jax.jit(lambda *given: jax.vjp(of_inputs, *given))(*inputs)
    backward = jax.jit(lambda saved, g: saved(g))
    return lambda: jax.block_until_ready(backward(pull, dy)), fetch


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Library:
    """A column of the benchmark: the package it needs, whose table it uses, how it is called, what
    else it lacks. Those `slow` to begin enter only the main rows, unless they are asked for."""

    package: str
    table: str
    enter: Callable[[Callable[..., Any], Contest], tuple[Run, Fetch] | None]
    lacks: Callable[[], str] = str
    slow: bool = False

    @property
    def absent(self) -> str:
        """Why this cannot compete here; empty if it can."""
        return self.lacks() if find_spec(self.package) else f"{self.package} is not installed"


LIBRARIES: dict[str, Library] = {
    "torch": Library("torch", "torch", eager),
    "torch loop": Library("torch", "torch loop", eager),
    "torch out": Library("torch", "torch out", into_given),
    "torch.compile": Library("torch", "torch", compiled, _no_compiler, slow=True),
    "jax": Library("jax", "jax", jitted),
    "entmax": Library("entmax", "entmax", eager),
    "numpy": Library("numpy", "numpy", plain),
    "scipy": Library("scipy", "scipy", plain),
    "numbagg": Library("numbagg", "numbagg", plain),
}


def available(wanted: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """The columns, of all or of those wanted, that can compete here."""
    return tuple(
        name
        for name, library in LIBRARIES.items()
        if (wanted is None or name in wanted) and not library.absent
    )


def left_out(wanted: tuple[str, ...] | None = None) -> Iterator[str]:
    """A sentence for every reason why columns are missing."""
    reasons: dict[str, list[str]] = {}
    for name, library in LIBRARIES.items():
        if (wanted is None or name in wanted) and library.absent:
            reasons.setdefault(library.absent, []).append(name)
    for reason, names in reasons.items():
        yield f"left out: {', '.join(names)} ({reason})"


def quick(libraries: tuple[str, ...]) -> tuple[str, ...]:
    """Those that are quick to begin: who competes in every row."""
    return tuple(name for name in libraries if not LIBRARIES[name].slow)


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
