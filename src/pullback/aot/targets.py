"""What a library is compiled for."""

from __future__ import annotations

import platform
from typing import Final, NamedTuple


class Target(NamedTuple):
    """`machine` is what `platform.machine` says there. `modules` are those whose kernels are made
    for it beside the first target of the machine, which has all kernels and the runtime."""

    name: str
    machine: str
    triple: str
    cpu: str
    modules: tuple[str, ...] = ()

    def has(self, entry: str, first: Target) -> bool:
        return self == first or entry.startswith(self.modules)


# Kernels that AVX-512 makes 1.3 to 1.7 times as fast. Of others, softmax gains 1.15 and
# segment_softmax 1.1: a wheel of 8 MB has no place for them.
_WITH_EXPONENTIALS: Final = ("pullback.ops.scan.cpu_logcumsumexp",)

# x86-64-v3 is every processor with AVX2 and FMA, v4 those with AVX-512. Without FMA each fma would
# be a call of the C library: older processors compile on demand, in another way.
TARGETS: Final = (
    Target("x86-64-v3", "x86_64", "x86_64-unknown-linux-gnu", "x86-64-v3"),
    Target("x86-64-v4", "x86_64", "x86_64-unknown-linux-gnu", "x86-64-v4", _WITH_EXPONENTIALS),
    Target("aarch64", "aarch64", "aarch64-unknown-linux-gnu", "generic"),
)


def targets_of(machine: str) -> list[Target]:
    return [target for target in TARGETS if target.machine == machine]


def pretend(machine: str) -> None:
    """Have this process compile for another machine: code that has instructions of its own there
    (a hint in loops that wait, the floating-point environment) asks `platform` when imported."""
    if machine != platform.machine():
        platform.machine = lambda: machine
