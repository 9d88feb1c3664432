"""What is measured: inputs of a given size and nature, for the ops of a family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from pullback.bench.problem import Array, Problem, Take
from pullback.contract.element import ElementKind
from pullback.verify.subject import Arguments, Subject, subjects

if TYPE_CHECKING:
    from pullback.bench.figures import Figure

F16, BF16, F32, F64 = ElementKind.F16, ElementKind.BF16, ElementKind.F32, ElementKind.F64
BOTH = ("forward", "backward")
# The tag of sizes from a kilobyte to a megabyte.
SMALL = frozenset({"small"})


@cache
def _bank() -> Array:
    return np.random.default_rng(20).standard_normal(1 << 22)


class Draw:
    """Random arrays in one element. Repeatable; large ones repeat a bank of four million numbers.

    `blank` draws arrays of the same layout without touching their memory, for compiling ahead."""

    def __init__(self, element: ElementKind, *, blank: bool = False) -> None:
        self.element, self.blank, self._drawn = element, blank, 0
        self.rng = np.random.default_rng(7)

    def normal(self, *shape: int) -> Array:
        if self.blank:
            return np.zeros(shape, self.element.dtype)
        self._drawn += 1
        start = self._drawn * 1_000_003 % (len(_bank()) // 2)
        return np.resize(_bank()[start:], shape).astype(self.element.dtype)

    def near_one(self, *shape: int) -> Array:
        """Products of these stay within the range of every element."""
        if self.blank:
            return self.normal(*shape)
        wide = 1 + 0.01 * self.normal(*shape).astype(np.float32)
        return wide.astype(self.element.dtype)

    def of(self, values: Array) -> Array:
        """These values in rows; of a broadcast array NumPy would make columns."""
        return values.astype(self.element.dtype, order="C")


Make = Callable[[Draw, str], Arguments]


@dataclass(frozen=True)
class Workload:
    """`make(draw, op)` gives the arguments of the forward function, by name.

    `options` go to pullback alone, `backward_options` to its backward. `take` cuts out a part the
    oracle answers for all; None where no part stands alone. `wrt` names the arguments whose
    gradients the backward gives. `prepare` makes an index ahead of the timed calls. `peers` limits
    who competes: some take longer to compile than everybody to run."""

    name: str
    ops: tuple[str, ...]
    make: Make
    take: Take | None = None
    elements: tuple[ElementKind, ...] = (F32,)
    directions: tuple[str, ...] = BOTH
    options: Mapping[str, Any] = field(default_factory=dict)
    backward_options: Mapping[str, Any] = field(default_factory=dict)
    wrt: tuple[str, ...] = ("x",)
    prepare: Callable[[Arguments], Arguments] | None = None
    gathers: tuple[str, str] | None = None
    peers: tuple[str, ...] | None = None
    tags: frozenset[str] = frozenset()

    def forward(self, op: str, draw: Draw) -> Problem:
        arguments = {**self.make(draw, op), **self.options}
        return self._problem(subjects()[op], arguments)

    def backward(self, op: str, draw: Draw, forward: Problem, saved: Mapping[str, Any]) -> Problem:
        """The gradient of `forward`, whose results are given by name."""
        subject = subjects()[f"{op}_backward"]
        names = subject.function.parameters
        known = {**forward.arguments, **self.backward_options, **saved}
        if getattr(known.get("weight"), "ndim", 0) == 2:
            known["num_embeddings"] = len(known["weight"])
        # The first parameter of every backward is the gradient of the result.
        known[names[0]] = draw.normal(*next(iter(saved.values())).shape)
        return self._problem(subject, known)

    def _problem(self, subject: Subject, arguments: Arguments) -> Problem:
        names = subject.function.parameters
        arguments = {k: v for k, v in arguments.items() if k in names}
        prepared = self.prepare(arguments) if self.prepare else {}
        gathered = {}
        if self.gathers and self.gathers[0] in arguments:
            table, index = self.gathers
            gathered[table] = len(np.unique(arguments[index]))
        return Problem(subject, arguments, prepared, gathered)


Table = Mapping[str, Callable[..., Any]]
"""What a library offers, by op: a function of the same arguments."""


@dataclass(frozen=True)
class Peers:
    """What other libraries offer for a family. Tables are made when the library is first needed."""

    tables: Mapping[str, Callable[[], Table]]

    def table(self, library: str) -> Table:
        make = self.tables.get(library)
        return make() if make else {}


# Framework, whose op is the rival, op, and how many times faster the step has to be.
Step = tuple[str, str, str, float]


@dataclass(frozen=True)
class Family:
    """What the benchmark knows of a family. `grow(draw, op, batch, axis)` gives the forward's
    arguments for a size; `natures` are inputs on which accuracy is compared, `steps` the training
    steps that are timed through frameworks."""

    name: str
    ops: tuple[str, ...]
    workloads: tuple[Workload, ...]
    demo: tuple[Workload, ...]
    grow: Callable[[Draw, str, int, int], Arguments]
    natures: tuple[Workload, ...] = ()
    peers: Peers = Peers({})
    steps: tuple[Step, ...] = ()
    figures: tuple[Figure, ...] = ()

    def main(self, op: str) -> Workload:
        """An op's training size: the first of its workloads in f32."""
        return next(w for w in self.workloads if op in w.ops and F32 in w.elements)


