"""Public functions answered by their Triton plans, in Triton's interpreter on CPU memory, and the
cases that tiles and chunks add to those of the families."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from itertools import chain, islice
from types import SimpleNamespace
from typing import Any

import numpy as np

from pullback.contract.element import FLOATS, ElementKind
from pullback.contract.kinds import BackendKind
from pullback.gpu.program import Step
from pullback.ops.case import Case, hostile_rows
from pullback.plan.stream import Stream, Workspace
from pullback.tensor.view import TensorMut
from pullback.verify import laws
from pullback.verify.accuracy import bound_of
from pullback.verify.subject import Arguments, Subject, subjects

GUARD = 64  # bytes of sentinel behind the workspace
UNRESERVED = 0x4000  # MAP_NORESERVE: a name that Python has on some versions only


@dataclass(frozen=True)
class Interpreted(Subject):
    """A public function answered by its Triton plan, built for the interpreter."""

    layout: Callable[[Any], Any] = np.asarray

    def extended_cases(self) -> tuple[Case, ...]:
        """Not on a GPU: see docs/gpu.md."""
        return ()

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

    @cached_property
    def variants(self) -> tuple[dict[str, Any], ...]:
        """Of segments there are no positions on the GPU."""
        found = super().variants
        own = self.family == "segment"
        return tuple(v for v in found if not (own and v.get("return_indices")))

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
        plan.run(Stream.cpu(), scratch, SimpleNamespace(**tensors))
        assert (buffer[plan.workspace_size :] == 0xA5).all(), "wrote beyond the workspace"
        return outs

    @property
    def defaults(self) -> Arguments:
        return {
            name: parameter.default
            for name, parameter in self.function.binder.parameters.items()
            if parameter.default is not parameter.empty
        }


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


def on_gpu(subject: Subject) -> bool:
    """Whether its family has Triton kernels."""
    return find_spec(f"pullback.ops.{subject.family}.gpu") is not None


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


# --- cases: the hostile rows side by side, and extents around the borders of tiles ----------------

# One below, at and above the blocks of the launch tables, and several blocks: along rows, across.
BORDERS = (1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257)
BORDERS += (511, 512, 513, 1023, 1024, 1025, 2500)
ACROSS = (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
WHOLE = (4095, 4096, 4097)  # simplex maps: the longest rows held whole
LONG = 9000  # enough tiles for a row to be cut into chunks


def row_case(rng: np.random.Generator, name: str, x: Any, axis: int, reverse: bool) -> Case:
    """A case for scans, recurrences and simplex maps alike."""
    # Products of ordinary numbers leave every range within a long row; these stay in it.
    values = np.sign(x) * (1 + 0.01 * x) if x.size > 1000 and name != "hostile" else x
    dy, b, h = (np.asarray(rng.standard_normal(x.shape)) for _ in range(3))
    arrays = {"x": np.asarray(values), "dy": dy, "dh": dy, "b": b, "h": h}
    arrays["a"] = arrays["discount"] = np.asarray(np.clip(x, -1, 1))
    return Case(name, arrays, {"axis": axis, "reverse": reverse})


def _rows(rng: np.random.Generator) -> Iterator[Case]:
    hostile = np.stack([row for _, row in hostile_rows(rng)])
    for axis, x in ((1, hostile), (0, hostile.T)):
        for reverse in (False, True):
            yield row_case(rng, "hostile", x, axis, reverse)
    for n in BORDERS:
        yield row_case(rng, f"{n}", rng.standard_normal((2, n)), 1, bool(n % 2))
    for n in ACROSS:
        yield row_case(rng, f"columns of {n}", rng.standard_normal((n, 3)), 0, bool(n % 2))
    yield row_case(rng, "columns", rng.standard_normal((2, 70, 9)), 1, False)
    yield row_case(rng, "many rows", rng.standard_normal((65, 9)), 1, True)
    yield row_case(rng, "long", rng.standard_normal(LONG), 0, False)
    yield row_case(rng, "long columns", rng.standard_normal((600, 3)), 0, True)
    yield row_case(rng, "rank 0", np.asarray(0.5), 0, False)
    yield row_case(rng, "nothing", np.zeros((0, 3)), 1, False)
    yield row_case(rng, "empty rows", np.zeros((3, 0)), 1, False)


def _whole_rows(rng: np.random.Generator) -> Iterator[Case]:
    yield from _rows(rng)
    for n in WHOLE:
        yield row_case(rng, f"{n}", rng.standard_normal((2, n)), 1, False)


def _segments(rng: np.random.Generator) -> Iterator[Case]:
    """Many columns, and groups of several pieces: the families' own cases have neither."""
    ids = np.where(rng.random(1300) < 0.9, 3, rng.integers(-1, 6, 1300))
    x = 1 + 0.01 * rng.standard_normal((1300, 2))
    yield Case("long", {"x": x, "segment_ids": ids, "dy": rng.standard_normal((5, 2))})
    ids = rng.integers(0, 3, 9)
    x = rng.integers(-2, 3, (9, 150)).astype(np.float64)
    yield Case("wide", {"x": x, "segment_ids": ids, "dy": rng.standard_normal((3, 150))})
    for n in (1, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025):
        x, ids = 1 + 0.01 * rng.standard_normal((n, 1)), np.ones(n, np.int64)
        yield Case(f"a piece of {n}", {"x": x, "segment_ids": ids, "dy": np.full((3, 1), 0.7)})
    for n in (7, 8, 9, 31, 32, 33, 127, 128, 129):
        x, ids = rng.standard_normal((5, n)), rng.integers(-1, 3, 5)
        dy = rng.standard_normal((3, n))
        yield Case(f"{n} columns", {"x": x, "segment_ids": ids, "dy": dy})


