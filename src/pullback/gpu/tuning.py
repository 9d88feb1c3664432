"""Optional tuning: on how many warps a step runs, measured on the GPU at hand and kept for it.

Launch tables know extents, not devices. `tune` times a plan on the caller's own tensors with every
number of warps, one step after another, and leaves the best in Triton's cache folder; plans laid
out later look there. How many warps share a sum decides in which order it is added up: tuned and
untuned results may differ in their last bits. The same call still gives the same bits every time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, partial
from math import inf
from pathlib import Path
from typing import Any

import triton

from pullback.gpu.program import Operand, Scratch, Step
from pullback.internals.triton import OutOfResources, get_cache_manager

WARPS = (1, 2, 4, 8, 16)
_NOTE = "warps.txt"

Measure = Callable[[Callable[[], Any]], float]


def kind_of(step: Step) -> str:
    """Equal for steps that share their warps: one kernel, its constants, the types of memory."""
    kernel, given = step.kernel, step.arguments
    constants = (f"{p.name}={given[p.name]}" for p in kernel.params if p.is_constexpr)
    types = (v.element.value for v in given.values() if isinstance(v, Operand | Scratch))
    return " ".join((kernel.__module__, kernel.__name__, *constants, *types))


def warps_of(step: Step, arch: str) -> int:
    """What was measured on such a GPU, or what the launch table says."""
    return _measured(kind_of(step), arch) or step.warps


@cache
def _measured(kind: str, arch: str) -> int | None:
    path = _cache_of(kind, arch).get_file(_NOTE)
    return int(Path(path).read_text()) if path else None


def _cache_of(kind: str, arch: str) -> Any:
    known = "-".join((triton.__version__, arch, kind))
    return get_cache_manager(hashlib.sha256(known.encode()).hexdigest())


def tune(plan: Any, workspace: Any, args: Any, measure: Measure | None = None) -> dict[str, int]:
    """Time a GPU plan on these tensors and keep the best warps of each of its steps, by kind.

    The plan is run many times, so its outputs are written many times over, and a plan that
    accumulates adds as often. `measure` gives the time of a call; Triton's own if left out."""
    launch, addresses, _ = plan._prepare(args)
    runner = launch.runner
    timed = measure or triton.testing.do_bench

    def seconds(number: int, warps: int) -> float:
        runner.warps[number] = warps
        try:
            return timed(lambda: runner(addresses, workspace.address, 1))
        except OutOfResources:
            return inf

    found = {}
    for number, step in enumerate(runner.steps):
        if isinstance(step, Step):
            best = min(WARPS, key=partial(seconds, number))
            runner.warps[number] = found[kind_of(step)] = best
    for kind, best in found.items():
        _cache_of(kind, plan.sku.arch).put(str(best), _NOTE, binary=False)
    _measured.cache_clear()
    return found
