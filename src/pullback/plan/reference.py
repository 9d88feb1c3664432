"""The oracle behind the plan API: slow, in high precision, rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pullback.contract.record import PlanRecord
from pullback.tensor.rounding import round_to
from pullback.tensor.view import TensorRef, array_at


def _rounded(value: Any, dtype: Any) -> Any:
    """Wide values in one rounding; exact values (indices, extrema) as they are."""
    return round_to(value, dtype) if value.dtype == np.longdouble else value


class ReferenceRunner:
    """Runs a record's oracle on the memory a launch points to."""

    __slots__ = ("_desc", "_record", "_views")

    def __init__(self, record: PlanRecord, desc: Any, views: Sequence[TensorRef | None]) -> None:
        self._record, self._desc = record, desc
        self._views = list(views)

    def __call__(
        self, addresses: Sequence[int], workspace: int, threads: int
    ) -> tuple[int, int, int]:
        arrays, folded = {}, {}
        for slot, view, address in zip(self._record.slots, self._views, addresses, strict=True):
            if view is not None:
                array = array_at(address, view.extents, view.strides, view.element)
                arrays[slot.name], folded[slot.name] = array, array.reshape(view.shape)
        with np.errstate(all="ignore"):
            results = self._record.reference(self._desc, **folded)
            for name, value in results.items():
                if name in arrays:
                    array = arrays[name]
                    array[...] = _rounded(value, array.dtype).reshape(array.shape)
        return 0, 0, 0