def _embeddings(rng: np.random.Generator) -> Iterator[Case]:
    """As many positions as blocks hold, and one bag of them among small ones; bags by the tile."""
    for n in (63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 2500):
        indices, weight = rng.integers(-1, 5, n), rng.standard_normal((5, 2))
        arrays = {"weight": weight, "indices": indices}
        yield Case(f"{n} positions", {**arrays, "dout": rng.standard_normal((n, 2))})
        bags = {"offsets": np.array([0, 3, n - 2]), "dout": rng.standard_normal((3, 2))}
        bags["per_sample_weights"] = rng.standard_normal(n)
        yield Case(f"a bag of {n - 5}", {**arrays, **bags})
    for n in (15, 16, 17):
        arrays = {"weight": rng.standard_normal((5, 3)), "indices": rng.integers(0, 5, 2 * n)}
        arrays |= {"offsets": 2 * np.arange(n), "dout": rng.standard_normal((n, 3))}
        yield Case(f"{n} bags", {**arrays, "per_sample_weights": rng.standard_normal(2 * n)})
    arrays = {"weight": rng.standard_normal((5, 150)), "indices": rng.integers(0, 5, 6)}
    yield Case("wide rows", {**arrays, "dout": rng.standard_normal((6, 150))})
    arrays |= {"offsets": np.array([0, 2]), "dout": rng.standard_normal((2, 150))}
    yield Case("bags of wide rows", {**arrays, "per_sample_weights": rng.standard_normal(6)})


def _blends(rng: np.random.Generator) -> Iterator[Case]:
    """Blocks of elements, and operands that are broadcast along few or many of them."""
    for n in (1023, 1024, 1025, 2500):
        a, b, weight, dy = rng.standard_normal((4, n))
        yield Case(f"{n} by number", {"a": a, "b": b, "dy": dy}, {"weight": 0.3})
        yield Case(f"{n} by tensor", {"a": a, "b": b, "weight": weight, "dy": dy})
    for kept, summed in ((15, 63), (16, 64), (17, 65), (2, 511), (3, 512), (1, 513)):
        yield _sums(rng, f"{kept} sums of {summed}", kept, summed)
    a, b, weight = rng.standard_normal((3, 2, 1))
    long = {"a": a, "b": b, "weight": weight, "dy": rng.standard_normal((2, 17000))}
    yield Case("long sums", long)


