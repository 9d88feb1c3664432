"""Public functions answered by their Triton plans, in Triton's interpreter on CPU memory, and the
cases that tiles and chunks add to those of the families."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import chain, islice
from types import SimpleNamespace
from typing import Any

import numpy as np

from pullback.contract.element import FLOATS, ElementKind
from pullback.contract.kinds import BackendKind
from pullback.gpu.program import Step
from pullback.ops.case import Case, Tiles
from pullback.ops.tile_cases import row_case
from pullback.plan.stream import Stream, Workspace
from pullback.tensor.view import TensorMut
from pullback.verify import laws
from pullback.verify.accuracy import bound_of
from pullback.verify.emulated import on_gpu, run_emulated
from pullback.verify.subject import Arguments, Subject, subjects

GUARD = 64  # bytes of sentinel behind the workspace
UNRESERVED = 0x4000  # MAP_NORESERVE: a name that Python has on some versions only


@dataclass(frozen=True)
class Interpreted(Subject):
    """A public function answered by its Triton plan, built for the interpreter."""

    layout: Callable[[Any], Any] = np.asarray

    def prepared(self, arguments: Arguments, out: Any = None) -> tuple[Any, dict[str, Any], Any]:
        """The plan, its tensors by slot, and the results among them."""
        call = self.function.body(**self.function.views({**self.defaults, **arguments}))
        plan = call.plan(call.descriptor, "cpu", BackendKind.TRITON)
        outs = out if isinstance(out, tuple) else (out,)
        if out is None:
            fresh = (np.full(spec.shape, 77, spec.element.dtype) for spec in call.specs)
            outs = tuple(self.layout(array) if array.ndim else array for array in fresh)
        tensors = {slot.name: call.tensors.get(slot.name) for slot in plan.record.slots}
        for name, array in zip(call.returns, outs, strict=True):
            # A function's result may have more axes than the plan's, which folds them.
            tensors[name] = call.as_slot(name, TensorMut(array))
        return plan, tensors, outs

    def steps(self, arguments: Arguments) -> list[Step]:
        """The launches that an answer takes."""
        plan, tensors, _ = self.prepared(arguments)
        return [s for s in plan.program(list(tensors.values())).steps if isinstance(s, Step)]

    def programs(self, arguments: Arguments) -> int:
        """How many programs an answer takes: the interpreter runs one after another."""
        return sum(step.grid for step in self.steps(arguments))

    def answer(self, arguments: Arguments, out: Any = None, **options: Any) -> tuple[Any, ...]:
        plan, tensors, outs = self.prepared(arguments, out)
        buffer = np.full(plan.workspace_size + GUARD, 0xA5, np.uint8)
        scratch = Workspace.of(buffer[: plan.workspace_size])
        self.execute(plan, scratch, tensors)
        assert (buffer[plan.workspace_size :] == 0xA5).all(), "wrote beyond the workspace"
        return outs

    def execute(self, plan: Any, scratch: Any, tensors: dict[str, Any]) -> None:
        plan.run(Stream.cpu(), scratch, SimpleNamespace(**tensors))

    @property
    def defaults(self) -> Arguments:
        return {
            name: parameter.default
            for name, parameter in self.function.binder.parameters.items()
            if parameter.default is not parameter.empty
        }


@dataclass(frozen=True)
class Emulated(Interpreted):
    """The same, compiled for a target and executed by the emulator."""

    target: str = "sm_90"

    def execute(self, plan: Any, scratch: Any, tensors: dict[str, Any]) -> None:
        run_emulated(plan, scratch, tensors, self.target)


def equals_the_oracle(subject: Subject, arguments: Arguments) -> float:
    """The law, but for what docs/gpu.md excepts: chunks of a row are multiplied before it is known
    what with, so that NaN may stand for an infinity where a factor is infinite, and only there."""
    answers = subject.answer(arguments)
    factors = [arguments[name] for name in bound_of(subject).factors if name in arguments]
    if any(np.isinf(np.asarray(factor, np.float64)).any() for factor in factors):
        answers = tuple(map(_with_infinities, answers, subject.truth(arguments)))
    return laws.compare(subject, arguments, answers)


def _with_infinities(got: Any, want: Any) -> Any:
    with np.errstate(over="ignore"):
        return np.where(np.isnan(got) & np.isinf(want), want.astype(got.dtype), got)


SUBJECTS = [
    Interpreted(subject.function, subject.family)
    for subject in subjects().values()
    if on_gpu(subject)
]


def far_apart(array: Any) -> Any:
    """The longest axis with such a stride that its end is 2**31 elements away: offsets of 32 bits
    would not reach it. The memory is reserved, not touched."""
    axis = int(np.argmax(array.shape))
    step = 2**31 // max(array.shape[axis] - 1, 1) + 1 + array.size
    strides = list(np.empty((*array.shape[:axis], 1, *array.shape[axis + 1 :]), "b").strides)
    strides[axis] = step
    span = (array.shape[axis] - 1) * step + array.size
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | UNRESERVED
    buffer = np.frombuffer(mmap.mmap(-1, span * array.itemsize, flags=flags), array.dtype)
    places = tuple(stride * array.itemsize for stride in strides)
    view = np.ndarray(array.shape, array.dtype, buffer=buffer, strides=places)
    view[...] = array
    return view


# --- cases ----------------------------------------------------------------------------------------


@cache
def tiles(family: str) -> Tiles:
    """What the GPU tests of a family are given."""
    found = import_module(f"pullback.ops.{family}.cases").TILES
    assert isinstance(found, Tiles)
    return found


CHUNKED = {subject.family for subject in SUBJECTS if tiles(subject.family).chunked}


def own_cases(subject: Subject) -> Iterator[Case]:
    """The cases that tiles add to those of a family."""
    return tiles(subject.family).cases(np.random.default_rng(11))


def _familys(subject: Subject) -> tuple[Case, ...]:
    """Where tiles take the place of a family's own cases, those of its extended forms are left."""
    return subject.extended_cases() if tiles(subject.family).alone else subject.cases()


