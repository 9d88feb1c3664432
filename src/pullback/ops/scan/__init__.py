"""Scans: cumsum, cumprod, cummax, cummin, logcumsumexp, and their backwards."""

from pullback.ops.scan.contract import (
    ScanArgs,
    ScanBackwardArgs,
    ScanBackwardDescriptor,
    ScanBackwardPlan,
    ScanDescriptor,
    ScanPlan,
)
from pullback.ops.scan.functions import (
    cummax,
    cummax_backward,
    cummin,
    cummin_backward,
    cumprod,
    cumprod_backward,
    cumsum,
    cumsum_backward,
    logcumsumexp,
    logcumsumexp_backward,
)

__all__ = [
    "ScanArgs",
    "ScanBackwardArgs",
    "ScanBackwardDescriptor",
    "ScanBackwardPlan",
    "ScanDescriptor",
    "ScanPlan",
    "cummax",
    "cummax_backward",
    "cummin",
    "cummin_backward",
    "cumprod",
    "cumprod_backward",
    "cumsum",
    "cumsum_backward",
    "logcumsumexp",
    "logcumsumexp_backward",
]
