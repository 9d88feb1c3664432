"""Plain functions over plans: a typed signature whose body says which plan answers it.

The body of a function receives tensor views and options, and returns a `Call`: the plan class, the
descriptor, the tensors by slot name, and which slots are the result. Everything else (array
families, allocation, `out=`, caching, gradients) is the same for all functions.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field
from enum import Enum
from functools import cache, update_wrapper
from typing import Any, TypeVar

import numpy as np

from pullback.contract.element import FLOATS, INDICES, cast_of, describe, kind_of_dtype
from pullback.contract.errors import InvalidProblem, PullbackError, Unsupported
from pullback.contract.imports import resolve
from pullback.contract.naming import missing, unexpected
from pullback.contract.once import once
from pullback.contract.record import check_number, is_index, is_number
from pullback.plan.plan import Plan
from pullback.plan.public import LOADED, make_wrapper
from pullback.plan.stream import Stream
from pullback.tensor.adapters import family_of, overrides
from pullback.tensor.view import TensorRef, TensorSpec

E = TypeVar("E", bound=Enum)

# What a body sees of an array argument: floats, or ids. Front ends that trace pass views without
# memory. The annotation of a parameter is what makes it a tensor.
Tensor = TensorRef
Indices = TensorRef
Number = TensorRef  # a number in place of a tensor becomes one, of rank 0


def _numpy() -> Any:
    return resolve("pullback.frontends.numpy:call")


def _torch() -> Any:
    return resolve("pullback.frontends.torch:call")


def _override() -> Any:
    return resolve("pullback.frontends.torch_library:override")


def _jax() -> Any:
    return resolve("pullback.frontends.jax:call")


FRONT_ENDS = {"numpy": _numpy, "torch": _torch, "jax": _jax, "override": _override}


@contextmanager
def _rename_errors(op: str) -> Iterator[None]:
    try:
        yield
    except PullbackError as error:
        kind, (_, *rest) = error.__reduce__()
        raise kind(op, *rest) from None


@dataclass(frozen=True, slots=True)
class Call:
    """What a function asks of a plan.

    `shapes` names results whose shape the plan sees folded to two dimensions, `axes` the axis that
    it sees first in them. A result that is also among the tensors is that argument, updated in
    place."""

    plan: type[Plan[Any, Any]]
    descriptor: Any
    tensors: Mapping[str, TensorRef | TensorSpec | None]
    returns: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    axes: Mapping[str, int] = field(default_factory=dict)

    def as_slot(self, name: str, result: TensorRef) -> TensorRef:
        """A result as the plan sees it."""
        axis = self.axes.get(name, 0)
        view = result.axis_first(axis) if axis else result
        return view.folded(self.plan.record.slot(name).shape(self.descriptor))

    def as_result(self, name: str, array: Any) -> Any:
        """What a plan wrote, a NumPy array in the shape of its slot, as the function returns it."""
        axis, shape = self.axes.get(name, 0), self.shapes.get(name, array.shape)
        if not axis:
            return array.reshape(shape)
        first = (shape[axis], *shape[:axis], *shape[axis + 1 :])
        return np.moveaxis(array.reshape(first), 0, axis)

    def select(self, op: str, stream: Stream) -> Plan[Any, Any]:
        """The plan; what it finds fault with is said in the name of the function."""
        with _rename_errors(op):
            return self.plan.select(stream, self.descriptor)

    def validate(self, op: str) -> None:
        """The same where no plan will run."""
        with _rename_errors(op):
            self.plan.record.validate(self.descriptor)

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Shape and element of each result."""
        desc = self.descriptor
        slots = (self.plan.record.slot(name) for name in self.returns)
        return tuple(
            TensorSpec(
                self.shapes.get(slot.name, slot.shape(desc)), slot.elements(desc.element)[-1]
            )
            for slot in slots
        )


# The return annotation of a body says how many results its function has, beside the one that an
# option adds: one for Call.
AndInitial = Call  # one, or two where an initial value was given
PairAndInitial = Call  # two, or three there
PairAndWeight = Call  # two, or three where the weight is a tensor and not a number
AndAlpha = Call  # one, or two where alpha is


