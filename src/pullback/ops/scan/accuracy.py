"""How far results of this family may be from the truth: where one ulp of them is not right."""

from __future__ import annotations

from pullback.verify.accuracy import Bound, one, terms

BOUNDS = {
    "cumsum": Bound(1, terms("x", "initial")),
    "cumsum_backward": Bound(1, terms("dy")),
    "cumprod": Bound(4, factors=("x", "initial")),
    "cumprod_backward": Bound(
        4, terms("dy", "x", "y", "initial"), factors=("dy", "x", "y", "initial")
    ),
    "cummax_backward": Bound(1, terms("dy")),
    "cummin_backward": Bound(1, terms("dy")),
    "logcumsumexp": Bound(2, one),
    "logcumsumexp_backward": Bound(4, terms("dy"), any_sum=True, zeroed="x"),
}
