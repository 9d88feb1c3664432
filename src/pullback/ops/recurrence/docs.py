"""What is said of the linear recurrence in its docstrings."""

from __future__ import annotations

from pullback.ops.scan_docs import BACKWARD, BITS, EMPTY, FORWARD, LINEAR
from pullback.plan.docstring import Doc

_COST = f"{LINEAR} {BITS}"
_A = "Factors. A number, or anything that broadcasts to the shape of `b`."

DOCS = {
    "linear_scan": Doc(
        parameters={**FORWARD, "a": _A, "b": "What is added. Any rank, any strides."},
        returns="h : Of the shape of `b`.",
        rules="h[j] = a[j]·h[j-1] + b[j], each step rounded once in float64 (float32 for float16 "
        "and bfloat16). NaN stays from where it is met. With `exclusive` and without `initial` the "
        f"first state is 0. {EMPTY}",
        cost=_COST,
        example="""\
        >>> pb.linear_scan(0.5, np.array([1.0, 1.0, 1.0]))
        array([1.  , 1.5 , 1.75])
        >>> pb.linear_scan(np.array([2.0, 3.0]), np.zeros(2), initial=1.0)
        array([2., 6.])""",
    ),
    "linear_scan_backward": Doc(
        parameters={
            **BACKWARD,
            "dh": "Gradient of the output, of its shape.",
            "a": "Factors of the forward call.",
            "h": "Output of the forward call.",
        },
        returns="""\
da : Of the shape of `a`: summed over what was broadcast.
db : Of the shape of `h`.
d_initial : Of the shape of `initial`, where that is given.""",
        rules="db[j] = dh[j] + a[j+1]·db[j+1] and da[j] = db[j]·h[j-1], with h[-1] = `initial` or "
        f"0. {EMPTY}",
        cost=_COST,
        example="""\
        >>> a, b = np.array([2.0, 3.0]), np.array([1.0, 1.0])
        >>> pb.linear_scan_backward(np.ones(2), a, pb.linear_scan(a, b))
        (array([0., 1.]), array([4., 1.]))""",
    ),
    "discounted_sum": Doc(
        parameters={
            **FORWARD,
            "x": "Rewards. Any rank, any strides.",
            "discount": "A number, or anything that broadcasts to the shape of `x`.",
            "reverse": "Walk the axis from its far end, as returns of rewards do.",
        },
        returns="h : Of the shape of `x`.",
        rules="h[j] = x[j] + discount[j]·h[j+1]: `linear_scan` with other names and `reverse` set. "
        f"{EMPTY}",
        cost=_COST,
        example="""\
        >>> pb.discounted_sum(np.array([1.0, 0.0, 2.0]), 0.5)
        array([1.5, 1. , 2. ])""",
    ),
}
