"""From (seed, number) to a trial. Options are found in signatures; a family only draws arrays."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from importlib import import_module
from random import Random
from typing import Any

import numpy as np

from pullback.contract.element import FLOATS, INDICES, ElementKind
from pullback.contract.errors import PullbackError
from pullback.fuzz.layout import Layout, draw_layout, fits
from pullback.fuzz.thresholds import thresholds
from pullback.fuzz.trial import Trial
from pullback.ops.case import Case
from pullback.ops.draw import Choices, Draw
from pullback.tensor.rounding import round_to
from pullback.verify.subject import Arguments, Subject, subjects

# Elements of the largest tensor, and how often: most cases are small, so that they are many.
SIZES = (64, 2_000, 20_000, 150_000, 2_000_000)
SIZE_WEIGHTS = (40, 46, 12, 1.5, 0.4)
# The definition takes long on large tensors: from so many elements on it is asked less often.
LARGE = ((300_000, 0.05), (30_000, 0.3), (0, 1.0))
KNOWN = "known"
THREADS = (1, 2, 3, 8)
NUMBERS = (None, 7.5, -0.0, 1e-30, float("inf"), float("nan"))

# How often a comparison is made; those with the definition and with other strides always are.
CHECKS: dict[str, float] = {
    "oracle": 1.0,
    "layout": 0.8,
    "repeat": 0.25,
    "threads": 0.3,
    "plan": 0.3,
    "torch": 0.25,
    "jax": 0.01,
    "in place": 0.3,
    "alternative": 0.4,
    "windows": 0.5,
}
# What a caller does wrong, and what it is told by.
MISTAKES: dict[str, str] = {
    "out of another shape": "InvalidProblem",
    "out of another dtype": "Unsupported",
    "out that is read-only": "InvalidProblem",
    "out that overlaps itself": "InvalidProblem",
    "out that overlaps an input": "InvalidProblem",
    "storage shorter than its shape": "BufferTooSmall",
    "mixed dtypes": "Unsupported",
    "misspelt option": "InvalidProblem",
}


@dataclass(frozen=True, slots=True)
class Source:
    """What trials are made of: a seed, the functions, and the comparisons they may have."""

    seed: int
    names: tuple[str, ...]
    checks: tuple[str, ...] = tuple(CHECKS)
    sizes: tuple[float, ...] = SIZE_WEIGHTS
    blank: bool = False  # no values: where only shapes count

    def choices(self, number: int) -> Choices:
        return Choices(Random(f"{self.seed}:{number}"))

    def trial(self, choices: Choices) -> Trial:
        return generate(choices, self)

    def task(self) -> dict[str, Any]:
        """What another process makes the same source of."""
        return {"seed": self.seed, "names": self.names, "checks": self.checks, "sizes": self.sizes}

    @staticmethod
    def of(task: Mapping[str, Any]) -> Source:
        names, checks, sizes = (tuple(task[name]) for name in ("names", "checks", "sizes"))
        return Source(task["seed"], names, checks, sizes)


def generate(choices: Choices, source: Source) -> Trial:
    """The trial that these choices make."""
    first = Draw(choices, ElementKind.F32, ElementKind.I64, 0, ())
    subject = subjects()[first.pick("function", source.names)]
    element = first.pick("element", (ElementKind.F32, *(e for e in FLOATS if e.value != "f32")))
    index = first.pick("index", INDICES[::-1])
    size = first.pick("size", SIZES, source.sizes)
    draw = Draw(choices, element, index, size, thresholds(), source.blank)
    case = _known(draw, subject) or family_draw(subject.family)(draw, subject.function.parameters)
    refused = case.refused
    wide = ElementKind.I64
    arrays = {
        k: _cast(v, element, wide if k in case.wide else index) for k, v in case.arrays.items()
    }
    options = dict(case.options) if case.name == KNOWN else _options(draw, subject, case)
    drawn = Layouts(draw)
    layouts = {k: drawn.one(k, v.ndim, False) for k, v in arrays.items()}
    names_taken = subject.function.parameters
    for name, array in arrays.items():
        layouts[name] = _held(layouts[name], array, element)
        arrays[name] = _broadcast(array, layouts[name])
    if not _complete(draw, subject, arrays, options, layouts, drawn, source.blank):
        refused += ("InvalidProblem",)
    arrays = {k: v for k, v in arrays.items() if k in names_taken}
    mistake = "" if refused else _mistake(draw, subject, arrays, options, source)
    refused += (MISTAKES[mistake],) if mistake else ()
    layouts["out"] = drawn.one("out", _rank_of_results(draw, arrays), True)
    largest = max((v.size for v in arrays.values()), default=0)
    rarely = {"oracle": next(share for size, share in LARGE if largest >= size)}
    chosen = tuple(
        name
        for name in source.checks
        if draw.chance(f"check.{name}", CHECKS[name] * rarely.get(name, 1.0))
    )
    return Trial(
        subject.name,
        element,
        arrays,
        {k: v for k, v in options.items() if k in names_taken},
        {k: v for k, v in layouts.items() if k in arrays or k == "out"},
        chosen or ("layout",),
        (draw.pick("threads", THREADS), draw.pick("other threads", THREADS)),
        draw.chance("out", 0.5),
        mistake,
        refused,
        case.alternatives,
    )


def _known(draw: Draw, subject: Subject) -> Case | None:
    """Now and then one of the family's own cases, completed as the laws do."""
    if not draw.chance("known", 0.04) or draw.blank:
        return None
    cases = subject.cases()
    case = cases[draw.integer("known.case", 0, len(cases) - 1)]
    variant = draw.pick("known.options", subject.variants)
    found = subject.arguments(case, draw.element, draw.index, variant, exact=False)
    if found is None:
        return None
    arrays = {k: v for k, v in found.items() if isinstance(v, np.ndarray)}
    wide = tuple(k for k, v in arrays.items() if v.dtype == np.int64)
    return Case(KNOWN, arrays, {k: v for k, v in found.items() if k not in arrays}, wide=wide)


