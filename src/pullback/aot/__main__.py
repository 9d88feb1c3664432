"""The command: python -m pullback.aot FOLDER [NAMES] [--dtype f32] [--machine aarch64]."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path

from pullback.aot.targets import pretend, targets_of
from pullback.cpu.library import VARIABLE


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pullback.aot", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the libraries go")
    parser.add_argument("names", nargs="*", help="families or functions; all of them")
    parser.add_argument("--dtype", action="append", help="f16, bf16, f32 or f64; all of them")
    parser.add_argument("--machine", default=platform.machine(), help="x86_64 or aarch64; this one")
    parser.add_argument("--target", action="append", help="x86-64-v3, x86-64-v4 or aarch64; all")
    parser.add_argument("--objects", type=Path, help="a folder that keeps objects: go on there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    os.environ[VARIABLE] = "0"
    pretend(given.machine)
    from pullback.aot.build import BuildError, build
    from pullback.bench import ahead
    from pullback.contract.element import FLOATS

    targets = [t for t in targets_of(given.machine) if t.name in (given.target or (t.name,))]
    if not targets:
        parser.error(f"no target {given.target or ''} on {given.machine}")
    elements = [kind for kind in FLOATS if kind.value in (given.dtype or (kind.value,))]
    try:
        todo = ahead.steps(given.names, elements)
        build(given.folder, todo, targets, given.jobs, given.objects)
    except BuildError as error:
        print(f"pullback.aot: {error}", file=sys.stderr)
        return 1
    for path in sorted(given.folder.iterdir()):
        print(f"{path} {path.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
