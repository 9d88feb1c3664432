"""Maps onto the probability simplex: softmax, log-softmax, sparsemax, 1.5-entmax."""

from pullback.ops.simplex.contract import (
    SoftmaxArgs,
    SoftmaxBackwardArgs,
    SoftmaxBackwardDescriptor,
    SoftmaxBackwardPlan,
    SoftmaxDescriptor,
    SoftmaxPlan,
    SparsemaxArgs,
    SparsemaxBackwardArgs,
    SparsemaxBackwardDescriptor,
    SparsemaxBackwardPlan,
    SparsemaxDescriptor,
    SparsemaxPlan,
)
from pullback.ops.simplex.functions import (
    entmax15,
    entmax15_backward,
    log_softmax,
    log_softmax_backward,
    softmax,
    softmax_backward,
    sparsemax,
    sparsemax_backward,
)

__all__ = [
    "SoftmaxArgs",
    "SoftmaxBackwardArgs",
    "SoftmaxBackwardDescriptor",
    "SoftmaxBackwardPlan",
    "SoftmaxDescriptor",
    "SoftmaxPlan",
    "SparsemaxArgs",
    "SparsemaxBackwardArgs",
    "SparsemaxBackwardDescriptor",
    "SparsemaxBackwardPlan",
    "SparsemaxDescriptor",
    "SparsemaxPlan",
    "entmax15",
    "entmax15_backward",
    "log_softmax",
    "log_softmax_backward",
    "softmax",
    "softmax_backward",
    "sparsemax",
    "sparsemax_backward",
]
