"""Laws every function obeys. Each is one function: arguments in, nothing out, or `LawBroken`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

import pullback
from pullback.contract.element import ElementKind
from pullback.contract.guarantee import PlanPreference
from pullback.contract.kinds import BackendKind
from pullback.ops.case import Case
from pullback.plan.stream import Stream, Workspace
from pullback.verify.accuracy import bound_of, excused
from pullback.verify.layouts import LAYOUTS, Layout, buffer_of, poison
from pullback.verify.subject import Arguments, Subject
from pullback.verify.ulp import ulp_error

GUARD = 64  # elements of sentinel on each side of a buffer


class LawBroken(AssertionError):
    """A function did not keep its contract."""


def bits(array: Any) -> Any:
    """The bytes of an array as integers, so that NaN equals NaN and -0.0 differs from 0.0."""
    array = np.asarray(array)
    return array.view(f"u{array.itemsize}") if array.dtype.kind not in "iu" else array


def same_bits(first: Any, second: Any) -> bool:
    return first.shape == second.shape and bool(np.array_equal(bits(first), bits(second)))


def _expect(condition: bool, subject: Subject, what: str) -> None:
    if not condition:
        raise LawBroken(f"{subject.name}: {what}")


def _is_float(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind not in "iub"


def equals_the_oracle(subject: Subject, arguments: Arguments) -> float:
    """Within the stated ulps of the high-precision definition; indices exactly. Gives the worst."""
    return compare(subject, arguments, subject.answer(arguments))


def compare(subject: Subject, arguments: Arguments, answers: tuple[Any, ...]) -> float:
    """The same of answers that are at hand."""
    bound, truths = bound_of(subject), subject.truth(arguments)
    worsts: list[float] = []
    for got, want, scale in zip(answers, truths, bound.scale(subject, arguments), strict=False):
        _expect(got.shape == np.shape(want), subject, f"shape {got.shape}, wanted {np.shape(want)}")
        if not _is_float(got):
            _expect(bool(np.array_equal(got, want)), subject, f"indices {got}, wanted {want}")
            worsts.append(0.0)
            continue
        error = ulp_error(got, want, scale)
        if float(np.max(error, initial=0.0)) > bound.limit(got, arguments):
            error = np.where(excused(subject, arguments, len(worsts), got, want), 0, error)
        worsts.append(float(np.max(error, initial=0.0)))
        if worsts[-1] > bound.limit(got, arguments):
            at = np.unravel_index(int(np.argmax(error)), got.shape)
            where = tuple(int(i) for i in at)
            _expect(
                False, subject, f"{got[at]} at {where}, wanted {want[at]}: {worsts[-1]:.3g} ulp"
            )
    return max(worsts, default=0.0)


# --- layouts --------------------------------------------------------------------------------


def _relaid(arguments: Arguments, layout: Layout) -> Arguments:
    return {
        k: layout(v) if isinstance(v, np.ndarray) and v.ndim else v for k, v in arguments.items()
    }


def keeps_bits_in_any_layout(subject: Subject, arguments: Arguments) -> None:
    """The same values give the same bits, whatever the strides of inputs and outputs, and nothing
    is written between the elements of `out`."""
    plain = subject.answer(arguments)
    for name, layout in LAYOUTS.items():
        relaid = _relaid(arguments, layout)
        blank = tuple(np.full_like(a, poison(a)) for a in plain)
        out = tuple(layout(a) if a.ndim else a for a in blank)
        answers = subject.answer(relaid, out=out if len(out) > 1 else out[0])
        _expect(all(a is b for a, b in zip(answers, out, strict=True)), subject, "out not returned")
        for got, want in zip(answers, plain, strict=True):
            _expect(same_bits(got, want), subject, f"other bits when {name}")
            got[...] = poison(got)
            _expect(_is_poisoned(buffer_of(got)), subject, f"wrote outside `out` when {name}")
        for got, want in zip(subject.answer(relaid), plain, strict=True):
            _expect(same_bits(got, want), subject, f"other bits when only inputs are {name}")


def keeps_bits_on_any_threads(subject: Subject, arguments: Arguments) -> None:
    """The same bits on 1, 2, 3 and 8 threads."""
    before = pullback.get_num_threads()
    try:
        pullback.set_num_threads(1)
        plain = subject.answer(arguments)
        for threads in (2, 3, 8):
            pullback.set_num_threads(threads)
            for got, want in zip(subject.answer(arguments), plain, strict=True):
                _expect(same_bits(got, want), subject, f"other bits on {threads} threads")
    finally:
        pullback.set_num_threads(before)


def leaves_no_traces(subject: Subject, arguments: Arguments) -> None:
    """Poisoned outputs are written in full, guard bands and inputs stay as they were."""
    plain = subject.answer(arguments)
    fenced = {k: _fenced(v, v)[1] if _is_array(v) else v for k, v in arguments.items()}
    before = {k: v.copy() for k, v in fenced.items() if _is_array(v)}
    buffers, outs = zip(*(_fenced(np.full_like(a, poison(a)), a) for a in plain), strict=True)
    subject.answer(fenced, out=outs if len(outs) > 1 else outs[0])
    for got, want in zip(outs, plain, strict=True):
        _expect(same_bits(got, want), subject, "elements left unwritten or written differently")
    for buffer in buffers:
        edges = np.concatenate([buffer[:GUARD], buffer[len(buffer) - GUARD :]])
        _expect(_is_poisoned(edges), subject, "wrote out of bounds")
    for name, old in before.items():
        _expect(same_bits(fenced[name], old), subject, f"modified its input `{name}`")


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _is_poisoned(array: Any) -> bool:
    return bool((bits(array) == bits(poison(array))).all())


def _fenced(values: Any, like: Any) -> tuple[Any, Any]:
    """A buffer with poison on both sides, and the view of its middle that holds `values`."""
    buffer = np.full(like.size + 2 * GUARD, poison(like), like.dtype)
    view = buffer[GUARD : GUARD + like.size].reshape(like.shape)
    view[...] = values
    return buffer, view


def works_in_place(subject: Subject, arguments: Arguments) -> None:
    """An output may be the very buffer of an input, where the contract says so."""
    plain = subject.answer(arguments)
    call = subject.function.body(**subject.function.views(arguments))
    for position, name in enumerate(call.returns):
        for source in call.plan.record.slot(name).in_place_of:
            victim: Any = arguments.get(source)
            result = plain[position]
            if not _is_array(victim) or victim.shape != result.shape:
                continue
            if victim.dtype != result.dtype:  # classes under the name of a distribution
                continue
            shared = victim.copy()
            out = [np.empty_like(a) for a in plain]
            out[position] = shared
            given = tuple(out) if len(out) > 1 else out[0]
            answers = subject.answer({**arguments, source: shared}, out=given)
            for got, want in zip(answers, plain, strict=True):
                _expect(same_bits(got, want), subject, f"other bits in place of `{source}`")


def agrees_with_its_plan(subject: Subject, arguments: Arguments) -> None:
    """The plan API gives the function's bits, and the reference backend its values."""
    plain = subject.answer(arguments)
    call = subject.function.body(**subject.function.views(arguments))
    for backend in (BackendKind.NUMBA, BackendKind.REFERENCE):
        plan = call.plan.select(
            Stream.cpu(), call.descriptor, PlanPreference(prefer_backend=backend)
        )
        slots = {slot.name: slot for slot in plan.record.slots}
        outs = {
            name: np.zeros(slots[name].shape(call.descriptor), spec.element.dtype)
            for name, spec in zip(call.returns, call.specs, strict=True)
        }
        tensors = {k: call.tensors.get(k) for k, slot in slots.items() if not slot.part_of}
        args = _args_class(plan)(**{**tensors, **outs})
        plan.run(Stream.cpu(), Workspace.allocate(plan), args)
        outs = {name: call.as_result(name, array) for name, array in outs.items()}
        if backend is BackendKind.NUMBA:
            for got, want in zip(outs.values(), plain, strict=True):
                _expect(same_bits(got, want), subject, "the plan gives other bits")
        else:
            scales = bound_of(subject).scale(subject, arguments)
            for got, want, scale in zip(outs.values(), plain, scales, strict=False):
                if _is_float(got):
                    error = ulp_error(got, want.astype(np.longdouble), scale)
                    limit = bound_of(subject).limit(got, arguments) + 1
                    close = float(np.max(error, initial=0.0)) <= limit
                    _expect(close, subject, "the reference backend disagrees")


