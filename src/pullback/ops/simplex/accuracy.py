"""How far results of this family may be from the truth: where one ulp of them is not right."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.verify.accuracy import Bound, largest, one, size_of
from pullback.verify.subject import Arguments, Subject

_LARGEST_DY = largest("dy")


def _terms_of_log(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
    """dy, and e^y·Σ dy, which is larger where gradients of one sign add up."""
    dy, y = (np.asarray(arguments[name], np.longdouble) for name in ("dy", "y"))
    with np.errstate(all="ignore"):
        axis = arguments.get("axis", -1) if dy.ndim else None
        taken_off = size_of(np.exp(y) * dy.sum(axis=axis, keepdims=True))
    return tuple(np.maximum(size, taken_off) for size in _LARGEST_DY(subject, arguments))


BOUNDS = {
    "softmax": Bound(4),
    "log_softmax": Bound(2, largest("x")),
    "sparsemax": Bound(2, one),
    "entmax15": Bound(3, one),
    "softmax_backward": Bound(3, _LARGEST_DY, weighted="dy"),
    "log_softmax_backward": Bound(3, _terms_of_log, weighted="dy"),
    "sparsemax_backward": Bound(3, _LARGEST_DY, weighted="dy"),
    "entmax15_backward": Bound(3, _LARGEST_DY, weighted="dy"),
}
