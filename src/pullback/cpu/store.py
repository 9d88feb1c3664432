"""The folder of compiled kernels: who may write there, whole files, a limit.

What is loaded from here is run, so it has to be ours. The folder belongs to the user and nobody
else may enter it (mode 700); a file counts only if it is a regular file of the same user that
nobody else may write, and if its checksum, which covers its name, is right. Everything else is as
if it were not there: the kernel is compiled, and the file replaced. A folder that others may write
or own is refused with a warning, and a fresh one takes its place until the process ends.

Nothing here changes the code of a kernel: the hash that kernels are filed under leaves this module
out, and MAGIC changes with the form of a file.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import secrets
import shutil
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from pullback.contract.errors import InvalidProblem

MAGIC: Final = b"pullback kernel 1\n"
SUFFIX: Final = ".kernel"
_PASSING: Final = SUFFIX + ".tmp"
_OURS: Final = (SUFFIX, _PASSING, ".nbi", ".nbc")  # the last two of earlier versions
LIMIT_VARIABLE: Final = "PULLBACK_CACHE_DIR_BYTES"
DEFAULT_LIMIT: Final = 1 << 30

_DIGEST_BYTES: Final = 32
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_PRIVATE: Final = 0o700
_DAY: Final = 86400.0
_HOUR: Final = 3600.0
_SAVES_PER_PRUNE: Final = 64
# Without these a name could lead elsewhere, and to open a pipe would wait for its other end.
_READ: Final = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
)
_CREATE: Final = (
    os.O_WRONLY
    | os.O_CREAT
    | os.O_EXCL
    | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"))
)
# Elsewhere modes and owners say nothing: Windows keeps a user's folders by other means.
_HAS_OWNERS: Final = hasattr(os, "geteuid")


class UnsafeFolder(Exception):
    """A folder that others own or may write."""


# --- folders ------------------------------------------------------------------------------------


def private_folder(homes: list[str | None], name: str) -> Path:
    """`pullback/name` in the first of `homes` that can be written, else in the temporary folder;
    a fresh one if that is not safe, or nothing can be written."""
    try:
        for home in filter(None, homes):
            if folder := _opened(Path(home).expanduser() / "pullback", name):
                return folder
        user = os.geteuid() if _HAS_OWNERS else "user"
        if folder := _opened(Path(tempfile.gettempdir()) / f"pullback-{user}", name):
            return folder
    except UnsafeFolder as error:
        warnings.warn(
            f"pullback does not use the kernel cache {error}: kernels are compiled again in this "
            "process. Remove that folder, or set PULLBACK_CACHE_DIR to another.",
            RuntimeWarning,
            stacklevel=2,
        )
    return _temporary(name)


def _opened(root: Path, name: str) -> Path | None:
    """A folder in `root`, both ours alone; None where they cannot be made or written."""
    try:
        root.parent.mkdir(_PRIVATE, parents=True, exist_ok=True)
        folder = root / name
        for part in (root, folder):
            with suppress(FileExistsError):
                part.mkdir(_PRIVATE)
            _check_private(part)
        return folder if os.access(folder, os.R_OK | os.W_OK | os.X_OK) else None
    except (OSError, RuntimeError):  # the latter if there is no home
        return None


def _check_private(folder: Path) -> None:
    """Raise unless this is a folder of ours that nobody else could write; then shut it."""
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeFolder(f"{folder}, which is no folder but a link or a file")
    if not _HAS_OWNERS:
        return
    if found.st_uid != os.geteuid():
        raise UnsafeFolder(f"{folder}, which belongs to user {found.st_uid}")
    mode = stat.S_IMODE(found.st_mode)
    if mode & _OTHERS_WRITE:
        raise UnsafeFolder(f"{folder}, which others may write (mode {mode:o})")
    if mode != _PRIVATE:
        os.chmod(folder, _PRIVATE)


def _temporary(name: str) -> Path:
    """A folder of this process alone, gone with it."""
    root, maker = Path(tempfile.mkdtemp(prefix="pullback-")), os.getpid()

    def remove() -> None:
        if os.getpid() == maker:  # not a forked child
            shutil.rmtree(root, ignore_errors=True)

    atexit.register(remove)
    folder = root / name
    folder.mkdir(_PRIVATE)
    return folder


# --- files --------------------------------------------------------------------------------------


def load(folder: Path, name: str) -> bytes | None:
    """What was saved under a name; None if there is nothing, or nothing to be trusted."""
    path = os.path.join(folder, name)
    try:
        file = os.open(path, _READ)
    except OSError:
        return None
    try:
        found = os.fstat(file)
        if not _is_ours(found):
            return None
        with open(file, "rb", closefd=False) as stream:
            data = stream.read()
        _note_use(path, found)
    except OSError:
        return None
    finally:
        os.close(file)
    head = len(MAGIC) + _DIGEST_BYTES
    body = data[head:]
    return body if data[:head] == MAGIC + _checksum(name, body) else None


def _is_ours(found: os.stat_result) -> bool:
    if not stat.S_ISREG(found.st_mode):
        return False
    return not _HAS_OWNERS or (
        found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & _OTHERS_WRITE
    )


def _note_use(path: str, found: os.stat_result) -> None:
    """The time of a file is that of its last use, to the day: many systems keep no other."""
    if time.time() - found.st_mtime > _DAY:
        with suppress(OSError):  # a file system that is read-only by now
            os.utime(path)


def _checksum(name: str, body: bytes) -> bytes:
    digest = hashlib.sha256(name.encode())
    digest.update(body)
    return digest.digest()


def save(folder: Path, name: str, body: bytes) -> None:
    """Keep this under a name, at once or not at all. What cannot be kept is a warning, the first
    time."""
    path = os.path.join(folder, name)
    passing = f"{path}.{os.getpid()}-{secrets.token_hex(8)}{_PASSING}"
    try:
        try:
            _write(passing, MAGIC + _checksum(name, body) + body)
            _replace(passing, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(passing)
            raise
    except OSError as error:
        _warn_unsaved(str(folder), error.strerror or str(error))
    else:
        _prune_sometimes(folder)


def _write(path: str, data: bytes) -> None:
    file = os.open(path, _CREATE, 0o600)
    with open(file, "wb") as stream:
        if hasattr(os, "fchmod"):
            os.fchmod(file, 0o600)  # whatever the umask took away
        stream.write(data)


def _replace(passing: str, path: str) -> None:
    try:
        os.replace(passing, path)
    except OSError:
        if os.path.islink(path) or not os.path.isdir(path):
            raise
        shutil.rmtree(path)  # a folder where a file of ours belongs
        os.replace(passing, path)


@cache
def _warn_unsaved(folder: str, reason: str) -> None:
    warnings.warn(
        f"pullback cannot keep compiled kernels in {folder} ({reason}): every process compiles "
        "them again. PULLBACK_CACHE_DIR names another place.",
        RuntimeWarning,
        stacklevel=2,
    )


# --- the limit ----------------------------------------------------------------------------------


def limit() -> int:
    """Bytes that all compiled kernels may take: PULLBACK_CACHE_DIR_BYTES, else 1 GiB."""
    text = os.environ.get(LIMIT_VARIABLE, "").strip()
    if not text:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit()):
        raise InvalidProblem("kernel cache", LIMIT_VARIABLE, "a number of bytes", repr(text))
    return min(int(text), sys.maxsize)


_saves: list[int] = [0]


def _prune_sometimes(folder: Path) -> None:
    """At the first save of a process and then now and again: to look at all files takes longer than
    to save one."""
    if _saves[0] % _SAVES_PER_PRUNE == 0:
        prune(folder.parent, limit(), folder)
    _saves[0] += 1


def prune(root: Path, most: int, current: Path | None = None) -> int:
    """Remove the files of `root`'s folders that were used longest ago until the rest takes at most
    `most` bytes, and what broken writers left behind; bytes that are left."""
    files, total, now = [], 0, time.time()
    for entry in _files(root):
        with suppress(OSError):  # removed by another process meanwhile
            found = entry.stat(follow_symlinks=False)
            if entry.name.endswith(_PASSING) and now - found.st_mtime > _HOUR:
                os.unlink(entry.path)
                continue
            files.append((found.st_mtime, found.st_size, entry.path))
            total += found.st_size
    for _, size, path in sorted(files):
        if total <= most:
            break
        with suppress(OSError):
            os.unlink(path)
            total -= size
    for folder in _folders(root):
        if folder.path != str(current):
            with suppress(OSError):  # not empty
                os.rmdir(folder.path)
    return total


def _entries(folder: Any) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _folders(root: Any) -> Iterator[os.DirEntry[str]]:
    return (entry for entry in _entries(root) if entry.is_dir(follow_symlinks=False))


def _files(root: Any) -> Iterator[os.DirEntry[str]]:
    """Ours, by their names: whatever else is there is left alone."""
    for folder in _folders(root):
        for entry in _entries(folder.path):
            if entry.name.endswith(_OURS) and entry.is_file(follow_symlinks=False):
                yield entry


def summary(folder: Path) -> tuple[int, int]:
    """How many kernels a folder holds, and their bytes."""
    sizes = [e.stat().st_size for e in _entries(folder) if e.name.endswith(SUFFIX)]
    return len(sizes), sum(sizes)
