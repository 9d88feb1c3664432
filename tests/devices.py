"""Run by test_distributed in a process with eight devices: functions of one device's part inside of
shard_map, their gradients, and the collectives of the compiled program. Prints what is wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import pullback as pb
from pullback import distributed

RANDOM = np.random.default_rng(0)
X, Y = (RANDOM.normal(size=(4, 64)).astype(np.float32) for _ in range(2))
START = RANDOM.normal(size=4).astype(np.float32)
COLLECTIVE = re.compile(r"(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\(")
ALONG = P(None, "d")

# Of a function: its options, and collectives of the value, and of it with its gradient.
CASES: list[tuple[str, dict[str, Any], int, int]] = [
    ("cumsum", {}, 1, 2),
    ("cumsum", {"reverse": True, "exclusive": True}, 1, 2),
    ("cumprod", {}, 1, 2),
    ("logcumsumexp", {}, 1, 2),
    ("cummax", {}, 1, 2),
    ("cummin", {"ties": "last", "reverse": True}, 1, 2),
    ("softmax", {}, 1, 2),
    ("log_softmax", {}, 1, 2),
    ("sparsemax", {}, 2, 3),
    ("entmax15", {}, 2, 3),
]


def faults(mesh: Any, check: bool) -> Iterator[str]:
    for name, options, forward, both in CASES:
        local = partial(getattr(distributed, name), over="d", **options)
        whole = partial(getattr(pb, name), **options)
        spread = jax.shard_map(local, mesh=mesh, in_specs=ALONG, out_specs=ALONG, check_vma=check)
        where = f"{name} {options} check_vma={check}"
        pairs = [
            (spread, whole, forward),
            (*(jax.grad(lambda x, f=f: (f(x) * Y).sum()) for f in (spread, whole)), both),
        ]
        for call, wanted, count in pairs:
            compiled = jax.jit(call).lower(X).compile()
            found = compiled(X)
            if not np.allclose(found, wanted(X), rtol=2e-6, atol=2e-7):
                yield f"{where}: other values by {np.abs(found - wanted(X)).max()}"
            collectives = COLLECTIVE.findall(compiled.as_text())
            if len(collectives) > count or set(collectives) - {"all-gather"}:
                yield f"{where}: {collectives}"


def more(mesh: Any, check: bool) -> Iterator[str]:
    """Initial values, which all devices have alike, and two tensors; other errors."""

    def scan(a: Any, b: Any, start: Any) -> Any:
        return distributed.linear_scan(a, b, over="d", initial=start)

    spread = jax.shard_map(
        scan, mesh=mesh, in_specs=(ALONG, ALONG, P()), out_specs=ALONG, check_vma=check
    )
    arguments = (X, Y, START)

    def loss(function: Any, *args: Any) -> Any:
        return (function(*args) ** 2).sum()

    def plain(a: Any, b: Any, start: Any) -> Any:
        return pb.linear_scan(a, b, initial=start)

    found = jax.jit(jax.grad(partial(loss, spread), (0, 1, 2)))(*arguments)
    wanted = jax.grad(partial(loss, plain), (0, 1, 2))(*map(jax.numpy.asarray, arguments))
    for name, got, want in zip("abi", found, wanted, strict=True):
        if not np.allclose(got, want, rtol=1e-5, atol=1e-5):
            yield f"linear_scan check_vma={check}: another gradient of {name}"
    try:
        distributed.cumsum(jax.numpy.asarray(X), over="d")
        yield "outside of shard_map: no error"
    except pb.InvalidProblem:
        pass


if __name__ == "__main__":
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    for fault in (*faults(mesh, True), *more(mesh, True), *more(mesh, False)):
        print(fault)
