"""The names of the package entmax 1.3 (deep-spin): maps, bisection forms, losses, modules.

    from pullback.compat import entmax          in place of `import entmax`
    pullback.compat.entmax.install()            for code that imports entmax itself

Everything is exact where the original bisects or sorts, so `k`, `n_iter` and `ensure_sum_one` are
taken and change nothing. Rows of only -inf have probabilities of 0, the original gives NaN. Rows of
alpha < 1, which `pullback.entmax` refuses, are found by bisection in PyTorch; so is the threshold
of `budget_bisect`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

import pullback
from pullback.frontends.torch_autograd import XP

__version__ = "1.3"
__all__ = [
    "BudgetBisect",
    "Entmax15",
    "Entmax15Loss",
    "EntmaxBisect",
    "EntmaxBisectLoss",
    "NormmaxBisect",
    "NormmaxBisectLoss",
    "Sparsemax",
    "SparsemaxBisect",
    "SparsemaxBisectLoss",
    "SparsemaxLoss",
    "budget_bisect",
    "entmax15",
    "entmax15_loss",
    "entmax_bisect",
    "entmax_bisect_loss",
    "install",
    "normmax_bisect",
    "normmax_bisect_loss",
    "sparsemax",
    "sparsemax_bisect",
    "sparsemax_bisect_loss",
    "sparsemax_loss",
]

HALVINGS = 64  # of an interval: to the last bit of an f64
Number: TypeAlias = "float | Tensor"


# --- maps ---------------------------------------------------------------------------------------


def sparsemax(X: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    """Projection onto the simplex along `dim`."""
    return pullback.sparsemax(X, dim)


def entmax15(X: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    """entmax of alpha 1.5 along `dim`."""
    return pullback.entmax15(X, dim)


def sparsemax_bisect(
    X: Tensor, dim: int = -1, n_iter: int = 50, ensure_sum_one: bool = True
) -> Tensor:
    """`sparsemax`."""
    return pullback.sparsemax(X, dim)


def entmax_bisect(
    X: Tensor,
    alpha: Number = 1.5,
    dim: int = -1,
    n_iter: int = 50,
    ensure_sum_one: bool = True,
) -> Tensor:
    """entmax for a number `alpha`, or a tensor that expands to one for each row along `dim`."""
    if isinstance(alpha, Tensor):
        alpha = alpha.to(X.dtype)
        if bool((alpha >= 1).all()):
            return pullback.entmax(X, alpha, dim)
        above = pullback.entmax(X, alpha.clamp(min=1.0), dim)
        below = _Dense.apply(X, alpha.clamp(max=1 - 2.0**-20), dim)
        return torch.where(alpha < 1, below, above)
    if alpha >= 1:
        return pullback.entmax(X, float(alpha), dim)
    return _Dense.apply(X, X.new_tensor(alpha), dim)


class _Dense(torch.autograd.Function):  # type: ignore[misc]
    """entmax of alpha < 1, where every entry has a share: with b = alpha - 1 and m the maximum,
    p = (u - b·(m - x))^(1/b), u the one of the maximum that makes the row sum to 1."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, alpha: Tensor, dim: int) -> Tensor:
        x, b = X.double(), alpha.double() - 1
        below = -b * (x.amax(dim, keepdim=True) - x)
        low = torch.zeros_like(below.amax(dim, keepdim=True))
        high = low - b * torch.tensor(float(X.shape[dim])).log()  # log u
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            heavy = ((middle.exp() + below) ** (1 / b)).sum(dim, keepdim=True) >= 1
            low, high = torch.where(heavy, middle, low), torch.where(heavy, high, middle)
        p = ((low.exp() + below) ** (1 / b)).to(X.dtype)
        ctx.dim = dim
        ctx.save_for_backward(p, alpha)
        return p

    @staticmethod
    def backward(ctx: Any, dY: Tensor) -> Any:
        p, alpha = ctx.saved_tensors
        composed = pullback.entmax_backward.function.calculus.composed  # type: ignore[attr-defined]
        return *composed(XP, dy=dY, y=p, alpha=alpha, axis=ctx.dim, x=None), None


def normmax_bisect(X: Tensor, alpha: Number = 2, dim: int = -1, n_iter: int = 50) -> Tensor:
    """argmax <x, p> - ‖p‖ in the alpha-norm, along `dim`.

    p is proportional to q^(1/alpha), where q = max(x - τ, 0)^(alpha/(alpha-1)) sums to 1: an entmax
    whose own alpha is 1 + b with b = (alpha - 1) / alpha."""
    if isinstance(alpha, Tensor):
        alpha = alpha.to(X.dtype)
    b = (alpha - 1) / alpha
    q = entmax_bisect(X / b, 1 + b, dim)
    support = q > 0
    p = torch.where(support, torch.where(support, q, 1.0) ** (1 / alpha), 0.0)
    return p / p.sum(dim, keepdim=True)


