"""What is said of softmax within segments in its docstrings."""

from __future__ import annotations

from pullback.ops.segment.docs import BACKWARD, COST, FORWARD
from pullback.plan.docstring import Doc

_SPECIAL = (
    "Special values are those of `{0}` within the segment: entries at +inf share the mass, a "
    "segment of only -inf has probabilities 0, NaN fills its segment. Rows of no segment hold {1}."
)
_BACKWARD = {
    **BACKWARD,
    "dy": "Gradient of the output, of its shape.",
    "y": "Output of the forward call.",
    "num_segments": "That of the forward call.",
}
_RULE = "Rows of no segment, and segments of only -inf, have gradient 0."

DOCS = {
    "segment_softmax": Doc(
        parameters=FORWARD,
        returns="y : Of the shape of `x`.",
        rules="y[n] = e^x[n] / Σ e^x over the rows of its segment. "
        + _SPECIAL.format("softmax", "0"),
        cost=COST,
        example="""\
        >>> pb.segment_softmax(np.array([0.0, 5.0, 0.0]), np.array([0, 1, 0]))
        array([0.5, 1. , 0.5])""",
    ),
    "segment_log_softmax": Doc(
        parameters=FORWARD,
        returns="y : Of the shape of `x`.",
        rules="y[n] = x[n] - log Σ e^x over the rows of its segment. "
        + _SPECIAL.format("log_softmax", "-inf"),
        cost=COST,
        example="""\
        >>> pb.segment_log_softmax(np.array([0.0, 5.0, 0.0]), np.array([0, 1, 0])).round(6)
        array([-0.693147,  0.      , -0.693147])""",
    ),
    "segment_softmax_backward": Doc(
        parameters=_BACKWARD,
        returns="dx : Of the shape of `dy`.",
        rules=f"dx[n] = y[n]·(dy[n] - Σ y·dy), with the sum over the rows of its segment. {_RULE}",
        cost=COST,
        example="""\
        >>> dy, y = np.array([1.0, 2.0, 0.0]), np.array([0.5, 1.0, 0.5])
        >>> pb.segment_softmax_backward(dy, y, np.array([0, 1, 0]), 2)
        array([ 0.25,  0.  , -0.25])""",
    ),
    "segment_log_softmax_backward": Doc(
        parameters=_BACKWARD,
        returns="dx : Of the shape of `dy`.",
        rules=f"dx[n] = dy[n] - e^y[n]·Σ dy, with the sum over the rows of its segment. {_RULE}",
        cost=COST,
        example="""\
        >>> dy, y = np.array([1.0, 2.0]), np.array([0.0, 0.0])
        >>> pb.segment_log_softmax_backward(dy, y, np.array([0, 1]), 2)
        array([0., 0.])""",
    ),
}
