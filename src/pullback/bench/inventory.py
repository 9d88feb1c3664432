"""Every kernel there is, enumerated from the plan records: for the catalog and for compiling ahead.

A record does not list its kernels, but its descriptor's fields do: every member of an enumeration,
both values of a flag, a few shapes. What the record's own validation refuses does not exist."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from enum import Enum
from functools import cache
from importlib import import_module
from itertools import chain, combinations, product
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

import pullback
from pullback.bench.problem import Problem
from pullback.contract.element import FLOATS, ElementKind
from pullback.contract.errors import PullbackError
from pullback.contract.guarantee import KernelSku, PlanPreference
from pullback.contract.kinds import BackendKind
from pullback.contract.record import PlanRecord, Slot
from pullback.cpu.pool import get_num_threads, set_num_threads
from pullback.plan.function import Call
from pullback.plan.plan import Plan
from pullback.plan.stream import Stream
from pullback.verify.subject import Subject, subjects

AnyPlan = type[Plan[Any, Any]]


@dataclass(frozen=True)
class Size:
    """A shape for tensors, and a count for what is counted."""

    shape: tuple[int, ...]
    count: int


SMALL = Size((16, 8), 8)  # as many lines as the kernels that take several lines at once ask for
LINE = Size((1, 8), 8)  # too few lines for kernels that take several at once
# Rows and columns, short and long, one row alone, results large enough to be written past caches.
SIZES = (
    SMALL,
    LINE,
    Size((8, 4), 8),
    Size((3, 4, 5), 8),
    Size((64, 1000), 1000),
    Size((1, 1 << 20), 4096),
    Size((4096, 2048), 4096),
)

# What the costs of an op are quoted at.
TRAINING = Size((4096, 4096), 4096)

_MODES = ("sum", "mean", "max")


def plans() -> Iterator[tuple[str, AnyPlan]]:
    """Every plan class, with the name of its family."""
    for family in pullback._FAMILIES:
        package = import_module(f"pullback.ops.{family}")
        if not package.__all__:
            continue
        contract = import_module(f"{package.__name__}.contract")
        named = {**vars(contract), **vars(package)}.values()
        for value in dict.fromkeys(v for v in named if isinstance(v, type)):
            if issubclass(value, Plan) and hasattr(value, "record"):
                yield family, value


def _choices(name: str, hint: Any, size: Size) -> tuple[Any, ...]:
    if hint is ElementKind:
        return FLOATS
    if isinstance(hint, type) and issubclass(hint, Enum):
        return tuple(hint)
    if get_origin(hint) is Literal:
        return get_args(hint)
    if get_origin(hint) is tuple:
        return (size.shape,)
    if name.endswith("_axis"):
        return tuple(range(len(size.shape)))
    plain: dict[Any, tuple[Any, ...]] = {
        bool: (False, True),
        int: (size.count,),
        float: (1.25,),
        str: _MODES,
    }
    if hint in plain:
        return plain[hint]
    return tuple(c for part in get_args(hint) for c in _choices(name, part, size)) or (None,)


def descriptors(plan: AnyPlan, size: Size = SMALL, options: bool = False) -> Iterator[Any]:
    """Valid descriptors of a record; with `options`, its flags and rules in every combination."""
    kind = plan.record.descriptor
    hints, choices = get_type_hints(kind), {}
    for field in fields(kind):
        optional = field.default is not MISSING
        decides = hints[field.name] is bool or isinstance(hints[field.name], type)
        if not optional or (options and decides):
            choices[field.name] = _choices(field.name, hints[field.name], size)
    for values in product(*choices.values()):
        descriptor = kind(**dict(zip(choices, values, strict=True)))
        try:
            plan.record.validate(descriptor)
        except PullbackError:
            continue
        yield descriptor


@dataclass(frozen=True)
class Entry:
    """A line of the catalog: one op in one direction, for all dtypes it has."""

    op: str
    family: str
    plan: AnyPlan
    skus: tuple[KernelSku, ...]
    descriptors: tuple[Any, ...]  # one of each kind the op has: the modes of a bag

    @property
    def record(self) -> PlanRecord:
        return self.plan.record

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(sku.element.value for sku in self.skus))

    @property
    def backends(self) -> tuple[str, ...]:
        return (*(kind.value for kind in self.record.backends), "reference")

    @property
    def reproducibility(self) -> str:
        worst = min(sku.precision_guarantee.reproducibility for sku in self.skus)
        return worst.name.lower().replace("_", " ")

    @property
    def accumulators(self) -> str:
        """What sums are carried in, by dtype."""
        pairs = [(s.element.value, s.precision_guarantee.accumulator.value) for s in self.skus]
        return ", ".join(f"{element} in {acc}" for element, acc in dict(pairs).items())

    @property
    def indices(self) -> tuple[str, ...]:
        kinds = {k.value for s in self.record.slots if s.holds and not s.written for k in s.holds}
        return tuple(sorted(kinds))


def _skus(plan: AnyPlan, descriptor: Any) -> Iterator[KernelSku]:
    """Who serves a descriptor on this machine. The reference plan knows without loading kernels."""
    wanted = PlanPreference(prefer_backend=BackendKind.REFERENCE)
    sku = plan.select(Stream.cpu(), descriptor, wanted).sku
    if BackendKind.NUMBA in plan.record.backends:
        yield replace(sku, backend=BackendKind.NUMBA)


def _entry(op: str, family: str, plan: AnyPlan, group: list[Any]) -> Entry:
    usual = {plan.record.kind(d): d for d in group if d.element is ElementKind.F32}
    skus = dict.fromkeys(sku for d in group for sku in _skus(plan, d))
    by_kind = sorted(skus, key=lambda sku: list(usual).index(sku.op))
    return Entry(op, family, plan, tuple(by_kind), tuple(usual.values()))


@cache
def entries() -> tuple[Entry, ...]:
    """The catalog, in the order of the families."""
    found = []
    for family, plan in plans():
        by_op: dict[str, list[Any]] = {}
        for descriptor in descriptors(plan):
            by_op.setdefault(plan.record.op(descriptor), []).append(descriptor)
        found += [_entry(op, family, plan, group) for op, group in by_op.items()]
    return tuple(found)


@cache
def names() -> dict[str, tuple[Entry, ...]]:
    """Every name the library has for something it does, with the lines of the catalog behind it:
    ops, plans with and without "Plan", and public functions, some of which need no kernel."""
    found: dict[str, list[Entry]] = {}
    for entry in entries():
        for name in (entry.op, entry.record.name, f"{entry.record.name}Plan"):
            found.setdefault(name, []).append(entry)
    for name in pullback.__all__:
        value = getattr(pullback, name)
        if callable(value) and not isinstance(value, type):
            found.setdefault(name, [])
    for name, subject in subjects().items():
        found[name] = found[name] or [e for e in entries() if e.plan is _asked(subject).plan]
    return {name: tuple(behind) for name, behind in found.items()}


def _asked(subject: Subject) -> Call:
    """What a function asks of a plan: tried on the first of its family's cases that it takes."""
    tried = product(subject.cases(), subject.variants)
    made = (subject.arguments(case, ElementKind.F32, ElementKind.I64, v) for case, v in tried)
    return Problem(subject, next(arguments for arguments in made if arguments is not None)).call


