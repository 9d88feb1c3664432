"""How far results of this family may be from the truth: where one ulp of them is not right."""

from __future__ import annotations

from pullback.verify.accuracy import Bound, terms

BOUNDS = {
    "lerp": Bound(3, terms("a", negated=("b", "weight")), any_sum=True),
    "lerp_backward": Bound(2, terms("dy", "a", negated=("b", "weight")), any_sum=True),
}
