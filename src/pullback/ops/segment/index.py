"""Ids sorted once: `prepare_segments` and the `SegmentIndex` that plans take in place of ids."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.contract.element import INDICES, ElementKind, describe
from pullback.contract.errors import InvalidProblem, Unsupported
from pullback.contract.record import Failure, Slot, check_extent, resolve
from pullback.cpu.pool import get_num_threads
from pullback.gpu.errors import check
from pullback.tensor.view import TensorRef

Ids = npt.NDArray[Any]
Finding = tuple[int, int] | None  # a position and the id there


@dataclass(frozen=True, eq=False)
class SegmentIndex:
    """Segment ids with their order and borders, found once and used by every later call.

    It behaves as its ids do: the same bits, the same errors, the policy of each call. The ids are a
    copy of its own. `order` is None where they are sorted already. Its tables are NumPy arrays, or
    tensors on the GPU that the ids were on."""

    ids: Ids
    num_segments: int
    order: Ids | None
    offsets: Ids
    first_outside: Finding
    first_descent: Finding

    @property
    def bundle(self) -> dict[str, Ids | None]:
        return {"ids": self.ids, "order": self.order, "offsets": self.offsets}

    @property
    def bundle_key(self) -> tuple[Any, ...]:
        """Everything but the addresses of its tables that a launch depends on."""
        facts = self.num_segments, self.first_outside, self.first_descent
        return "SegmentIndex", self.shape, self.ids.dtype, facts

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.ids.shape)

    @property
    def device(self) -> str:
        return "cpu" if isinstance(self.ids, np.ndarray) else TensorRef(self.ids).device

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        order = "sorted" if self.order is None else "unsorted"
        return f"SegmentIndex({len(self)} {order} ids in [0, {self.num_segments}))"


def prepare_segments(segment_ids: Any, num_segments: int) -> SegmentIndex:
    """Sort the ids of segments, or the indices of an embedding, for many calls to come."""
    op = "prepare_segments"
    view = TensorRef(segment_ids, op=op, argument="segment_ids")
    if view.element not in INDICES:
        expected = "of int32 or int64 (segment_ids.astype('int64') casts)"
        raise Unsupported(op, "segment_ids", expected, describe(view.array))
    if view.ndim != 1:
        raise InvalidProblem(op, "segment_ids", "of rank 1", f"shape {view.shape}")
    extent = check_extent(op, "num_segments", num_segments, 8)
    if view.device != "cpu":
        if view.family != "torch":
            raise Unsupported(op, "segment_ids", "on the cpu, or a torch tensor", view.device)
        index = gpu_index_of(segment_ids.clone(), extent)
        check()
        return index
    return index_of(np.array(view.numpy()), extent)


def index_of(ids: Ids, extent: int) -> SegmentIndex:
    """The index of contiguous ids, which it keeps."""
    layouts = resolve("pullback.ops.segment.cpu:preparation")
    view = TensorRef(ids)
    check, findings, sort, room = layouts(view, extent)
    scratch = np.empty(room, np.uint8)
    _run(check, (view, None, None), scratch)
    outside, descent = (_finding(ids, where) for where in findings(scratch))
    order = None if descent is None else np.empty(len(ids), np.int64)
    offsets = np.empty(extent + 2, np.int64)
    tables = [table if table is None else TensorRef(table) for table in (order, offsets)]
    _run(sort(ordered=order is None), (view, *tables), scratch)
    for array in (ids, offsets) if order is None else (ids, order, offsets):
        array.flags.writeable = False
    return SegmentIndex(ids, extent, order, offsets, outside, descent)


def gpu_index_of(ids: Any, extent: int) -> SegmentIndex:
    """The same for a tensor on a GPU, by the framework's own operations: waits for the device."""
    torch = sys.modules["torch"]
    outside = (ids < 0) | (ids >= extent)
    first = outside.nonzero()[:1].flatten().tolist()
    fall = ((ids[1:] < ids[:-1]).nonzero()[:1].flatten() + 1).tolist()
    keys = torch.where(outside, extent, ids)
    keys = keys.to(torch.int32 if extent < 2**31 else torch.int64)
    keys, order = torch.sort(keys, stable=True)
    borders = torch.arange(extent + 2, device=ids.device, dtype=keys.dtype)
    offsets = torch.searchsorted(keys, borders)
    findings = ((f[0], int(ids[f[0]])) if f else None for f in (first, fall))
    return SegmentIndex(ids, extent, order if fall else None, offsets, *findings)


def _finding(ids: Ids, where: int) -> Finding:
    return (where, int(ids[where])) if where < len(ids) else None


def _run(program: Any, tables: tuple[TensorRef | None, ...], scratch: Ids) -> None:
    from pullback.cpu.native_launch import NativeLaunch

    ids, order, offsets = (0 if table is None else table.address for table in tables)
    launch = NativeLaunch.of(program, ElementKind.F32, 5)
    launch(scratch.ctypes.data, get_num_threads(), 1, (0, ids, 0, order, offsets))


# --- what the contracts of ids share ------------------------------------------------------------


def index_slots(
    name: str, count: Callable[[Any], int], extent: Callable[[Any], int]
) -> tuple[Slot, Slot, Slot]:
    """The slots of ids: themselves, and the tables of a prepared index."""

    def part(field: str, shape: Callable[[Any], tuple[int, ...]]) -> Slot:
        return Slot(
            f"{name}_{field}",
            shape,
            holds=(ElementKind.I64,),
            needed=lambda _: False,
            part=field,
            part_of=name,
        )

    return (
        Slot(name, lambda desc: (count(desc),), holds=INDICES, part="ids"),
        part("order", lambda desc: (count(desc),)),
        part("offsets", lambda desc: (extent(desc) + 2,)),
    )


def index_tensors(name: str, given: Any) -> dict[str, TensorRef]:
    """The tensors of the slots above: a view of plain ids, or the parts of an index."""
    if not isinstance(given, SegmentIndex):
        return {name: given}
    found = {}
    for field, table in given.bundle.items():
        if table is not None:
            view = found[name if field == "ids" else f"{name}_{field}"] = TensorRef(table)
            view.origin = (name, field)
    return found


def admit_index(
    op: str,
    desc: Any,
    failures: Mapping[int, Failure],
    index: SegmentIndex,
    extent: tuple[str, int],
    strict: bool,
    ascending: bool,
) -> None:
    """Raise for an index what a launch would find out about its ids. `extent` is what the call says
    of their range, and the name under which it does."""
    argument, size = extent
    if index.num_segments != size:
        expected = f"{index.num_segments}, for which the index was prepared"
        raise InvalidProblem(op, argument, expected, f"{size}")
    _complain(op, desc, failures, (strict, index.first_outside), (ascending, index.first_descent))


def check_ids(
    op: str,
    desc: Any,
    failures: Mapping[int, Failure],
    ids: Ids,
    extent: int,
    strict: bool,
    ascending: bool,
) -> None:
    """The same for plain ids, without a kernel."""
    flat = ids.reshape(-1)
    outside = np.flatnonzero((flat < 0) | (flat >= extent))
    descents = np.flatnonzero(flat[1:] < flat[:-1]) + 1
    found = ((int(f[0]), int(flat[f[0]])) if f.size else None for f in (outside, descents))
    _complain(op, desc, failures, (strict, next(found)), (ascending, next(found)))


def _complain(
    op: str, desc: Any, failures: Mapping[int, Failure], *findings: tuple[bool, Finding]
) -> None:
    for status, (matters, finding) in enumerate(findings, start=1):
        if matters and finding is not None:
            raise failures[status].raised(op, desc, *finding)
