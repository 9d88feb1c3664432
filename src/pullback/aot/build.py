"""A folder of libraries: one for each target, and what is in them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pullback.aot import elf, objects
from pullback.aot.emit import PLACEHOLDER
from pullback.aot.order import by_likeness
from pullback.aot.targets import Target
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


def build(
    folder: Path, steps: list[Step], targets: list[Target], jobs: int, kept: Path | None
) -> None:
    """Compile what the steps reach into `folder`, for targets of one machine. Objects stay in
    `kept`, if that is given, for the next time."""
    from pullback.aot import collect

    known = collect.names(steps)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch:
        place = kept or Path(scratch, "objects")
        objects.make(place, known, targets, jobs)
        files = objects.Objects(place, targets[0].machine)
        symbols: dict[str, str] = {}
        codes: dict[str, dict[str, bytes]] = {target.name: {} for target in targets}
        for name in known:
            used = [target for target in targets if target.has(name, targets[0])]
            paths = [files.object_path(name, target) for target in used]
            made = [path.read_bytes() for path in paths]
            symbols[name] = symbol = _symbol(made)
            for target, code in zip(used, made, strict=True):
                codes[target.name][symbol] = code
        for target in targets:
            place = Path(scratch, target.name)
            memory = target == targets[0]
            _link(target, _written(place, target, codes[target.name], memory), folder)
    library.write_manifest(folder, symbols)


def _symbol(codes: list[bytes]) -> str:
    """A name for this code, as long as what it replaces. Kernels of two dtypes may be the same
    code, which then is linked once."""
    return "p" + hashlib.sha256(b"".join(codes)).hexdigest()[: len(PLACEHOLDER) - 1]


def _written(folder: Path, target: Target, codes: dict[str, bytes], memory: bool) -> list[Path]:
    """Objects in which functions have their own names, and one of the `memory` they share."""
    from pullback.aot.emit import Emitter
    from pullback.cpu import workers, xla

    folder.mkdir()
    files = {}
    if memory:
        shared = {workers.SYMBOL: workers.STATE_BYTES, **xla.MEMORY}
        files[folder / "memory.o"] = Emitter(target).zeroed(shared)
    for symbol in by_likeness(codes):
        code = codes[symbol]
        if code.count(PLACEHOLDER.encode()) != 1:
            raise BuildError(f"an object for {target.name} names its function other than once")
        files[folder / f"{symbol}.o"] = code.replace(PLACEHOLDER.encode(), symbol.encode())
    for path, code in files.items():
        path.write_bytes(code)
    return list(files)


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


def _link(target: Target, files: list[Path], folder: Path) -> None:
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
    out = folder / f"{target.name}.so"
    script = files[0].with_name("objects.txt")
    script.write_text("\n".join(map(str, files)))
    command = [*_linker(target), *options, "-o", str(out), f"@{script}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command[:3])}: {done.stderr.strip()}")
    unknown = {name for name in undefined(out) if name not in _C and not name.startswith(_PYTHON)}
    if unknown:
        raise BuildError(f"{out.name} needs {', '.join(sorted(unknown))}, which nobody defines")


def undefined(path: Path) -> set[str]:
    """The dynamic symbols of a 64-bit ELF file that it does not define."""
    return {name for name, defined in elf.symbols(path.read_bytes(), elf.DYNSYM) if not defined}
