"""Scan a file that does not fit in memory, window by window.

A window starts from what the windows before it handed on (`initial=`). The carry is kept wider than
the data: windows of float32 are scanned in float64 and rounded once, so that results do not depend
on where windows begin. Run it with no arguments: it makes a file, scans it in windows, and compares
with the scan of the whole.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import pullback as pb

Array = np.ndarray[Any, Any]


def windows(data: Array, steps: int) -> Iterator[slice]:
    """Slices of so many steps along the last axis; the last one may be shorter."""
    for begin in range(0, data.shape[-1], steps):
        yield slice(begin, min(begin + steps, data.shape[-1]))


def running_sum(data: Array, out: Array, steps: int) -> None:
    carry = np.full(data.shape[:-1], -0.0)  # which changes no sum
    for at in windows(data, steps):
        scanned = pb.cumsum(data[..., at].astype(np.float64), initial=carry)
        out[..., at], carry = scanned, scanned[..., -1]


def running_max(data: Array, out: Array, steps: int) -> None:
    carry = np.full(data.shape[:-1], -np.inf, data.dtype)  # of its own dtype: nothing is rounded
    for at in windows(data, steps):
        scanned = pb.cummax(np.ascontiguousarray(data[..., at]), initial=carry)
        out[..., at], carry = scanned, scanned[..., -1]


def recurrence(decay: float, data: Array, out: Array, steps: int) -> None:
    carry = np.zeros(data.shape[:-1])
    for at in windows(data, steps):
        scanned = pb.linear_scan(decay, data[..., at].astype(np.float64), initial=carry)
        out[..., at], carry = scanned, scanned[..., -1]


DECAY = float(np.float32(0.99))  # the factor that float32 data have


def main(rows: int = 4, steps: int = 300_000, window: int = 32_000) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shape = (rows, steps)
        data = np.memmap(Path(folder, "data"), np.float32, "w+", shape=shape)
        out = np.memmap(Path(folder, "out"), np.float32, "w+", shape=shape)
        data[:] = np.random.default_rng(0).normal(size=shape)
        whole = np.array(data)
        for name, scan, wanted in (
            ("cumsum", running_sum, pb.cumsum(whole)),
            ("cummax", running_max, pb.cummax(whole)),
            ("linear_scan", lambda *a: recurrence(DECAY, *a), pb.linear_scan(DECAY, whole)),
        ):
            scan(data, out, window)
            differ = int((np.asarray(out) != wanted).sum())
            print(f"{name}: {steps // window + 1} windows, {differ} of {wanted.size} differ")


if __name__ == "__main__":
    main()
