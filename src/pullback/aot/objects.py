"""Objects of kernels, compiled once and kept: a build that was stopped goes on where it was.

A folder holds, by the hash of all that goes into it, the object of each entry and target, and the
bitcode of kernels, which is the same for every machine unless it has instructions of one.
"""

from __future__ import annotations

import gc
import hashlib
import os
import sys
import zlib
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pullback.aot.targets import Target, pretend

_TOGETHER: int = 12  # entries that a process makes one after another
_FAST: int = 1  # of zlib: bitcode is kept for minutes
_OWN = Path(__file__).parent


class Objects:
    """The folder, as one build for one machine uses it."""

    def __init__(self, folder: Path, machine: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._machine = folder, machine

    def _path(self, module: str, about: str, *tools: str) -> Path:
        from pullback.cpu.cache import module_hash

        digest = hashlib.sha256(f"{module_hash(module)} {about}".encode())
        for name in tools:
            digest.update((_OWN / f"{name}.py").read_bytes())
        return self._folder / digest.hexdigest()[:40]

    def object_path(self, entry: str, target: Target) -> Path:
        about = f"{entry} {target.triple} {target.cpu}"
        return self._path(_module(entry), about, "capture", "emit").with_suffix(".o")

    def bitcode(self, entry: str, function: Any, signature: Any) -> Any:
        """The captured function, kept under its machine's name or for all of them."""
        from pullback.aot.capture import Captured, capture, is_portable

        module = _module(entry)
        places = [self._path(module, f"{entry} {m}", "capture") for m in ("any", self._machine)]
        for path in places:
            if path.exists():
                bitcode = zlib.decompress(path.read_bytes())
                return Captured.of(bitcode, signature)
        captured = capture(function, signature)
        # Native functions of the runtime hold numbers of the system they are for.
        shared = not module.startswith("pullback.cpu.") and is_portable(captured)
        _write(places[0 if shared else 1], zlib.compress(captured.bitcode, _FAST))
        return captured


def _module(entry: str) -> str:
    """The module of "module.function" or "module.kernel f32 i64"."""
    return entry.partition(" ")[0].rpartition(".")[0]


def _write(path: Path, data: bytes) -> None:
    """All or nothing: the process may be stopped at any time."""
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    unfinished.write_bytes(data)
    unfinished.replace(path)


def make(folder: Path, names: list[str], targets: list[Target], jobs: int) -> None:
    """Have every entry's objects in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    made = partial(_made, folder, targets)
    with ExitStack() as held:
        done: Iterable[None] = map(made, names)
        if jobs > 1:
            pool = ProcessPoolExecutor(jobs, get_context("spawn"), pretend, (targets[0].machine,))
            held.enter_context(pool)
            # Functions inside kernels are typed once for all kernels of a process: those of a
            # module, which share many, take a quarter less if they stay together.
            ordered = sorted(names, key=lambda name: (_module(name), *name.split()[1:], name))
            done = pool.map(made, ordered, chunksize=_TOGETHER)
        for count, _ in enumerate(done, 1):
            if count % 50 == 0 or count == len(names):
                told = f"{count} of {len(names)} entries for {targets[0].machine}"
                print(f"pullback.aot: {told}", file=sys.stderr, flush=True)


def _made(folder: Path, targets: list[Target], name: str) -> None:
    from pullback.aot import collect

    kept = Objects(folder, targets[0].machine)
    used = [target for target in targets if target.has(name, targets[0])]
    paths = {target: kept.object_path(name, target) for target in used}
    missing = [target for target, path in paths.items() if not path.exists()]
    if missing:
        gc.disable()  # as in `inventory.compile_ahead`: looking through what is kept is a sixth
        captured = kept.bitcode(name, *collect.entry(name))
        gc.enable()
        for target in missing:
            _write(paths[target], _emitter(target).emit(captured))


@cache
def _emitter(target: Target) -> Any:
    from pullback.aot.emit import Emitter

    return Emitter(target)
