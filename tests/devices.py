"""Run by test_distributed in a process with eight devices: functions of one device's part inside of
shard_map, their gradients, and the collectives of the compiled program. Prints what is wrong."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.export
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


def exact_faults(mesh: Any) -> Iterator[str]:
    """The bits of one device, of fewer rows than devices: an all-to-all an operand and result."""
    for name in ("cumsum", "cumprod", "logcumsumexp", "softmax", "entmax15"):
        local = partial(getattr(distributed, name), over="d", exact=True)
        spread = jax.shard_map(local, mesh=mesh, in_specs=ALONG, out_specs=ALONG, check_vma=False)
        whole = getattr(pb, name)
        both = [(f, jax.grad(lambda x, f=f: (f(x) * Y).sum())) for f in (spread, whole)]
        for found, wanted, count in zip(*both, (2, 7), strict=True):
            compiled = jax.jit(found).lower(X).compile()
            if not np.array_equal(np.asarray(compiled(X)), np.asarray(wanted(X))):
                yield f"{name} exact: other bits"
            collectives = COLLECTIVE.findall(compiled.as_text())
            if len(collectives) > count or set(collectives) - {"all-to-all"}:
                yield f"{name} exact: {collectives}"


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


TABLE = RANDOM.normal(size=(32, 6)).astype(np.float32)
TABLE[3] = -0.0
IDS, BAGS = (RANDOM.integers(0, 32, shape).astype(np.int32) for shape in ((24,), (16, 3)))
ROWS = RANDOM.normal(size=(24, 6)).astype(np.float32)
SEGMENTS = RANDOM.integers(0, 13, 24).astype(np.int32)
BY_ROWS = P("d")


def tables(mesh: Any) -> Iterator[str]:
    """Tables and segments by rows, losses of classes in parts; gradients of what is first."""
    cases: list[tuple[Any, Any, tuple[Any, ...], tuple[P, ...], P, bool]] = [
        (distributed.embedding, pb.embedding, (TABLE, IDS), (BY_ROWS, BY_ROWS), BY_ROWS, True),
        (
            partial(distributed.embedding_bag, mode="sum"),
            partial(pb.embedding_bag, mode="sum"),
            (TABLE, BAGS),
            (BY_ROWS, BY_ROWS),
            BY_ROWS,
            False,
        ),
        (
            lambda x, i, over: distributed.segment_max(x, i, 16, over=over, by="segments"),
            lambda x, i: pb.segment_max(x, i, 16),
            (ROWS, SEGMENTS),
            (BY_ROWS, BY_ROWS),
            BY_ROWS,
            True,
        ),
        (
            lambda x, i, over: distributed.segment_mean(x, i, 16, over=over),
            lambda x, i: pb.segment_mean(x, i, 16),
            (ROWS, SEGMENTS),
            (BY_ROWS, BY_ROWS),
            P(),
            False,
        ),
        (distributed.softmax_loss, pb.softmax_loss, (X, IDS[:4]), (ALONG, P()), P(), False),
    ]
    for number, (local, plain, args, specs, out, exact) in enumerate(cases):
        spread = jax.shard_map(
            partial(local, over="d"), mesh=mesh, in_specs=specs, out_specs=out, check_vma=False
        )
        weights = jax.numpy.asarray(RANDOM.normal(size=jax.eval_shape(plain, *args).shape))
        pairs = [
            (f, jax.grad(lambda x, *a, f=f, w=weights: (f(x, *a) * w.astype(x.dtype)).sum()))
            for f in (spread, plain)
        ]
        for what, found, wanted in zip(("value", "gradient"), *pairs, strict=True):
            compiled = jax.jit(found).lower(*args).compile()
            got, want = compiled(*args), wanted(*map(jax.numpy.asarray, args))
            if not np.allclose(got, want, rtol=2e-6, atol=1e-6):
                yield f"case {number}: another {what}"
            if exact and not np.array_equal(np.asarray(got), np.asarray(want)):
                yield f"case {number}: other bits of the {what}"
            if "f32[32,6]" in compiled.as_text() and number < 2:
                yield f"case {number}: the {what} has the whole table on one device"


def exported_faults(mesh: Any) -> Iterator[str]:
    spread = jax.shard_map(
        partial(distributed.cumprod, over="d"), mesh=mesh, in_specs=ALONG, out_specs=ALONG
    )
    allowed = [jax.export.DisabledSafetyCheck.custom_call("pullback")]
    placed = jax.device_put(X, jax.sharding.NamedSharding(mesh, ALONG))
    exported = jax.export.export(jax.jit(spread), disabled_checks=allowed)(placed)
    called = exported.call(placed)
    if exported.nr_devices != 8 or called.sharding.spec != ALONG:
        yield f"exported: {exported.nr_devices} devices, sharded as {called.sharding}"
    if not np.allclose(called, pb.cumprod(X), rtol=2e-6):
        yield "exported: other values"


if __name__ == "__main__":
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    for check in (faults(mesh, True), more(mesh, True), more(mesh, False)):
        for fault in check:
            print(fault)
    for fault in itertools.chain(tables(mesh), exported_faults(mesh), exact_faults(mesh)):
        print(fault)
