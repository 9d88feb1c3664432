"""How far results of this family may be from the truth: where one ulp of them is not right."""

from __future__ import annotations

from pullback.verify.accuracy import Bound, largest, one

BOUNDS = {
    "softmax": Bound(4),
    "log_softmax": Bound(2, largest("x")),
    "sparsemax": Bound(2, one),
    "entmax15": Bound(3, one),
    "softmax_backward": Bound(3, largest("dy"), weighted="dy"),
    "log_softmax_backward": Bound(3, largest("dy"), weighted="dy"),
    "sparsemax_backward": Bound(3, largest("dy"), weighted="dy"),
    "entmax15_backward": Bound(3, largest("dy"), weighted="dy"),
}
