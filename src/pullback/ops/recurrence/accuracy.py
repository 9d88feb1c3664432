"""How far results of this family may be from the truth: where one ulp of them is not right."""

from __future__ import annotations

from pullback.verify.accuracy import Bound, terms

BOUNDS = {
    "linear_scan": Bound(4, terms("a", "b", "initial"), factors=("a", "b", "initial"), walked="b"),
    "discounted_sum": Bound(
        4, terms("x", "discount", "initial"), factors=("x", "discount", "initial"), walked="x"
    ),
    "linear_scan_backward": Bound(
        4, terms("dh", "a", "h", "initial"), factors=("dh", "a", "h", "initial"), walked="dh"
    ),
}
