"""Cox's model with strata on the recidivism data of lifelines, compared with its coefficients.

    python benchmarks/models/survival.py [--copies N]

Rows are sorted by stratum and time: those at risk at a time are a row and all after it in its
stratum, so that the sums over risk sets are a reverse `logcumsumexp` with offsets. Tied times have
Efron's terms, with a `segment_logsumexp` over the events of each time. Newton's method, in float64.
The twin has PyTorch's own functions, stratum by stratum. `--copies` repeats the data for the time
of a step. Needs `pip install lifelines`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from lifelines import CoxPHFitter
from lifelines.datasets import load_rossi
from torch import Tensor

import pullback

STRATA = "wexp"


@dataclass(frozen=True)
class Data:
    x: Tensor
    offsets: Tensor  # of strata
    firsts: Tensor  # of each time with events, the first row at risk
    events: Tensor  # rows
    times: Tensor  # of each event, which of the times it is
    shares: Tensor  # of each event, the share of the events of its time that Efron takes off


def sorted_data(copies: int) -> tuple[Data, list[str]]:
    frame = load_rossi()
    names = [name for name in frame.columns if name not in ("week", "arrest", STRATA)]
    stratum = np.concatenate([frame[STRATA].to_numpy() + 2 * k for k in range(copies)])
    week, event, x = (
        np.concatenate([frame[columns].to_numpy(float)] * copies)
        for columns in ("week", "arrest", names)
    )
    order = np.lexsort((week, stratum))
    stratum, week, event, x = stratum[order], week[order], event[order] > 0, x[order]
    key = np.stack([stratum, week])
    first = np.concatenate([[True], (key[:, 1:] != key[:, :-1]).any(0)])
    firsts = np.maximum.accumulate(np.where(first, np.arange(len(week)), 0))
    events = np.flatnonzero(event)
    rows, times, counts = np.unique(firsts[events], return_inverse=True, return_counts=True)
    number = np.arange(len(events)) - np.concatenate([[0], counts.cumsum()])[times]
    borders = np.flatnonzero(np.diff(stratum)) + 1
    offsets = np.concatenate([[0], borders, [len(week)]])
    arrays = (x, offsets, rows, events, times, number / counts[times])
    return Data(*(torch.tensor(array) for array in arrays)), names


def risk_sets(risk: Tensor, offsets: Tensor) -> Tensor:
    return pullback.logcumsumexp(risk, reverse=True, offsets=offsets)


def tied(risk: Tensor, about: Data) -> Tensor:
    return pullback.segment_logsumexp(risk, about.times, len(about.firsts), indices_are_sorted=True)


def risk_sets_twin(risk: Tensor, offsets: Tensor) -> Tensor:
    parts = risk.split(offsets.diff().tolist())
    return torch.cat([part.flip(0).logcumsumexp(0).flip(0) for part in parts])


def tied_twin(risk: Tensor, about: Data) -> Tensor:
    top = torch.full((len(about.firsts),), -torch.inf, dtype=risk.dtype)
    top = top.scatter_reduce(0, about.times, risk.detach(), "amax")
    powers = (risk - top[about.times]).exp()
    return top + torch.zeros_like(top).index_add(0, about.times, powers).log()


OURS: tuple[Callable[..., Tensor], ...] = (risk_sets, tied)
TWIN: tuple[Callable[..., Tensor], ...] = (risk_sets_twin, tied_twin)


def loss(weights: Tensor, about: Data, functions: tuple[Callable[..., Tensor], ...]) -> Tensor:
    """The negative partial log-likelihood."""
    at_risk, of_ties = functions
    risk = about.x @ weights
    whole = at_risk(risk, about.offsets)[about.firsts][about.times]
    dying = of_ties(risk[about.events], about)[about.times]
    terms = whole + torch.log1p(-about.shares * (dying - whole).exp())
    return (terms - risk[about.events]).sum()


def fitted(about: Data) -> Tensor:
    """Newton's steps: gradients and second derivatives through the scans."""
    weights = torch.zeros(about.x.shape[1], dtype=torch.float64)
    for _ in range(8):
        weights.requires_grad_()
        (gradient,) = torch.autograd.grad(loss(weights, about, OURS), weights, create_graph=True)
        rows = [torch.autograd.grad(g, weights, retain_graph=True)[0] for g in gradient]
        weights = (weights - torch.linalg.solve(torch.stack(rows), gradient)).detach()
    return weights


def compared(weights: Tensor, about: Data) -> tuple[float, float]:
    """How far gradients differ, relative to the largest, and how much longer the twin takes."""
    times: tuple[list[float], list[float]] = ([], [])
    gradients = []
    for _ in range(7):
        gradients = []
        for functions, taken in zip((OURS, TWIN), times, strict=True):
            at = (0.5 * weights).requires_grad_()
            begin = time.process_time()
            gradients += torch.autograd.grad(loss(at, about, functions), at)
            taken.append(time.process_time() - begin)
    ours, twin = (1e3 * median(taken) for taken in times)
    apart = float((gradients[0] - gradients[1]).abs().max() / gradients[1].abs().max())
    print(f"gradients differ by {apart:.1e}; {ours:.2f} ms a step (PyTorch {twin:.2f} ms)")
    return apart, twin / ours


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--copies", type=int, default=100, help="of the data, for the time")
    asked = parser.parse_args()
    about, names = sorted_data(1)
    weights = fitted(about)
    model = CoxPHFitter().fit(load_rossi(), "week", "arrest", strata=[STRATA])
    theirs = torch.tensor(model.params_[names].to_numpy())
    likelihood = -float(loss(weights, about, OURS))
    for name, own, other in zip(names, weights.tolist(), theirs.tolist(), strict=True):
        print(f"{name:5} {own:+.8f}  lifelines {other:+.8f}")
    apart = float((weights - theirs).abs().max())
    print(f"log-likelihood {likelihood:.8f}, lifelines {model.log_likelihood_:.8f}")
    print(f"coefficients differ by {apart:.1e} at most")
    differ, _ = compared(weights, sorted_data(asked.copies)[0])
    return 0 if apart < 1e-5 and differ < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
