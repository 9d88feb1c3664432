"""Wheels that carry their kernels compiled, one for each machine, and the pure one.

    python tools/wheels.py dist                      all of them (make wheels)
    python tools/wheels.py dist --machine x86_64     of one machine
    python tools/wheels.py dist lerp --dtype f32     with a share of the kernels, to try it
    python tools/wheels.py dist --objects build/aot  going on where it was stopped
    python tools/wheels.py dist --repository URL     with links to where the project is found

The pure wheel is built first; the others are its files and a folder of libraries, without Numba
among what they require. Nothing in a wheel says when or where it was made: the same sources and
tools give the same bytes.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
EPOCH = (1980, 1, 1, 0, 0, 0)  # what a zip file can say that is no date
# Libraries refer to no version of a symbol of the C library, so the oldest tag in use will do.
TAGS = {
    "x86_64": "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64",
    "aarch64": "py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64",
}
# Bytes of a wheel, by what its name says first of these. Of code for AVX2 deflate leaves 41 %, of
# as much for aarch64 62 %.
LIMITS = {"x86_64": 8_000_000, "aarch64": 10_500_000, "any": 8_000_000}
KERNELS = "pullback/_kernels"


def pure_wheel(out: Path) -> Path:
    """The wheel without kernels, as pip builds it."""
    with TemporaryDirectory() as made:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", made, ROOT]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "315532800"}
        subprocess.run(command, check=True, env=environment)
        (wheel,) = Path(made).glob("*.whl")
        return wheel.replace(out / wheel.name)


def kernels(pure: Path, folder: Path, options: list[str]) -> None:
    """Compile what is in the pure wheel, whatever happens to the tree meanwhile: in a process of
    its own, which may be told that it is on another machine."""
    with TemporaryDirectory() as unpacked, zipfile.ZipFile(pure) as wheel:
        wheel.extractall(unpacked)
        source = os.pathsep.join([unpacked, os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "pullback.aot", folder, *options]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": source}, cwd=unpacked)


def _without_numba(text: str) -> str:
    """Numba is needed by those alone who want kernels that the wheel does not have."""
    kept = [
        line
        for line in text.splitlines(keepends=True)
        if not (line.startswith("Requires-Dist: numba") and "extra" not in line)
    ]
    return "".join(kept)


_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


def _with_links(text: str, repository: str) -> str:
    """Metadata that names the repository. Its description is the README, read where relative links
    and pictures lead nowhere: they become those of this version's files."""
    head, _, body = text.partition("\n\n")
    version = next(line.split()[1] for line in head.splitlines() if line.startswith("Version: "))
    pages = {
        "Homepage": "",
        "Source": "",
        "Issues": "/issues",
        "Changelog": "/blob/main/CHANGELOG.md",
    }
    urls = [f"Project-URL: {name}, {repository}{page}" for name, page in pages.items()]

    def absolute(link: re.Match[str]) -> str:
        picture, title, path = link.groups()
        return f"{picture}[{title}]({repository}/{'raw' if picture else 'blob'}/v{version}/{path})"

    return "\n".join([head, *urls, "", _LINK.sub(absolute, body)])


def _wheel(text: str, tag: str) -> str:
    python, abi, platforms = tag.split("-")
    lines = [line for line in text.splitlines() if not line.startswith(("Tag:", "Root-Is-"))]
    tags = [f"Tag: {python}-{abi}-{platform}" for platform in platforms.split(".")]
    return "\n".join([*(line for line in lines if line), "Root-Is-Purelib: false", *tags, ""])


def linked(pure: Path, repository: str) -> None:
    """Name the repository in the metadata of a wheel."""
    files, about = _files(pure)
    files[f"{about}/METADATA"] = _with_links(
        files[f"{about}/METADATA"].decode(), repository
    ).encode()
    _pack(pure, files, about)


def packed(pure: Path, folder: Path, tag: str, out: Path) -> Path:
    """The files of the pure wheel and those of a folder, as a wheel for one platform."""
    files, about = _files(pure)
    files.update({f"{KERNELS}/{path.name}": path.read_bytes() for path in folder.iterdir()})
    files[f"{about}/METADATA"] = _without_numba(files[f"{about}/METADATA"].decode()).encode()
    files[f"{about}/WHEEL"] = _wheel(files[f"{about}/WHEEL"].decode(), tag).encode()
    target = out / f"{about.removesuffix('.dist-info')}-{tag}.whl"
    _pack(target, files, about)
    return target


def _files(wheel: Path) -> tuple[dict[str, bytes], str]:
    """What is in a wheel, and its folder of metadata."""
    with zipfile.ZipFile(wheel) as packed:
        files = {name: packed.read(name) for name in packed.namelist() if not name.endswith("/")}
    (about,) = {name.partition("/")[0] for name in files if ".dist-info/" in name}
    return files, about


def _pack(target: Path, files: dict[str, bytes], about: str) -> None:
    record = f"{about}/RECORD"
    del files[record]
    lines = [f"{name},{_digest(data)},{len(data)}" for name, data in sorted(files.items())]
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    _write(target, files)


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def _write(target: Path, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, data in sorted(files.items(), key=lambda item: (".dist-info/" in item[0], item)):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            entry.external_attr = 0o100644 << 16
            wheel.writestr(entry, data)


def _limit(name: str) -> int:
    return next(most for tag, most in LIMITS.items() if tag in name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", help="families or functions; all of them")
    parser.add_argument("--dtype", action="append", default=[])
    parser.add_argument("--machine", action="append", choices=TAGS)
    parser.add_argument("--objects", type=Path, help="a folder that keeps what is compiled")
    parser.add_argument("--repository", help="its address, for links of the metadata")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    options = [*given.names, *(f"--dtype={dtype}" for dtype in given.dtype), f"--jobs={given.jobs}"]
    if given.objects:
        options.append(f"--objects={given.objects.resolve()}")
    given.out = given.out.resolve()
    given.out.mkdir(parents=True, exist_ok=True)
    made = [pure := pure_wheel(given.out)]
    if given.repository:
        linked(pure, given.repository.rstrip("/"))
    for machine in given.machine or TAGS:
        with TemporaryDirectory() as folder:
            kernels(pure, Path(folder), [*options, f"--machine={machine}"])
            made.append(packed(pure, Path(folder), TAGS[machine], given.out))
    too_large = False
    for wheel in made:
        size, limit = wheel.stat().st_size, _limit(wheel.name)
        too_large |= size > limit
        print(f"{wheel.name} {size / 1e6:.2f} MB {hashlib.sha256(wheel.read_bytes()).hexdigest()}")
    return int(too_large)


if __name__ == "__main__":
    sys.exit(main())
