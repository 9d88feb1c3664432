"""How far results of this family may be from the truth: where one ulp of them is not right."""

from __future__ import annotations

from pullback.verify.accuracy import Bound, terms

BOUNDS = {
    "gather_segment_reduce": Bound(
        2, terms("x", "weights"), divided=True, multiplied=("x", "weights")
    ),
    "gather_segment_reduce_backward": Bound(
        2, terms("dy", "weights"), divided=True, multiplied=("dy", "weights")
    ),
    "gather_segment_reduce_weights_backward": Bound(
        2, terms("dy", "x"), any_sum=True, multiplied=("dy", "x")
    ),
}
