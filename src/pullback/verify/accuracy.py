"""How far a result may be from the truth, in ulp, and of what.

A sum is as exact as its terms allow: where terms cancel, the ulp is taken at the size of the terms.
A scale gives that size for each result; it is never smaller than the result itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np

from pullback.contract.element import ElementKind
from pullback.verify.subject import Arguments, Subject

Scale = Callable[[Subject, Arguments], tuple[Any, ...]]
_OF: dict[Scale, tuple[str, ...]] = {}  # the terms of a scale
_NO_WIDER = 16
_ROUNDINGS = 64  # of subnormal products that may come together
RESULTS = 3  # at most this many arrays are returned


def result(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
    """The result itself."""
    return (0.0,) * RESULTS


def one(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
    """At least one: probabilities, and logarithms near zero."""
    return (1.0,) * RESULTS


def size_of(value: Any) -> Any:
    return np.where(np.isfinite(value), np.abs(value), 0)


def terms(*names: str, negated: tuple[str, ...] = ()) -> Scale:
    """What the oracle says of absolute values: nothing cancels there."""

    def scale(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
        sizes = {k: np.abs(v) for k, v in arguments.items() if k in names}
        sizes.update({k: -np.abs(v) for k, v in arguments.items() if k in negated})
        return tuple(size_of(truth) for truth in subject.truth({**arguments, **sizes}))

    _OF[scale] = (*names, *negated)
    return scale


def largest(name: str, keepdims: bool = True) -> Scale:
    """The largest finite magnitude of an argument along the axis, which stays or goes."""

    def scale(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
        values = size_of(np.asarray(arguments[name], np.longdouble))
        if values.ndim:
            values = values.max(axis=arguments.get("axis", -1), keepdims=keepdims, initial=0)
        return (values,) * RESULTS

    return scale


@dataclass(frozen=True)
class Bound:
    """At most `ulps` at the size that `scale` gives. `factors` are arguments that are multiplied in
    the accumulator, one after the other: what leaves its range on the way is not held to it. The
    argument `weighted` is multiplied by weights one after the other, some large, some that vanish:
    where it is infinite, or its sizes add up to nearly all its element can hold, infinities and NaN
    are not told apart, and what weights below the least number of the element would have added is
    not missed. `divided`: the result is a sum divided by a count, and only the sum has to fit.
    `any_sum`: sums hold all there is, and nothing of that is excused. `multiplied`: arguments whose
    products f64 may not hold, each by itself. `zeroed`: +inf in this argument makes the weight of
    others 0; times an infinite gradient that is NaN by IEEE 754, or infinite, as the limit of large
    numbers is.
    `squared` is an argument whose differences are squared in the accumulator: where that takes them
    out of its range, nothing is held, nor where one that rounds to 0 meets an infinite gradient.
    `walked` is an argument that is scanned one step after the other."""

    ulps: float = 1.0
    scale: Scale = result
    factors: tuple[str, ...] = ()
    weighted: str = ""
    divided: bool = False
    squared: str = ""
    any_sum: bool = False
    multiplied: tuple[str, ...] = ()
    zeroed: str = ""
    walked: str = ""

    def limit(self, array: Any, arguments: Arguments) -> float:
        """Where the accumulator is no wider than the result, roundings add up along the axis. In a
        tree they are few. Of steps, each multiplies all that came before and rounds once: at most
        half the spacing at the size of the terms, which may be a whole one in the binade below.
        Those that round the same way all along are easily found: equal factors. What was broadcast
        has its gradient summed over all there is."""
        element = ElementKind.of(array)
        if element.accumulator is not element:
            return self.ulps
        if not self.walked:
            return self.ulps * _NO_WIDER
        walked = arguments[self.walked]
        if array.shape != walked.shape:
            return self.ulps + float(walked.size)
        return self.ulps + float(walked.shape[arguments.get("axis", -1)] if walked.ndim else 1)


_DEFAULT = Bound()


def excused(
    subject: Subject, arguments: Arguments, position: int, got: Any, want: Any
) -> np.ndarray[Any, Any]:
    """Where a result went through numbers that its accumulator does not hold, so that the order of
    operations decides: finite terms whose sizes add up to more than it can hold, or factors whose
    product does; and what products lost by underflow, times all that could have magnified it."""
    bound = bound_of(subject)
    element = next(ElementKind.of(v) for v in arguments.values() if _is_floating(v))
    vague = _of_rounded_terms(subject, arguments, position, got, want)
    if element is ElementKind.F64 and _products_overflow(bound, arguments):
        sizes = bound.scale(subject, arguments)[position]  # 0 for infinite ones
        overflows = (sizes > np.finfo(np.float64).max) | ~np.isfinite(want)
        vague |= overflows & ~np.isfinite(got)
    if bound.any_sum:
        endless = bool(bound.zeroed) and bool(np.isposinf(arguments[bound.zeroed]).any())
        return np.asarray(vague | (endless & ~np.isfinite(got) & ~np.isfinite(want)))
    info = ml_dtypes.finfo(element.accumulator.dtype)
    top = np.longdouble(info.max)
    terms_of = _OF.get(bound.scale, tuple(arguments))
    finite = {k: _changed(v, np.asarray) if k in terms_of else v for k, v in arguments.items()}
    if bound.weighted:
        sizes = np.abs(arguments[bound.weighted].astype(np.longdouble))
        if not np.isfinite(sizes).all():
            vague |= ~np.isfinite(got) & ~np.isfinite(want)
        own = ml_dtypes.finfo(element.dtype)
        some = np.where(np.isfinite(sizes), sizes, 0)
        # f16 is computed in f32, which has room for all of that; the others are not (f32 not in all
        # its steps): docs/guarantees.md.
        if element is not ElementKind.F16 and some.sum() > np.longdouble(own.max) / 64:
            vague |= ~np.isfinite(got)
        least = np.longdouble(own.smallest_subnormal) * some.max(initial=0)
        with np.errstate(all="ignore"):
            vague |= np.abs(got.astype(np.longdouble) - want) <= least * _ROUNDINGS
    if bound.squared:
        # A difference that rounds to 0, times an infinite gradient, is NaN.
        endless = bool(np.isinf(arguments.get("dy", 0.0)).any())
        vague |= endless & ~np.isfinite(got) & ~np.isfinite(want)
        if element is ElementKind.F64:
            vague |= _leaves_squares(arguments[bound.squared])
    with np.errstate(all="ignore"):
        sizes, sums = bound.scale(subject, finite)[position], subject.truth(finite)[position]
        if bound.divided:
            count = max(v.size for v in arguments.values() if isinstance(v, np.ndarray))
            near = (np.abs(want) <= top) & (sizes * count > top / 4)
            vague |= near & ~np.isfinite(got)
            # Terms that are divided one by one may be subnormal, and are rounded each.
            least = np.longdouble(info.smallest_subnormal) * count
            vague |= np.abs(got.astype(np.longdouble) - want) <= least
            sizes, sums = sizes * count, sums * count
        # Terms of one sign overflow to their infinity or fit, whatever the order.
        larger, smaller = (sizes + np.abs(sums)) / 2, (sizes - np.abs(sums)) / 2
        sure = np.where(np.abs(sums) > top, smaller < top / 4, smaller <= 1e-9 * larger)
        found = (larger > top / 2) & (~sure | (np.sign(sums) != np.sign(want)))
        if not bound.factors:
            return np.asarray(found | vague)
        grown = {k: _changed(v, _growth) for k, v in arguments.items() if k in bound.factors}
        usual = {k: _changed(v, np.asarray, 1) for k, v in arguments.items() if k in bound.factors}
        largest, rest = (
            np.abs(subject.truth({**arguments, **factors})[position]) for factors in (grown, usual)
        )
        lost = np.abs(got.astype(np.longdouble) - want)
        underflow = largest * np.longdouble(info.smallest_subnormal) * _ROUNDINGS
        # An underflow times infinity is NaN, whatever follows.
        vanished = np.isnan(got) & (rest < info.smallest_normal)
        shrunk = {k: _changed(v, _shrinking, 1) for k, v in arguments.items() if k in bound.factors}
        least = np.abs(subject.truth({**arguments, **shrunk})[position])
        vanished |= np.isnan(got) & np.isinf(want) & (least < info.smallest_normal)
    return np.asarray(found | vague | (largest > top / 4) | (lost <= underflow) | vanished)


def _products_overflow(bound: Bound, arguments: Arguments) -> bool:
    """Whether finite factors may have a product that f64 does not hold."""
    factors = [arguments[name] for name in bound.multiplied if arguments.get(name) is not None]
    largest = [size_of(factor.astype(np.longdouble)).max(initial=0) for factor in factors]
    return len(largest) > 1 and bool(np.prod(largest) > np.finfo(np.float64).max)


def _of_rounded_terms(
    subject: Subject, arguments: Arguments, position: int, got: Any, want: Any
) -> np.ndarray[Any, Any]:
    """Where the gradient of what a scan broadcast (factors, an initial value) is not finite because
    a term is not: terms are rounded to the element before they are summed (docs/guarantees.md)."""
    bound, none = bound_of(subject), np.zeros(got.shape, np.bool_)
    given = next((arguments[name] for name in ("dy", "dh") if name in arguments), None)
    scanned = bool(bound.walked) or arguments.get("initial") is not None
    if given is None or not scanned or got.shape == given.shape:
        return none
    axis, borders = arguments.get("axis", -1), arguments.get("offsets")
    steps = given.shape[axis] if given.ndim else 1
    pieces = 1 if borders is None else len(borders) - 1
    factors = bool(bound.walked) and position == 0
    if not factors and steps and got.size >= given.size // steps * pieces:
        return none
    most = np.longdouble(ml_dtypes.finfo(got.dtype).max)
    sizes = bound.scale(subject, arguments)[position]
    return np.asarray(~np.isfinite(got) & ((sizes > most / 2) | ~np.isfinite(want)))


def _leaves_squares(values: Any) -> bool:
    """Whether squares of these, or of their differences, may overflow or vanish in f64."""
    sizes = np.abs(values[np.isfinite(values)])
    some = sizes[sizes > 0]
    return bool(some.size and (some.max() > 1e150 or some.min() < 1e-140))


def _growth(values: Any) -> Any:
    return np.maximum(np.abs(values), 1)


def _shrinking(values: Any) -> Any:
    return np.minimum(np.abs(values), 1)


def _changed(value: Any, part: Callable[[Any], Any], instead: float = 0) -> Any:
    """An argument with something else for its infinities and NaN, then changed."""
    if not _is_floating(value):
        return value
    wide = value.astype(np.longdouble)
    return np.asarray(part(np.where(np.isfinite(wide), wide, instead))).astype(value.dtype)


def _is_floating(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind not in "iub"


@cache
def _bounds(family: str) -> Mapping[str, Bound]:
    """Those of a family, where one ulp is not right for all of its functions."""
    module = f"pullback.ops.{family}.accuracy"
    return import_module(module).BOUNDS if find_spec(module) else {}


def bound_of(subject: Subject) -> Bound:
    return _bounds(subject.family).get(subject.name, _DEFAULT)
