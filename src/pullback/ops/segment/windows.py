"""Reductions of sorted segments in windows of rows, with the bits of the whole.

A window ends within a segment, which stays open. Kernels cut long segments every BLOCK rows, from
their own start, and join what the blocks leave in order. So an open segment is what its whole
blocks have been joined to, and the rows of the block it stands in: few numbers, however many rows
it has had. A run continues it with these rows before those of the window, and finds what its
blocks leave in the workspace, where the kernels put it down.

The arithmetic here is that of the joins in `cpu_sum` and `cpu_product`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from pullback.contract.element import ElementKind
from pullback.contract.errors import InvalidProblem, Unsupported
from pullback.contract.record import resolve
from pullback.ops.segment.contract import plan_of
from pullback.ops.segment.functions import segment_max, segment_min
from pullback.plan.stream import Stream, Workspace
from pullback.tensor.rounding import round_to

Array = np.ndarray[Any, Any]
Parts = tuple[Array, ...]

BLOCK = 256  # of cpu_words, which is not imported before a kernel is needed
SMALL = 2.0**-64  # of cpu_sum


@dataclass(frozen=True)
class OpenSegment:
    """The last segment of a window. `joined`: what its whole blocks amount to, None if there are
    none (of extrema: all of its rows, value and position); `rows`: those of the block it stands in.
    `count`: how many rows it has had, `seen`: how many the stream."""

    segment: int
    count: int
    seen: int
    joined: Parts | None
    rows: Array


@dataclass(frozen=True)
class Reduced:
    """What a window amounts to: `values` of the segments from number `first` to its last one, of
    which the last is open; of extrema `positions` in the stream; the `state` to go on with."""

    first: int
    values: Array
    positions: Array | None
    state: OpenSegment | None


# --- joins ----------------------------------------------------------------------------------------


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def _plus(wide: bool, total: Array, rest: Array, v: Array) -> tuple[Array, Array]:
    if not wide:
        return total + v, rest
    total, lost = _two_sum(total, v)
    return total, rest + lost


def _join_sum(wide: bool, joined: Parts | None, part: Parts) -> Parts:
    """A sum, its correction, and the sum times SMALL, whose range is wider."""
    none = np.full_like(part[0], -0.0)
    total, rest, again = joined or (none, none, none)
    v, r = part
    again = again + np.where(np.isnan(r), v, v * SMALL + r * SMALL)
    for term in part:
        total, rest = _plus(wide, total, rest, term)
    return total, rest, again


def _sum_of(joined: Parts, element: ElementKind, size: int, divide: bool) -> Array:
    total, rest, again = joined
    unit = 1.0
    if element is ElementKind.F64:
        lost = ~(np.abs(total) < np.inf) | np.isnan(rest)
        total, unit = np.where(lost, np.inf, total), SMALL
        size_of_rest = np.abs(rest)
        finite = np.where((size_of_rest > 0) & (size_of_rest < np.inf), rest, -0.0)
        total = np.where(size_of_rest > 0, total + finite, total)
    else:
        again = total
    narrow = np.dtype(np.float32 if element.itemsize == 2 else np.float64)
    found = total.astype(narrow)
    whole = found / np.asarray(size, narrow) if divide else found
    if element in (ElementKind.BF16, ElementKind.F64):
        wider = (again / size if divide else again) * (1.0 / unit)
        whole = np.where(np.abs(found) < np.inf, whole, wider.astype(narrow))
    return whole


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """a*b and what rounding has taken from it."""

    def halves(x: Array) -> tuple[Array, Array]:
        c = 134217729.0 * x
        high = c - (c - x)
        return high, x - high

    whole, (ah, al), (bh, bl) = a * b, halves(a), halves(b)
    return whole, ((ah * bh - whole) + ah * bl + al * bh) + al * bl


def _fma(a: Array, b: Array, c: Array) -> Array:
    """a*b + c, rounded once: the smaller terms are added by rounding to odd."""
    high, low = _two_product(a, b)
    mid, rest = _two_sum(c, low)
    top, mid = _two_sum(high, mid)
    near, lost = _two_sum(mid, rest)
    bits = near.view(np.int64)
    away = (lost > 0) == (near > 0)
    odd = np.where((lost != 0) & (bits & 1 == 0), np.where(away, bits + 1, bits - 1), bits)
    found = top + odd.view(np.float64)
    return np.where(np.isfinite(top), found, a * b + c)


def _normalised(product: Parts) -> Parts:
    m, c, e = product
    _, power = np.frexp(m)
    usual = np.isfinite(m) & (np.abs(m) >= np.finfo(np.float64).tiny)
    power = np.where(usual, power - 1, 0)
    return np.ldexp(m, -power), np.ldexp(c, -power), e + power


def _join_product(wide: bool, joined: Parts | None, part: Parts) -> Parts:
    """A float in [1, 2), its rounding error, an exponent."""
    if joined is None:
        return _normalised(part)
    (m, c, e), (v, w, k) = joined, part
    whole = m * v
    if wide:
        _, low = _two_product(m, v)
        c = _fma(c, v, _fma(m, w, np.where(np.isfinite(whole), low, np.nan)))
    return _normalised((whole, c, e + k))


def _product_of(joined: Parts, element: ElementKind, size: int, divide: bool) -> Array:
    m, c, e = joined
    if element is ElementKind.F64:
        m, c, e = _normalised(joined)
        m = np.where(np.abs(c) > 0, m + c, m)
    else:
        e = np.clip(e, -1022.0, 1022.0)
    found = np.ldexp(m, e.astype(np.int64).clip(-5000, 5000))
    return found.astype(np.float32) if element.itemsize == 2 else found


_SUM: tuple[Callable[..., Parts], Callable[..., Array], int] = _join_sum, _sum_of, 2
_JOINS = {"sum": _SUM, "mean": _SUM, "prod": (_join_product, _product_of, 3)}

# --- a window -------------------------------------------------------------------------------------


def reduced(
    reduction: str,
    x: Array,
    ids: Array,
    state: OpenSegment | None = None,
    empty: float | None = None,
    ties: str = "first",
) -> Reduced:
    op = f"segment_{reduction}"
    _check(op, x, ids, state)
    if not len(ids):
        return Reduced(0 if state is None else state.segment, x[:0], None, state)
    first = int(ids[0]) if state is None else state.segment
    own = np.asarray(ids - first, np.int64)
    with np.errstate(all="ignore"):
        if reduction in ("max", "min"):
            return _extrema(reduction, x, own, first, state, empty, ties)
        return _joined(reduction, x, own, first, state, empty)


def _check(op: str, x: Array, ids: Array, state: OpenSegment | None) -> None:
    for name, array in (("x", x), ("segment_ids", ids)):
        if not isinstance(array, np.ndarray):
            raise Unsupported(op, name, "a NumPy array: windows are those of a file", repr(array))
    if ids.shape != x.shape[:1] or ids.dtype.kind not in "iu":
        raise InvalidProblem(op, "segment_ids", f"{len(x)} integers", f"{ids.dtype} {ids.shape}")
    if state is not None and (x.dtype, x.shape[1:]) != (state.rows.dtype, state.rows.shape[1:]):
        expected = f"rows of shape {state.rows.shape[1:]} of {state.rows.dtype}, as before"
        raise InvalidProblem(op, "x", expected, f"{x.shape[1:]} of {x.dtype}")
    before = ids[:1] if state is None else np.asarray([state.segment], ids.dtype)
    after = np.concatenate([before, ids])
    falls = np.flatnonzero(after[1:] < after[:-1])
    if len(falls) or (len(ids) and ids[0] < 0):
        at = int(falls[0]) if len(falls) else 0
        expected = "in ascending order from 0 on, over all windows"
        raise InvalidProblem(op, "segment_ids", expected, f"{int(ids[at])} at position {at}")


def _joined(
    reduction: str, x: Array, own: Array, first: int, state: OpenSegment | None, empty: float | None
) -> Reduced:
    join, finish, many = _JOINS[reduction]
    last, element = int(own[-1]), ElementKind.of(x)
    joined = None if state is None else state.joined
    # A first block of no use makes a segment long that has been so before.
    lead = np.zeros((BLOCK if joined else 0, *x.shape[1:]), x.dtype)
    carried = x[:0] if state is None else state.rows
    rows = np.concatenate([lead, carried, x])
    rows = rows.reshape(len(rows), prod(x.shape[1:]))
    places = np.concatenate([np.zeros(len(lead) + len(carried), np.int64), own])
    values, table = _run(plan_of(reduction, False, True), rows, places, last + 1, empty, many)

    def of_blocks(begin: int, size: int, skipped: int, joined: Parts | None) -> Parts | None:
        """A segment that begins at a row, without its first blocks and without the last one."""
        slots = range(2 * (begin // BLOCK) + skipped, 2 * (begin // BLOCK) + (size - 1) // BLOCK)
        for slot in slots:
            joined = join(wide, joined, tuple(table[many * slot : many * (slot + 1)]))
        return joined

    wide = element is ElementKind.F64
    begin, end = (int(n) for n in np.searchsorted(places, [last, last + 1]))
    if joined and state:
        size = int(np.searchsorted(places, 1))
        before = of_blocks(0, size, 1, joined)
        count = state.count - len(carried) + size - len(lead)
        whole = of_blocks(0, size + BLOCK, (size - 1) // BLOCK, before)
        assert whole is not None  # a last block has rows
        value = finish(whole, element, count, reduction == "mean")
        values[0] = round_to(value, x.dtype) if value.dtype != x.dtype else value
    if joined and last == 0:
        left, begin = before, len(lead)
    else:
        left, count = of_blocks(begin, end - begin, 0, None), end - begin
    open_rows = rows[begin + (end - begin - 1) // BLOCK * BLOCK : end]
    found = OpenSegment(
        first + last,
        count,
        _seen(state) + len(x),
        left,
        open_rows.reshape(len(open_rows), *x.shape[1:]).copy(),
    )
    return Reduced(first, values.reshape(len(values), *x.shape[1:]), None, found)


def _seen(state: OpenSegment | None) -> int:
    return 0 if state is None else state.seen


def _run(
    kind: Any, rows: Array, places: Array, count: int, empty: float | None, many: int
) -> tuple[Array, Array]:
    """Results, and what the blocks of long segments have left, a row for each number."""
    contract, name = "pullback.ops.segment.contract", kind.record.name
    desc = kind.record.descriptor(
        num_inputs=len(rows),
        embedding_dim=rows.shape[1],
        num_segments=count,
        element=ElementKind.of(rows),
        empty=empty,
    )
    plan = kind.select(Stream.cpu(), desc)
    workspace = Workspace.allocate(plan)
    values = np.empty((count, rows.shape[1]), rows.dtype)
    args = resolve(f"{contract}:{name}Args")(input=rows, segment_ids=places, output=values)
    plan.run(Stream.cpu(), workspace, args)
    tables = resolve("pullback.ops.segment.cpu_grouping:group_tables")(desc, many, True)[1]
    begin = -workspace.address % 64 + tables[resolve("pullback.ops.segment.cpu_words:PARTIALS_AT")]
    slots = resolve("pullback.ops.segment.cpu_words:long_slots")(len(rows)) * many
    table = workspace.buffer[begin : begin + 8 * slots * rows.shape[1]]
    return values, table.view(np.float64).reshape(slots, rows.shape[1])


# --- extrema --------------------------------------------------------------------------------------


def _extrema(
    reduction: str,
    x: Array,
    own: Array,
    first: int,
    state: OpenSegment | None,
    empty: float | None,
    ties: str,
) -> Reduced:
    """Exact in any grouping: the extremum so far beside that of the window."""
    run = segment_max if reduction == "max" else segment_min
    last = int(own[-1])
    values, places = run(
        x, own, last + 1, indices_are_sorted=True, return_indices=True, ties=ties, empty=empty
    )
    places = np.where(places < 0, places, places + _seen(state))
    count = int((own == last).sum())
    if state is not None and state.joined is not None:
        held, where = state.joined
        kept = _stays(held, values[0], reduction, ties) | (places[0] < 0)
        values[0], places[0] = np.where(kept, held, values[0]), np.where(kept, where, places[0])
        count += state.count if last == 0 else 0
    joined = values[-1].copy(), places[-1].copy()
    left = OpenSegment(first + last, count, _seen(state) + len(x), joined, x[:0].copy())
    return Reduced(first, values, places, left)


def _stays(held: Array, new: Array, reduction: str, ties: str) -> Array:
    """Where the extremum so far stays: NaN does, and the first of equals, or the last."""
    a, b = (held, new) if reduction == "max" else (-held, -new)
    if ties == "last":
        return (a > b) | (np.isnan(a) & ~np.isnan(b))
    return (a >= b) | np.isnan(a)
