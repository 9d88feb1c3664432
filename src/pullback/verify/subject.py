"""What the laws are applied to: a public function, its oracle, and arguments made from cases."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

import pullback
from pullback.contract.element import ElementKind
from pullback.ops.case import Case
from pullback.plan.function import Function
from pullback.tensor.rounding import round_to

Arguments = dict[str, Any]

# Options a function is tried with, wherever it has a parameter of that name.
VARIANTS: dict[str, tuple[Any, ...]] = {
    "ties": ("first", "last", "split"),
    "mode": ("sum", "mean", "max"),
    "return_indices": (False, True),
    "return_probabilities": (False, True),
    "empty": (None, 7.5),
    "ddof": (0, 1),
    "scale_grad_by_freq": (False, True),
    "weighted": (False, True),
}

# What backwards call the forward's own result, where they take it.
SAVED = ("y", "h")


@dataclass(frozen=True)
class Subject:
    """One public function under law."""

    function: Function
    family: str

    @property
    def name(self) -> str:
        return self.function.name

    def __repr__(self) -> str:
        return self.name

    @cached_property
    def forward(self) -> Subject | None:
        """The function this one is the backward of."""
        base, found, _ = self.name.partition("_backward")
        if not found:
            return None
        while base not in subjects():  # the gradient of one argument is named after it
            base = base.rpartition("_")[0]
        return subjects()[base]

    @cached_property
    def oracle(self) -> Any:
        return getattr(import_module(f"pullback.ops.{self.family}.oracle"), self.name)

    @cached_property
    def _asked(self) -> set[str]:
        """What the oracle takes."""
        return set(inspect.signature(self.oracle).parameters)

    def truth(self, arguments: Arguments, rounded: Arguments | None = None) -> tuple[Any, ...]:
        """The oracle's answer to the same arguments, unrounded. `rounded` are what a kernel would
        take, where these are wider."""
        known = self._asked - self._unread(rounded or arguments)
        with np.errstate(all="ignore"):
            result = self.oracle(**{k: v for k, v in arguments.items() if k in known})
        return result if isinstance(result, tuple) else (result,)

    def _unread(self, arguments: Arguments) -> set[str]:
        """Saved tensors the contract says are never read: the oracle must not see them either."""
        if "y" not in self.function.parameters or self.forward is None:
            return set()
        given = self.function.completed({**self.function.defaults, **arguments})
        desc = self.function.body(**self.function.views(given))
        slots = desc.plan.record.slots
        arrays = {name for name, value in arguments.items() if hasattr(value, "dtype")}
        return arrays & {slot.name for slot in slots if not slot.used(desc.descriptor)}

    def answer(self, arguments: Arguments, **options: Any) -> tuple[Any, ...]:
        """The function's answer."""
        result = self.function(**arguments, **options)
        return result if isinstance(result, tuple) else (result,)

    # --- arguments ---------------------------------------------------------------------------

    @cached_property
    def variants(self) -> tuple[dict[str, Any], ...]:
        """Every sensible combination of this function's options."""
        names = set(self.function.parameters)
        if self.name.endswith("weights_backward"):
            return ({"mode": "sum", "weighted": True},)
        if "per_sample_weights" in names and "offsets" in names:
            names.add("weighted")
        chosen = {name: VARIANTS[name] for name in VARIANTS if name in names}
        combos = (dict(zip(chosen, values, strict=True)) for values in product(*chosen.values()))
        return tuple(combo for combo in combos if self._sensible(combo))

    def _sensible(self, options: dict[str, Any]) -> bool:
        mode = options.get("mode")
        return not (
            not self._takes_value("ties", options.get("ties"))
            or (mode is not None and options.get("return_indices") and mode != "max")
            or (options.get("weighted") and mode not in (None, "sum"))
        )

    def _takes_value(self, name: str, value: Any) -> bool:
        """Whether the signature has a value among the strings that an option may be."""
        if value is None:
            return True
        written = str(self.function.binder.parameters[name].annotation)
        return "Literal" not in written or repr(value) in written

    def saved(self, arguments: Arguments, exact: bool) -> tuple[Any, ...]:
        """Results to be handed to the backward."""
        if exact:
            return self.truth(arguments)
        return self.answer({k: v for k, v in arguments.items() if k in self.function.parameters})

    def takes(self, case: Case) -> bool:
        """Whether this may be a case of the function: bags have weights of samples, and scans,
        segments and bags may have offsets; those of losses have a target."""
        names = self.function.parameters
        if ("target" in case.arrays) != ("target" in names):
            return False
        if "indices" in names and ("per_sample_weights" in case.arrays) != ("offsets" in names):
            return False
        return "offsets" in names or "offsets" not in case.arrays

    def arguments(
        self,
        case: Case,
        element: ElementKind,
        index: ElementKind,
        variant: dict[str, Any],
        exact: bool = True,
    ) -> Arguments | None:
        """The case in this element, completed by what the function needs; None if it has not what
        the function takes. Saved results are the oracle's, or, unless `exact`, our own: large cases
        have no time for an oracle."""
        names = self.function.parameters
        if not self.takes(case):
            return None
        found = {k: _cast(v, element, index) for k, v in case.arrays.items() if k in names}
        found.update({k: v for k, v in case.options.items() if k in names})
        found.update({k: v for k, v in variant.items() if k in names})
        if not variant.get("weighted"):
            found.pop("per_sample_weights", None)
        if "out_of_range" in names:
            found["out_of_range"] = "skip"
        self._complete(found, case, element, exact)
        required = (name for name in names if name not in self.function.defaults)
        return found if all(name in found for name in required) else None

    def _complete(self, found: Arguments, case: Case, element: ElementKind, exact: bool) -> None:
        names = self.function.parameters
        if "num_segments" in names and "num_segments" not in found and "dy" in case.arrays:
            found["num_segments"] = _segments(case)
        if "num_embeddings" in names and "weight" in case.arrays:
            found["num_embeddings"] = len(case.arrays["weight"])
        for name in SAVED:
            if self.forward is not None and name in names and name not in case.arrays:
                given = {
                    key: _cast(array, element, ElementKind.I64)
                    for key, array in case.arrays.items()
                    if key in self.forward.function.tensors
                }
                extent = {"num_segments": _segments(case)}
                (result,) = self.forward.saved({**extent, **found, **given}, exact)
                with np.errstate(all="ignore"):
                    found[name] = round_to(result, element.dtype)
        if "p" in names and self.forward is not None:
            x = _cast(case.arrays["x"], element, ElementKind.I64)
            inputs = {**found, "x": x, "return_probabilities": True}
            with np.errstate(all="ignore"):
                found["p"] = round_to(self.forward.saved(inputs, exact)[1], element.dtype)
        if found.get("mode") == "max" and "output_index" in names and self.forward is not None:
            inputs = {**found, "return_indices": True}
            inputs["weight"] = _cast(case.arrays["weight"], element, ElementKind.I64)
            found["output_index"] = self.forward.saved(inputs, exact)[1].astype(np.int64)

    def cases(self) -> tuple[Case, ...]:
        """The adversarial inputs of this function's family."""
        return self.plain_cases() + self.extended_cases()

    def plain_cases(self) -> tuple[Case, ...]:
        return _cases(self.family, "cases")

    def extended_cases(self) -> tuple[Case, ...]:
        """Those that use what only the CPU has, where the family has any."""
        return _cases(self.family, "extended_cases")

    def smooth_cases(self) -> tuple[Case, ...]:
        """Small inputs at which the function has a derivative, for tests that take it."""
        if self.forward is not None:
            own = _cases(self.family, "smooth_backward_cases")
            return own or _cases(self.family, "smooth_cases")
        return _cases(self.family, "smooth_cases")

    def larger_smooth_cases(self) -> tuple[Case, ...]:
        """More of them, for central differences of the definition."""
        return _cases(self.family, "larger_smooth_cases") or self.smooth_cases()

    def large_cases(self) -> tuple[Case, ...]:
        """Inputs large enough to be split, in every way the family's kernels walk."""
        return _cases(self.family, "large_cases")


def _segments(case: Case) -> Any:
    """How many segments a case has: as it says, or as there are rows of the gradient."""
    dy = case.arrays.get("dy")
    return case.options.get("num_segments", None if dy is None or not dy.ndim else len(dy))


@cache
def _cases(family: str, which: str) -> tuple[Case, ...]:
    """Made once for all laws, and for none to write to."""
    make = getattr(import_module(f"pullback.ops.{family}.cases"), which, None)
    found = tuple(make(np.random.default_rng(20))) if make else ()
    for case in found:
        for array in case.arrays.values():
            array.flags.writeable = False
    return found


def _cast(array: Any, element: ElementKind, index: ElementKind) -> Any:
    kind = element if array.dtype.kind == "f" else index
    with np.errstate(all="ignore"):
        return np.asarray(array.astype(kind.dtype))


@cache
def subjects() -> dict[str, Subject]:
    """Every public function that has an oracle, by name."""
    found = {}
    for name in pullback.__all__:
        function = getattr(getattr(pullback, name), "function", None)
        if function is not None:
            family = function.body.__module__.split(".")[2]
            found[name] = Subject(function, family)
    return found
