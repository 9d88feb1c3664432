"""What is said of segment reductions in their docstrings, and of what other families of segments
share with them."""

from __future__ import annotations

from pullback.ops.scan_docs import BITS
from pullback.plan.docstring import Doc

ROWS = "Rows to be grouped, along `axis`; rank 1 or more, any strides."
IDS = {
    "segment_ids": "The segment of each row, `[N]`, or a `SegmentIndex` made of that by "
    "`prepare_segments`. Either this or `offsets`.",
    "offsets": "Borders of the segments, `[num_segments + 1]`: from 0, never decreasing, to N "
    "(CSR). In place of `segment_ids`.",
    "axis": "The axis of the rows. Negative ones count from the last.",
    "indices_are_sorted": "Promise that ids do not decrease; it is checked.",
    "out_of_range": "What becomes of rows whose id is not in [0, num_segments): an "
    "`IndexOutOfRange`, or they are left out and have gradient 0.",
}
FORWARD = {
    **IDS,
    "x": ROWS,
    "num_segments": "By default one more than the greatest id; needed where that cannot be read, "
    "as in `jax.jit`.",
    "empty": "The value of segments without rows, which has no gradient.",
}
BACKWARD = {
    **IDS,
    "segment_ids": "Those of the forward call.",
    "offsets": "Those of the forward call.",
    "axis": "That of the forward call.",
    "dy": "Gradient of the output, of its shape.",
    "x": "Input of the forward call.",
    "num_inputs": "The number of rows, where `offsets` are given and cannot be read.",
}
REDUCED = "y : Of the shape of `x`, with `num_segments` in place of the extent of the axis."
GRADIENT = "dx : Of the shape of the forward's input."
COST = (
    "Time is linear in the size of the input and in the number of segments; ids that are not "
    "sorted are grouped first, in linear time, which `prepare_segments` does once for many calls. "
    f"{BITS} Nor do they depend on how the segments are given."
)
_TIES = {
    "ties": "Which of equal rows receives the gradient: the first, the last, or all in equal "
    "shares."
}
_REDUCTION = {**FORWARD, "ties": "Without a meaning here; every reduction takes it."}
_EXTREMUM = {
    **FORWARD,
    "ties": _TIES["ties"] + ' Positions are those of the first, or of the last with "last".',
    "return_indices": "Return positions too.",
}
_POSITIONS = f"""\
{REDUCED} With `return_indices`, the tuple `(y, indices)`.
indices : int64 positions along the axis, -1 where there are no rows (int32 in JAX without x64)."""
_NAN = (
    "NaN wins. NaNs tie with each other, as do zeros of either sign; the value is that of the "
    "first extremum."
)


def _empty(value: str) -> str:
    return f"A segment without rows is {value}, unless `empty` is given."


DOCS = {
    "segment_sum": Doc(
        parameters=_REDUCTION,
        returns=REDUCED,
        rules="y[s] = Σ x[n] over the rows n of segment s, in ascending order: float16 and "
        f"bfloat16 in float32, the others in float64, rounded once. {_empty('0')}",
        cost=COST,
        example="""\
        >>> x, ids = np.array([[1.0], [2.0], [3.0]]), np.array([0, 2, 0])
        >>> pb.segment_sum(x, ids, 3)
        array([[4.],
               [0.],
               [2.]])
        >>> pb.segment_sum(x[:, 0], offsets=np.array([0, 1, 3]))
        array([1., 5.])""",
    ),
    "segment_mean": Doc(
        parameters=_REDUCTION,
        returns=REDUCED,
        rules=f"y[s] = Σ x[n] / how many rows of segment s were kept. {_empty('0')}",
        cost=COST,
        example="""\
        >>> pb.segment_mean(np.array([1.0, 2.0, 4.0]), np.array([1, 0, 1]), 3)
        array([2. , 2.5, 0. ])""",
    ),
    "segment_prod": Doc(
        parameters=_REDUCTION,
        returns=REDUCED,
        rules=f"y[s] = Π x[n] over the rows n of segment s, in float64. {_empty('1')}",
        cost=COST,
        example="""\
        >>> pb.segment_prod(np.array([2.0, 3.0, 4.0]), np.array([0, 0, 2]))
        array([6., 1., 4.])""",
    ),
    "segment_max": Doc(
        parameters=_EXTREMUM,
        returns=_POSITIONS,
        rules=f"{_NAN} {_empty('0')}",
        cost=COST,
        example="""\
        >>> x, ids = np.array([3.0, 1.0, 3.0]), np.array([0, 0, 0])
        >>> pb.segment_max(x, ids, 2, return_indices=True)
        (array([3., 0.]), array([ 0, -1]))
        >>> pb.segment_max(x, ids, 2, empty=-np.inf)
        array([  3., -inf])""",
    ),
    "segment_min": Doc(
        parameters=_EXTREMUM,
        returns=_POSITIONS,
        rules=f"{_NAN} {_empty('0')}",
        cost=COST,
        example="""\
        >>> pb.segment_min(np.array([3.0, 1.0, 2.0]), np.array([0, 0, 1]))
        array([1., 2.])""",
    ),
    "segment_sum_backward": Doc(
        parameters=BACKWARD,
        returns=GRADIENT,
        rules="dx[n] = dy[s] for a row n of segment s, 0 for rows that were left out.",
        cost=COST,
        example="""\
        >>> pb.segment_sum_backward(np.array([1.0, 2.0]), np.array([1, 0, 1]))
        array([2., 1., 2.])""",
    ),
    "segment_mean_backward": Doc(
        parameters=BACKWARD,
        returns=GRADIENT,
        rules="dx[n] = dy[s] / how many rows of segment s were kept, 0 for rows that were left "
        "out.",
        cost=COST,
        example="""\
        >>> pb.segment_mean_backward(np.array([1.0, 2.0]), np.array([1, 0, 1]))
        array([1., 1., 1.])""",
    ),
    "segment_max_backward": Doc(
        parameters={**BACKWARD, **_TIES},
        returns=GRADIENT,
        rules="dx[n] = dy[s] where x[n] is the maximum of its segment, else 0. NaN is the maximum "
        "of a segment that has one.",
        cost=COST,
        example="""\
        >>> dy, x, ids = np.array([1.0]), np.array([3.0, 1.0, 3.0]), np.array([0, 0, 0])
        >>> pb.segment_max_backward(dy, x, ids)
        array([1., 0., 0.])
        >>> pb.segment_max_backward(dy, x, ids, ties="split")
        array([0.5, 0. , 0.5])""",
    ),
    "segment_min_backward": Doc(
        parameters={**BACKWARD, **_TIES},
        returns=GRADIENT,
        rules="dx[n] = dy[s] where x[n] is the minimum of its segment, else 0. NaN is the minimum "
        "of a segment that has one.",
        cost=COST,
        example="""\
        >>> x, ids = np.array([3.0, 1.0, 2.0]), np.array([0, 0, 1])
        >>> pb.segment_min_backward(np.array([1.0, 5.0]), x, ids)
        array([0., 1., 5.])""",
    ),
    "segment_prod_backward": Doc(
        parameters={**BACKWARD, "ties": "Without a meaning here."},
        returns=GRADIENT,
        rules="dx[n] = dy[s]·Π x[m] over the other rows m of the segment. Nothing is divided, so "
        "the gradient is exact with any number of zeros.",
        cost=COST,
        example="""\
        >>> x, ids = np.array([2.0, 0.0, 3.0]), np.array([0, 0, 0])
        >>> pb.segment_prod_backward(np.array([1.0]), x, ids)
        array([0., 6., 0.])""",
    ),
}