def budget_bisect(X: Tensor, budget: Number = 2, dim: int = -1, n_iter: int = 50) -> Tensor:
    """Projection onto 0 <= p <= 1, Σ p = `budget`, along `dim`: p = clamp(x - τ, 0, 1)."""
    if isinstance(budget, Tensor):
        budget = budget.to(X.dtype)
    with torch.no_grad():
        x, wanted = X.double(), budget.double() if isinstance(budget, Tensor) else budget
        low, high = x.amin(dim, keepdim=True) - 1, x.amax(dim, keepdim=True)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            heavy = (x - middle).clamp(0, 1).sum(dim, keepdim=True) >= wanted
            low, high = torch.where(heavy, middle, low), torch.where(heavy, high, middle)
        full, active = x - low >= 1, (x - low > 0) & (x - low < 1)
        ones, many = full.sum(dim, keepdim=True), active.sum(dim, keepdim=True)
    # The same τ from those between the borders, which is how it is differentiated.
    inside = torch.where(active, X, 0.0).sum(dim, keepdim=True)
    exact = (inside + ones.to(X.dtype) - budget) / many.clamp(min=1).to(X.dtype)
    p = torch.where(active, X - torch.where(many > 0, exact, low.to(X.dtype)), full.to(X.dtype))
    return p.clamp(0, 1)


# --- losses -------------------------------------------------------------------------------------


def sparsemax_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """Fenchel-Young loss of sparsemax for each row of X [n, classes]."""
    return pullback.sparsemax_loss(X, target, 1)


def entmax15_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """Fenchel-Young loss of entmax15 for each row of X [n, classes]."""
    return pullback.entmax15_loss(X, target, 1)


def sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int = 50) -> Tensor:
    """`sparsemax_loss`."""
    return pullback.sparsemax_loss(X, target, 1)


def entmax_bisect_loss(X: Tensor, target: Tensor, alpha: Number = 1.5, n_iter: int = 50) -> Tensor:
    """Fenchel-Young loss of entmax for each row of X [n, classes]; alpha counts as a constant."""
    if isinstance(alpha, Tensor) and alpha.numel() == 1:
        alpha = alpha.item()
    if not isinstance(alpha, Tensor) and alpha >= 1:
        return pullback.entmax_loss(X, target, float(alpha), 1)
    share = alpha.detach().reshape(-1, 1) if isinstance(alpha, Tensor) else alpha
    p = entmax_bisect(X.detach(), share, 1)
    powers = (p**share - p).sum(1, keepdim=True) / (share * (share - 1))
    return _loss(X, target, p, -powers.squeeze(1))


def normmax_bisect_loss(X: Tensor, target: Tensor, alpha: Number = 2, n_iter: int = 50) -> Tensor:
    """Fenchel-Young loss of normmax for each row of X [n, classes]; alpha counts as a constant."""
    share = alpha.detach().reshape(-1, 1) if isinstance(alpha, Tensor) else alpha
    p = normmax_bisect(X.detach(), share, 1)
    norm = (p**share).sum(1, keepdim=True) ** (1 / share)
    return _loss(X, target, p, 1 - norm.squeeze(1))


def _loss(X: Tensor, target: Tensor, p: Tensor, entropy: Tensor) -> Tensor:
    """Ω*(x) - x at the class, at its maximiser p: whose gradient is p less the class."""
    own = X.gather(1, target.unsqueeze(1)).squeeze(1)
    return entropy + (p * X).sum(1) - own


# --- modules ------------------------------------------------------------------------------------


class Sparsemax(nn.Module):  # type: ignore[misc]
    """`sparsemax` as a module."""

    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        super().__init__()
        self.dim, self.k = dim, k

    def forward(self, X: Tensor) -> Tensor:
        return sparsemax(X, self.dim, self.k)


class Entmax15(Sparsemax):
    """`entmax15` as a module."""

    def forward(self, X: Tensor) -> Tensor:
        return entmax15(X, self.dim, self.k)


class SparsemaxBisect(nn.Module):  # type: ignore[misc]
    """`sparsemax_bisect` as a module."""

    def __init__(self, dim: int = -1, n_iter: int | None = None) -> None:
        super().__init__()
        self.dim, self.n_iter = dim, n_iter

    def forward(self, X: Tensor) -> Tensor:
        return sparsemax_bisect(X, self.dim)


