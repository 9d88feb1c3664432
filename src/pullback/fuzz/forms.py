"""The forms in which one call can be made: NumPy, torch, JAX, plan; laid out, in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

import pullback
from pullback.contract.errors import PullbackError
from pullback.fuzz.trial import Trial
from pullback.plan.stream import Stream
from pullback.verify.laws import same_bits

_BF16 = np.dtype(ml_dtypes.bfloat16)


class Mismatch(AssertionError):
    """A trial failed: `check` says where, `what` how."""

    def __init__(self, check: str, what: str) -> None:
        self.check, self.what = check, what
        super().__init__(f"{check}: {what}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call came to: its results as NumPy arrays, or its error."""

    results: tuple[Any, ...] = ()
    error: PullbackError | None = None


def outcome(call: Callable[[], Any]) -> Outcome:
    """Any exception that is not one of ours is not caught: it is a fault by itself."""
    try:
        result = call()
    except PullbackError as error:
        return Outcome(error=error)
    results = result if isinstance(result, tuple) else (result,)
    return Outcome(tuple(as_array(part) for part in results))


def expect_same(check: str, got: Outcome, want: Outcome) -> None:
    """The same bits, or the same error about the same argument."""
    if (got.error is None) != (want.error is None):
        said = [str(o.error) if o.error else "a result" for o in (got, want)]
        raise Mismatch(check, f"{said[0]}, where the plain call gives {said[1]}")
    if got.error is not None and want.error is not None:
        same = type(got.error) is type(want.error)
        if check != "plan":  # whose arguments have names of their own
            same = same and got.error.argument == want.error.argument
        if not same:
            raise Mismatch(check, f"error {got.error!r}, the plain call's is {want.error!r}")
        return
    if len(got.results) != len(want.results):
        raise Mismatch(check, f"{len(got.results)} results, wanted {len(want.results)}")
    for mine, theirs in zip(got.results, want.results, strict=True):
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
            what = f"{mine.dtype}{mine.shape}, wanted {theirs.dtype}{theirs.shape}"
            raise Mismatch(check, what)
        if not alike(mine, theirs):
            raise Mismatch(check, f"other bits: {difference(mine, theirs)}")


def alike(got: Any, want: Any) -> bool:
    """Equal bits; one NaN is as good as another, since which of two survives an addition is up to
    the processor."""
    if same_bits(got, want):
        return True
    if got.dtype.kind in "iu":
        return False
    both = np.isnan(got) & np.isnan(want)
    return same_bits(np.where(both, 0, got), np.where(both, 0, want))


def difference(got: Any, want: Any) -> str:
    """The first element that differs."""
    word = f"u{got.itemsize}"
    other = np.ascontiguousarray(got).view(word) != np.ascontiguousarray(want).view(word)
    at = tuple(int(i) for i in np.argwhere(np.atleast_1d(other))[0])[: got.ndim]
    count = int(other.sum())
    return f"{got[at]} at {at}, wanted {want[at]}; {count} of {got.size} elements differ"


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = pullback.get_num_threads()
    pullback.set_num_threads(count)
    try:
        yield
    finally:
        pullback.set_num_threads(before)


def plain(trial: Trial) -> Outcome:
    """The call everything is compared with: contiguous NumPy arrays, results made by the call."""
    fresh = {name: array.copy() for name, array in trial.arrays.items()}
    return outcome(lambda: trial.subject.function(**fresh, **trial.options))


def planned(trial: Trial, arguments: dict[str, Any], any_plan: bool = False) -> Any:
    """What the function asks of its plan; None if it refuses, or does more than run one plan. With
    `any_plan`, also of a plan whose results are not yet those of the function."""
    function = trial.subject.function
    given = {**function.defaults, **arguments}
    try:
        return function.planned(given) if any_plan else function.body(**function.views(given))
    except PullbackError:
        return None


def carrying_state(call: Any) -> Any:
    """The descriptor of the same problem that takes and leaves a state; None if none may."""
    if not hasattr(call.descriptor, "stateful"):
        return None
    descriptor = replace(call.descriptor, stateful=True)
    try:
        call.plan.select(Stream.cpu(), descriptor)
    except PullbackError:
        return None
    return descriptor


def updated(call: Any) -> dict[str, str]:
    """Arguments that the call writes to, by the names of the results they are."""
    return {name: call.tensors[name].origin[0] for name in call.returns if name in call.tensors}


def read_by(call: Any) -> set[str]:
    """Arguments whose elements the call looks at."""
    slots = [slot for slot in call.plan.record.slots if slot.used(call.descriptor)]
    views = (call.tensors.get(slot.name) for slot in slots)
    return {view.origin[0] for view in views if view is not None}


# --- arrays of other libraries -------------------------------------------------------------------


def as_tensor(array: Any) -> Any:
    """A torch tensor of the same memory."""
    import torch

    if array.dtype == _BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_jax(array: Any) -> Any:
    import jax

    jax.config.update("jax_enable_x64", True)
    return jax.numpy.asarray(array)


def as_array(value: Any) -> Any:
    """The NumPy array of what a call returned."""
    if isinstance(value, np.ndarray):
        return value
    if type(value).__module__.startswith("torch"):
        import torch

        value = value.detach()
        if value.dtype == torch.bfloat16:
            return value.view(torch.int16).numpy().view(_BF16)
        return value.numpy()
    return np.asarray(value)
