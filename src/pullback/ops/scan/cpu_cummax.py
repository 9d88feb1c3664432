"""Running extrema: y[j] = max(x[0], …, x[j]), or the minimum.

An element is a record if it takes over the extremum: NaN beats all but NaN, and of equal elements
the first stays or the last takes over. Most tiles of a long line hold no record.
A minimum is the maximum of the negated elements: the engine flips their signs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from pullback.cpu.blocks import each, running
from pullback.cpu.columns import EXACT
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import Kernel
from pullback.cpu.memory import filled
from pullback.cpu.numerics import INFINITY, any_nan
from pullback.cpu.scan import Scan
from pullback.cpu.tiles import by_type, spread
from pullback.cpu.vector import any_lane, is_nan, maximum, select, splat
from pullback.cpu.walks import Walks

Function = Callable[..., Any]

# By whether the last of equal elements takes over: whether b does from a, met earlier, if neither
# is NaN; whether it may, NaN or not; which of the two stays, if neither is NaN.
_AHEAD: dict[bool, Function] = {False: lambda b, a: b > a, True: lambda b, a: b >= a}
_MAY: dict[bool, Function] = {False: lambda b, a: ~(b <= a), True: lambda b, a: ~(b < a)}
_STAYS: dict[bool, Function] = {
    False: lambda a, b: maximum(b, a),
    True: lambda a, b: maximum(a, b),
}


@inlined
def _work(p, n):
    return filled(p, 0.0, n)


@by_type
def _any(f, c, v):
    """Whether f(step, c) holds for any lane of any step."""
    if len(v) == 4:
        return lambda f, c, v: any_lane((f(v[0], c) | f(v[1], c)) | (f(v[2], c) | f(v[3], c)))
    return lambda f, c, v: any_lane(
        ((f(v[0], c) | f(v[1], c)) | (f(v[2], c) | f(v[3], c)))
        | ((f(v[4], c) | f(v[5], c)) | (f(v[6], c) | f(v[7], c)))
    )


@by_type
def _repeated(c, v):
    if len(v) == 4:
        return lambda c, v: (c, c, c, c)
    return lambda c, v: (c, c, c, c, c, c, c, c)


def wins_of(last: bool) -> Function:
    """(b, a) -> whether b takes over from a."""
    ahead = inlined(_AHEAD[last])
    if last:
        return inlined(lambda b, a: ahead(b, a) | is_nan(b))
    return inlined(lambda b, a: ahead(b, a) | (is_nan(b) & ~is_nan(a)))


def holds_of(last: bool) -> Function:
    """(state, columns) -> whether no step takes over."""
    may = inlined(_MAY[last])
    return inlined(
        lambda state, columns: not _any(may, spread(state[0], columns[0][0]), columns[0])
    )


@inlined
def all_numbers(state, columns):
    return not (any_nan(columns[0]) or any_lane(is_nan(state[0])))


def _values(last: bool) -> Scan:
    wins, stays = wins_of(last), inlined(_STAYS[last])
    stays_nan = inlined(lambda a, b: select(wins(b, a), b, a))

    def scan_by(f: Function) -> tuple[Function, Function, Function]:
        @inlined
        def within(columns):
            v = running(f, columns[0])
            return v, (v[-1],)

        @inlined
        def combine(state, total):
            return (f(state[0], total[0]),)

        @inlined
        def apply(entering, inner):
            return (each(f, entering[0], inner),)

        return within, combine, apply

    within, combine, apply = scan_by(stays_nan)
    return Scan(
        neutral=(-INFINITY,),
        work=_work,
        start=inlined(lambda p, n: (filled(p, -INFINITY, n),)),
        within=within,
        combine=combine,
        apply=apply,
        fast=(all_numbers, *scan_by(stays)),
        held=(
            holds_of(last),
            inlined(
                lambda state, columns: (_repeated(spread(state[0], columns[0][0]), columns[0]),)
            ),
        ),
        mode=EXACT,
        flips=True,
        shown=inlined(lambda state: state),
        begun=inlined(lambda none, initial: (initial,)),
    )


# --- with positions -------------------------------------------------------------------------------

# A state is the extremum and the position that holds it: -1 is that of an initial value, NOWHERE
# that of none, which any step takes over from.
NOWHERE = -2


def _positions(last: bool) -> Scan:
    wins, holds = wins_of(last), holds_of(last)

    @inlined
    def next_of(a, b):
        won = wins(b[0], a[0]) | (a[1] == NOWHERE)
        return select(won, b[0], a[0]), select(won, b[1], a[1])

    @inlined
    def within(columns, numbers, about):
        n, way = about[0], about[1]
        at = (numbers ^ way) - way + ((n - 1) & way)
        inner = running(next_of, numbered(columns[0], at, 1 + 2 * way))
        return inner, inner[-1]

    @inlined
    def apply(entering, inner):
        return parted(each(next_of, entering, inner))

    @inlined
    def holds_since(state, columns):
        return holds(state, columns) and not any_lane(state[1] == NOWHERE)

    return Scan(
        neutral=(-INFINITY,),
        work=_work,
        start=inlined(lambda p, n: (filled(p, -INFINITY, n), splat(NOWHERE, n))),
        within=within,
        combine=next_of,
        apply=apply,
        held=(
            holds_since,
            inlined(
                lambda state, columns: (
                    _repeated(spread(state[0], columns[0][0]), columns[0]),
                    _repeated(spread(state[1], columns[0][0]), columns[0]),
                )
            ),
        ),
        numbered=True,
        mode=EXACT,
        flips=True,
        indices=(2,),
        shown=inlined(lambda state: (state[0], select(state[1] < 0, -1, state[1]))),
        begun=inlined(lambda none, initial: (initial, select(none[1] < 0, -1, none[1]))),
    )


@by_type
def numbered(v, at, way):
    """Each step with its position."""
    if len(v) == 4:
        return lambda v, at, way: (
            (v[0], at), (v[1], at + way), (v[2], at + 2 * way), (v[3], at + 3 * way),
        )  # fmt: skip
    return lambda v, at, way: numbered(v[:4], at, way) + numbered(v[4:], at + 4 * way, way)


@by_type
def parted(pairs):
    """The values of pairs, and their positions."""
    if len(pairs) == 4:
        return lambda pairs: (
            (pairs[0][0], pairs[1][0], pairs[2][0], pairs[3][0]),
            (pairs[0][1], pairs[1][1], pairs[2][1], pairs[3][1]),
        )  # fmt: skip

    def eight(pairs):
        u, v = parted(pairs[:4]), parted(pairs[4:])
        return u[0] + v[0], u[1] + v[1]

    return eight


@cache
def walks_of(last: bool, positions: bool) -> Walks:
    """With the last of equal elements, with positions."""
    name = f"extremum_{'last' if last else 'first'}"
    scan = (_positions if positions else _values)(last)
    return Walks(scan, name + "_positions" * positions, __name__)


def __getattr__(name: str) -> Kernel:
    """A kernel by its name, for programs that were laid out by another process."""
    kind, tie, *rest = name.split("_")[:3] if name.count("_") > 1 else ("", "")
    if kind == "extremum" and tie in ("first", "last"):
        walks_of(tie == "last", "positions" in rest)
        if name in globals():
            found: Kernel = globals()[name]
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
