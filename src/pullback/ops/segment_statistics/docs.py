"""What is said of statistics of segments in their docstrings."""

from __future__ import annotations

from pullback.ops.segment.docs import BACKWARD, COST, FORWARD, GRADIENT, REDUCED
from pullback.plan.docstring import Doc

_DDOF = {"ddof": "What is taken off the number of rows: 0, or 1 for the sample variance."}
_FEW = (
    "0 where there are `ddof` rows or fewer, with gradient 0. Two passes, relative to a row of the "
    "segment: equal rows have exactly 0, and none is negative. A segment without rows is 0, unless "
    "`empty` is given. NaN gives NaN."
)
_DDOF_BACKWARD = {**BACKWARD, "ddof": "That of the forward call."}

DOCS = {
    "segment_logsumexp": Doc(
        parameters=FORWARD,
        returns=REDUCED,
        rules="y[s] = log Σ e^x[n] over the rows n of segment s, relative to their maximum. +inf "
        "gives +inf, a segment of only -inf gives -inf, NaN gives NaN. A segment without rows is "
        "-inf, unless `empty` is given.",
        cost=COST,
        example="""\
        >>> pb.segment_logsumexp(np.array([1000.0, -np.inf, 0.0]), np.array([0, 0, 2]))
        array([1000.,  -inf,    0.])""",
    ),
    "segment_logsumexp_backward": Doc(
        parameters={**BACKWARD, "y": "Output of the forward call. Never read; may be None."},
        returns=GRADIENT,
        rules="dx[n] = dy[s]·e^x[n] / Σ e^x: `dy` times the softmax within the segment. Entries at "
        "+inf share the gradient; a segment of only -inf has gradient 0.",
        cost=COST,
        example="""\
        >>> x, ids = np.array([0.0, 0.0, 7.0]), np.array([0, 0, 1])
        >>> pb.segment_logsumexp_backward(np.array([1.0, 3.0]), x, None, ids)
        array([0.5, 0.5, 3. ])""",
    ),
    "segment_var": Doc(
        parameters={**FORWARD, **_DDOF},
        returns=REDUCED,
        rules=f"y[s] = Σ (x[n] - mean)² / (rows - ddof). {_FEW}",
        cost=COST,
        example="""\
        >>> x, ids = np.array([1.0, 3.0, 5.0]), np.array([0, 0, 1])
        >>> pb.segment_var(x, ids)
        array([1., 0.])
        >>> pb.segment_var(x, ids, ddof=1)
        array([2., 0.])""",
    ),
    "segment_std": Doc(
        parameters={**FORWARD, **_DDOF},
        returns=REDUCED,
        rules=f"y[s] is the root of `segment_var`. {_FEW}",
        cost=COST,
        example="""\
        >>> pb.segment_std(np.array([1.0, 5.0]), np.array([1, 1]))
        array([0., 2.])""",
    ),
    "segment_var_backward": Doc(
        parameters=_DDOF_BACKWARD,
        returns=GRADIENT,
        rules="dx[n] = dy[s]·2·(x[n] - mean) / (rows - ddof), 0 where there are `ddof` rows or "
        "fewer.",
        cost=COST,
        example="""\
        >>> pb.segment_var_backward(np.ones(1), np.array([1.0, 3.0]), np.array([0, 0]))
        array([-1.,  1.])""",
    ),
    "segment_std_backward": Doc(
        parameters=_DDOF_BACKWARD,
        returns=GRADIENT,
        rules="dx[n] = dy[s]·(x[n] - mean) / ((rows - ddof)·std), 0 where std is 0.",
        cost=COST,
        example="""\
        >>> pb.segment_std_backward(np.ones(1), np.array([1.0, 3.0]), np.array([0, 0]))
        array([-0.5,  0.5])""",
    ),
}