class Function:
    """A public function of the library, for every array family.

    Ops of one signature share a body: each is made of it with its own name and summary."""

    def __init__(self, body: Callable[..., Call], name: str = "", summary: str = "") -> None:
        body.__name__ = body.__qualname__ = name or body.__name__
        body.__doc__ = summary or body.__doc__
        update_wrapper(self, body)
        self.name = body.__name__
        self.body = body
        self.lookup: Callable[..., Any] = _always_miss  # of its call cache, once it has one
        self.graphed: Any = None  # what torch.compile puts into its graphs, once torch is here
        own = inspect.signature(body)
        out = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None)
        self.binder = own
        self.required_names = {
            n for n, p in own.parameters.items() if p.default is inspect.Parameter.empty
        }
        self.parameters = tuple(own.parameters)
        self.positional = tuple(
            n for n, p in own.parameters.items() if p.kind is not p.KEYWORD_ONLY
        )
        self.defaults = {
            name: parameter.default
            for name, parameter in own.parameters.items()
            if parameter.default is not parameter.empty
        }
        self.__signature__ = own.replace(parameters=[*own.parameters.values(), out])
        # Which parameters are tensors stands in the signature; "Tensor | float" takes numbers too.
        self.tensors = {
            name: "float" in str(parameter.annotation)
            for name, parameter in own.parameters.items()
            if str(parameter.annotation).startswith(("Tensor", "Indices"))
        }
        self.numbers = tuple(
            n for n in self.tensors if "Number" in str(own.parameters[n].annotation)
        )
        self.required = {
            name for name in self.tensors if "None" not in str(own.parameters[name].annotation)
        }
        self.returns = str(own.return_annotation)
        self.indices = {
            name for name in self.tensors if str(own.parameters[name].annotation)[0] == "I"
        }
        # "Tensor | Indices" takes either: what a call gets decides what it means.
        self.either = {
            name for name in self.tensors if "| Indices" in str(own.parameters[name].annotation)
        }

    def __repr__(self) -> str:
        return f"<function pullback.{self.name}>"

    @once
    def calculus(self) -> Any:
        """How this function is differentiated: its family's `calculus.py`, read when first used."""
        family = self.body.__module__.rpartition(".")[0]
        return resolve(f"{family}.calculus:CALCULUS")[self.name]

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.wrapper(*args, **options)

    @once
    def wrapper(self) -> Callable[..., Any]:
        """What the package exports under this name."""
        return make_wrapper(self)

    def dispatch(self, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> Any:
        """A call that the cache misses, and all calls on arrays of other libraries. Options that
        have their default are left out."""
        if self.numbers:
            args, options = self.without_numbers(args, options)
        for value in args:
            call = _BY_TYPE.get(type(value)) or _front_end_of(value)
            if call is not None:
                return call(self, args, options, out)
        return _front_end("numpy")(self, args, options, out)

    def without_numbers(
        self, args: tuple[Any, ...], options: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with arrays for numbers where a tensor is asked for, of the dtype that the
        others have."""
        given = {**dict(zip(self.parameters, args, strict=False)), **options}
        found = {}
        for name in self.numbers:  # most calls have none, and find out without another call
            value = given.get(name)
            if value is not None and is_number(value):
                found[name] = value
        if not found:
            return args, dict(options)
        models = (given[n] for n in self.tensors if n in given and n not in self.indices)
        model = next((v for v in models if hasattr(v, "dtype") and not is_number(v)), None)
        if model is None:
            return args, dict(options)
        for name, value in found.items():
            given[name] = _filled(model, check_number(self.name, name, value))
        return tuple(given[n] for n in self.parameters[: len(args)]), {n: given[n] for n in options}

    def values(self, args: tuple[Any, ...], options: Mapping[str, Any]) -> list[Any]:
        """All arguments in the order of the signature."""
        given = {**self.defaults, **dict(zip(self.parameters, args, strict=False)), **options}
        return [given[name] for name in self.parameters]

    def as_called(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """All arguments by name as `dispatch` is given them."""
        args = tuple([arguments[name] for name in self.positional])
        rest = self.parameters[len(args) :]
        return args, {
            name: arguments[name] for name in rest if not self._is_default(name, arguments)
        }

    def _is_default(self, name: str, arguments: Mapping[str, Any]) -> bool:
        value, default = arguments[name], self.defaults.get(name, inspect.Parameter.empty)
        return value is default or (type(value) is str and value == default)

    def bind(self, args: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments by name; a wrong name or count is one sentence, as a TypeError."""
        count = len(self.positional)
        given = dict(zip(self.positional, args, strict=False))
        unknown = options.keys() - self.parameters
        if args[count:] or unknown or not self.required_names <= given.keys() | options.keys():
            named = {**dict.fromkeys(self.required_names, MISSING), **given, **options}
            self.refuse(args[count:], {n: named.pop(n) for n in unknown}, **named)
        bound = self.binder.bind(*args, **options)
        bound.apply_defaults()
        return bound.arguments

    def refuse(self, extra: tuple[Any, ...], unknown: Mapping[str, Any], **given: Any) -> None:
        """Raise the TypeError of arguments that this function does not take, or lacks."""
        if unknown:
            known = [(name, self.defaults.get(name, MISSING)) for name in self.parameters]
            stated = [name for name, default in known if given.get(name, default) is not default]
            raise unexpected(self.name, unknown, [*self.parameters, "out"], stated)
        if extra:
            count = len(self.positional)
            raise TypeError(
                f"{self.name}: takes {count} arguments by position, got {count + len(extra)}"
            )
        raise missing(self.name, [name for name in given if given[name] is MISSING])

    def completed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with what may be left out and is found in arrays at hand."""
        return arguments

    def planned(self, arguments: dict[str, Any]) -> Call:
        """What a call by all these arguments asks of a plan."""
        call: Call = self.body(**self.views(arguments))
        return call

    def views(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with every array replaced by a view of it, checked to be of one family."""
        views, family = dict(arguments), ""
        for name, value in arguments.items():
            if name not in self.tensors and _is_array(value):
                raise InvalidProblem(
                    self.name, name, "a value, not an array (.item() reads it)", describe(value)
                )
        for name, takes_numbers in self.tensors.items():
            value = arguments.get(name)
            if value is None and name in self.required:
                raise InvalidProblem(self.name, name, "given", "None")
            if value is None or (takes_numbers and is_number(value)):
                continue
            if getattr(value, "bundle", None) is not None:
                continue
            self._check_element(name, value)
            view = views[name] = TensorRef(value, op=self.name, argument=name)
            view.origin = (name, None)
            if family and view.family != family:
                raise Unsupported(self.name, name, f"a {family} array, as the others", view.family)
            family = view.family
        return views

    def _check_element(self, name: str, value: Any) -> None:
        holds, cast = (INDICES, "int64") if name in self.indices else (FLOATS, "float32")
        if name in self.either:
            holds = (*FLOATS, *INDICES)
        dtype = getattr(value, "dtype", None)
        if dtype is not None and kind_of_dtype(dtype) not in holds:
            names = ", ".join(kind.row.long_name for kind in holds)
            expected = f"of {names} ({cast_of(value, name, cast)})"
            raise Unsupported(self.name, name, expected, describe(value))


def _always_miss(*args: Any, **options: Any) -> None:
    """The lookup of a function that has no call cache yet."""


def _filled(like: Any, value: Any) -> Any:
    """A number as an array of rank 0, of the library, dtype and device of another."""
    adapter = family_of(like)
    family = adapter.family if adapter else ""
    if family == "torch":
        return like.new_full((), value)
    if family == "jax":
        return resolve("jax.numpy:full")((), value, like.dtype)
    return np.full((), value, like.dtype)


def _is_array(value: Any) -> bool:
    return family_of(value) is not None and not isinstance(value, np.generic)


_BY_TYPE: dict[type, Callable[..., Any]] = {}


def _front_end_of(value: Any) -> Callable[..., Any] | None:
    """Who answers calls on such an array; None if it is none."""
    adapter = family_of(value)
    if adapter is None and not overrides(value):
        return None
    LOADED.torch = sys.modules.get("torch")
    call = _BY_TYPE[type(value)] = _front_end(adapter.family if adapter else "override")
    return call


@cache
def _front_end(family: str) -> Callable[..., Any]:
    call: Callable[..., Any] = FRONT_ENDS[family]()
    return call


# --- what bodies share --------------------------------------------------------------------------


def axis_of(op: str, axis: Any, rank: int) -> int:
    """A non-negative axis; rank 0 is a row of one and takes 0 and -1."""
    extent = max(rank, 1)
    if not is_index(axis) or not -extent <= axis < extent:
        raise InvalidProblem(op, "axis", f"an integer in [{-extent}, {extent})", repr(axis))
    return int(axis) % extent


def pieces_of(op: str, offsets: TensorRef | None) -> int | None:
    """How many pieces such borders make; None where there are no borders."""
    if offsets is None:
        return None
    if len(offsets.shape) != 1 or offsets.shape[0] < 1:
        expected = "1-D, with one border more than there are pieces"
        raise InvalidProblem(op, "offsets", expected, f"shape {offsets.shape}")
    return offsets.shape[0] - 1


def option(op: str, argument: str, value: Any, kind: type[E]) -> E:
    """An option given as the enum's member or as its string."""
    if isinstance(value, kind):
        return value
    if isinstance(value, str):
        for member in kind:
            if member.value == value:
                return member
    names = ", ".join(repr(member.value) for member in kind)
    raise InvalidProblem(op, argument, f"one of {names}", repr(value))
