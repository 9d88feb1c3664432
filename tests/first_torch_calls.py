"""The first call of a process, with something of PyTorch active: each in a fork that has loaded
torch and Numba and nothing of pullback's front end. Prints what failed; see
test_torch_transforms.py."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numba  # noqa: F401
import torch
import torch.autograd.forward_ad as forward_ad
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import pullback

SHAPE = 3, 4


class _Functions(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any, given: Any = None) -> Any:
        return function(*args, **(given or {}))


class _Module(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return pullback.cumsum(x)


def _within(mode: Callable[[], Any]) -> Callable[[Any, Any], Any]:
    def run(f: Any, x: Any) -> Any:
        with mode():
            return f(x)

    return run


def _fake(f: Any, x: Any) -> Any:
    with FakeTensorMode() as mode:
        assert f(mode.from_tensor(x)).shape == SHAPE


def _dual(f: Any, x: Any) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, x))).tangent


def _backward(f: Any, x: Any) -> Any:
    (gradient,) = torch.autograd.grad(f(x.requires_grad_()).sum(), x)
    assert torch.equal(gradient, torch.tensor([4.0, 3, 2, 1]).expand(SHAPE))


def _meta(f: Any, x: Any) -> None:
    assert f(x.to("meta")).shape == SHAPE


# What is called with cumsum and a tensor; None is returned where there is nothing to compare.
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,))[1],
    "vmap": lambda f, x: torch.func.vmap(f)(x),
    "vjp": lambda f, x: torch.func.vjp(f, x)[0],
    "jacrev": lambda f, x: torch.einsum("ijkl,kl->ij", torch.func.jacrev(f)(x), x),
    "jacfwd": lambda f, x: torch.einsum("ijkl,kl->ij", torch.func.jacfwd(f)(x), x),
    "functionalize": lambda f, x: torch.func.functionalize(f)(x),
    "vmap of functionalize": lambda f, x: torch.func.vmap(torch.func.functionalize(f))(x),
    "fake tensors": _fake,
    "tensors of a meta device": _meta,
    "default device": _within(lambda: torch.device("meta")),
    "forward mode": _dual,
    "backward": _backward,
    "inference mode": _within(torch.inference_mode),
    "no_grad": _within(torch.no_grad),
    "modes of functions": _within(_Functions),
    "modes of dispatch": _within(lambda: FlopCounterMode(display=False)),
    "profiler": _within(torch.profiler.profile),
    "jit.trace": lambda f, x: torch.jit.trace(f, (x,))(x),
    "make_fx": lambda f, x: make_fx(f)(x)(x),
    "compile": lambda f, x: torch.compile(f, fullgraph=True, backend="eager")(x),
    "export": lambda f, x: torch.export.export(_Module(), (x,)).module()(x),
}


def check(name: str) -> None:
    """The first call, and whether later ones are right and go the fast way."""
    x = torch.arange(12.0).reshape(SHAPE)
    want = x.cumsum(-1)
    found = CALLS[name](pullback.cumsum, x)
    assert found is None or torch.equal(found, want), found
    y = torch.arange(12.0).reshape(SHAPE)
    assert torch.equal(pullback.cumsum(y), want)
    from pullback.frontends import torch_launch

    assert torch_launch._GUARD is not None, "call caches hold no tensors"


def main() -> int:
    warnings.simplefilter("ignore")
    failed = 0
    for name in CALLS:
        child = os.fork()
        if child == 0:
            try:
                check(name)
            except BaseException:
                print(f"{name}:", traceback.format_exc(limit=-2), flush=True)
                os._exit(1)
            os._exit(0)
        failed += os.waitpid(child, 0)[1] != 0
    print(f"{len(CALLS)} calls, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(main())
