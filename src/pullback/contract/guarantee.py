"""What a kernel says of itself: its guarantee, its identity, and what a caller may prefer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.imports import resolve
from pullback.contract.kinds import BackendKind, MathPrecision, OpCategory, Reproducibility


@dataclass(frozen=True, slots=True)
class PrecisionGuarantee:
    """How a result is computed and what its bits survive."""

    math_precision: MathPrecision
    accumulator: ElementKind
    bit_stable_on_same_hardware: bool
    deterministic: bool
    reproducibility: Reproducibility


def guarantee(
    accumulator: ElementKind, reproducibility: Reproducibility, math: ElementKind | None = None
) -> PrecisionGuarantee:
    """The guarantee that follows from the accumulator, the level of reproducibility, and what is
    computed in where that is narrower than the accumulator."""
    return PrecisionGuarantee(
        math_precision=MathPrecision[(math or accumulator).name],
        accumulator=accumulator,
        bit_stable_on_same_hardware=reproducibility >= Reproducibility.RUN_TO_RUN,
        deterministic=reproducibility >= Reproducibility.RUN_TO_RUN,
        reproducibility=reproducibility,
    )


@dataclass(frozen=True, slots=True)
class KernelSku:
    """The identity of a kernel, for telemetry. Forward and backward differ."""

    category: OpCategory
    op: Enum
    direction: str
    element: ElementKind
    aux_element: ElementKind | None
    arch: str
    backend: BackendKind
    precision_guarantee: PrecisionGuarantee

    @property
    def collectives(self) -> Any:
        """What this op takes over an axis that is spread over ranks (docs/distributed.md); None
        where its operands are gathered whole."""
        return resolve("pullback.distributed.cost:of_sku")(self)

    def __str__(self) -> str:
        aux = f"+{self.aux_element.value}" if self.aux_element else ""
        kept = self.precision_guarantee
        return (
            f"{self.category.value}.{self.op.name.lower()}.{self.direction} "
            f"{self.element.value}{aux} {self.backend.value}/{self.arch} "
            f"acc={kept.accumulator.value} {kept.reproducibility.name.lower()}"
        )


@dataclass(frozen=True, slots=True)
class PlanPreference:
    """What a caller asks of a plan; a preference that cannot be met raises `Unsupported`."""

    max_workspace_bytes: int | None = None
    prefer_backend: BackendKind | None = None
    reproducibility: Reproducibility = Reproducibility.NONE
