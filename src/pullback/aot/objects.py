"""Objects of kernels, compiled once and kept: a build that was stopped goes on where it was.

A folder holds, by the hash of all that goes into it, the object of each entry and target, and the
bitcode of kernels, which is the same for every machine unless it has instructions of one.
"""

from __future__ import annotations

import hashlib
import os
import sys
import zlib
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pullback.aot.targets import Target, pretend
from pullback.bench.ahead import Step

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

    def object_path(self, module: str, entry: str, target: Target) -> Path:
        about = f"{entry} {target.triple} {target.cpu}"
        return self._path(module, about, "capture", "emit").with_suffix(".o")

    def bitcode(self, module: str, entry: str, function: Any, signature: Any) -> Any:
        """The captured function, kept under its machine's name or for all of them."""
        from pullback.aot.capture import Captured, capture, is_portable

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


def _write(path: Path, data: bytes) -> None:
    """All or nothing: the process may be stopped at any time."""
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    partial.write_bytes(data)
    partial.replace(path)


def make(
    folder: Path, steps: list[Step], names: list[str], targets: list[Target], jobs: int
) -> None:
    """Have every entry's objects in the folder. A process makes every `jobs`-th of them."""
    if jobs == 1:
        _share(folder, steps, names, targets)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        shares = [pool.submit(_share, folder, steps, names[n::jobs], targets) for n in range(jobs)]
        for share in shares:
            share.result()


def _share(folder: Path, steps: list[Step], names: Iterable[str], targets: list[Target]) -> None:
    machine = targets[0].machine
    pretend(machine)
    from pullback.aot import collect
    from pullback.aot.emit import Emitter

    known = {**collect.runtime(), **collect.entries(collect.requests(steps))}
    kept, emitters = Objects(folder, machine), [Emitter(target) for target in targets]
    for count, name in enumerate(names):
        function, signature = known[name]
        module = function.__module__
        used = [e for e in emitters if e.target.has(name, targets[0])]
        paths = {e: kept.object_path(module, name, e.target) for e in used}
        missing = [e for e, path in paths.items() if not path.exists()]
        if missing:
            captured = kept.bitcode(module, name, function, signature)
            for emitter in missing:
                _write(paths[emitter], emitter.emit(captured))
        if count % 50 == 49:
            print(f"pullback.aot: {count + 1} entries of {machine}", file=sys.stderr, flush=True)