@cache
def family_draw(family: str) -> Any:
    return import_module(f"pullback.ops.{family}.cases").draw


def _cast(array: Any, element: ElementKind, index: ElementKind) -> Any:
    if array.dtype.kind in "iu":
        return np.asarray(array.astype(index.dtype))
    with np.errstate(all="ignore"):
        return np.asarray(array.astype(element.dtype))


# --- options ------------------------------------------------------------------------------------


@cache
def _open_options(subject: Subject) -> dict[str, tuple[Any, ...]]:
    """What may be given for each parameter that is no tensor, told by its annotation."""
    function = subject.function
    module = vars(sys.modules[function.body.__module__])
    found: dict[str, tuple[Any, ...]] = {}
    for name, parameter in inspect.signature(function.body).parameters.items():
        if name in function.tensors:
            continue
        parts = [part.strip() for part in str(parameter.annotation).split("|")]
        kinds = [module[part] for part in parts if isinstance(module.get(part), type)]
        members = [kind for kind in kinds if issubclass(kind, Enum)]
        if parts == ["bool"]:
            found[name] = (False, True)
        elif members:
            default = parameter.default
            values = [member.value for member in members[0]]
            found[name] = (default, *(v for v in values if v != default))
        elif "float" in parts:
            found[name] = NUMBERS
    return found


def _options(draw: Draw, subject: Subject, case: Case) -> dict[str, Any]:
    """Those of the case, and any value for every other."""
    others = {n: v for n, v in _open_options(subject).items() if n not in case.options}
    return case.options | {name: draw.option(name, values) for name, values in others.items()}


# --- arrays -------------------------------------------------------------------------------------


