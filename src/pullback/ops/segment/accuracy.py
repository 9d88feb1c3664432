"""How far results of this family may be from the truth: where one ulp of them is not right."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.ops.segment.oracle import groups
from pullback.verify.accuracy import RESULTS, Bound, Scale, size_of, terms
from pullback.verify.subject import Arguments, Subject


def largest_in_segment(name: str) -> Scale:
    """The largest finite magnitude of an argument within the segment of a row."""

    def scale(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
        axis = arguments.get("axis", 0)
        rows = np.moveaxis(size_of(np.asarray(arguments[name], np.longdouble)), axis, 0)
        found = np.zeros_like(rows)
        ids, borders = arguments.get("segment_ids"), arguments.get("offsets")
        for group in groups(ids, arguments.get("num_segments"), borders, "skip"):
            found[group] = rows[group].max(axis=0, initial=0)
        return (np.moveaxis(found, 0, axis),) * RESULTS

    return scale


BOUNDS = {
    "segment_sum": Bound(1, terms("x"), any_sum=True),
    "segment_mean": Bound(2, terms("x"), any_sum=True),
    "segment_prod": Bound(4),
    "segment_prod_backward": Bound(4),
}
