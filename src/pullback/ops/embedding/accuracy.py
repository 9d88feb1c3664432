"""How far results of this family may be from the truth: where one ulp of them is not right."""

from __future__ import annotations

from pullback.verify.accuracy import Bound, terms

BOUNDS = {
    "embedding_backward": Bound(2, terms("dout", "accumulate_into"), any_sum=True),
    "embedding_bag": Bound(
        2,
        terms("weight", "per_sample_weights"),
        any_sum=True,
        multiplied=("weight", "per_sample_weights"),
    ),
    "embedding_bag_backward": Bound(
        2,
        terms("dout", "per_sample_weights", "accumulate_into"),
        divided=True,
        multiplied=("dout", "per_sample_weights"),
    ),
    "embedding_bag_per_sample_weights_backward": Bound(
        2, terms("dout", "weight"), any_sum=True, multiplied=("dout", "weight")
    ),
}
