"""Run by test_jax_sharding in a process with eight devices: shardings of results, collectives in
the compiled program, and bits, on automatic and on explicit meshes. Prints what is wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np
from jax import export
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import pullback as pb
from pullback import distributed

RANDOM = np.random.default_rng(0)
X, Y, TABLE = (RANDOM.normal(size=s).astype(np.float32) for s in ((16, 64), (16, 64), (32, 16)))
IDS, ROWS = (RANDOM.integers(0, n, 16).astype(np.int32) for n in (5, 32))
OFFSETS = np.arange(0, 16, 4, dtype=np.int32)
INDEX = pb.prepare_segments(np.sort(IDS), 5)
PIECES = np.array([0, 5, 16], np.int32)
ROWS_SPLIT, COLUMNS_SPLIT = P("d", None), P(None, "d")
ALONG = "along"  # the axis itself is sharded as columns, and stays so

# A function, its arguments, their shardings, and that of the result where no axis it works along is
# sharded: then nothing may be gathered.
CASES: list[tuple[Callable[..., Any], tuple[Any, ...], tuple[P, ...], P | str | None]] = [
    (lambda x: pb.cumsum(x, -1), (X,), (ROWS_SPLIT,), ROWS_SPLIT),
    (lambda x: pb.cumsum(x, -1), (X,), (COLUMNS_SPLIT,), ALONG),
    (lambda x: pb.cumprod(x, -1, reverse=True), (X,), (COLUMNS_SPLIT,), ALONG),
    (lambda x: pb.cummin(x, -1, return_indices=True)[0], (X,), (COLUMNS_SPLIT,), ALONG),
    (pb.logcumsumexp, (X,), (COLUMNS_SPLIT,), ALONG),
    (pb.linear_scan, (X, Y), (COLUMNS_SPLIT, COLUMNS_SPLIT), ALONG),
    (lambda x, o: pb.cumsum(x, 0, offsets=o), (X, PIECES), (ROWS_SPLIT, P()), None),
    (lambda x: pb.cumprod(x, 0), (X,), (COLUMNS_SPLIT,), COLUMNS_SPLIT),
    (lambda x: pb.cummax(x, 0, return_indices=True)[0], (X,), (COLUMNS_SPLIT,), COLUMNS_SPLIT),
    (lambda x: pb.softmax(x), (X,), (ROWS_SPLIT,), ROWS_SPLIT),
    (lambda x: pb.softmax(x), (X,), (COLUMNS_SPLIT,), ALONG),
    (lambda x: pb.sparsemax(x), (X,), (COLUMNS_SPLIT,), ALONG),
    (lambda x: pb.entmax(x, 1.3), (X,), (ROWS_SPLIT,), ROWS_SPLIT),
    (pb.softmax_loss, (X, IDS), (ROWS_SPLIT, P("d")), P("d")),
    (lambda x, y: pb.entmax15_loss(x, y * y), (X, Y), (ROWS_SPLIT, ROWS_SPLIT), P("d")),
    (pb.linear_scan, (X, Y), (ROWS_SPLIT, ROWS_SPLIT), ROWS_SPLIT),
    (lambda a, b: pb.lerp(a, b, 0.3), (X, Y), (COLUMNS_SPLIT, COLUMNS_SPLIT), COLUMNS_SPLIT),
    (lambda a, b: pb.lerp(a, b, a), (X, Y[:1]), (COLUMNS_SPLIT, COLUMNS_SPLIT), COLUMNS_SPLIT),
    (lambda x, i: pb.segment_sum(x, i, 5), (X, IDS), (COLUMNS_SPLIT, P()), COLUMNS_SPLIT),
    (lambda x, i: pb.segment_sum(x, i, 5), (X, IDS), (ROWS_SPLIT, P("d")), None),
    (lambda x: pb.segment_max(x, INDEX), (X,), (COLUMNS_SPLIT,), COLUMNS_SPLIT),
    (lambda x: pb.segment_max(x, INDEX), (X,), (ROWS_SPLIT,), None),
    (pb.embedding, (TABLE, ROWS), (COLUMNS_SPLIT, P()), COLUMNS_SPLIT),
    (pb.embedding, (TABLE, ROWS), (ROWS_SPLIT, P()), None),
    (pb.embedding_bag, (TABLE, ROWS, OFFSETS), (COLUMNS_SPLIT, P(), P()), COLUMNS_SPLIT),
]
ALLOWED = [export.DisabledSafetyCheck.custom_call("pullback")]
WHOLE_OPERAND = re.compile(r"f32\[[^]]*\]\S* all-gather\(")  # summaries are of float64
COLLECTIVE = re.compile(r"(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\(")


def gradient(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    floats = tuple(i for i, x in enumerate(args) if x.dtype == np.float32)
    return jax.grad(lambda *args: (function(*args) ** 2).sum(), floats)


def several(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def padded(spec: P, rank: int) -> tuple[Any, ...]:
    return (*spec, *(None,) * (rank - len(spec)))


def faults(mesh: Any) -> Iterator[str]:
    for number, (function, args, specs, kept) in enumerate(CASES):
        placed = [
            jax.device_put(x, NamedSharding(mesh, spec))
            for x, spec in zip(args, specs, strict=True)
        ]
        for what, call in (("value", function), ("gradient", gradient(function, args))):
            where = f"case {number}, {mesh.axis_types[0].name}, {what}"
            compiled = jax.jit(call).lower(*placed).compile()
            found, wanted = several(compiled(*placed)), WANTED[number, what]
            for got, want in zip(found, wanted, strict=True):
                near = kept == ALONG and np.allclose(got, want, rtol=3e-6, atol=1e-6)
                if not near and not np.array_equal(np.asarray(got), want):
                    yield f"{where}: other bits"
            if kept is None:
                continue
            wanted_spec: Any = COLUMNS_SPLIT if kept == ALONG else kept
            text = compiled.as_text()
            collectives = COLLECTIVE.findall(text)
            if kept == ALONG:
                if WHOLE_OPERAND.search(text) and "conditional" not in text:
                    yield f"{where}: gathers an operand"
            elif collectives:
                yield f"{where}: {collectives}"
            for got in found:
                if padded(got.sharding.spec, got.ndim) != padded(wanted_spec, got.ndim):
                    yield f"{where}: sharded as {got.sharding.spec}"


def more(auto: Any) -> Iterator[str]:
    """Eager calls, errors, uneven parts."""
    result = pb.cumsum(jax.device_put(X, NamedSharding(auto, ROWS_SPLIT)), -1)
    if padded(result.sharding.spec, 2) != ("d", None):
        yield f"eager: sharded as {result.sharding.spec}"
    bad = np.where(np.arange(16) == 13, 99, ROWS)
    try:
        pb.embedding(jnp.asarray(TABLE), jax.device_put(bad, NamedSharding(auto, P("d"))))
        yield "an index out of range: no error"
    except pb.IndexOutOfRange as error:
        if "99 at position 1 of the part on one device" not in str(error):
            yield f"an index out of range: {error}"
    uneven = NamedSharding(auto, P("d"))
    ids = jax.jit(lambda w, i: pb.embedding(w, jax.lax.with_sharding_constraint(i, uneven)))
    if not np.array_equal(np.asarray(ids(TABLE, ROWS[:13])), TABLE[ROWS[:13]]):
        yield "13 ids over 8 devices: other bits"
    split = jax.shard_map(
        lambda x: pb.cumsum(x, -1), mesh=auto, in_specs=ROWS_SPLIT, out_specs=ROWS_SPLIT
    )
    if not np.array_equal(np.asarray(jax.jit(split)(X)), pb.cumsum(X, -1)):
        yield "shard_map: other bits"
    yield from exported(auto)


def exported(mesh: Any) -> Iterator[str]:
    """Programs for eight devices: operands are gathered, unless shard_map keeps them in parts."""
    rows, along = NamedSharding(mesh, ROWS_SPLIT), NamedSharding(mesh, COLUMNS_SPLIT)
    calls = {
        "rows": (lambda x: pb.cumsum(x, -1), rows, True),
        "along": (lambda x: pb.cumsum(x, -1), along, True),
        "gradient": (jax.grad(lambda x: (pb.cumsum(x, -1) ** 2).sum()), along, True),
        "parts of rows": (_apart(lambda x: pb.cumsum(x, -1), mesh, ROWS_SPLIT), rows, False),
        "parts along": (
            _apart(lambda x: distributed.cumsum(x, -1, over="d"), mesh, COLUMNS_SPLIT),
            along,
            False,
        ),
    }
    for name, (function, sharding, gathers) in calls.items():
        call = jax.jit(function, in_shardings=sharding, out_shardings=sharding)
        x = jax.device_put(X, sharding)
        program = export.export(call, disabled_checks=ALLOWED)(x)
        run = jax.jit(program.call, in_shardings=sharding)
        if not np.array_equal(np.asarray(run(x)), np.asarray(call(x))):
            yield f"exported {name}: other bits"
        if run(x).sharding.spec != sharding.spec:
            yield f"exported {name}: {run(x).sharding.spec}"
        if bool(WHOLE_OPERAND.search(run.lower(x).compile().as_text())) is not gathers:
            yield f"exported {name}: {'nothing' if gathers else 'the operand'} is gathered"


def _apart(function: Callable[..., Any], mesh: Any, spec: P) -> Callable[..., Any]:
    return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec)


WANTED = {
    (number, what): [np.asarray(x) for x in several(jax.jit(call)(*args))]
    for number, (function, args, _, _) in enumerate(CASES)
    for what, call in (("value", function), ("gradient", gradient(function, args)))
}

if __name__ == "__main__":
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((8,), ("d",), axis_types=(kind,))
        with jax.set_mesh(mesh) if kind is AxisType.Explicit else nullcontext():
            for fault in (*faults(mesh), *(more(mesh) if kind is AxisType.Auto else ())):
                print(fault)
