"""Statistics of segments in Numba: which phases a plan runs, and where their tables live."""

from __future__ import annotations

from typing import Any

from pullback.cpu.program import Program, bits_of
from pullback.ops.segment.cpu_grouping import Values, group_tables, reduced, spread_out
from pullback.ops.segment_softmax.cpu_maps import PARTS
from pullback.ops.segment_statistics import cpu_logsumexp as exponentials
from pullback.ops.segment_statistics import cpu_variance as variances
from pullback.ops.segment_statistics.contract import VARIANCES, SegmentStatisticKind, kind_of


def _parts(desc: Any) -> int:
    return variances.PARTS if kind_of(desc) in VARIANCES else PARTS


def workspace(desc: Any) -> int:
    return group_tables(desc, _parts(desc), desc.ascending)[0].bytes


def _options(desc: Any) -> Values:
    """What the kernels of variances are told."""
    if kind_of(desc) not in VARIANCES:
        return {}
    root = int(desc.kind is SegmentStatisticKind.STD)
    return {variances.ROOT: root, variances.DDOF: bits_of(float(desc.ddof))}


def _reduced(desc: Any, kernels: Any, none: float, views: Any) -> Program:
    empty = none if desc.empty is None else desc.empty
    return reduced(desc, _parts(desc), desc.ascending, kernels, empty, views, _options(desc))


def _spread(desc: Any, kernels: Any, views: Any) -> Program:
    return spread_out(desc, _parts(desc), desc.ascending, kernels, 0.0, views, _options(desc))


def logsumexp(desc: Any, *views: Any) -> Program:
    return _reduced(desc, exponentials.LOGSUMEXP, float("-inf"), views)


def logsumexp_backward(desc: Any, *views: Any) -> Program:
    return _spread(desc, exponentials.GRADIENTS, views)


def variance(desc: Any, *views: Any) -> Program:
    return _reduced(desc, variances.VARIANCES, 0.0, views)


def variance_backward(desc: Any, *views: Any) -> Program:
    return _spread(desc, variances.GRADIENTS, views)
