"""What is said of gathered rows reduced by segment in the docstrings."""

from __future__ import annotations

from pullback.ops.segment.docs import BACKWARD, COST, FORWARD, IDS
from pullback.plan.docstring import Doc

_GATHER = {
    "gather_ids": "The row of `x` at each position, `[N]`.",
    "reduce": "What becomes of the rows of a segment.",
    "weights": 'Factors of the rows, `[N]`, with `reduce="sum"` only.',
    "ties": "Which of equal rows receives the gradient of an extremum: the first, the last, or all "
    "in equal shares.",
    "out_of_range": "What becomes of positions whose row or segment does not exist: an "
    "`IndexOutOfRange`, or they are left out and have gradient 0.",
}
_FORWARD = {**FORWARD, **_GATHER, "x": "The rows, `[V, D]`, any strides."}
_FORWARD["segment_ids"] = IDS["segment_ids"].replace("each row", "each position")
_BACKWARD = {
    **BACKWARD,
    **_GATHER,
    "dy": "Gradient of the output, `[num_segments, D]`.",
    "x": "Rows of the forward call, `[V, D]`; only its shape matters to sums and means.",
    "gather_ids": "Those of the forward call.",
    "weights": "Those of the forward call.",
}

DOCS = {
    "gather_segment_reduce": Doc(
        parameters=_FORWARD,
        returns="y : `[num_segments, D]`.",
        rules="y[s] = Σ weights[n]·x[gather_ids[n]] over the positions n of segment s, or their "
        "mean, maximum or minimum: the bits of `embedding` followed by a segment reduction. NaN "
        "wins an extremum. A segment without positions is 0.",
        cost=f"Nothing is made that has a row for each position. {COST}",
        example="""\
        >>> x = np.array([[1.0], [10.0]])
        >>> source, target = np.array([0, 1, 1]), np.array([0, 0, 1])
        >>> pb.gather_segment_reduce(x, source, target, 2)
        array([[11.],
               [10.]])
        >>> pb.gather_segment_reduce(x, source, target, 2, weights=np.array([1.0, 0.5, 2.0]))
        array([[ 6.],
               [20.]])""",
    ),
    "gather_segment_reduce_backward": Doc(
        parameters=_BACKWARD,
        returns="dx : Of the shape of `x`.",
        rules="dx[v] = Σ weights[n]·dy[s] over the positions n that hold row v, each in segment s; "
        "divided by the size of the segment for means; for extrema only where the position holds "
        "it. Rows that no position holds have gradient 0.",
        cost=f"Nothing is made that has a row for each position. {COST}",
        example="""\
        >>> x, dy = np.array([[1.0], [10.0]]), np.array([[1.0], [3.0]])
        >>> pb.gather_segment_reduce_backward(dy, x, np.array([0, 1, 1]), np.array([0, 0, 1]))
        array([[1.],
               [4.]])""",
    ),
    "gather_segment_reduce_weights_backward": Doc(
        parameters={**_BACKWARD, "x": "Rows of the forward call, `[V, D]`."},
        returns="dweights : `[N]`.",
        rules="dweights[n] = <dy[s], x[gather_ids[n]]>, 0 for positions that were left out.",
        cost=COST,
        example="""\
        >>> x, dy = np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])
        >>> pb.gather_segment_reduce_weights_backward(dy, x, np.array([0]), np.array([0]))
        array([11.])""",
    ),
}