def _args_class(plan: Any) -> Any:
    return getattr(pullback, f"{plan.record.name}Args")


def scans_each_piece_by_itself(subject: Subject, arguments: Arguments) -> None:
    """Where a scan starts anew at borders, a piece has the bits that it has alone."""
    offsets = arguments.get("offsets")
    if offsets is None or "initial" not in subject.function.parameters:
        return
    answers, first = subject.answer(arguments), arguments[_first_tensor(subject)]
    rank, axis = first.ndim, int(arguments.get("axis", -1))
    if rank == 0:
        return
    axis %= rank
    kept = {k: v for k, v in arguments.items() if k != "offsets"}
    for piece, (begin, end) in enumerate(pairwise(map(int, offsets))):
        given = {k: _part(v, axis, rank, first.shape, begin, end) for k, v in kept.items()}
        initial = kept.get("initial")
        if initial is not None and initial.ndim >= rank - axis:
            at = initial.ndim - rank + axis
            own = piece if initial.shape[at] > 1 else 0
            given["initial"] = np.take(initial, min(own, initial.shape[at] - 1), axis=at)
        alone = subject.answer(given)
        for got, want in zip(answers, alone, strict=True):
            if got.shape != first.shape:
                continue  # the gradient of what was broadcast
            part = got[(slice(None),) * axis + (slice(begin, end),)]
            if not _is_float(part):
                want = np.where(want < 0, want, want + begin)
            _expect(same_bits(part, want), subject, f"piece {piece} has other bits alone")


