"""`doctor`: what this machine offers, and what would make it better."""

from __future__ import annotations

import os
from collections import Counter
from typing import Annotated, Any

import typer

# What each extra brings: the package that tells whether it is there, and what it is for.
EXTRAS = {
    "torch": ("torch", "PyTorch tensors, autograd, torch.compile"),
    "jax": ("jax", "JAX arrays, jit, grad"),
    "gpu": ("triton", "Triton kernels"),
    "cli": ("typer", "this command"),
    "bench": ("altair", "peers to race against, and the report"),
}


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Versions, cores, CPU features, threads, cache, GPU, extras; with advice.

    [dim]pullback doctor
    pullback doctor --json | jq .advice[/dim]
    """
    from pullback.cli import screen

    found = findings()
    if json:
        screen.as_json(found)
        return
    advice = found.pop("advice")
    table = screen.table("This machine", "what", "found")
    for key, value in found.items():
        table.add_row(key, _said(value))
    screen.show(table)
    out = screen.console()
    for line in advice or ("Nothing to improve.",):
        out.print(f"• {line}", markup=False)


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items()) or "none"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def findings() -> dict[str, Any]:
    import pullback
    from pullback.bench.machine import cores, describe, installed
    from pullback.cpu.buffer_pool import cache_info

    machine = describe(pullback.get_num_threads())
    missing = {name: use for name, (package, use) in EXTRAS.items() if not installed(package)}
    found: dict[str, Any] = {
        "system": f"{machine.system} {machine.arch}, Python {machine.python}",
        "cpu": machine.cpu,
        "cores": f"{len(cores())} usable of {os.cpu_count()}",
        "threads": machine.threads,
        "workers": _waiting(),
        "features": list(machine.features),
        "caches": {name: _bytes(size) for name, size in machine.caches.items()},
        "memory": f"{machine.memory / 2**30:.1f} GiB",
        "versions": machine.versions,
        **_kernels(),
        "output pool": f"up to {cache_info().limit / 2**20:.0f} MiB",
        "gpu": _gpu(),
        "extras": [name for name in EXTRAS if name not in missing],
    }
    found["advice"] = list(_advice(machine, missing))
    return found


def _waiting() -> str:
    """How worker threads sleep between calls."""
    from pullback.cpu.pool import has_futex

    if has_futex():
        return "asleep in Linux's wait queue"
    return "asleep on condition variables of CPython"


def _kernels() -> dict[str, Any]:
    """Which kernels are compiled: ahead, by family, or in the disk cache."""
    from pullback.cpu import library

    path = library.path()
    if path is not None:
        families = Counter(_family(entry) for entry in library.entries())
        where = " and ".join(str(path) for path in library.paths())
        return {"kernels": f"compiled ahead, in {where}", "compiled ahead": dict(families)}
    from pullback.cpu.cache import cache_folder
    from pullback.cpu.store import limit, summary

    kernels, size = summary(folder := cache_folder())
    return {
        "kernels": f"compiled on demand: {library.refusal()}",
        "kernel cache": f"{folder} ({kernels} compiled, {_bytes(size)} of {_bytes(limit())})",
    }


def _family(entry: str) -> str:
    """The family of an entry of a library, "pullback.ops.family.module.kernel dtype index"."""
    parts = entry.split(".")
    return parts[2] if parts[1] == "ops" else "shared"


def _bytes(size: int) -> str:
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"


def _gpu() -> str:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return "unknown (PyTorch is not installed)"
    import torch

    if not torch.cuda.is_available():
        return "none"
    return f"{torch.cuda.get_device_name(0)} ({torch.cuda.device_count()})"


def _advice_with_torch(threads: int) -> Any:
    import torch

    others = torch.get_num_threads()
    if threads > 1 and not others <= threads <= 2 * others:
        yield (
            f"PyTorch has {others} threads, pullback {threads}: with equal numbers pullback makes "
            "use of PyTorch's while they wait for work."
        )


def _advice_on_cache() -> Any:
    import tempfile

    from pullback.cpu import library

    if library.path() is not None:
        return
    from pullback.cpu.cache import cache_folder
    from pullback.cpu.store import summary

    folder = cache_folder()
    if summary(folder)[0] == 0:
        yield "No kernel is compiled yet: `pullback warm` does it once for all."
    if str(folder).startswith(tempfile.gettempdir()):
        yield "The cache is in a temporary folder: set PULLBACK_CACHE_DIR to one that stays."


def _advice(machine: Any, missing: dict[str, str]) -> Any:
    for name, use in missing.items():
        yield f"pip install 'pullback[{name}]' adds {use}."
    yield from _advice_on_cache()
    if machine.threads > machine.cores:
        yield f"{machine.threads} threads on {machine.cores} cores wait for each other."
    if "torch" not in missing:
        yield from _advice_with_torch(machine.threads)
    if machine.arch == "x86_64" and "avx2" not in machine.features:
        yield "This CPU has no AVX2: results are the same, speed is not."
    if machine.arch == "x86_64" and "f16c" not in machine.features:
        yield "This CPU has no F16C: float16 runs on a slower exact path."
