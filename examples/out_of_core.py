"""Scan and segment-reduce a file that is ten times what memory there is, window by window.

Plans that carry a state start from what the window before has left, one float64 for each column;
reductions of sorted segments go on with the segment that was open. Neither depends on where windows
begin. Run it with no arguments: it makes a file of ten times the limit, works through it in another
process that may not have more memory than that (RLIMIT_AS, where there is one), and compares with
the results of the whole in memory.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np

import pullback as pb
from pullback.distributed import windows as pbw

Array = np.ndarray[Any, Any]
CPU, COLUMNS, SEGMENTS = pb.Stream.cpu(), 8, 40
DECAY = np.float32([0.99])
SCANS = {"cumsum": pb.cumsum, "cummax": pb.cummax, "linear_scan": pb.linear_scan}
SUMS = {"segment_sum": pb.segment_sum, "segment_max": pb.segment_max}


def part(path: Path, dtype: type, at: slice, *shape: int, mode: Any = "r") -> Array:
    """Rows of a file, of which nothing else is mapped."""
    row = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=int))
    return np.memmap(path, dtype, mode, at.start * row, (at.stop - at.start, *shape))


def windows(steps: int, window: int) -> Iterator[slice]:
    for begin in range(0, steps, window):
        yield slice(begin, min(begin + window, steps))


def scanned(name: str, x: Array, y: Array, state: Array | None, left: Array) -> None:
    """One window, from the state before it; `left` gets the one after it."""
    about = {"input_shape": x.shape, "scan_axis": 0, "element": pb.ElementKind.F32}
    carried = {"state": state, "final_state": left}
    if name == "linear_scan":
        desc = pb.LinearScanDescriptor(a_shape=DECAY.shape, stateful=True, **about)
        plan: Any = pb.LinearScanPlan.select(CPU, desc)
        args: Any = pb.LinearScanArgs(a=DECAY, b=x, h=y, **carried)
    else:
        kind = pb.ScanKind(name)
        plan = pb.ScanPlan.select(CPU, pb.ScanDescriptor(kind=kind, stateful=True, **about))
        args = pb.ScanArgs(x=x, y=y, **carried)
    plan.run(CPU, pb.Workspace.allocate(plan), args)


def through(folder: Path, steps: int, window: int) -> None:
    """All windows of the file, one after the other."""
    for name in SCANS:
        state, left = None, np.empty(COLUMNS)
        for at in windows(steps, window):
            x = part(folder / "data", np.float32, at, COLUMNS)
            y = part(folder / name, np.float32, at, COLUMNS, mode="r+")
            scanned(name, x, y, state, left)
            state = left
    for name, function in SUMS.items():
        open_segment = None
        out = part(folder / name, np.float32, slice(0, SEGMENTS), COLUMNS, mode="r+")
        for at in windows(steps, window):
            x = part(folder / "data", np.float32, at, COLUMNS)
            found = pbw.reduced(function, x, part(folder / "ids", np.int64, at), open_segment)
            out[found.first : found.first + len(found.values)] = found.values
            open_segment = found.state


def limit_memory(more: int) -> None:
    """Allow so many bytes of address space more than there is now."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, FileNotFoundError):
        return  # a system without such limits
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def worker(folder: Path, steps: int, window: int, more: int) -> None:
    through(folder, 2 * window, window)  # kernels are loaded, or compiled
    limit_memory(more)
    try:
        mmap(-1, 2 * more).close()
        print("no limit")
    except OSError:
        print("limited")
    through(folder, steps, window)


def main(limit: int = 1 << 26) -> None:
    steps = 10 * limit // (4 * COLUMNS)
    window = steps // 150
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, rows in ((f, steps if f in SCANS else SEGMENTS) for f in (*SCANS, *SUMS)):
            np.zeros((rows, COLUMNS), np.float32).tofile(folder / file)
        data = rng.normal(size=(steps, COLUMNS)).astype(np.float32)
        ids = np.sort(rng.integers(0, SEGMENTS, steps) ** 2 // SEGMENTS)
        data.tofile(folder / "data")
        ids.tofile(folder / "ids")
        own = [sys.executable, __file__, str(folder), str(steps), str(window), str(limit)]
        said = subprocess.run(own, check=True, capture_output=True, text=True).stdout.strip()
        print(f"{data.nbytes / limit:.1f} times the memory, {said}")
        for file in (*SCANS, *SUMS):
            if file in SUMS:
                wanted = SUMS[file](data, ids, SEGMENTS, indices_are_sorted=True)
            elif file == "linear_scan":
                wanted = pb.linear_scan(DECAY, data, 0)
            else:
                wanted = SCANS[file](data, 0)
            found = np.fromfile(folder / file, np.float32).reshape(wanted.shape)
            differ = int((found.view(np.uint32) != wanted.view(np.uint32)).sum())
            print(f"{file}: {-(-steps // window)} windows, {differ} of {wanted.size} differ")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        worker(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    else:
        main()
