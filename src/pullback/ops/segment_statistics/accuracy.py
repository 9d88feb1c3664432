"""How far results of this family may be from the truth: where one ulp of them is not right."""

from __future__ import annotations

from typing import Any

from pullback.ops.segment.accuracy import largest_in_segment
from pullback.verify.accuracy import Bound, one
from pullback.verify.subject import Arguments, Subject


def largest_slope(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
    """The largest finite result within the segment of a row: of rows near the mean, little is left
    of what they have in common."""
    truth = subject.truth(arguments)[0]
    return largest_in_segment("dx")(subject, {**_with_segments(arguments), "dx": truth})


def _with_segments(arguments: Arguments) -> Arguments:
    count = arguments["dy"].shape[arguments.get("axis", 0)]
    return {**arguments, "num_segments": count}


BOUNDS = {
    "segment_logsumexp": Bound(2, one),
    "segment_logsumexp_backward": Bound(4, weighted="dy"),
    "segment_var": Bound(2, weighted="x", squared="x"),
    "segment_std": Bound(2, weighted="x", squared="x"),
    "segment_var_backward": Bound(4, largest_slope, weighted="x", squared="x"),
    "segment_std_backward": Bound(4, largest_slope, weighted="x", squared="x"),
}