INDICES = (ElementKind.I64, ElementKind.I32)
# Programs at most: more of them show nothing that fewer do not.
MOST, MOST_QUICK = 400, 80


def trials(
    subject: Interpreted, element: ElementKind, share: int = 1
) -> Iterator[tuple[str, Arguments]]:
    """The cases of a family, the variants of the function dealt out in turn. Of `share` cases an
    element meets one; each element another."""
    turn = FLOATS.index(element)
    for number, case in enumerate(chain(own_cases(subject), _familys(subject))):
        if number % share != turn % share:
            continue
        variant = subject.variants[number // share % len(subject.variants)]
        arguments = subject.arguments(case, element, INDICES[number // share % 2], variant)
        if arguments is not None and subject.programs(arguments) <= MOST:
            yield f"{case.name} {variant}", arguments


# --- the share of the quick suite -----------------------------------------------------------------

# Families with as many functions share the cases of tiles, a third each, but for those below.
MANY = 6
ALWAYS = ("hostile", "long", "long columns", "long sums", "rising")


@cache
def dealt(subject: Interpreted) -> tuple[tuple[ElementKind, str, Arguments], ...]:
    """The cases that tiles add, or every third one, and some of the family's own, each in one
    element. Elements, variants and kinds of indices are dealt out in turn, from another start for
    each function; long cases meet every element, in the variant that takes most."""
    return tuple(_deal(subject))


def _deal(subject: Interpreted) -> Iterator[tuple[ElementKind, str, Arguments]]:
    turn = [other.name for other in SUBJECTS].index(subject.name)
    share, variants = tiles(subject.family).every, subject.variants
    number = turn + 1
    shared = sum(other.family == subject.family for other in SUBJECTS) > MANY
    own = (
        case
        for place, case in enumerate(own_cases(subject))
        if not shared or case.name in ALWAYS or (place + turn // 2) % 3 == 0
    )
    for case in chain(own, islice(_familys(subject), turn % share, None, share)):
        if case.name.startswith("long"):  # chunks have a law of their own, on shorter rows
            chosen = [] if subject.family in CHUNKED else [(e, variants[-1]) for e in FLOATS]
        else:
            variant = variants[(number + number // len(FLOATS)) % len(variants)]
            chosen = [(FLOATS[number % len(FLOATS)], variant)]
        for element, variant in chosen:
            arguments = subject.arguments(case, element, INDICES[number // 3 % 2], variant)
            if arguments is not None and subject.programs(arguments) <= MOST_QUICK:
                number += 1
                yield element, f"{case.name} {element.name} {variant}", arguments


# Pieces within a tile, of several chunks, of one element and of none.
PIECES = (0, 0, 3, 4, 4, 300, 1020, 1024, 1025, 1025)


def chunked(subject: Subject, element: ElementKind, pieces: bool = False) -> Arguments:
    """A row of several chunks, where rows are cut from two tiles on; or pieces of one."""
    turn = FLOATS.index(element)
    rng = np.random.default_rng(2)
    extent = 2100 if subject.forward is None else 1100  # tiles of backwards are half as long
    case = row_case(rng, "chunks", rng.standard_normal(extent), 0, bool(turn % 2))
    if pieces:
        borders = np.array([*PIECES, extent])
        arrays = {"offsets": borders, "initial": rng.standard_normal(len(borders) - 1)}
        exclusive = {**case.options, "exclusive": turn < 2}
        case = Case(case.name, {**case.arrays, **arrays}, exclusive)
    variant = subject.variants[turn % len(subject.variants)]
    arguments = subject.arguments(case, element, ElementKind.I64, variant)
    assert arguments is not None
    return arguments
