"""The machine a figure was taken on: what it is, what runs on it, and how to keep it still."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "pullback", "numpy", "numba", "llvmlite", "ml_dtypes", "torch", "jax", "jaxlib", "triton",
    "entmax", "scipy", "numbagg", "rich", "typer", "altair",
)  # fmt: skip

# The instruction sets kernels profit from, as Linux spells them.
FEATURES = (
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512_bf16",
    "avx512_fp16",
    "asimd",
)


@dataclass(frozen=True)
class Machine:
    """Enough to tell whether two results may be compared."""

    system: str
    arch: str
    cpu: str
    cores: int
    threads: int
    features: tuple[str, ...]
    caches: dict[str, int]
    memory: int
    python: str
    versions: dict[str, str]
    commit: str
    when: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe(threads: int) -> Machine:
    facts = _cpu_facts()
    present = set(facts.get("flags", facts.get("Features", "")).split())
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        arch=platform.machine(),
        cpu=facts.get("model name", platform.processor() or "unknown"),
        cores=len(cores()),
        threads=threads,
        features=tuple(name for name in FEATURES if name in present),
        caches=_caches(),
        memory=_memory(),
        python=platform.python_version(),
        versions={name: found for name in PACKAGES if (found := installed(name))},
        commit=_commit(),
        when=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def cores() -> list[int]:
    """The cores this process may run on."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def installed(package: str) -> str | None:
    """The version of a distribution, without importing it."""
    if package == "pullback":
        import pullback

        return pullback.__version__
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def settle(threads: int | None = None) -> int:
    """Give every contestant the same cores; call before any of them is imported.

    XLA takes as many threads as it finds cores, so the only setting all obey is the affinity.
    OpenMP pools that spin after their work would slow whoever comes next."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    available = cores()
    count = min(threads or len(available), len(available))
    if count < len(available) and sys.platform == "linux":
        os.sched_setaffinity(0, available[:count])
    import pullback

    pullback.set_num_threads(count)
    return count


class Bystanders:
    """How much of the machine other processes used meanwhile: the usual cause of odd figures."""

    def __init__(self) -> None:
        self._start = self._read()

    @staticmethod
    def _read() -> tuple[float, float, float]:
        own = os.times()
        try:
            fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        except OSError:
            return time.perf_counter(), 0.0, own.user + own.system
        user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields)
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), busy, own.user + own.system

    def share(self) -> float:
        """From 0 (alone) to 1 (all cores were somebody else's)."""
        now, then = self._read(), self._start
        wall, busy, own = (b - a for a, b in zip(then, now, strict=True))
        if wall < 0.2:  # the kernel counts in hundredths of a second
            return 0.0
        return min(max((busy - own) / (wall * (os.cpu_count() or 1)), 0.0), 1.0)


def _cpu_facts() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def _caches() -> dict[str, int]:
    """Bytes of each data cache as the first core sees them."""
    found = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind = (folder / "type").read_text().strip()
            size = (folder / "size").read_text().strip()
            level = (folder / "level").read_text().strip()
        except OSError:
            continue
        if kind != "Instruction":
            found[f"L{level}"] = int(size.rstrip("KMG")) * {"K": 1 << 10, "M": 1 << 20}[size[-1]]
    return found


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # the first on Windows
        return 0


def _commit() -> str:
    """The commit these sources are at; a mark if they have been edited since."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        run = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return run.stdout.strip()

    try:
        edited = git("status", "--porcelain", "--untracked-files=no", "--", ".")
        return git("rev-parse", "--short=12", "HEAD") + ("+edits" if edited else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
