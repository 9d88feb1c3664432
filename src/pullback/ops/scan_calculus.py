"""What the derivatives of scans share: the order of a scan, with its pieces and its initial value.

Rules speak of S[j], what was scanned before step j: an exclusive scan gives S[j], an inclusive one
S[j+1]. Steps, first and last are those of the scan, whatever its direction, in each piece.
"""

from __future__ import annotations

from typing import Any

from pullback.ops.axes import Rule, along_axis
from pullback.ops.calculus import Array, Arrays, Options, all_mapped, previous, sum_to
from pullback.plan.function import axis_of

PIECEWISE = ("initial", "offsets")


class Order:
    """The steps of one call. `like` has the scanned shape."""

    def __init__(
        self,
        xp: Arrays,
        like: Array,
        axis: int,
        reverse: bool,
        exclusive: bool = False,
        initial: Array | None = None,
        offsets: Array | None = None,
    ) -> None:
        self.xp, self.shape, self.reverse, self.exclusive = (
            xp,
            tuple(like.shape),
            reverse,
            exclusive,
        )
        self.rank = len(self.shape)
        self.axis = axis % max(self.rank, 1)
        self.steps = self.shape[self.axis] if self.rank else 1
        self.initial, self.offsets = initial, offsets
        self.ids = None if offsets is None else xp.pieces(offsets, self.steps)

    # --- where pieces begin ------------------------------------------------------------------

    def _edge(self, first: bool) -> Array:
        """Which steps are the first or the last of their piece."""
        assert self.ids is not None
        at = self.xp.arange(self.steps, self.ids)
        if first != self.reverse:
            found = at == self.xp.take(self.offsets, self.ids, 0)
        else:
            found = at == self.xp.take(self.offsets, self.ids + 1, 0) - 1
        return found.reshape((1,) * self.axis + (self.steps,) + (1,) * (self.rank - 1 - self.axis))

    def _full(self, value: Array) -> Array:
        """An initial value for each piece."""
        pieces = () if self.offsets is None else (self.offsets.shape[0] - 1,)
        shape = (*self.shape[: self.axis], *pieces, *self.shape[self.axis + 1 :])
        return self.xp.broadcast_to(value, shape)

    def of_pieces(self, value: Array) -> Array:
        """For each step the initial value of its piece."""
        full = self._full(value)
        if self.offsets is None:
            shape = (*self.shape[: self.axis], 1, *self.shape[self.axis + 1 :])
            return full.reshape(shape) if self.rank else full
        if not self.rank:
            return self.xp.take(full, self.ids, 0).reshape(())
        return self.xp.take(full, self.ids, self.axis)

    # --- neighbours --------------------------------------------------------------------------

    def before(self, values: Array, identity: float) -> Array:
        """Of each step the value of the one before it; of the first the initial value, or else the
        identity."""
        if not self.rank or (self.initial is None and self.offsets is None):
            found = previous(self.xp, values, self.axis, self.reverse, identity)
            if self.initial is None:
                return found
            return self.xp.broadcast_to(self.of_pieces(self.initial), self.shape)
        found = previous(self.xp, values, self.axis, self.reverse, 0.0)
        if self.initial is None:
            edge = self.xp.full_like(values, identity)
        else:
            edge = self.of_pieces(self.initial)
        return self.xp.where(self._is_first(values), edge, found)

    def _is_first(self, like: Array) -> Array:
        return self._edge(True) if self.ids is not None else self._at(like, not self.reverse)

    def _is_last(self, like: Array) -> Array:
        return self._edge(False) if self.ids is not None else self._at(like, self.reverse)

    def _at(self, like: Array, begin: bool) -> Array:
        """Which step is at the begin of the axis, or at its end."""
        found = self.xp.arange(self.steps, like) == (0 if begin else self.steps - 1)
        return found.reshape((1,) * self.axis + (self.steps,) + (1,) * (self.rank - 1 - self.axis))

    def after(self, values: Array, last: float) -> Array:
        """Of each step the value of the one after it; of the last a constant."""
        found = previous(self.xp, values, self.axis, not self.reverse, last)
        if self.ids is None or not self.rank:
            return found
        return self.xp.where(self._edge(False), self.xp.full_like(values, last), found)

    def entering(self, result: Array, identity: float) -> Array:
        """S[j], from the results; where nothing comes before, the identity, whatever was given."""
        if not self.exclusive:
            return self.before(result, identity)
        if self.initial is not None:
            return result
        first = self.xp.full_like(result, identity)
        return self.xp.where(self._is_first(result), first, result) if self.rank else first

    def started(self, values: Array) -> Array:
        """The values, with the initial one at the first step of each piece."""
        edge = self.of_pieces(self.initial)
        return self.xp.where(self._is_first(values), edge, values) if self.rank else edge

    def following(self, values: Array, last: Array) -> Array:
        """Of each step the value of the one after it; of the last that of another array."""
        if not self.rank:
            return last
        found = previous(self.xp, values, self.axis, not self.reverse, 0.0)
        return self.xp.where(self._is_last(values), last, found)

    # --- sums over pieces --------------------------------------------------------------------

    def d_initial(self, first: Array) -> Array:
        """The gradient of the initial value, from what each first step has for it."""
        assert self.initial is not None
        return sum_to(self.xp, self.at_first(first), tuple(self.initial.shape))

    def at_first(self, values: Array) -> Array:
        """What the first step of each piece has; 0 of a piece without steps."""
        if not self.rank:
            values = values.reshape(1)
        if self.offsets is None:
            if self.steps == 0:
                return self.xp.sum(values, self.axis, False)
            at = self.steps - 1 if self.reverse else 0
            return values[(slice(None),) * self.axis + (at,)]
        if self.steps == 0:
            return self._full(self.xp.sum(values, self.axis, True))
        begin, end = self.offsets[:-1], self.offsets[1:]
        some = end > begin
        at = self.xp.where(some, end - 1 if self.reverse else begin, 0)
        found = self.xp.take(values, at, self.axis)
        shape = (1,) * self.axis + tuple(some.shape) + (1,) * (max(self.rank, 1) - 1 - self.axis)
        return self.xp.where(some.reshape(shape), found, 0.0)


