"""Scan a file that does not fit in memory, window by window.

Plans that carry a state start from what the window before has left, one float64 for each row: a
window of float32 is scanned in float64 and rounded once, so that results do not depend on where
windows begin. Run it with no arguments: it makes a file, scans it in windows, and compares with the
scan of the whole.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import pullback as pb

Array = np.ndarray[Any, Any]
CPU = pb.Stream.cpu()


def windows(data: Array, steps: int) -> Iterator[slice]:
    """Slices of so many steps along the last axis; the last one may be shorter."""
    for begin in range(0, data.shape[-1], steps):
        yield slice(begin, min(begin + steps, data.shape[-1]))


def described(x: Array) -> dict[str, Any]:
    about = {"input_shape": x.shape, "scan_axis": x.ndim - 1, "element": pb.ElementKind.of(x)}
    return {**about, "stateful": True}


def scanned(kind: pb.ScanKind, data: Array, out: Array, steps: int) -> Array:
    """Every window of `data` into `out`; the state after the last."""
    state, carried = None, np.empty(data.shape[:-1])
    for at in windows(data, steps):
        x, y = data[..., at], out[..., at]
        plan = pb.ScanPlan.select(CPU, pb.ScanDescriptor(kind=kind, **described(x)))
        args = pb.ScanArgs(x=x, y=y, state=state, final_state=carried)
        plan.run(CPU, pb.Workspace.allocate(plan), args)
        state = carried
    return carried


def recurrence(decay: Array, data: Array, out: Array, steps: int) -> Array:
    """h[j] = decay*h[j-1] + data[j]."""
    state, carried = None, np.empty(data.shape[:-1])
    for at in windows(data, steps):
        b, h = data[..., at], out[..., at]
        desc = pb.LinearScanDescriptor(a_shape=decay.shape, **described(b))
        plan = pb.LinearScanPlan.select(CPU, desc)
        args = pb.LinearScanArgs(a=decay, b=b, h=h, state=state, final_state=carried)
        plan.run(CPU, pb.Workspace.allocate(plan), args)
        state = carried
    return carried


def main(rows: int = 4, steps: int = 300_000, window: int = 32_000) -> None:
    decay = np.float32([0.99])
    with tempfile.TemporaryDirectory() as folder:
        shape = (rows, steps)
        data = np.memmap(Path(folder, "data"), np.float32, "w+", shape=shape)
        out = np.memmap(Path(folder, "out"), np.float32, "w+", shape=shape)
        data[:] = np.random.default_rng(0).normal(size=shape)
        whole = np.array(data)
        for name, scan, wanted in (
            ("cumsum", lambda *a: scanned(pb.ScanKind.CUMSUM, *a), pb.cumsum(whole)),
            ("cummax", lambda *a: scanned(pb.ScanKind.CUMMAX, *a), pb.cummax(whole)),
            ("linear_scan", lambda *a: recurrence(decay, *a), pb.linear_scan(decay, whole)),
        ):
            scan(data, out, window)
            differ = int((np.asarray(out) != wanted).sum())
            print(f"{name}: {steps // window + 1} windows, {differ} of {wanted.size} differ")


if __name__ == "__main__":
    main()