class Layouts:
    """Layouts of the arrays of a case: many kernels ask that all lie alike, so often they do."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._how = draw.pick("layouts", ("plain", "alike", "each"), (2, 4, 6))
        self._of_rank: dict[int, Layout] = {}

    def one(self, name: str, rank: int, written: bool) -> Layout:
        if self._how == "each":
            return draw_layout(self._draw, f"{name}.layout", rank, written)
        if rank not in self._of_rank:
            alike = self._how == "alike"
            found = draw_layout(self._draw, f"all.{rank}.layout", rank, True)
            place, poison = found.place, found.poison
            plain = replace(Layout.plain(rank), place=place, poison=poison)
            self._of_rank[rank] = found if alike else plain
        return self._of_rank[rank]


def _rank_of_results(draw: Draw, arrays: Mapping[str, Any]) -> int:
    """That of one of the arrays, as a guess: results of another rank are contiguous."""
    ranks: list[int] = [array.ndim for array in arrays.values() if array.dtype.kind not in "iu"]
    return draw.pick("out.rank", ranks or [0])


def _held(layout: Layout, array: Any, element: ElementKind) -> Layout:
    """Ids are not broadcast: that would change what is expected of the call."""
    if array.dtype != element.dtype:
        layout = layout.apart()
    return layout if fits(layout, array.shape) else Layout.plain(array.ndim)


def _broadcast(array: Any, layout: Layout) -> Any:
    """The values that such a layout can hold."""
    if all(layout.steps) or not array.size:
        return array
    once = tuple(slice(None) if step else slice(0, 1) for step in layout.steps)
    return np.broadcast_to(array[once], array.shape).copy()


def _complete(
    draw: Draw,
    subject: Subject,
    arrays: dict[str, Any],
    options: dict[str, Any],
    layouts: dict[str, Layout],
    drawn: Layouts,
    blank: bool,
) -> bool:
    """Add what a backward takes of its forward's results; False if the forward refuses."""
    function, forward = subject.function, subject.forward
    if forward is None:
        return True
    own = [n for n in function.tensors if n not in forward.function.tensors]
    missing = [n for n in own if n not in arrays and n not in options]
    if not missing:
        return True
    taken = forward.function.parameters
    inputs = {k: v for k, v in {**arrays, **options}.items() if k in taken}
    if "return_indices" in taken and options.get("mode", "max") == "max":
        inputs["return_indices"] = True
    if "return_probabilities" in taken:
        inputs["return_probabilities"] = True
    if any(n not in inputs for n in taken if n not in forward.function.defaults):
        return True
    try:
        inputs = forward.function.completed({**forward.function.defaults, **inputs})
        call = forward.function.body(**forward.function.views(inputs))
        plain = [np.zeros(spec.shape, spec.element.dtype) for spec in call.specs]
        results = dict(zip(call.returns, plain if blank else forward.answer(inputs), strict=True))
    except PullbackError:
        results = {}
    for name in missing:
        if name in results and not _left_out(draw, subject, name, arrays, options):
            arrays[name] = results[name]
            rank = results[name].ndim
            layout = drawn.one(name, rank, True)
            layouts[name] = layout if fits(layout, results[name].shape) else Layout.plain(rank)
        elif not results and name not in function.defaults:
            arrays[name] = next(a for a in arrays.values() if a.dtype.kind not in "iu").copy()
    return bool(results)


def _left_out(
    draw: Draw, subject: Subject, name: str, arrays: Mapping[str, Any], options: Mapping[str, Any]
) -> bool:
    """Whether a saved result that the record does not need is not given."""
    function = subject.function
    given = {k: v for k, v in {**arrays, **options}.items() if k in function.parameters}
    if not draw.chance(f"{name}.left out", 0.3):
        return False
    if name in function.defaults or name in function.required:
        return False
    call = function.body(**function.views({**given, name: None}))
    slot = next((s for s in call.plan.record.slots if s.name == name), None)
    if slot is None or slot.needed(call.descriptor):
        return False
    options[name] = None  # type: ignore[index]
    return True


def _mistake(
    draw: Draw,
    subject: Subject,
    arrays: dict[str, Any],
    options: dict[str, Any],
    source: Source,
) -> str:
    """Now and then something is wrong with the call, in its own words in `MISTAKES`."""
    if not draw.chance("mistake", 0.03):
        return ""
    mistake = draw.pick("mistake.kind", tuple(MISTAKES))
    floats = [k for k, v in arrays.items() if v.dtype.kind not in "iu" and k != "y"]
    if mistake == "mixed dtypes":
        if len(floats) < 2:
            return ""
        name = draw.pick("mistake.array", floats)
        other = next(e for e in FLOATS if e.dtype != arrays[name].dtype)
        with np.errstate(all="ignore"):
            arrays[name] = round_to(arrays[name], other.dtype)
    if mistake == "misspelt option":
        named = [k for k, v in options.items() if isinstance(v, str)]
        named = [k for k in named if k in subject.function.parameters]
        if not named:
            return ""
        options[draw.pick("mistake.option", named)] = "frist"
    if mistake.startswith("storage") and "torch" not in source.checks:
        return ""
    if mistake.startswith(("out", "storage")) and not _takes_out(subject, {**arrays, **options}):
        return ""
    return mistake


def _takes_out(subject: Subject, arguments: Arguments) -> bool:
    """Whether results may be given: not where an argument is one, nor where the call is refused."""
    function = subject.function
    given = {k: v for k, v in arguments.items() if k in function.parameters}
    try:
        call = function.body(**function.views({**function.defaults, **given}))
    except PullbackError:
        return False
    return not any(name in call.tensors for name in call.returns)
