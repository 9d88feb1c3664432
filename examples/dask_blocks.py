"""The same over blocks of dask: a summary of each block, their scan, and each block from there.

Along axes that are not chunked `x.map_blocks(pb.cumsum, dtype=x.dtype)` is enough. Chunked along
the axis, nowhere is more than a block, and a number a row and block. Run it with no arguments: it
compares with the results of one array.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import dask.array as da
import numpy as np

import pullback as pb
from pullback.distributed import windows as pbw


# [scan]
def total(x: Any) -> Any:  # of a block, in float64: a number a row
    return x.sum(-1, dtype="f8", keepdims=True)


def scan(x: Any, before: Any) -> Any:  # of a block, from the blocks before it; rounded once
    return pb.cumsum(x.astype("f8"), initial=before[:, 0]).astype(x.dtype)


def cumsum(x: Any) -> Any:  # rows x steps, in blocks along both
    rows, steps = x.chunks
    totals = x.map_blocks(total, chunks=(rows, (1,) * len(steps)), dtype="f8").rechunk({1: -1})
    before = totals.map_blocks(pb.cumsum, exclusive=True, dtype="f8").rechunk({1: 1})
    return da.map_blocks(scan, x, before, chunks=x.chunks, dtype=x.dtype)


# [softmax]
def state_of(x: Any) -> Any:  # of a block: the largest element of each row, a sum of exponentials
    return np.stack(pbw.summary(pb.softmax, x), -1)


def merged(states: Any) -> Any:  # of all blocks of some rows
    pairs = [(states[:, k], states[:, k + 1]) for k in range(0, states.shape[1], 2)]
    return np.stack(reduce(partial(pbw.merged, pb.softmax), pairs), -1)


def applied(x: Any, state: Any) -> Any:
    return pbw.applied(pb.softmax, x, (state[:, 0], state[:, 1]))


def softmax(x: Any) -> Any:
    rows, steps = x.chunks
    states = x.map_blocks(state_of, chunks=(rows, (2,) * len(steps)), dtype="f8")
    whole = states.rechunk({1: -1}).map_blocks(merged, chunks=(rows, (2,)), dtype="f8")
    return da.map_blocks(applied, x, whole, chunks=x.chunks, dtype=x.dtype)


# [end]
def main() -> None:
    rng = np.random.default_rng(0)
    for dtype in ("f2", "f4", "f8"):
        x = rng.normal(size=(60, 5000)).astype(dtype)
        for chunks in ((20, -1), (20, 700), (7, (1, 999, 4000))):
            blocks = da.from_array(x, chunks=chunks)
            for name, found, wanted in (
                ("cumsum", cumsum(blocks), pb.cumsum(x)),
                ("softmax", softmax(blocks), pb.softmax(x)),
            ):
                apart = np.abs(found.compute().astype("f8") - wanted.astype("f8")).max()
                ulps = apart / (np.finfo(dtype).eps * np.abs(wanted.astype("f8")).max())
                print(f"{name} {dtype} in {blocks.numblocks} blocks: {ulps:.2f} ulp of the largest")


if __name__ == "__main__":
    main()
