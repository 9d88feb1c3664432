"""What is said of embeddings and bags in their docstrings."""

from __future__ import annotations

from pullback.ops.scan_docs import BITS
from pullback.plan.docstring import Doc

_COST = f"Time is linear in the number of positions times the columns{{0}}. {BITS}"
_TABLE = " and in the size of the table"
_SHARED = {
    "padding_idx": "A row that reads as zeros and gets no gradient; negative ones count from the "
    "last.",
    "out_of_range": "What becomes of indices that are not in [0, rows): an `IndexOutOfRange`, or "
    "they read as zeros and get no gradient.",
    "weight": "The table, `[rows, columns]`.",
    "num_embeddings": "Rows of the table.",
}
_GRADIENT = {
    "scale_grad_by_freq": "Divide the gradient of a row by how many kept positions hold it.",
    "accumulate_into": "A table to add the gradient to, in one rounding; it is returned.",
    "sparse": "Return only the rows that received something.",
}
_BAGS = {
    **_SHARED,
    "indices": "Rows of the table, `[N]`; without `offsets`, `[bags, length]`.",
    "offsets": "Where each bag begins, `[bags]`: from 0, never decreasing, at most N. The last bag "
    "ends at N. Left out, each row of 2-D indices is a bag.",
    "mode": "What becomes of the rows of a bag.",
    "per_sample_weights": 'Factors of the rows, in the shape of `indices`, with mode "sum" only.',
    "include_last_offset": "`offsets` has one more entry, the end of the last bag.",
    "return_indices": 'Return the row that each maximum came from; mode "max" only.',
}
_BAGS_BACKWARD = {
    **_BAGS,
    **_GRADIENT,
    "dout": "Gradient of the output, `[bags, columns]`.",
    "output_index": 'What the forward call returned with `return_indices`; mode "max" needs it.',
}
_ROWS = """\
dweight : `[num_embeddings, columns]`. With `sparse`, the tuple `(rows, gradients)`: int64 rows in \
ascending order, and what each received."""
_SUMS = (
    "Sums are taken in ascending order of positions, in float32 for float16 and bfloat16 and in "
    "float64 otherwise, and rounded once. Rows that nothing refers to have gradient 0."
)

DOCS = {
    "embedding": Doc(
        parameters={
            **_SHARED,
            "indices": "Rows of the table, in any shape, or a `SegmentIndex` made of them by "
            "`prepare_segments`.",
        },
        returns="out : Of shape `indices.shape + (columns,)`.",
        rules="out[n] = weight[indices[n]], and zeros at `padding_idx`: that makes the backward "
        "the adjoint. No indices give an empty array.",
        cost=_COST.format(""),
        example="""\
        >>> table = np.array([[1.0, 2.0], [3.0, 4.0]])
        >>> pb.embedding(table, np.array([1, 0, 1]), padding_idx=0)
        array([[3., 4.],
               [0., 0.],
               [3., 4.]])""",
    ),
    "embedding_backward": Doc(
        parameters={
            **_SHARED,
            **_GRADIENT,
            "dout": "Gradient of the output, of shape `indices.shape + (columns,)`.",
            "indices": "Those of the forward call.",
        },
        returns=_ROWS,
        rules=f"dweight[v] = Σ dout[n] over the positions n that hold v. {_SUMS}",
        cost=_COST.format(_TABLE),
        example="""\
        >>> dout = np.array([[1.0], [2.0], [4.0]])
        >>> pb.embedding_backward(dout, np.array([1, 0, 1]), 3)
        array([[2.],
               [5.],
               [0.]])
        >>> pb.embedding_backward(dout, np.array([1, 1, 1]), 3, sparse=True)
        (array([1]), array([[7.]]))""",
    ),
    "embedding_bag": Doc(
        parameters=_BAGS,
        returns="""\
out : `[bags, columns]`. With `return_indices`, the tuple `(out, output_index)`.
output_index : int64, of the shape of `out`; -1 where a bag is empty.""",
        rules="The rows of each bag are summed, averaged over those that are kept, or compared. An "
        "empty bag is 0. NaN wins a maximum; of equals the first position does.",
        cost=_COST.format(""),
        example="""\
        >>> table = np.array([[1.0], [2.0], [6.0]])
        >>> pb.embedding_bag(table, np.array([0, 2, 1]), np.array([0, 2]))
        array([[3.5],
               [2. ]])
        >>> pb.embedding_bag(table, np.array([[0, 2], [1, 1]]), mode="sum")
        array([[7.],
               [4.]])
        >>> indices, offsets = np.array([0, 2]), np.array([0, 2])
        >>> pb.embedding_bag(table, indices, offsets, mode="max", return_indices=True)
        (array([[6.],
               [0.]]), array([[ 2],
               [-1]]))""",
    ),
    "embedding_bag_backward": Doc(
        parameters=_BAGS_BACKWARD,
        returns=_ROWS,
        rules="dweight[v] = Σ dout[b]·p[n] over the positions n that hold v, each in bag b; p are "
        'the per-sample weights, for mode "mean" 1 / size of the bag; for mode "max" dout[b] goes '
        f"to `output_index`. {_SUMS}",
        cost=_COST.format(_TABLE),
        example="""\
        >>> dout, indices, offsets = np.array([[1.0], [2.0]]), np.array([0, 1, 1]), np.array([0, 2])
        >>> pb.embedding_bag_backward(dout, indices, offsets, 2, mode="sum")
        array([[1.],
               [3.]])""",
    ),
    "embedding_bag_per_sample_weights_backward": Doc(
        parameters={**_BAGS, "dout": "Gradient of the output, `[bags, columns]`."},
        returns="d_per_sample_weights : In the shape of `indices`.",
        rules="dp[n] = <dout[b], weight[indices[n]]> for position n of bag b, 0 where it is "
        "skipped or in no bag.",
        cost=_COST.format(""),
        example="""\
        >>> dout, table = np.array([[1.0, 1.0]]), np.array([[1.0, 2.0], [3.0, 4.0]])
        >>> indices, offsets = np.array([1, 0]), np.array([0])
        >>> pb.embedding_bag_per_sample_weights_backward(dout, table, indices, offsets)
        array([7., 3.])""",
    ),
}
