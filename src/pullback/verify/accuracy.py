"""How far a result may be from the truth, in ulp, and of what.

A sum is as exact as its terms allow: where terms cancel, the ulp is taken at the size of the terms.
A scale gives that size for each result; it is never smaller than the result itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.contract.element import ElementKind
from pullback.verify.subject import Arguments, Subject

Scale = Callable[[Subject, Arguments], tuple[Any, ...]]
_NO_WIDER = 16
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

    return scale


def largest(name: str) -> Scale:
    """The largest finite magnitude of an argument along the axis."""

    def scale(subject: Subject, arguments: Arguments) -> tuple[Any, ...]:
        values = _size(np.asarray(arguments[name], np.longdouble))
        if values.ndim:
            values = values.max(axis=arguments.get("axis", -1), keepdims=True, initial=0)
        return (values,) * _RESULTS

    return scale


@dataclass(frozen=True)
class Bound:
    """At most `ulps` at the size that `scale` gives."""

    ulps: float = 1.0
    scale: Scale = result

    def limit(self, array: Any) -> float:
        """Where the accumulator is no wider than the result, roundings add up along the axis."""
        element = ElementKind.of(array)
        return self.ulps * (_NO_WIDER if element.accumulator is element else 1)


BOUNDS: dict[str, Bound] = {
    "cumsum": Bound(1, terms("x")),
    "cumsum_backward": Bound(1, terms("dy")),
    "cumprod": Bound(4),
    "cumprod_backward": Bound(4, terms("dy", "x", "y")),
    "cummax_backward": Bound(1, terms("dy")),
    "cummin_backward": Bound(1, terms("dy")),
    "logcumsumexp": Bound(2, one),
    "logcumsumexp_backward": Bound(4, terms("dy")),
    "lerp": Bound(3, terms("a", negated=("b", "weight"))),
    "lerp_backward": Bound(2, terms("dy", "a", negated=("b", "weight"))),
    "softmax": Bound(4),
    "log_softmax": Bound(2, largest("x")),
    "sparsemax": Bound(2, one),
    "entmax15": Bound(3, one),
    "softmax_backward": Bound(3, largest("dy")),
    "log_softmax_backward": Bound(3, largest("dy")),
    "sparsemax_backward": Bound(3, largest("dy")),
    "entmax15_backward": Bound(3, largest("dy")),
    "segment_sum": Bound(1, terms("x")),
    "segment_mean": Bound(2, terms("x")),
    "segment_prod": Bound(4),
    "segment_prod_backward": Bound(4),
    "embedding_backward": Bound(2, terms("dout")),
    "embedding_bag": Bound(2, terms("weight", "per_sample_weights")),
    "embedding_bag_backward": Bound(2, terms("dout", "per_sample_weights")),
    "embedding_bag_per_sample_weights_backward": Bound(2, terms("dout", "weight")),
    "linear_scan": Bound(4, terms("a", "b")),
    "linear_scan_backward": Bound(4, terms("dh", "a", "h")),
}
_DEFAULT = Bound()


def leaves_f64(subject: Subject, arguments: Arguments) -> bool:
    """Whether a product of these factors passes through numbers that f64 has not: what follows an
    overflow there is not a question of accuracy."""
    if "prod" not in subject.name:
        return False
    with np.errstate(all="ignore"):
        exponents = np.log10(np.abs(np.asarray(arguments["x"], np.longdouble)))
    growth = np.where(np.isfinite(exponents), np.maximum(exponents, 0), 0)
    return bool(growth.sum() > 290)


def bound_of(subject: Subject) -> Bound:
    return BOUNDS.get(subject.name, _DEFAULT)
