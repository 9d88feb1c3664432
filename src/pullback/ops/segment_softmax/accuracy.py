"""How far results of this family may be from the truth: where one ulp of them is not right."""

from __future__ import annotations

from pullback.ops.segment.accuracy import largest_in_segment
from pullback.verify.accuracy import Bound

BOUNDS = {
    "segment_softmax": Bound(4),
    "segment_log_softmax": Bound(2, largest_in_segment("x")),
    "segment_softmax_backward": Bound(3, largest_in_segment("dy"), weighted="dy"),
    "segment_log_softmax_backward": Bound(3, largest_in_segment("dy"), weighted="dy"),
}
