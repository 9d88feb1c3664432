"""How far results of this family may be from the truth: where one ulp of them is not right."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.verify.accuracy import RESULTS, Bound, largest, size_of
from pullback.verify.subject import Arguments, Subject


def _steepness(subject: Subject, arguments: Arguments, position: int) -> Any:
    """Of probabilities: one, and for alpha > 2 what a change before the root becomes, p^(2-alpha),
    or at the edge of the support that of a rounding error."""
    b = np.asarray(arguments.get("alpha", 1), np.longdouble) - 1
    if np.max(b, initial=0) <= 1:
        return 1.0
    with np.errstate(all="ignore"):
        p = subject.truth(arguments)[position]
        most = np.longdouble(2) ** (52 * (1 - 1 / np.maximum(b, 1)))
        return np.where((b > 1) & ~np.isnan(p), np.clip(p ** (1 - b), 1, most), 1)


def of_map(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
    return (_steepness(subject, arguments, 0),) * RESULTS


def of_losses(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
    """Of the loss of a row the largest x in it, or one; of a probability as above."""
    rows = np.maximum(largest("x", keepdims=False)(subject, arguments)[0], 1)
    kept = arguments.get("return_probabilities")
    return rows, _steepness(subject, arguments, 1) if kept else 1.0, 1.0


def of_rows(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
    """Of a gradient the largest dy in its row, times its own weight y^(2-alpha) for alpha > 2; of
    what is summed over all the largest dy for each."""
    rows = largest("dy")(subject, arguments)[0]
    b = np.asarray(arguments["alpha"], np.longdouble) - 1
    y = np.asarray(arguments["y"], np.longdouble)
    with np.errstate(all="ignore"):
        weights = np.where((b > 1) & (y > 0), y ** (1 - b), 1)
    return rows * size_of(weights), np.max(rows, initial=0) * max(np.size(arguments["dy"]), 1), 0.0


BOUNDS = {
    "entmax": Bound(3, of_map),
    "entmax_backward": Bound(4, of_rows, weighted="dy"),
    **dict.fromkeys(
        ("softmax_loss", "entmax15_loss", "sparsemax_loss", "entmax_loss"),
        Bound(2, of_losses, divided=True),
    ),
}