# --- laying out ahead -----------------------------------------------------------------------------


def _strided(array: Any) -> Any:
    """A view with gaps: the general kernels, not those for contiguous rows."""
    buffer = np.empty(tuple(2 * n for n in array.shape), array.dtype)
    return buffer[tuple(slice(None, None, 2) for _ in array.shape)]


LAYOUTS = {"contiguous": lambda a: a, "transposed": np.asfortranarray, "strided": _strided}


def _tensor(slot: Slot, descriptor: Any, index: ElementKind, layout: Any) -> Any:
    held = slot.elements(descriptor.element)
    element = index if index in held else held[-1]
    shape = slot.shape(descriptor)
    return layout(np.empty(shape, element.dtype)) if shape else np.empty(shape, element.dtype)


def launches(plan: AnyPlan, element: ElementKind, op: str | None = None) -> Iterator[str]:
    """Lay out a record's plans, or those of one op, for every size, option and layout; each step
    compiles what is new.

    Nothing runs and no large memory is touched: pages that are never written do not exist."""
    slots = plan.record.slots
    kinds = (
        (ElementKind.I64, ElementKind.I32) if any(s.holds for s in slots) else (ElementKind.I64,)
    )
    for size in SIZES:
        small = size in (SMALL, LINE)
        found = descriptors(plan, size, options=small)
        for descriptor in chain.from_iterable(map(_extended, found)) if small else found:
            if descriptor.element is not element or op not in (None, plan.record.op(descriptor)):
                continue
            ready = plan.select(Stream.cpu(), descriptor)
            yield f"{ready.op} {element.value}"
            layouts = LAYOUTS if size.count <= 1000 else ("contiguous",)
            for layout, index in product(layouts, kinds):
                for given in _given(slots, descriptor, every=small and layout == "contiguous"):
                    arrays = [
                        _tensor(slot, descriptor, index, LAYOUTS[layout]) if slot in given else None
                        for slot in slots
                    ]
                    try:
                        _lay_out(ready, arrays)
                    except PullbackError:
                        continue  # a combination of options the arguments rule out


