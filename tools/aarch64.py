"""The table of hashes on aarch64: Debian's arm64 Python and PyPI's aarch64 wheels, under qemu-user.

    python tools/aarch64.py [--folder build/aarch64] [--every N] [--first N] [--wheel FILE]

Needs debootstrap, dpkg-deb and qemu-aarch64-static (Debian: debootstrap, qemu-user-static), root
for the first of them, and a network. Emulated, a kernel takes half a minute to compile. So this
Python compiles the kernels, for aarch64, into the cache where the other finds them; what runs is
what would run there. The other Python must be of the same minor version. With --wheel its package
is run, from the kernels that it carries, where Numba is not installed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

SUITE, MIRROR = "bookworm", "http://deb.debian.org/debian"
TRIPLE = "aarch64-unknown-linux-gnu"
REQUIRED = ("numpy", "ml_dtypes")
PACKAGES = (*REQUIRED, "numba", "llvmlite")
TAGS = ("manylinux_2_17", "manylinux_2_26", "manylinux_2_27", "manylinux_2_28", "manylinux2014")
SOURCES = Path(__file__).resolve().parent.parent / "src"


def made(folder: Path) -> Path:
    """A folder with Debian's packages and the wheels in it, unpacked and nothing more."""
    root, wheels = folder / "root", folder / "wheels"
    if not (folder / "whole").exists():
        include = ["--variant=minbase", "--include=python3"]
        run("debootstrap", "--foreign", "--arch=arm64", *include, SUITE, root, MIRROR)
        for package in sorted((root / "var/cache/apt/archives").glob("*.deb")):
            run("dpkg-deb", "-x", package, root)
        wanted = [f"{name}=={version(name)}" for name in PACKAGES]
        tags = [f"--platform={tag}_aarch64" for tag in TAGS]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", *tags]
        run(*pip, "--dest", wheels, *wanted)
        for wheel in wheels.glob("*.whl"):
            run(sys.executable, "-m", "zipfile", "-e", wheel, folder / "site")
        (folder / "whole").touch()
    return folder


def run(*command: Any, **options: Any) -> str:
    done = subprocess.run([str(c) for c in command], check=True, text=True, **options)
    return done.stdout or ""


def environment(folder: Path) -> dict[str, str]:
    """For both Pythons: where kernels are, and the processor they are for."""
    cache = {"PULLBACK_CACHE_DIR": str(folder / "cache")}
    return os.environ | cache | {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}


def emulated(folder: Path, *arguments: str, site: Path | None = None, **options: Any) -> str:
    root = folder / "root"
    packages = str(site or f"{SOURCES}:{folder / 'site'}")
    paths = {"PYTHONPATH": packages, "PYTHONHOME": str(root / "usr")}
    python = ("qemu-aarch64-static", "-L", root, root / "usr/bin/python3")
    about = dict(os.environ) if site else environment(folder)
    return run(*python, *arguments, env=about | paths, **options)


def run_wheel(folder: Path, wheel: Path, rows: list[str]) -> None:
    """The table, by the kernels that a wheel carries, beside what it requires and nothing else."""
    package = folder / "wheel"
    shutil.rmtree(package, ignore_errors=True)
    required = [p for p in (folder / "wheels").glob("*.whl") if p.name.startswith(REQUIRED)]
    for file in (wheel, *required):
        run(sys.executable, "-m", "zipfile", "-e", file, package)
    emulated(folder, "-m", "pullback.verify.hashes", *rows, site=package)


# --- compiling for it -----------------------------------------------------------------------------


def kernels() -> dict[str, Any]:
    """Those of the modules that are loaded, by name."""
    from pullback.cpu.kernel import Kernel

    return {k.name: k for k in gc.get_objects() if isinstance(k, Kernel)}


def list_needed(every: int, first: int) -> None:
    """Which kernels the rows of the table run: run them here, and look."""
    from pullback.verify import hashes

    for row in list(hashes.rows())[first::every]:
        hashes.of_row(row)
    keys = [(name, key) for name, k in kernels().items() for key in k._addresses]
    print(json.dumps([(name, *(element.name for element in key)) for name, key in keys]))


def compile_all(needed: list[list[str]], release: str) -> None:
    """In a process of its own: it takes itself for the other Python, and runs no kernel."""
    import llvmlite.binding as llvm

    sys.version = release  # the cache is filed under it
    platform.machine = lambda: "aarch64"  # type: ignore[assignment]
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.get_process_triple = lambda: TRIPLE
    llvm.Target.from_default_triple = classmethod(lambda cls: cls.from_triple(TRIPLE))
    from pullback.contract.element import ElementKind

    for number, (name, *elements) in enumerate(needed, 1):
        import_module(name.rpartition(".")[0])
        kernels()[name].address(*(ElementKind[element] for element in elements))
        print(f"{number}/{len(needed)} {name} {elements[0]}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--folder", type=Path, default=Path("build/aarch64"))
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each Nth of the rows")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="from this one on")
    parser.add_argument("--wheel", type=Path, help="run the kernels that it carries")
    parser.add_argument("--step", choices=("list", "compile"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.step == "list":
        list_needed(asked.every, asked.first)
        return
    if asked.step == "compile":
        compile_all(**json.load(sys.stdin))
        return
    folder = made(asked.folder.resolve())
    release = emulated(folder, "-c", "import sys; print(sys.version)", stdout=subprocess.PIPE)
    print(f"Python {release.strip()}, {', '.join(f'{p} {version(p)}' for p in PACKAGES)}")
    rows = ["--every", str(asked.every), "--first", str(asked.first)]
    if asked.wheel:
        run_wheel(folder, asked.wheel.resolve(), rows)
        return
    here = [sys.executable, __file__, *rows, "--step"]
    needed = json.loads(run(*here, "list", stdout=subprocess.PIPE))
    work = json.dumps({"needed": needed, "release": release.strip()})
    run(*here, "compile", input=work, env=environment(folder))
    emulated(folder, "-m", "pullback.verify.hashes", *rows)


if __name__ == "__main__":
    main()
