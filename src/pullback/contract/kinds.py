"""The vocabulary of ops and options, under the names of the specification."""

from __future__ import annotations

from enum import Enum, IntEnum


class OpCategory(Enum):
    """Families of ops, as a SKU names them."""

    SCAN = "scan"
    SOFTMAX = "softmax"
    SEGMENT = "segment"
    EMBEDDING = "embedding"
    BINARY_ELEMENTWISE = "binary_elementwise"


class ScanKind(Enum):
    """Scans along an axis."""

    CUMSUM = "cumsum"
    CUMPROD = "cumprod"
    CUMMAX = "cummax"
    CUMMIN = "cummin"
    LOG_CUMSUM_EXP = "logcumsumexp"


class SoftmaxKind(Enum):
    """Maps onto the probability simplex."""

    SOFTMAX = "softmax"
    LOG_SOFTMAX = "log_softmax"
    SPARSEMAX = "sparsemax"
    ENTMAX15 = "entmax15"


class BinaryKind(Enum):
    """Elementwise ops of two tensors and a parameter."""

    LERP = "lerp"


class SegmentKind(Enum):
    """Reductions by segment: sorted and unsorted, forward and backward."""

    SUM = "segment_sum"
    MEAN = "segment_mean"
    MAX = "segment_max"
    MIN = "segment_min"
    PROD = "segment_prod"
    SUM_BACKWARD = "segment_sum_backward"
    MEAN_BACKWARD = "segment_mean_backward"
    MAX_BACKWARD = "segment_max_backward"
    MIN_BACKWARD = "segment_min_backward"
    PROD_BACKWARD = "segment_prod_backward"
    UNSORTED_SUM = "unsorted_segment_sum"
    UNSORTED_MEAN = "unsorted_segment_mean"
    UNSORTED_MAX = "unsorted_segment_max"
    UNSORTED_MIN = "unsorted_segment_min"
    UNSORTED_PROD = "unsorted_segment_prod"
    UNSORTED_SUM_BACKWARD = "unsorted_segment_sum_backward"
    UNSORTED_MEAN_BACKWARD = "unsorted_segment_mean_backward"
    UNSORTED_MAX_BACKWARD = "unsorted_segment_max_backward"
    UNSORTED_MIN_BACKWARD = "unsorted_segment_min_backward"
    UNSORTED_PROD_BACKWARD = "unsorted_segment_prod_backward"


class EmbeddingKind(Enum):
    """Look-ups in a table, alone and in bags, forward and backward."""

    EMBEDDING = "embedding"
    BAG_SUM = "embedding_bag_sum"
    BAG_MEAN = "embedding_bag_mean"
    BAG_MAX = "embedding_bag_max"
    EMBEDDING_BACKWARD = "embedding_backward"
    BAG_SUM_BACKWARD = "embedding_bag_sum_backward"
    BAG_MEAN_BACKWARD = "embedding_bag_mean_backward"
    BAG_MAX_BACKWARD = "embedding_bag_max_backward"


class TieRule(Enum):
    """Who receives the gradient among equal extrema."""

    FIRST = "first"
    LAST = "last"
    SPLIT = "split"


class IndexPolicy(Enum):
    """What an out-of-range index gets."""

    SKIP = "skip"
    ERROR = "error"


class BackendKind(Enum):
    """What runs a kernel; REFERENCE is the oracle."""

    NUMBA = "numba"
    TRITON = "triton"
    REFERENCE = "reference"


class MathPrecision(Enum):
    """The precision a kernel computes in."""

    F32 = "f32"
    F64 = "f64"


class Reproducibility(IntEnum):
    """What the bits of a result survive; each level includes those before it."""

    NONE = 0
    RUN_TO_RUN = 1
    ANY_THREADS = 2
    ANY_MACHINE = 3
