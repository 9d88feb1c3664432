"""What is said of the simplex maps in their docstrings."""

from __future__ import annotations

from pullback.ops.scan_docs import BITS, EMPTY, LINEAR
from pullback.plan.docstring import Doc

AXIS = "The axis of the rows. Negative ones count from the last. Rank 0 is a row of one."
FORWARD = {"x": "Any rank, any strides.", "axis": AXIS}
BACKWARD = {
    "dy": "Gradient of the output, of its shape.",
    "y": "Output of the forward call.",
    "axis": "That of the forward call.",
}
RESULT = "y : Of the shape of `x`."
GRADIENT = "dx : Of the shape of `dy`."
SPECIAL = (
    "A NaN fills its row. Entries at +inf share the mass equally. A row of only -inf is fully "
    f"masked: its probabilities are 0{{0}}. {EMPTY}"
)
SPECIAL_BACKWARD = f"A NaN in `y` fills its row. A fully masked row has gradient 0. {EMPTY}"
COST = f"{LINEAR} {BITS}"
_SPARSE = "Where y = 0, `dy` is not read and dx is 0."

DOCS = {
    "softmax": Doc(
        parameters=FORWARD,
        returns=RESULT,
        rules="y = e^(x-m) / Σ e^(x-m), with m the maximum of the row. " + SPECIAL.format(""),
        cost=COST,
        example="""\
        >>> pb.softmax(np.array([0.0, 0.0, -np.inf]))
        array([0.5, 0.5, 0. ])
        >>> pb.softmax(np.array([-np.inf, -np.inf]))
        array([0., 0.])""",
    ),
    "softmax_backward": Doc(
        parameters=BACKWARD,
        returns=GRADIENT,
        rules=f"dx = y·(dy - Σ y·dy). {SPECIAL_BACKWARD}",
        cost=COST,
        example="""\
        >>> pb.softmax_backward(np.array([1.0, 0.0]), np.array([0.5, 0.5]))
        array([ 0.25, -0.25])""",
    ),
    "log_softmax": Doc(
        parameters=FORWARD,
        returns=RESULT,
        rules="y = x - m - log Σ e^(x-m), with m the maximum of the row. "
        + SPECIAL.format(", their logarithms -inf"),
        cost=COST,
        example="""\
        >>> pb.log_softmax(np.array([1000.0, 0.0]))
        array([    0., -1000.])""",
    ),
    "log_softmax_backward": Doc(
        parameters=BACKWARD,
        returns=GRADIENT,
        rules=f"dx = dy - e^y·Σ dy. {SPECIAL_BACKWARD}",
        cost=COST,
        example="""\
        >>> y = pb.log_softmax(np.array([0.0, 0.0]))
        >>> pb.log_softmax_backward(np.array([1.0, 0.0]), y).round(6)
        array([ 0.5, -0.5])""",
    ),
    "sparsemax": Doc(
        parameters=FORWARD,
        returns=RESULT,
        rules="y = max(x - τ, 0), with τ such that Σ y = 1. " + SPECIAL.format(""),
        cost="Time is linear in the size of the input, expected; nothing is sorted. " + BITS,
        example="""\
        >>> pb.sparsemax(np.array([1.0, 0.5, -1.0]))
        array([0.75, 0.25, 0.  ])""",
    ),
    "sparsemax_backward": Doc(
        parameters=BACKWARD,
        returns=GRADIENT,
        rules=f"On the support, where y > 0, dx = dy - mean of dy over it. {_SPARSE} "
        + SPECIAL_BACKWARD,
        cost=COST,
        example="""\
        >>> pb.sparsemax_backward(np.array([1.0, 0.0, 5.0]), np.array([0.75, 0.25, 0.0]))
        array([ 0.5, -0.5,  0. ])""",
    ),
    "entmax15": Doc(
        parameters=FORWARD,
        returns=RESULT,
        rules="y = max(x/2 - τ, 0)², with τ such that Σ y = 1. " + SPECIAL.format(""),
        cost="Time is linear in the size of the input, expected; nothing is sorted. " + BITS,
        example="""\
        >>> pb.entmax15(np.array([2.0, 2.0, -2.0]))
        array([0.5, 0.5, 0. ])""",
    ),
    "entmax15_backward": Doc(
        parameters=BACKWARD,
        returns=GRADIENT,
        rules=f"dx = s·(dy - Σ s·dy / Σ s) with s = √y. {_SPARSE} {SPECIAL_BACKWARD}",
        cost=COST,
        example="""\
        >>> pb.entmax15_backward(np.array([1.0, 0.0]), np.array([0.5, 0.5])).round(6)
        array([ 0.353553, -0.353553])""",
    ),
}