class EntmaxBisect(nn.Module):  # type: ignore[misc]
    """`entmax_bisect` as a module."""

    def __init__(self, alpha: Number = 1.5, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__()
        self.alpha, self.dim, self.n_iter = alpha, dim, n_iter

    def forward(self, X: Tensor) -> Tensor:
        return entmax_bisect(X, self.alpha, self.dim, self.n_iter)


class NormmaxBisect(nn.Module):  # type: ignore[misc]
    """`normmax_bisect` as a module."""

    def __init__(self, alpha: Number = 2, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__()
        self.alpha, self.dim, self.n_iter = alpha, dim, n_iter

    def forward(self, X: Tensor) -> Tensor:
        return normmax_bisect(X, self.alpha, self.dim, self.n_iter)


class BudgetBisect(nn.Module):  # type: ignore[misc]
    """`budget_bisect` as a module."""

    def __init__(self, budget: Number = 2, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__()
        self.budget, self.dim, self.n_iter = budget, dim, n_iter

    def forward(self, X: Tensor) -> Tensor:
        return budget_bisect(X, self.budget, self.dim, self.n_iter)


class _Loss(nn.Module):  # type: ignore[misc]
    """A loss for each row, reduced; rows whose target is `ignore_index` (if not negative) count
    as nothing."""

    def __init__(self, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__()
        if reduction not in ("elementwise_mean", "sum", "none"):
            expected = "one of 'elementwise_mean', 'sum', 'none'"
            name = type(self).__name__
            raise pullback.InvalidProblem(name, "reduction", expected, repr(reduction))
        self.ignore_index, self.reduction = ignore_index, reduction

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, X: Tensor, target: Tensor) -> Tensor:
        loss, size = self.loss(X, target), float(target.shape[0])
        if self.ignore_index >= 0:
            ignored = target == self.ignore_index
            loss, size = loss.masked_fill(ignored, 0.0), float((~ignored).sum())
        if self.reduction == "none":
            return loss
        return loss.sum() if self.reduction == "sum" else loss.sum() / size


class SparsemaxLoss(_Loss):
    """`sparsemax_loss` as a module."""

    def __init__(
        self,
        k: int | None = None,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction)
        self.k = k

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return sparsemax_loss(X, target, self.k)


class Entmax15Loss(SparsemaxLoss):
    """`entmax15_loss` as a module."""

    def __init__(
        self, k: int | None = 100, ignore_index: int = -100, reduction: str = "elementwise_mean"
    ) -> None:
        super().__init__(k, ignore_index, reduction)

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return entmax15_loss(X, target, self.k)


class SparsemaxBisectLoss(_Loss):
    """`sparsemax_bisect_loss` as a module."""

    def __init__(
        self, n_iter: int = 50, ignore_index: int = -100, reduction: str = "elementwise_mean"
    ) -> None:
        super().__init__(ignore_index, reduction)
        self.n_iter = n_iter

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return sparsemax_bisect_loss(X, target, self.n_iter)


class EntmaxBisectLoss(_Loss):
    """`entmax_bisect_loss` as a module."""

    of: Callable[..., Tensor] = staticmethod(entmax_bisect_loss)

    def __init__(
        self,
        alpha: Number = 1.5,
        n_iter: int = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction)
        self.alpha, self.n_iter = alpha, n_iter

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return self.of(X, target, self.alpha, self.n_iter)


class NormmaxBisectLoss(EntmaxBisectLoss):
    """`normmax_bisect_loss` as a module."""

    of = staticmethod(normmax_bisect_loss)

    def __init__(
        self,
        alpha: Number = 2,
        n_iter: int = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(alpha, n_iter, ignore_index, reduction)


# --- thresholds, as the modules of the original have them --------------------------------------


def _sparsemax_threshold_and_support(
    X: Tensor, dim: int = -1, k: int | None = None
) -> tuple[Tensor, Tensor]:
    """τ of Σ max(x - τ, 0) = 1 and how many are greater, with `dim` kept."""
    p = pullback.sparsemax(X, dim)
    return X.amax(dim, keepdim=True) - p.amax(dim, keepdim=True), (p > 0).sum(dim, keepdim=True)


def _entmax_threshold_and_support(
    X: Tensor, dim: int = -1, k: int | None = None
) -> tuple[Tensor, Tensor]:
    """τ of Σ max(x - τ, 0)² = 1 and how many are greater, with `dim` kept."""
    p = pullback.entmax15(2 * X, dim)
    root = p.amax(dim, keepdim=True).sqrt()
    return X.amax(dim, keepdim=True) - root, (p > 0).sum(dim, keepdim=True)


def install() -> None:
    """Have `import entmax`, and its modules, find this one, in this process."""
    for name in ("", ".activations", ".root_finding", ".losses"):
        sys.modules[f"entmax{name}"] = sys.modules[__name__]
