"""How functions are differentiated, once for all frameworks.

Every public function has a `Calculus`, in its family's table `CALCULUS`. It is either a pair of
rules, which call public functions and are therefore differentiable themselves, to any order:

    pull(xp, g, *, ...) -> {argument: its gradient}       g: cotangent of the float result
    push(xp, t, *, ...) -> tangent of the float result    t: tangents of the float arguments, by
                                                          name; zeros where there is none
or the function written out, for the framework to differentiate:

    composed(xp, *, ...) -> what the function returns

The `pull` of a forward function is its fused backward kernel: the fast path. `push` serves forward
mode and, with `composed`, the derivatives of backward functions; a plain gradient runs neither.

After the star a rule names what it wants: arguments of the function, `options` (all those that
are no tensors, by name), `result` (the float result), `shapes` (of all tensor arguments, by name),
`wanted` (the arguments whose gradient is asked for). So its signature also says which tensors must
be kept from forward to backward; `saves` thins that out where it depends on the call, and the rule
may then get None. `records` names options under which the function returns one more result that its
rules need: they find it as `recorded`, the caller does not see it.

`batch(xp, function, size, mapped, arguments)` runs the function on arguments of which those in
`mapped` carry a leading batch axis, and gives results that carry it too; None where nothing but one
by one will do. A function with an axis needs no such rule: a batch is one more axis. `axes` says
which axes are independent of each other (ops/axes.py); those with an axis need none here either.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pullback.plan.function import axis_of

Array = Any
Options = dict[str, Any]
Shape = tuple[int, ...]
Tangents = dict[str, Array]


class Arrays(Protocol):
    """The few array operations rules need beyond operators, slices, `.shape` and `.reshape`.

    All are differentiable in the framework that provides them, but for those about integers and
    for `constant`, which stops the gradient."""

    def exp(self, x: Array) -> Array: ...
    def expm1(self, x: Array) -> Array: ...
    def log(self, x: Array) -> Array: ...
    def sqrt(self, x: Array) -> Array: ...
    def where(self, condition: Array, x: Array | float, y: Array | float) -> Array: ...
    def sum(self, x: Array, axis: int | tuple[int, ...], keepdims: bool) -> Array: ...
    def full_like(self, x: Array, value: float) -> Array: ...
    def broadcast_to(self, x: Array, shape: Shape) -> Array: ...
    def concatenate(self, arrays: list[Array], axis: int) -> Array: ...
    def moveaxis(self, x: Array, source: int, target: int) -> Array: ...
    def take(self, x: Array, indices: Array, axis: int) -> Array: ...
    def take_along_axis(self, x: Array, indices: Array, axis: int) -> Array: ...
    def add_along_axis(self, x: Array, indices: Array, axis: int) -> Array: ...  # its adjoint
    def arange(self, n: int, like: Array) -> Array: ...  # on its device
    def pieces(self, offsets: Array, n: int) -> Array: ...  # of each position the piece it is in
    def argsort(self, x: Array) -> Array: ...  # stable
    def ids(self, segment_ids: Any) -> Array: ...  # as an array, of a SegmentIndex too
    def constant(self, x: Array) -> Array: ...
    # `value`, which is function(x): differentiated as that
    def linked(self, value: Array, function: Callable[[Array], Array], x: Array) -> Array: ...


@dataclass(frozen=True, slots=True)
class Calculus:
    """Two rules, or the function written out; and how a whole batch of it is run."""

    pull: Callable[..., Mapping[str, Array]] | None = None
    push: Callable[..., Array] | None = None
    composed: Callable[..., Any] | None = None
    saves: Callable[[Mapping[str, Any]], frozenset[str]] | None = None
    records: Callable[[Mapping[str, Any]], Options] | None = None
    batch: Callable[..., Any] | None = None
    axes: Callable[..., Any] | None = None


def batched(
    xp: Arrays, function: Any, size: int, mapped: frozenset[str], arguments: Mapping[str, Any]
) -> Any:
    """The results of a whole batch, the batch axis leading; None if it has to be taken apart."""
    rule = function.calculus.batch or (_one_more_axis if "axis" in function.parameters else None)
    return rule and rule(xp, function, size, mapped, dict(arguments))


def _one_more_axis(
    xp: Arrays, function: Any, size: int, mapped: frozenset[str], arguments: dict[str, Any]
) -> Any:
    tensors = all_mapped(xp, function, size, mapped, arguments)
    rank = len(next(iter(tensors.values())).shape) - 1
    axis = axis_of(function.name, arguments["axis"], rank) + 1
    if not rank:
        tensors = {name: x.reshape(size, 1) for name, x in tensors.items()}
    results = function(**{**arguments, **tensors, "axis": axis})
    return results if rank else each(results, lambda x: x.reshape(size))


def all_mapped(
    xp: Arrays, function: Any, size: int, mapped: frozenset[str], arguments: Mapping[str, Any]
) -> dict[str, Array]:
    """All tensors, those without a batch axis repeated along one."""
    tensors = {n: x for n in function.tensors if hasattr(x := arguments[n], "shape")}
    return {
        name: x if name in mapped else xp.broadcast_to(x, (size, *x.shape))
        for name, x in tensors.items()
    }


def each(results: Any, change: Callable[[Array], Array]) -> Any:
    """One result or several, each of them changed."""
    return tuple(map(change, results)) if isinstance(results, tuple) else change(results)


def asked(rule: Callable[..., Any]) -> tuple[str, ...]:
    """The names a rule asks for: its keyword-only parameters."""
    found = _ASKED.get(rule)
    if found is None:
        parameters = inspect.signature(rule).parameters.values()
        names = tuple(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)
        found = _ASKED[rule] = names
    return found


_ASKED: dict[Callable[..., Any], tuple[str, ...]] = {}


def linear(forward: Any, backward: Any, argument: str, cotangent: str) -> dict[str, Calculus]:
    """Two functions of one array, the same options, and no other tensors: each is the adjoint of
    the other, and its own derivative."""

    def rules(this: Any, other: Any, mine: str) -> Calculus:
        def pull(xp: Arrays, g: Array, *, options: Options) -> Tangents:
            return {mine: other(g, **options)}

        def push(xp: Arrays, t: Tangents, *, options: Options) -> Array:
            return this(t[mine], **options)

        return Calculus(pull, push)

    return {
        forward.name: rules(forward, backward, argument),
        backward.name: rules(backward, forward, cotangent),
    }


# --- along an axis ------------------------------------------------------------------------------


def previous(xp: Arrays, x: Array, axis: int, reverse: bool, first: float) -> Array:
    """Each element's predecessor in the order of the scan; `first` where there is none."""
    if not x.shape:
        return xp.full_like(x, first)
    axis %= len(x.shape)
    before = (slice(None),) * axis
    edge = xp.full_like(x[(*before, slice(0, 1))], first)
    if reverse:
        return xp.concatenate([x[(*before, slice(1, None))], edge], axis)
    return xp.concatenate([edge, x[(*before, slice(0, -1))]], axis)


def following(xp: Arrays, x: Array, axis: int, reverse: bool, last: float) -> Array:
    """Each element's successor in the order of the scan; `last` where there is none."""
    return previous(xp, x, axis, not reverse, last)


def total(xp: Arrays, x: Array, axis: int) -> Array:
    """Sum along an axis that is kept; rank 0 is a row of one."""
    return xp.sum(x, axis, True) if x.shape else x


def sum_to(xp: Arrays, x: Array, shape: Shape) -> Array:
    """The adjoint of broadcasting `shape` to the shape of x."""
    added = len(x.shape) - len(shape)
    stretched = [
        added + axis
        for axis, extent in enumerate(shape)
        if extent == 1 and x.shape[added + axis] != 1
    ]
    axes = (*range(added), *stretched)
    return xp.sum(x, axes, True).reshape(shape) if axes else x