def _sums(rng: np.random.Generator, name: str, kept: int, summed: int) -> Case:
    b, dy = rng.standard_normal((2, kept, summed))
    row, column = rng.standard_normal((1, summed)), rng.standard_normal((kept, 1))
    return Case(name, {"a": column, "b": b, "dy": dy, "weight": row})


ROWS = ("scan", "recurrence", "simplex")  # families that take the cases of rows alone
OWN: dict[str, Callable[[np.random.Generator], Iterator[Case]]] = {
    **dict.fromkeys(ROWS, _rows),
    "simplex": _whole_rows,
    "segment": _segments,
    "embedding": _embeddings,
    "lerp": _blends,
}


def own_cases(subject: Subject) -> Iterator[Case]:
    """The cases that tiles add to those of a family."""
    return OWN[subject.family](np.random.default_rng(11))


def _familys(subject: Subject) -> tuple[Case, ...]:
    if subject.family in ROWS:
        return ()
    return tuple(case for case in subject.cases() if serves(subject, case))


def serves(subject: Subject, case: Case) -> bool:
    """Whether there is a Triton kernel for the case: segments take ids there, not borders."""
    return subject.family != "segment" or "offsets" not in case.arrays


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

# Of how many of a family's own cases a function meets one.
SHARE = {"lerp": 12, "segment": 16, "embedding": 40}
# Families with functions enough to share the cases of tiles, a third each, but for those below.
SHARED = ("scan", "simplex", "segment")
ALWAYS = ("hostile", "long", "long columns", "long sums")
# Chunks have a law of their own, on shorter rows.
CHUNKED = ("scan", "recurrence")


@cache
def dealt(subject: Interpreted) -> tuple[tuple[ElementKind, str, Arguments], ...]:
    """The cases that tiles add, or every third one, and some of the family's own, each in one
    element. Elements, variants and kinds of indices are dealt out in turn, from another start for
    each function; long cases meet every element, in the variant that takes most."""
    return tuple(_deal(subject))


def _deal(subject: Interpreted) -> Iterator[tuple[ElementKind, str, Arguments]]:
    turn = [other.name for other in SUBJECTS].index(subject.name)
    share, variants = SHARE.get(subject.family, 1), subject.variants
    number = turn + 1
    shared = subject.family in SHARED
    own = (
        case
        for place, case in enumerate(own_cases(subject))
        if not shared or case.name in ALWAYS or (place + turn // 2) % 3 == 0
    )
    for case in chain(own, islice(_familys(subject), turn % share, None, share)):
        if case.name.startswith("long"):
            chosen = [] if subject.family in CHUNKED else [(e, variants[-1]) for e in FLOATS]
        else:
            variant = variants[(number + number // len(FLOATS)) % len(variants)]
            chosen = [(FLOATS[number % len(FLOATS)], variant)]
        for element, variant in chosen:
            arguments = subject.arguments(case, element, INDICES[number // 3 % 2], variant)
            if arguments is not None and subject.programs(arguments) <= MOST_QUICK:
                number += 1
                yield element, f"{case.name} {element.name} {variant}", arguments


def chunked(subject: Subject, element: ElementKind) -> Arguments:
    """A row of several chunks, where rows are cut from two tiles on."""
    turn = FLOATS.index(element)
    rng = np.random.default_rng(2)
    extent = 2100 if subject.forward is None else 1100  # tiles of backwards are half as long
    case = row_case(rng, "chunks", rng.standard_normal(extent), 0, bool(turn % 2))
    variant = subject.variants[turn % len(subject.variants)]
    arguments = subject.arguments(case, element, ElementKind.I64, variant)
    assert arguments is not None
    return arguments