def order_of(xp: Arrays, like: Array, options: Options, initial: Any, offsets: Any) -> Order:
    known = {name: options[name] for name in ("axis", "reverse", "exclusive") if name in options}
    return Order(xp, like, initial=initial, offsets=offsets, **known)


def scan_axes(*results: str) -> Rule:
    """Which axes of a scan are free, and of its gradients; results as in `along_axis`."""
    return along_axis("scan", results, beside=("initial",))


def batch(
    xp: Arrays, function: Any, size: int, mapped: frozenset[str], arguments: dict[str, Any]
) -> Any:
    """A batch is one more axis, unless each member has borders of its own. An initial value or a
    factor of lower rank gets axes of one behind that of the batch."""
    if "offsets" in mapped:
        return None
    offsets = arguments.get("offsets")
    tensors = all_mapped(xp, function, size, mapped, {**arguments, "offsets": None})
    rank = max(len(x.shape) for n, x in tensors.items() if n != "initial") - 1
    axis = axis_of(function.name, arguments["axis"], rank) + 1
    shapes = {name: tuple(x.shape[1:]) for name, x in tensors.items()}
    for name, x in tensors.items():
        wanted = rank - (name == "initial") + (name == "initial" and offsets is not None)
        wanted = max(wanted, 1 if name != "initial" else int(offsets is not None))
        missing = wanted - len(shapes[name])
        tensors[name] = x.reshape((size, *(1,) * missing, *shapes[name]))
    results = function(**{**arguments, **tensors, "axis": axis})
    found = results if isinstance(results, tuple) else (results,)
    goals = _shapes_of_results(function, found, shapes, arguments)
    found = tuple(r.reshape((size, *shape)) for r, shape in zip(found, goals, strict=True))
    return found if isinstance(results, tuple) else found[0]


def _shapes_of_results(
    function: Any, found: tuple[Array, ...], shapes: dict[str, tuple[int, ...]], arguments: Any
) -> list[tuple[int, ...]]:
    """Each result has the shape of a tensor: gradients that of what they are for."""
    main = next(s for n, s in shapes.items() if n in ("b", "dh", "x", "dy"))
    goals = [main] * len(found)
    if function.name.endswith("_backward"):
        if "a" in shapes:
            goals[0] = shapes["a"]
        if "initial" in shapes:
            goals[-1] = shapes["initial"]
    return goals