def _lay_out(plan: Any, arrays: Sequence[Any]) -> None:
    """For one thread, which may take kernels that many do without, never the other way round."""
    before = get_num_threads()
    set_num_threads(1)
    try:
        plan.lay_out(arrays)
    finally:
        set_num_threads(before)


def _given(slots: Sequence[Slot], descriptor: Any, every: bool) -> Iterator[list[Slot]]:
    """Those that are given: all that may be, those that must be, and with `every` all between."""
    used = [slot for slot in slots if slot.used(descriptor) and not slot.part_of]
    needed = [slot for slot in used if slot.needed(descriptor)]
    others = [slot for slot in used if slot not in needed]
    for count in range(len(others) + 1) if every else (0, len(others)):
        for some in combinations(others, count):
            yield [*needed, *some]


def _extended(descriptor: Any) -> Iterator[Any]:
    """As it is, with an operand that broadcasts, and a scan over two pieces, from an initial value,
    one that broadcasts, and both."""
    yield descriptor
    for field in fields(descriptor):
        shape = getattr(descriptor, field.name)
        if field.name in ("a_shape", "b_shape", "weight_shape") and shape is not None:
            yield replace(descriptor, **{field.name: (1,) * len(shape)})
    if not hasattr(descriptor, "num_pieces") or getattr(descriptor, "stateful", False):
        return  # a state takes the place of both
    shape, axis = descriptor.input_shape, descriptor.scan_axis
    for pieces, initial in ((2, False), (None, True), (2, True)):
        kept = shape[:axis] + (() if pieces is None else (pieces,)) + shape[axis + 1 :]
        yield replace(descriptor, num_pieces=pieces, initial_shape=kept if initial else None)
    yield replace(descriptor, initial_shape=(1,) * (len(shape) - 1))


CALLS = "calls"


def _calls() -> Iterator[None]:
    """What every call and every run goes through: a first one, and one like the last; the result
    is large enough to be recycled."""
    problem = Problem(subjects()["cumsum"], {"x": np.zeros((4, 1 << 15), np.float32)})
    run, _ = problem.into_outputs()
    for _ in range(2):
        run()
        yield problem.subject.function.wrapper(problem.arguments["x"])


def compile_ahead(name: str, element: ElementKind, op: str | None = None) -> str:
    """All launches of a plan class for one dtype (of one op, if it is named), or CALLS; what went
    wrong, or nothing. Takes names, so that another process can be asked."""
    gc.disable()  # a compiler makes many objects and keeps most: looking through them is a sixth
    try:
        for _ in _calls() if name == CALLS else launches(_plan_named(name), element, op):
            pass
    except Exception as error:  # a kernel that does not compile must not keep the others
        return f"{op or name} {element.value}: {type(error).__name__}: {error}"
    finally:
        gc.enable()
    return ""


def _plan_named(name: str) -> AnyPlan:
    (plan,) = (plan for _, plan in plans() if plan.__name__ == name)
    return plan
