"""A reported fault as a runnable case: what a peer answers, what we answer, what is true."""

from __future__ import annotations

import hashlib
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np

import pullback as pb

# The versions with which the answers of peers were seen.
SEEN = {
    "torch": "2.13.0",
    "jax": "0.10.2",
    "numpy": "2.4.6",
    "scipy": "1.17.1",
    "entmax": "1.3",
    "numbagg": "0.9.6",
}


@dataclass(frozen=True)
class Case:
    """`theirs`, `ours` and `truth` are expressions over the names of `names()`.

    `theirs` gave `shown` with the version of the peer that is named in SEEN. Where the peer is not
    installed or the fault needs a GPU, `quoted` says what was reported. `fixed`: that version is
    right.
    """

    what: str
    link: str
    peer: str
    ours: str
    truth: str
    theirs: str = ""
    shown: Any = None
    quoted: str = ""
    fixed: bool = False
    why: str = ""
    tolerance: float = 1e-6
    smallest: float = 1e-9  # what is taken for 0

    def __post_init__(self) -> None:
        if bool(self.theirs) == bool(self.quoted):
            raise ValueError(f"{self.what}: either run the peer or quote it")
        if self.theirs and self.peer not in SEEN:
            raise ValueError(f"{self.what}: {self.peer} is not installed with the extras")

    @property
    def url(self) -> str:
        found = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", self.link)
        return f"https://github.com/{found[1]}/issues/{found[2]}" if found else self.link

    @property
    def label(self) -> str:
        return self.link if "#" in self.link else "reference"


# --- what expressions are made of ----------------------------------------------------------------


def torch_gradient(function: Callable[..., Any], x: Any, dtype: Any = None) -> list[Any]:
    """The gradient of the sum of function(x)."""
    import torch

    leaf = torch.tensor(x, dtype=dtype or torch.float64, requires_grad=True)
    function(leaf).sum().backward()
    return plain(leaf.grad)


def torch_second(function: Callable[..., Any], x: Any) -> list[Any]:
    """The gradient of the sum of the squared gradient: needs a second derivative."""
    import torch

    leaf = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(function(leaf).sum(), leaf, create_graph=True)
    first.square().sum().backward()
    return plain(leaf.grad)


def jax_gradient(function: Callable[..., Any], x: Any) -> list[Any]:
    import jax
    import jax.numpy as jnp

    return plain(jax.grad(lambda x: function(x).sum())(jnp.array(x, jnp.float32)))


def raised(function: Callable[[], Any]) -> str:
    """The name of the error, or "nothing"."""
    try:
        function()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def distinct(function: Callable[[], Any], runs: int = 2) -> int:
    """How many different results, bit for bit, over runs and 1, 2, 3 and 8 threads."""
    import torch

    before, found = (pb.get_num_threads(), torch.get_num_threads()), set()
    try:
        for threads in (1, 2, 3, 8):
            pb.set_num_threads(threads)
            torch.set_num_threads(threads)
            found |= {digest(function()) for _ in range(runs)}
    finally:
        pb.set_num_threads(before[0])
        torch.set_num_threads(before[1])
    return len(found)


def digest(array: Any) -> str:
    """The first digits of the hash of an array's bytes."""
    return hashlib.sha256(np.ascontiguousarray(np.asarray(array)).tobytes()).hexdigest()[:12]


def exact_sums(values: Any) -> list[float]:
    """Running sums without rounding error before the last."""
    total, found = Fraction(0), []
    for value in np.asarray(values, np.float64).tolist():
        total += Fraction(value)
        found.append(float(total))
    return found


@cache
def noise(*shape: int, seed: int = 0) -> Any:
    """Normal f32 values, the same ones every time."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@cache
def skewed(count: int, size: int) -> Any:
    """Ids with the skew of words in a text."""
    return np.random.default_rng(1).zipf(1.2, count) % size


def plain(value: Any) -> Any:
    """Numbers, strings and lists of them."""
    if isinstance(value, (tuple, list)):
        return [plain(part) for part in value]
    if isinstance(value, (str, int, float)):
        return value
    if type(value).__module__.partition(".")[0] == "torch":
        value = value.detach().double() if value.is_floating_point() else value.detach()
    array = np.asarray(value)
    return (array if array.dtype.kind in "iub" else array.astype(np.float64)).tolist()


@cache
def names() -> dict[str, Any]:
    """What expressions may use."""
    import entmax
    import jax
    import jax.numpy as jnp
    import numbagg
    import scipy.special
    import torch
    from torch.nn import functional

    from pullback.compat import torch_scatter

    given = (
        torch_gradient,
        torch_second,
        jax_gradient,
        raised,
        distinct,
        digest,
        exact_sums,
        noise,
    )
    return {
        **{function.__name__: function for function in given},
        "skewed": skewed, "np": np, "pb": pb, "torch": torch, "F": functional, "jax": jax, "jnp": jnp,
        "entmax": entmax, "numbagg": numbagg, "scipy": scipy, "inf": math.inf, "nan": math.nan,
        "exp": math.exp, "log": math.log, "sqrt": math.sqrt, "fsum": math.fsum,
        "torch_scatter": torch_scatter, "f16": torch.float16, "bf16": torch.bfloat16,
        "f32": torch.float32,
    }  # fmt: skip


def evaluate(expression: str) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return plain(eval(expression, names()))


def words(value: Any) -> bool:
    """Whether there is a string in it."""
    return isinstance(value, str) or (isinstance(value, list) and any(map(words, value)))


def agrees(first: Any, second: Any, tolerance: float, smallest: float = 1e-9) -> bool:
    """Equal strings, and numbers within a relative and an absolute tolerance; NaN equals NaN."""
    if words(first) or words(second):
        return bool(first == second)
    one, other = np.asarray(first, np.float64), np.asarray(second, np.float64)
    return one.shape == other.shape and bool(
        np.allclose(one, other, tolerance, smallest, equal_nan=True)
    )


def change(case: Case, theirs: Any, installed: str) -> str:
    """What another version of the peer than that in SEEN does otherwise: "" or "fixed in …"."""
    near = max(1e-6, case.tolerance / 4)  # PyTorch's own sums differ between processors
    shown = evaluate(repr(case.shown).replace("'nan'", "nan"))
    if agrees(theirs, shown, near):
        return ""
    right = agrees(theirs, evaluate(case.truth), case.tolerance, case.smallest)
    return f"{'fixed' if right else f'{theirs}'} in {case.peer} {installed}"


def version(peer: str) -> str:
    return metadata.version(peer).partition("+")[0]