@dataclass(frozen=True)
class Row:
    """One line of the benchmark."""

    family: str
    workload: Workload
    op: str
    direction: str
    element: ElementKind

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.op, self.direction, self.workload.name, self.element.value

    @property
    def title(self) -> str:
        return " ".join(self.key)

    @property
    def main(self) -> bool:
        """Whether this is the row its op is known by: the training size in f32."""
        return self.element is F32 and self.workload is families()[self.family].main(self.op)

    def problems(self, draw: Draw) -> tuple[Problem, Problem]:
        """The row's own problem, and the forward one that belongs to it."""
        forward = self.workload.forward(self.op, draw)
        if self.direction == "forward":
            return forward, forward
        saved = _saved(forward, draw)
        return self.workload.backward(self.op, draw, forward, saved), forward


def _saved(forward: Problem, draw: Draw) -> dict[str, Any]:
    """What the forward leaves for its backward: its results, and what it returns if asked to."""
    arguments = forward.arguments
    if arguments.get("mode") == "max":
        arguments = {**arguments, "return_indices": True}
    if "return_probabilities" in forward.subject.function.parameters:
        arguments = {**arguments, "return_probabilities": True}
    problem = forward if arguments is forward.arguments else Problem(forward.subject, arguments)
    if draw.blank:
        found = tuple(np.zeros(spec.shape, spec.element.dtype) for spec in problem.call.specs)
    else:
        found = problem.answer()
    return dict(zip(problem.call.returns, found, strict=True))


def rows_of(family: Family) -> Iterator[Row]:
    for workload in family.workloads:
        for op in workload.ops:
            for direction in workload.directions:
                for element in workload.elements:
                    if op in subjects() and (
                        direction == "forward" or f"{op}_backward" in subjects()
                    ):
                        yield Row(family.name, workload, op, direction, element)


def whole(array: Array) -> Array:
    """All of it, where the oracle has the time."""
    return array


def take_rows(array: Array) -> Array:
    """A few of the first axis, spread over all of it."""
    return array[:: max(1, -(-len(array) // 4))]


def take_columns(array: Array) -> Array:
    """A few of the last axis; vectors (weights of samples) whole."""
    return array[..., :: max(1, array.shape[-1] // 3)] if array.ndim > 1 else array


def plain_family(name: str) -> Family:
    """A family that has no table of its own: every float tensor is a large matrix."""
    ops = tuple(
        op for op, subject in subjects().items() if subject.family == name and not subject.forward
    )

    def matrices(draw: Draw, op: str, batch: int = 4096, axis: int = 4096) -> Arguments:
        function = subjects()[op].function
        floats = [n for n in function.tensors if n not in function.indices]
        return {name: draw.near_one(batch, axis) for name in floats}

    wrt = tuple(subjects()[ops[0]].function.tensors) if ops else ()
    large = Workload("4096x4096", ops, matrices, take_rows, wrt=wrt)
    return Family(name, ops, (large,), (large,), matrices, (_smaller(large, matrices),))


def _smaller(large: Workload, matrices: Callable[..., Arguments]) -> Workload:
    def make(draw: Draw, op: str) -> Arguments:
        return matrices(draw, op, 16, 1024)

    return Workload("random", large.ops, make, lambda a: a, (F16, BF16, F32, F64), wrt=large.wrt)


@cache
def families() -> dict[str, Family]:
    """Every family that has functions now, by name."""
    found = {}
    for name in dict.fromkeys(subject.family for subject in subjects().values()):
        module = f"pullback.ops.{name}.bench"
        found[name] = import_module(module).FAMILY if find_spec(module) else plain_family(name)
    return found
