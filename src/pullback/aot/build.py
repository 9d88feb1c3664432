"""A folder of libraries: one for each target, and what is in them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pullback.aot.targets import Target, pretend
from pullback.bench.ahead import Step
from pullback.cpu import library

# What a library may leave for the process to define: the C library and the interpreter.
_PYTHON = ("Py", "_Py")
_C = (
    *("clock_gettime", "dlsym", "madvise", "memcpy", "memmove", "memset", "mmap", "munmap"),
    *("pthread_create", "pthread_detach", "pthread_getcpuclockid", "pthread_self"),
    *("pthread_setaffinity_np", "pthread_sigmask", "sched_getcpu", "sched_yield", "syscall"),
)


class BuildError(Exception):
    """A sentence about what kept a library from being made."""


def build(folder: Path, steps: list[Step], targets: list[Target], jobs: int) -> None:
    """Compile what the steps reach into `folder`, for targets of one machine."""
    from pullback.aot import collect
    from pullback.cpu import workers, xla

    natives, kernels = collect.runtime(), collect.requests(steps)
    names = [*natives, *kernels]
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch:
        objects: dict[str, list[Path]] = {target.name: [] for target in targets}
        for name, made in _objects(steps, names, targets, jobs):
            for where, code in made.items():
                path = Path(scratch, where, f"{names.index(name):05}.o")
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(code)
                objects[where].append(path)
        for target in targets:
            state = Path(scratch, target.name, "state.o")
            state.write_bytes(_state(target, {workers.SYMBOL: workers.STATE_BYTES, **xla.MEMORY}))
            _link(target, [*sorted(objects[target.name]), state], folder / f"{target.name}.so")
    library.write_manifest(folder, names)


def _state(target: Target, symbols: dict[str, int]) -> bytes:
    from pullback.aot.emit import Emitter

    return Emitter(target).zeroed(symbols)


def _objects(
    steps: list[Step], names: list[str], targets: list[Target], jobs: int
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Every entry's objects, by target, in no order. A process gets every `jobs`-th name."""
    if jobs == 1:
        yield from _share(steps, names, targets, 0, 1)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        shares = [pool.submit(_listed, steps, names, targets, n, jobs) for n in range(jobs)]
        for share in shares:
            yield from share.result()


def _listed(*arguments: Any) -> list[tuple[str, dict[str, bytes]]]:
    return list(_share(*arguments))


def _share(
    steps: list[Step], names: list[str], targets: list[Target], first: int, every: int
) -> Iterator[tuple[str, dict[str, bytes]]]:
    pretend(targets[0].machine)
    from pullback.aot import collect
    from pullback.aot.capture import capture
    from pullback.aot.emit import Emitter

    known = {**collect.runtime(), **collect.entries(collect.requests(steps))}
    emitters = [Emitter(target) for target in targets]
    for number in range(first, len(names), every):
        captured = capture(*known[names[number]])
        symbol = library.symbol_of(number)
        yield names[number], {e.target.name: e.emit(captured, symbol) for e in emitters}


# --- linking -------------------------------------------------------------------------------------


def _linker(target: Target) -> list[str]:
    """The machine's own linker for its own objects; zig's (`pip install ziglang`) for others."""
    if target.machine == os.uname().machine:
        return ["ld"]
    try:
        import ziglang  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: F401
    except ImportError:
        raise BuildError(
            f"objects for {target.machine} need a linker for it: pip install ziglang"
        ) from None
    return [sys.executable, "-m", "ziglang", "ld.lld"]


def _link(target: Target, objects: list[Path], out: Path) -> None:
    """One shared library without names of its own functions. Nothing in it says when or where it
    was made."""
    options = [
        "-shared",
        "-s",
        "--build-id=none",
        "-z",
        "noexecstack",
        "-z",
        "now",
        "--gc-sections",
    ]
    options += ["-z", "separate-code"] if target.machine == "x86_64" else []
    # Through a file: there may be more names than a command line holds.
    script = objects[0].with_name("objects.txt")
    script.write_text("\n".join(map(str, objects)))
    command = [*_linker(target), *options, "-o", str(out), f"@{script}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command[:3])}: {done.stderr.strip()}")
    unknown = {name for name in undefined(out) if name not in _C and not name.startswith(_PYTHON)}
    if unknown:
        raise BuildError(f"{out.name} needs {', '.join(sorted(unknown))}, which nobody defines")


def undefined(path: Path) -> set[str]:
    """The dynamic symbols of a 64-bit ELF file that it does not define."""
    from pullback.aot.elf import dynamic_symbols

    return {name for name, defined in dynamic_symbols(path.read_bytes()) if not defined}
