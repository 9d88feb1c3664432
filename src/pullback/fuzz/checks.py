"""What a trial is compared with. Each check is one function of the trial and its plain outcome."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import pullback
from pullback.fuzz import forms
from pullback.fuzz.buffers import Laid, lay_out
from pullback.fuzz.forms import Mismatch, Outcome, expect_same, outcome
from pullback.fuzz.layout import Layout, place
from pullback.fuzz.memory import Memory
from pullback.fuzz.trial import Trial
from pullback.fuzz.windows import given_array, scratch, windows
from pullback.plan.stream import Stream
from pullback.verify.laws import LawBroken, compare

Check = Callable[[Trial, Outcome, Memory], None]
_MEMORY = Memory()


def run(trial: Trial) -> list[str]:
    """All checks of a trial; the names of those that had something to compare. The first that
    fails raises `Mismatch`."""
    done = []
    with warnings.catch_warnings(), forms.threads(trial.threads[0]):
        warnings.simplefilter("error")
        try:
            want = _plain(trial)
            for name in trial.checks:
                try:
                    if CHECKS[name](trial, want, _MEMORY) is not False:
                        done.append(name)
                except (Mismatch, MemoryError):
                    raise
                except Exception as error:
                    raise Mismatch(name, f"{type(error).__name__}: {error}") from error
        finally:
            _MEMORY.give_back()
    return done


def _plain(trial: Trial) -> Outcome:
    """The plain call, which must be refused if the trial is a mistake, and only then."""
    try:
        want = forms.plain(trial)
    except Exception as error:
        raise Mismatch("plain", f"{type(error).__name__}: {error}") from error
    if trial.apart:
        if want.error is not None:
            raise Mismatch("plain", f"refused without a reason: {want.error!r}")
        out = trial.mistake.startswith("out")
        want = _with_bad_out(trial, want) if out else _with_short_storage(trial)
    if want.error is not None and type(want.error).__name__ not in trial.refused:
        expected = " or ".join(trial.refused) or "a result"
        raise Mismatch("plain", f"{want.error!r}, expected {expected}")
    if want.error is None and trial.refused:
        raise Mismatch("plain", f"accepted, expected {' or '.join(trial.refused)}")
    return want


def _with_bad_out(trial: Trial, want: Outcome) -> Outcome:
    """The call with an `out` it must refuse, which stays as it was."""
    out = _bad_out(trial, want)
    if out is None:
        return Outcome(error=_skipped(trial))
    before = [part.tobytes() for part in out]
    given = tuple(out) if len(out) > 1 else out[0]
    got = outcome(lambda: trial.subject.function(**_arguments(trial, out), out=given))
    if got.error is not None and [part.tobytes() for part in out] != before:
        raise Mismatch("plain", "a refused call wrote into `out`")
    return got


def _with_short_storage(trial: Trial) -> Outcome:
    """A call on torch tensors of which one has lost half its memory, after one that had it all."""
    read = forms.read_by(forms.planned(trial, trial.arguments))
    name = next((k for k, v in trial.arrays.items() if k in read and v.size > 1), "")
    if not name:
        return Outcome(error=_skipped(trial))

    def call(share: int) -> Any:
        given = {k: forms.as_tensor(v.copy()).clone() for k, v in trial.arrays.items()}
        storage = given[name].untyped_storage()
        storage.resize_(storage.nbytes() // share)
        return trial.subject.function(**given, **trial.options)

    call(1)
    return outcome(lambda: call(2))


def _skipped(trial: Trial) -> Any:
    """What stands for the error where the mistake cannot be made."""
    error = type(trial.refused[0], (pullback.PullbackError,), {})
    return error(trial.function, "out", "another", "none to be had")


def _arguments(trial: Trial, out: list[Any]) -> dict[str, Any]:
    """The arguments, of which one shares the memory of `out` if that is the mistake."""
    if trial.mistake != "out that overlaps an input":
        return trial.arguments
    name = _alike(trial, out[0])
    shared = out[0].base[: out[0].size].reshape(out[0].shape)
    return {**trial.arguments, name: shared}


def _alike(trial: Trial, result: Any) -> str:
    """An argument that is read and has the shape and dtype of a result; "" if there is none."""
    read = forms.read_by(forms.planned(trial, trial.arguments))
    kind = result.dtype, result.shape
    found = (k for k, v in trial.arrays.items() if k in read and (v.dtype, v.shape) == kind)
    return next(found, "")


def _bad_out(trial: Trial, want: Outcome) -> list[Any] | None:
    """Results such as the mistake says; None where there is no such thing."""
    out = [np.zeros_like(part) for part in want.results]
    first = out[0]
    if trial.mistake == "out of another shape":
        out[0] = np.zeros((*first.shape, 2), first.dtype)
    elif trial.mistake == "out of another dtype":
        out[0] = np.zeros(first.shape, np.complex64)
    elif trial.mistake == "out that is read-only":
        first.flags.writeable = False
    elif trial.mistake == "out that overlaps itself":
        if first.size < 2:
            return None
        out[0] = np.broadcast_to(np.zeros((), first.dtype), first.shape)
        out[0].flags.writeable = True
    else:
        if first.size < 2 or not _alike(trial, first):
            return None
        out[0] = np.zeros(first.size + 1, first.dtype)[1:].reshape(first.shape)
    return out


# --- the checks ----------------------------------------------------------------------------------


def oracle(trial: Trial, want: Outcome, memory: Memory) -> bool | None:
    """Within the stated error of the definition."""
    if want.error is not None:
        return False
    try:
        compare(trial.subject, trial.arguments, want.results)
    except LawBroken as broken:
        raise Mismatch("oracle", str(broken).partition(": ")[2]) from None
    return None


def repeat(trial: Trial, want: Outcome, memory: Memory) -> bool | None:
    """A repeated call, which is recognised without validation, gives the same."""
    if trial.apart:
        return False
    for _ in range(2):
        expect_same("repeat", forms.plain(trial), want)
    return None


def threads(trial: Trial, want: Outcome, memory: Memory) -> bool | None:
    if trial.apart:
        return False
    with forms.threads(trial.threads[1]):
        expect_same("threads", forms.plain(trial), want)
    return None


def layout(trial: Trial, want: Outcome, memory: Memory) -> bool | None:
    """Other strides of inputs and outputs, on guarded memory, twice: the second call is known."""
    if trial.apart:
        return False
    laid = lay_out(trial, want, memory)
    for _ in range(2):
        _call_laid("layout", trial, laid, want, lambda array: array)
    return None


def torch(trial: Trial, want: Outcome, memory: Memory) -> bool | None:
    if trial.apart:
        return False
    laid = lay_out(trial, want, memory, forwards=True)
    for _ in range(2):
        _call_laid("torch", trial, laid, want, forms.as_tensor)
    return None


def _call_laid(
    check: str, trial: Trial, laid: Laid, want: Outcome, convert: Callable[[Any], Any]
) -> None:
    """Call on arrays that lie as the trial says; look at results and at the memory around."""
    laid.refill()
    inputs = {name: convert(array) for name, array in laid.arrays.items()}
    outs = tuple(convert(array) for array in laid.outs)
    given = {"out": outs if len(outs) > 1 else outs[0]} if outs else {}
    got = outcome(lambda: trial.subject.function(**inputs, **trial.options, **given))
    laid.expect_untouched(check, got.error is not None)
    if got.error is None and outs:
        got = Outcome(tuple(array.copy() for array in laid.outs))
    expect_same(check, got, want)


def jax(trial: Trial, want: Outcome, memory: Memory) -> bool | None:
    call = forms.planned(trial, trial.arguments)
    if trial.mistake or call is None or want.error is not None or forms.updated(call):
        return False
    arrays = {name: forms.as_jax(array) for name, array in trial.arrays.items()}
    got = outcome(lambda: trial.subject.function(**arrays, **trial.options))
    expect_same("jax", got, want)
    return None


def alternative(trial: Trial, want: Outcome, memory: Memory) -> bool | None:
    """Arguments in another form that must change nothing."""
    if trial.mistake or not trial.alternatives:
        return False
    others = {name: make(trial.arrays[name]) for name, make in trial.alternatives.items()}
    for _ in range(2):
        fresh = {name: array.copy() for name, array in trial.arrays.items()}
        given = {**fresh, **trial.options, **others}
        expect_same("alternative", outcome(partial(trial.subject.function, **given)), want)
    return None


def in_place(trial: Trial, want: Outcome, memory: Memory) -> bool | None:
    """A result in the very buffer of an input, where the record allows it."""
    call = forms.planned(trial, trial.arguments)
    if trial.mistake or want.error is not None or call is None:
        return False
    tried = False
    for position, name in enumerate(call.returns):
        for source in call.plan.record.slot(name).in_place_of:
            shared = trial.arrays.get(source)
            result = want.results[position]
            if shared is None or (shared.shape, shared.dtype) != (result.shape, result.dtype):
                continue
            if not all(trial.layout(source, shared.ndim).steps):
                continue
            tried = True
            laid = lay_out(trial, want, memory, given=True)
            laid.share(position, source)
            _call_laid("in place", trial, laid, want, lambda array: array)
    return None if tried else False


def plan(trial: Trial, want: Outcome, memory: Memory) -> bool | None:
    """The plan that answers the function, run by itself on guarded memory, twice."""
    laid = lay_out(trial, want, memory, given=True)
    laid.refill()
    call = forms.planned(trial, {**laid.arrays, **trial.options})
    if trial.mistake or want.error is not None or call is None:
        return False
    chosen = call.plan.select(Stream.cpu(), call.descriptor)
    slots = {slot.name: slot for slot in chosen.record.slots}
    tensors = {k: given_array(call.tensors.get(k)) for k, s in slots.items() if not s.part_of}
    kept = dict(zip(call.returns, _outs_of(call, laid, slots, memory), strict=True))
    mine = forms.updated(call)
    tensors.update({k: v for k, v in kept.items() if k not in mine})
    args = getattr(pullback, f"{chosen.record.name}Args")(**tensors)
    workspace = scratch(chosen, memory)
    for _ in range(2):
        laid.refill()
        chosen.run(Stream.cpu(), workspace, args)
        laid.expect_untouched("plan", False)
        found = {k: laid.arrays[mine[k]] if k in mine else kept[k] for k in call.returns}
        got = Outcome(tuple(call.as_result(k, np.array(part)) for k, part in found.items()))
        expect_same("plan", got, want)
    return None


def _outs_of(call: Any, laid: Laid, slots: dict[str, Any], memory: Memory) -> list[Any]:
    """The results as they lie, where the plan sees them in the function's shape; else others."""
    found = []
    for position, (name, spec) in enumerate(zip(call.returns, call.specs, strict=True)):
        shape = slots[name].shape(call.descriptor)
        as_laid = position < len(laid.outs) and laid.outs[position].shape == shape
        if as_laid and not call.axes.get(name, 0):
            found.append(laid.outs[position])
        else:
            how = Layout.plain(len(shape))
            found.append(place(memory, shape, spec.element.dtype, how)[1])
    return found


CHECKS: dict[str, Callable[[Trial, Outcome, Memory], bool | None]] = {
    "oracle": oracle,
    "layout": layout,
    "repeat": repeat,
    "threads": threads,
    "plan": plan,
    "torch": torch,
    "jax": jax,
    "in place": in_place,
    "alternative": alternative,
    "windows": windows,
}
