"""Lerp: linear interpolation between two tensors, and its backward."""

from pullback.ops.lerp.contract import (
    BinaryParamArgs,
    BinaryParamBackwardArgs,
    BinaryParamBackwardDescriptor,
    BinaryParamBackwardPlan,
    BinaryParamDescriptor,
    BinaryParamPlan,
    LerpArgs,
    LerpBackwardArgs,
    LerpBackwardDescriptor,
    LerpBackwardPlan,
    LerpDescriptor,
    LerpPlan,
)
from pullback.ops.lerp.functions import lerp, lerp_backward

__all__ = [
    "BinaryParamArgs",
    "BinaryParamBackwardArgs",
    "BinaryParamBackwardDescriptor",
    "BinaryParamBackwardPlan",
    "BinaryParamDescriptor",
    "BinaryParamPlan",
    "LerpArgs",
    "LerpBackwardArgs",
    "LerpBackwardDescriptor",
    "LerpBackwardPlan",
    "LerpDescriptor",
    "LerpPlan",
    "lerp",
    "lerp_backward",
]
