"""What is used of other libraries beyond their documented API stands in one place, and may go."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

import pullback

ROOT = Path(pullback.__file__).parent
PRIVATE = re.compile(
    r"\b(torch\._C|torch\._dynamo|jax\._src|np\._core|numba\.core\.(codegen|compiler_\w+|registry)"
    r"|triton\.(_C|backends|compiler|runtime\.jit))\b"
)
# The benchmark resets torch.compile between its contestants. Forks wait for Numba's lock, where it
# is loaded and has one. Triton's interpreter is mended in one file.
ELSEWHERE = {"bench/peers.py", "contract/imports.py", "gpu/interpreter.py"}


def test_internals_of_frameworks_are_used_in_one_place() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if PRIVATE.search(path.read_text())
    }
    assert found - ELSEWHERE == {
        f"internals/{library}.py" for library in ("torch", "jax", "numba", "numpy", "triton")
    }


def test_nothing_is_missing_here() -> None:
    from pullback.internals import jax, torch

    assert torch.MISSING == jax.MISSING == []
    assert torch.plain_call_conditions() is not None


WITHOUT = """
import sys, torch
from torch.autograd import profiler
gone = {
    torch._C: ["_len_torch_dispatch_stack", "_is_tracing"],
    torch._C._functorch: ["peek_interpreter_stack", "unwrap_if_dead"],
    torch._C._dynamo.guards: ["_empty_strided_cpu"],
}
kept = {name: getattr(where, name) for where, names in gone.items() for name in names}
for where, names in gone.items():
    for name in names:
        delattr(where, name)
import pullback as pb
from pullback.internals import torch as internals
import pullback.frontends.torch
for where, names in gone.items():  # torch itself needs them
    for name in names:
        setattr(where, name, kept[name])
assert len(internals.MISSING) == 5, internals.MISSING
assert internals.plain_call_conditions() is None
x = torch.arange(6.0).reshape(2, 3).requires_grad_(True)
for _ in range(3):
    y = pb.cumprod(x, 1)
    assert torch.equal(y, torch.cumprod(x, 1))
    both = [torch.autograd.grad(f(x, 1).sum(), x)[0] for f in (pb.cumprod, torch.cumprod)]
    assert torch.equal(*both)
    with torch.no_grad():
        assert torch.equal(pb.segment_sum(x, torch.tensor([1, 1]), 2)[1], x.sum(0))
mapped = torch.func.vmap(lambda row: pb.cumsum(row, 0))(x.detach())
assert torch.equal(mapped, torch.cumsum(x.detach(), 1))
print("right")
"""


def test_torch_without_its_internals_is_slower_and_right() -> None:
    """Each is gone while the package is imported, as in a torch that has renamed it."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.stdout.strip() == "right", done.stderr


def test_what_cannot_be_replaced_is_named() -> None:
    script = """
import torch
del torch._C._AutoDispatchBelowAutograd
import pullback.internals.torch
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert re.search(r"ImportError: pullback: torch \S+ has no torch\._C\._AutoDisp", done.stderr)
