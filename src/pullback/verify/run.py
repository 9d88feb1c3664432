"""The laws on this machine: what `pullback verify` runs and shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pullback.contract.element import FLOATS, ElementKind
from pullback.verify.laws import LAWS, LawBroken, trials
from pullback.verify.subject import subjects


@dataclass(frozen=True)
class Verdict:
    """One law on one function in one element: how many trials, what broke it, the worst error."""

    function: str
    element: ElementKind
    law: str
    trials: int
    broken: str | None
    worst_ulp: float

    @property
    def kept(self) -> bool:
        return self.broken is None


def verify(
    names: Sequence[str] | None = None,
    elements: Sequence[ElementKind] = FLOATS,
    every: int = 4,
) -> Iterator[Verdict]:
    """Apply every law to the named functions (all, if None) on every `every`-th case."""
    for name in names or sorted(subjects()):
        for element in elements:
            for law in LAWS:
                yield _apply(name, element, law, every)


def _apply(name: str, element: ElementKind, law: str, every: int) -> Verdict:
    subject = subjects()[name]
    count, worst = 0, 0.0
    for case, arguments in trials(subject, element, every):
        count += 1
        try:
            worst = max(worst, LAWS[law](subject, arguments) or 0.0)
        except LawBroken as broken:
            return Verdict(name, element, law, count, f"{case}: {broken}", worst)
    reason = None if count else "no case of its family could be tried"
    return Verdict(name, element, law, count, reason, worst)
