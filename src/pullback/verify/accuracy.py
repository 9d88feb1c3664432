"""How far a result may be from the truth, in ulp, and of what.

A sum is as exact as its terms allow: where terms cancel, the ulp is taken at the size of the terms.
A scale gives that size for each result; it is never smaller than the result itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from pullback.contract.element import ElementKind
from pullback.ops.segment.oracle import groups
from pullback.verify.subject import Arguments, Subject

Scale = Callable[[Subject, Arguments], tuple[Any, ...]]
_OF: dict[Scale, tuple[str, ...]] = {}  # the terms of a scale
_NO_WIDER = 16
_ROUNDINGS = 64  # of subnormal products that may come together
_RESULTS = 3  # at most this many arrays are returned


def result(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
    """The result itself."""
    return (0.0,) * _RESULTS


def one(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
    """At least one: probabilities, and logarithms near zero."""
    return (1.0,) * _RESULTS


def _size(value: Any) -> Any:
    return np.where(np.isfinite(value), np.abs(value), 0)


def terms(*names: str, negated: tuple[str, ...] = ()) -> Scale:
    """What the oracle says of absolute values: nothing cancels there."""

    def scale(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
        sizes = {k: np.abs(v) for k, v in arguments.items() if k in names}
        sizes.update({k: -np.abs(v) for k, v in arguments.items() if k in negated})
        return tuple(_size(truth) for truth in subject.truth({**arguments, **sizes}))

    _OF[scale] = (*names, *negated)
    return scale


def largest(name: str, keepdims: bool = True) -> Scale:
    """The largest finite magnitude of an argument along the axis, which stays or goes."""

    def scale(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
        values = _size(np.asarray(arguments[name], np.longdouble))
        if values.ndim:
            values = values.max(axis=arguments.get("axis", -1), keepdims=keepdims, initial=0)
        return (values,) * _RESULTS

    return scale


def _steepness(subject: Subject, arguments: Arguments, position: int) -> Any:
    """Of probabilities: one, and for alpha > 2 what a change before the root becomes, p^(2-alpha),
    or at the edge of the support that of a rounding error."""
    b = np.asarray(arguments.get("alpha", 1), np.longdouble) - 1
    if np.max(b, initial=0) <= 1:
        return 1.0
    with np.errstate(all="ignore"):
        p = subject.truth(arguments)[position]
        most = np.longdouble(2) ** (52 * (1 - 1 / np.maximum(b, 1)))
        return np.where((b > 1) & ~np.isnan(p), np.clip(p ** (1 - b), 1, most), 1)


def of_map(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
    return (_steepness(subject, arguments, 0),) * _RESULTS


def of_losses(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
    """Of the loss of a row the largest x in it, or one; of a probability as above."""
    rows = np.maximum(largest("x", keepdims=False)(subject, arguments)[0], 1)
    kept = arguments.get("return_probabilities")
    return rows, _steepness(subject, arguments, 1) if kept else 1.0, 1.0


def of_rows(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
    """Of a gradient the largest dy in its row, of what is summed over all that for each."""
    rows = largest("dy")(subject, arguments)[0]
    return rows, np.max(rows, initial=0) * max(np.size(arguments["dy"]), 1), 0.0


def largest_in_segment(name: str) -> Scale:
    """The largest finite magnitude of an argument within the segment of a row."""

    def scale(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
        axis = arguments.get("axis", 0)
        rows = np.moveaxis(_size(np.asarray(arguments[name], np.longdouble)), axis, 0)
        found = np.zeros_like(rows)
        ids, borders = arguments.get("segment_ids"), arguments.get("offsets")
        for group in groups(ids, arguments.get("num_segments"), borders, "skip"):
            found[group] = rows[group].max(axis=0, initial=0)
        return (np.moveaxis(found, 0, axis),) * _RESULTS

    return scale


def largest_slope(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
    """The largest finite result within the segment of a row: of rows near the mean, little is left
    of what they have in common."""
    truth = subject.truth(arguments)[0]
    return largest_in_segment("dx")(subject, {**_with_segments(arguments), "dx": truth})


def _with_segments(arguments: Arguments) -> Arguments:
    count = arguments["dy"].shape[arguments.get("axis", 0)]
    return {**arguments, "num_segments": count}


@dataclass(frozen=True)
class Bound:
    """At most `ulps` at the size that `scale` gives. `factors` are arguments that are multiplied in
    the accumulator, one after the other: what leaves its range on the way is not held to it. The
    argument `weighted` is multiplied by weights one after the other, some large, some that vanish:
    where it is infinite, or its sizes add up to nearly all its element can hold, infinities and NaN
    are not told apart, and what weights below the least number of the element would have added is
    not missed. `divided`: the result is a sum divided by a count, and only the sum has to fit.
    `any_sum`: sums hold all there is, and nothing of that is excused. `zeroed`: +inf in
    this argument makes the weight of others 0; times an infinite gradient that is NaN by IEEE 754,
    or infinite, as the limit of large numbers is. `squared` is an argument whose differences are
    squared in the accumulator: where that takes them out of its range, nothing is held."""

    ulps: float = 1.0
    scale: Scale = result
    factors: tuple[str, ...] = ()
    weighted: str = ""
    divided: bool = False
    squared: str = ""
    any_sum: bool = False
    zeroed: str = ""

    def limit(self, array: Any) -> float:
        """Where the accumulator is no wider than the result, roundings add up along the axis."""
        element = ElementKind.of(array)
        return self.ulps * (_NO_WIDER if element.accumulator is element else 1)


BOUNDS: dict[str, Bound] = {
    "cumsum": Bound(1, terms("x", "initial")),
    "cumsum_backward": Bound(1, terms("dy")),
    "cumprod": Bound(4, factors=("x", "initial")),
    "cumprod_backward": Bound(
        4, terms("dy", "x", "y", "initial"), factors=("dy", "x", "y", "initial")
    ),
    "cummax_backward": Bound(1, terms("dy")),
    "cummin_backward": Bound(1, terms("dy")),
    "logcumsumexp": Bound(2, one),
    "logcumsumexp_backward": Bound(4, terms("dy"), any_sum=True, zeroed="x"),
    "lerp": Bound(3, terms("a", negated=("b", "weight")), any_sum=True),
    "lerp_backward": Bound(2, terms("dy", "a", negated=("b", "weight")), any_sum=True),
    "softmax": Bound(4),
    "log_softmax": Bound(2, largest("x")),
    "sparsemax": Bound(2, one),
    "entmax15": Bound(3, one),
    "softmax_backward": Bound(3, largest("dy"), weighted="dy"),
    "log_softmax_backward": Bound(3, largest("dy"), weighted="dy"),
    "sparsemax_backward": Bound(3, largest("dy"), weighted="dy"),
    "entmax15_backward": Bound(3, largest("dy"), weighted="dy"),
    "entmax": Bound(3, of_map),
    "entmax_backward": Bound(4, of_rows, weighted="dy"),
    **dict.fromkeys(
        ("softmax_loss", "entmax15_loss", "sparsemax_loss", "entmax_loss"),
        Bound(2, of_losses, divided=True),
    ),
    "segment_sum": Bound(1, terms("x"), any_sum=True),
    "segment_mean": Bound(2, terms("x"), any_sum=True),
    "segment_prod": Bound(4),
    "segment_prod_backward": Bound(4),
    "segment_softmax": Bound(4),
    "segment_log_softmax": Bound(2, largest_in_segment("x")),
    "segment_softmax_backward": Bound(3, largest_in_segment("dy"), weighted="dy"),
    "segment_log_softmax_backward": Bound(3, largest_in_segment("dy"), weighted="dy"),
    "segment_logsumexp": Bound(2, one),
    "segment_logsumexp_backward": Bound(4, weighted="dy"),
    "gather_segment_reduce": Bound(2, terms("x", "weights"), divided=True),
    "gather_segment_reduce_backward": Bound(2, terms("dy", "weights"), divided=True),
    "gather_segment_reduce_weights_backward": Bound(2, terms("dy", "x"), any_sum=True),
    "segment_var": Bound(2, weighted="x", squared="x"),
    "segment_std": Bound(2, weighted="x", squared="x"),
    "segment_var_backward": Bound(4, largest_slope, weighted="x", squared="x"),
    "segment_std_backward": Bound(4, largest_slope, weighted="x", squared="x"),
    "embedding_backward": Bound(2, terms("dout", "accumulate_into"), any_sum=True),
    "embedding_bag": Bound(2, terms("weight", "per_sample_weights"), any_sum=True),
    "embedding_bag_backward": Bound(
        2, terms("dout", "per_sample_weights", "accumulate_into"), divided=True
    ),
    "embedding_bag_per_sample_weights_backward": Bound(2, terms("dout", "weight"), any_sum=True),
    "linear_scan": Bound(4, terms("a", "b", "initial"), factors=("a", "b", "initial")),
    "discounted_sum": Bound(
        4, terms("x", "discount", "initial"), factors=("x", "discount", "initial")
    ),
    "linear_scan_backward": Bound(
        4, terms("dh", "a", "h", "initial"), factors=("dh", "a", "h", "initial")
    ),
}
_DEFAULT = Bound()


def excused(
    subject: Subject, arguments: Arguments, position: int, got: Any, want: Any
) -> np.ndarray[Any, Any]:
    """Where a result went through numbers that its accumulator does not hold, so that the order of
    operations decides: finite terms whose sizes add up to more than it can hold, or factors whose
    product does; and what products lost by underflow, times all that could have magnified it."""
    bound = bound_of(subject)
    element = next(ElementKind.of(v) for v in arguments.values() if _is_floating(v))
    if bound.any_sum:
        endless = bool(bound.zeroed) and bool(np.isposinf(arguments[bound.zeroed]).any())
        return np.asarray(endless & ~np.isfinite(got) & ~np.isfinite(want))
    info = ml_dtypes.finfo(element.accumulator.dtype)
    top = np.longdouble(info.max)
    terms_of = _OF.get(bound.scale, tuple(arguments))
    finite = {k: _changed(v, np.asarray) if k in terms_of else v for k, v in arguments.items()}
    vague = np.zeros(got.shape, np.bool_)
    if bound.weighted:
        sizes = np.abs(arguments[bound.weighted].astype(np.longdouble))
        if not np.isfinite(sizes).all():
            vague |= ~np.isfinite(got) & ~np.isfinite(want)
        own = ml_dtypes.finfo(element.dtype)
        some = np.where(np.isfinite(sizes), sizes, 0)
        if some.sum() > np.longdouble(own.max) / 64:
            vague |= ~np.isfinite(got)
        least = np.longdouble(own.smallest_subnormal) * some.max(initial=0)
        with np.errstate(all="ignore"):
            vague |= np.abs(got.astype(np.longdouble) - want) <= least * _ROUNDINGS
    if bound.squared and element is ElementKind.F64:
        vague |= _leaves_squares(arguments[bound.squared])
    with np.errstate(all="ignore"):
        sizes, sums = bound.scale(subject, finite)[position], subject.truth(finite)[position]
        if bound.divided:
            count = max(v.size for v in arguments.values() if isinstance(v, np.ndarray))
            near = (np.abs(want) <= top) & (sizes * count > top / 4)
            vague |= near & ~np.isfinite(got)
            sizes, sums = sizes * count, sums * count
        # Terms of one sign overflow to their infinity or fit, whatever the order.
        larger, smaller = (sizes + np.abs(sums)) / 2, (sizes - np.abs(sums)) / 2
        sure = np.where(np.abs(sums) > top, smaller < top / 4, smaller <= 1e-9 * larger)
        found = (larger > top / 2) & (~sure | (np.sign(sums) != np.sign(want)))
        if not bound.factors:
            return np.asarray(found | vague)
        grown = {k: _changed(v, _growth) for k, v in arguments.items() if k in bound.factors}
        tamed = {k: _changed(v, np.asarray, 1) for k, v in arguments.items() if k in bound.factors}
        largest, rest = (
            np.abs(subject.truth({**arguments, **factors})[position]) for factors in (grown, tamed)
        )
        lost = np.abs(got.astype(np.longdouble) - want)
        underflow = largest * np.longdouble(info.smallest_subnormal) * _ROUNDINGS
        # An underflow times infinity is NaN.
        vanished = np.isnan(got) & (rest < info.smallest_normal)
    return np.asarray(found | vague | (largest > top / 4) | (lost <= underflow) | vanished)


def _leaves_squares(values: Any) -> bool:
    """Whether squares of these, or of their differences, may overflow or vanish in f64."""
    sizes = np.abs(values[np.isfinite(values)])
    some = sizes[sizes > 0]
    return bool(some.size and (some.max() > 1e150 or some.min() < 1e-140))


def _growth(values: Any) -> Any:
    return np.maximum(np.abs(values), 1)


def _changed(value: Any, part: Callable[[Any], Any], instead: float = 0) -> Any:
    """An argument with something else for its infinities and NaN, then changed."""
    if not _is_floating(value):
        return value
    wide = value.astype(np.longdouble)
    return np.asarray(part(np.where(np.isfinite(wide), wide, instead))).astype(value.dtype)


def _is_floating(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind not in "iub"


def bound_of(subject: Subject) -> Bound:
    return BOUNDS.get(subject.name, _DEFAULT)