def _part(value: Any, axis: int, rank: int, shape: tuple[int, ...], begin: int, end: int) -> Any:
    """What a piece has of an array of the scanned shape, or of one that broadcasts to it."""
    if not _is_array(value) or value.ndim < rank - axis or value.dtype.kind in "iu":
        return value
    at = value.ndim - rank + axis
    if value.shape[at] != shape[axis]:
        return value
    return value[(slice(None),) * at + (slice(begin, end),)]


# --- derivatives ----------------------------------------------------------------------------


def is_the_adjoint(subject: Subject, arguments: Arguments, forward: Arguments) -> None:
    """<dy, F'v> = <F*dy, v>, with F' by central differences of the oracle in high precision."""
    assert subject.forward is not None
    dy = arguments[_first_tensor(subject)].astype(np.longdouble)
    rng = np.random.default_rng(7)
    names = differentiated(subject, arguments)
    for name, gradient in zip(names, subject.answer(arguments), strict=True):
        at = forward[name].astype(np.longdouble)
        v = rng.standard_normal(at.shape)
        step = np.longdouble(1e-6)
        ends = [subject.forward.truth({**forward, name: at + s * v})[0] for s in (step, -step)]
        with np.errstate(invalid="ignore"):
            rise = np.where(ends[0] == ends[1], 0, ends[0] - ends[1])  # of an infinity none
        numeric = float((dy * rise / (2 * step)).sum())
        ours = float((gradient.astype(np.longdouble) * v).sum())
        size = float((np.abs(gradient.astype(np.longdouble)) * np.abs(v)).sum())
        error = abs(ours - numeric)
        _expect(
            error <= 1e-8 * max(size, 1e-3), subject, f"<F*dy, v> = {ours}, <dy, F'v> = {numeric}"
        )


def differentiated(subject: Subject, arguments: Arguments) -> list[str]:
    """Which tensors of the forward the results of a backward are the gradients of."""
    assert subject.forward is not None
    call = subject.function.body(**subject.function.views(arguments))
    return [_differentiated(subject.forward, result) for result in call.returns]


def _differentiated(forward: Subject, gradient: str) -> str:
    """Which tensor of the forward a result of its backward is the gradient of: `da` of `a`. Plans
    have names of their own for a first tensor."""
    name = gradient.removeprefix("d").removeprefix("_")
    return name if name in forward.function.tensors else _first_tensor(forward)


def _first_tensor(subject: Subject) -> str:
    return next(iter(subject.function.tensors))


LAWS: dict[str, Callable[[Subject, Arguments], Any]] = {
    "equals the oracle": equals_the_oracle,
    "same bits in any layout": keeps_bits_in_any_layout,
    "same bits on any threads": keeps_bits_on_any_threads,
    "leaves no traces": leaves_no_traces,
    "works in place": works_in_place,
    "agrees with its plan": agrees_with_its_plan,
    "scans each piece by itself": scans_each_piece_by_itself,
}


def trials(
    subject: Subject,
    element: ElementKind,
    every: int = 1,
    among: Callable[[Case], bool] = lambda _: True,
) -> Iterator[tuple[str, Arguments]]:
    """Named arguments for a function: its family's cases, the options dealt out in turn. To
    complete a case may take an oracle, so those not wanted are left out before."""
    indices = (ElementKind.I64, ElementKind.I32)
    for number, case in enumerate(case for case in subject.cases() if among(case)):
        if number % every:
            continue
        variant = subject.variants[number // every % len(subject.variants)]
        arguments = subject.arguments(case, element, indices[number % 2], variant)
        if arguments is not None:
            options = ", ".join(f"{k}={v}" for k, v in variant.items())
            yield f"{case.name} {options}".strip(), arguments
