"""The linear recurrence h[j] = a[j]·h[j-1] + b[j], and its backward."""

from pullback.ops.recurrence.contract import (
    LinearScanArgs,
    LinearScanBackwardArgs,
    LinearScanBackwardDescriptor,
    LinearScanBackwardPlan,
    LinearScanDescriptor,
    LinearScanPlan,
    RecurrenceKind,
)
from pullback.ops.recurrence.functions import discounted_sum, linear_scan, linear_scan_backward

__all__ = [
    "LinearScanArgs",
    "LinearScanBackwardArgs",
    "LinearScanBackwardDescriptor",
    "LinearScanBackwardPlan",
    "LinearScanDescriptor",
    "LinearScanPlan",
    "RecurrenceKind",
    "discounted_sum",
    "linear_scan",
    "linear_scan_backward",
]
