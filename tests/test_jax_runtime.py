"""JAX: errors, threads, donated buffers, executables on disk, several devices."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pullback
from pullback import IndexOutOfRange, InvalidProblem, Unsupported

jax = pytest.importorskip("jax")
jnp = jax.numpy

X = np.random.default_rng(3).standard_normal((6, 4)).astype(np.float32)
IDS = np.array([0, 2, 2, 1, 0, 2], np.int32)
BAD = np.array([0, 2, 9, 1, 0, 2], np.int32)
SENTENCE = r"segment_sum: `segment_ids` must be in \[0, 3\), got 9 at position 2"


def segments(x: Any, ids: Any) -> Any:
    return pullback.segment_sum(x, ids, 3)


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("good_calls_before", [0, 3])
def test_an_eager_call_raises_the_error_itself(good_calls_before: int) -> None:
    def sums(ids: Any) -> Any:
        return pullback.segment_sum(jnp.asarray(X), jnp.asarray(ids), 3, empty=good_calls_before)

    for _ in range(good_calls_before):  # JAX has another way for calls that worked
        sums(IDS)
    for _ in range(2):
        with pytest.raises(IndexOutOfRange, match=SENTENCE) as caught:
            sums(BAD)
        error = caught.value
        assert (error.op, error.argument) == ("segment_sum", "segment_ids")
        assert (error.expected, error.got) == ("in [0, 3)", "9 at position 2")


def test_a_compiled_call_raises_the_sentence() -> None:
    compiled = jax.jit(segments)
    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError, match=SENTENCE):
            compiled(jnp.asarray(X), jnp.asarray(BAD)).block_until_ready()
        np.testing.assert_array_equal(compiled(X, IDS), pullback.segment_sum(X, IDS, 3))


def test_a_gradient_raises_as_the_forward_does() -> None:
    with pytest.raises(IndexOutOfRange, match=SENTENCE):
        jax.grad(lambda x: segments(x, jnp.asarray(BAD)).sum())(jnp.asarray(X))


def test_what_tracing_can_see_is_raised_while_tracing() -> None:
    x, ids = jnp.asarray(X), jnp.asarray(IDS)
    with pytest.raises(InvalidProblem, match="`num_segments` must be given"):
        jax.jit(pullback.segment_sum)(x, ids)
    with pytest.raises(InvalidProblem, match="`axis` must be an integer in"):
        jax.jit(lambda x: pullback.cumsum(x, 2))(x)
    with pytest.raises(InvalidProblem, match=r"`axis` must be an integer in .* got \[1\]"):
        pullback.cumsum(x, axis=[1])  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match=r"ids.astype\('int64'\) casts"):
        jax.jit(segments)(x, x[:, 0])
    with pytest.raises(Unsupported, match="`sparse` must be False where indices are not at hand"):
        jax.jit(lambda d, i: pullback.embedding_backward(d, i, 3, sparse=True))(x, ids)
    with pytest.raises(TypeError, match="cumsum: unexpected argument 'axes', did you mean 'axis'"):
        pullback.cumsum(x, axes=1)


def test_immutable_and_mixed_arrays_are_refused() -> None:
    with pytest.raises(Unsupported, match="`out` must be None, since JAX arrays are immutable"):
        pullback.cumsum(jnp.asarray(X), out=jnp.asarray(X))
    with pytest.raises(Unsupported, match="`b` must be a jax array, as the others"):
        pullback.lerp(jnp.asarray(X), torch.ones(X.shape), 0.5)


def test_plans_say_that_they_cannot_be_traced() -> None:
    stream = pullback.Stream.cpu()
    desc = pullback.ScanDescriptor(
        kind=pullback.ScanKind.CUMSUM,
        input_shape=X.shape,
        scan_axis=1,
        element=pullback.ElementKind.F32,
    )
    plan = pullback.ScanPlan.select(stream, desc)

    def traced(x: Any) -> None:
        plan.run(stream, pullback.Workspace.NONE, pullback.ScanArgs(x=x, y=np.empty_like(X)))

    with pytest.raises(Unsupported, match="functions, not plans, can be traced"):
        jax.jit(traced)(X)


# --- running --------------------------------------------------------------------------------------


def test_denormals_are_numbers_on_the_threads_of_xla() -> None:
    tiny, before = np.full((512, 512), 1e-42, np.float32), pullback.get_num_threads()
    try:
        for threads in (1, 2):
            pullback.set_num_threads(threads)
            np.testing.assert_array_equal(jax.jit(pullback.cumsum)(tiny), pullback.cumsum(tiny))
    finally:
        pullback.set_num_threads(before)


def test_the_number_of_threads_is_read_when_a_call_runs() -> None:
    large = np.random.default_rng(4).standard_normal((700, 700)).astype(np.float32)
    compiled = jax.jit(pullback.cumsum)
    want, before = pullback.cumsum(large), pullback.get_num_threads()
    try:
        for threads in (1, 3, 8):
            pullback.set_num_threads(threads)
            np.testing.assert_array_equal(compiled(large), want)
    finally:
        pullback.set_num_threads(before)


def test_many_threads_call_at_once() -> None:
    compiled, wrong = jax.jit(segments), []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal((6, 4)).astype(np.float32)
        for _ in range(30):
            eager, jitted = segments(jnp.asarray(x), jnp.asarray(IDS)), compiled(x, IDS)
            if not np.array_equal(eager, jitted):
                wrong.append(seed)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_a_donated_buffer_is_used_up_and_the_result_right() -> None:
    x = jnp.asarray(X)
    got = jax.jit(pullback.cumsum, donate_argnums=0)(x)
    assert x.is_deleted()
    np.testing.assert_array_equal(got, pullback.cumsum(X))


def test_a_prepared_index_serves_as_its_ids() -> None:
    x, index = jnp.asarray(X), pullback.prepare_segments(IDS, 3)
    other = pullback.prepare_segments(IDS[::-1].copy(), 3)
    for name in ("sum", "mean", "max", "min", "prod"):
        reduce = getattr(pullback, f"segment_{name}")
        for prepared, ids in ((index, IDS), (other, IDS[::-1])):

            def loss(x: Any, ids: Any, reduce: Any = reduce) -> Any:
                return (reduce(x, ids, 3) ** 2).sum()

            ids = jnp.asarray(ids)
            want, got = jax.grad(loss)(x, ids), jax.grad(lambda x, p=prepared: loss(x, p))(x)
            np.testing.assert_array_equal(got, want)
    with pytest.raises(IndexOutOfRange, match=SENTENCE):
        segments(x, pullback.prepare_segments(BAD, 3))


def test_a_gradient_adds_to_a_table_that_stays_as_it_is() -> None:
    x, ids, table = jnp.asarray(X), jnp.asarray(IDS), jnp.full((3, 4), 8.0, jnp.float32)
    want = pullback.embedding_backward(X, IDS, 3, accumulate_into=np.full((3, 4), 8.0, np.float32))
    got = pullback.embedding_backward(x, ids, 3, accumulate_into=table)
    np.testing.assert_array_equal(got, want)
    assert (table == 8).all()
    rows, found = pullback.embedding_backward(x, ids, 4, sparse=True)
    np.testing.assert_array_equal(rows, [0, 1, 2])
    np.testing.assert_array_equal(found, pullback.embedding_backward(X, IDS, 3))


def test_jit_can_be_disabled() -> None:
    with jax.disable_jit():
        got = jax.grad(lambda x: pullback.cumsum(x).sum())(jnp.asarray(X))
    np.testing.assert_array_equal(got, pullback.cumsum_backward(np.ones_like(X)))


# --- other processes ------------------------------------------------------------------------------


def python(script: str, *arguments: str, **environment: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


CACHED = """
    import sys, jax, numpy as np, pullback
    jax.config.update("jax_compilation_cache_dir", sys.argv[1])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    hits = []
    jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
    x = np.ones((600, 500), np.float32)  # enough for several threads: sums are whole, and exact
    got = jax.jit(jax.grad(lambda x: (pullback.cumsum(x) ** 2).sum()))(x)
    want = 2 * np.cumsum(np.cumsum(x, 1)[:, ::-1], 1)[:, ::-1]
    assert np.array_equal(got, want)
    print(any("cache_hit" in event for event in hits))
"""


def test_the_compilation_cache_serves_other_processes(tmp_path: Path) -> None:
    assert [python(CACHED, str(tmp_path)).strip() for _ in range(2)] == ["False", "True"]


LOADED = """
    import sys, pickle, jax, numpy as np
    from jax.experimental.serialize_executable import deserialize_and_load
    payload = pickle.loads(open(sys.argv[1], "rb").read())
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    try:
        deserialize_and_load(*payload)
    except Exception as error:
        assert "No FFI handler registered for pullback" in str(error)
    import pullback.frontends.jax
    assert np.array_equal(deserialize_and_load(*payload)(x), np.cumsum(x, 1))
"""


def test_a_stored_executable_finds_its_kernels(tmp_path: Path) -> None:
    import pickle

    from jax.experimental.serialize_executable import deserialize_and_load, serialize

    from pullback.frontends import jax_target

    x = jax.ShapeDtypeStruct((3, 4), np.float32)
    payload = serialize(jax.jit(pullback.cumsum).lower(x).compile())
    path = tmp_path / "executable"
    path.write_bytes(pickle.dumps(payload))
    python(LOADED, str(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax_target, "source_hash", lambda: "another")
        with pytest.raises(jax.errors.JaxRuntimeError, match="made by another version of pullback"):
            deserialize_and_load(*payload)


SHARDED = """
    import jax, jax.numpy as jnp, numpy as np, pullback
    from jax.sharding import AxisType, PartitionSpec as P
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((8, 6)), jnp.float32)
    ids = jnp.asarray([0, 2, 2, 1, 0, 2])

    def check(function, specs, out, *arrays):
        sharded = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out))
        got, want = sharded(*arrays), function(*arrays)
        assert np.array_equal(got, want), function
        text = sharded.lower(*arrays).compile().as_text()
        for collective in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
            assert collective not in text

    rows = P("x")
    check(pullback.cumsum, rows, rows, x)
    check(lambda x: jax.grad(lambda x: (pullback.cumsum(x) ** 2).sum())(x), rows, rows, x)
    check(lambda x: jax.vmap(pullback.cumsum)(x), rows, rows, x)
    check(lambda a, w: pullback.lerp(a, 2 * a, w), (rows, P()), rows, x, x[0])
    columns = jnp.asarray(rng.standard_normal((6, 4)), jnp.float32)
    over = P(None, "x")
    check(lambda x, i: pullback.segment_max(x, i, 3), (over, P()), over, columns, ids)

    def loss(w, f):
        return (f(x, w) ** 2).sum()

    plain = lambda a, w: pullback.lerp(a, 2 * a, w)
    sharded = jax.shard_map(plain, mesh=mesh, in_specs=(rows, P()), out_specs=rows)
    # What is the same on all devices gets the sum of their gradients.
    got = jax.jit(jax.grad(lambda w: loss(w, sharded)))(x[0])
    np.testing.assert_allclose(got, jax.grad(lambda w: loss(w, plain))(x[0]), rtol=1e-5)
"""


def test_shards_of_a_batch_need_no_communication() -> None:
    python(SHARDED, XLA_FLAGS="--xla_force_host_platform_device_count=4")


def test_an_index_first_used_under_jit_serves_other_programs() -> None:
    ids = np.sort(np.random.default_rng(0).integers(0, 5, 16))
    index, x = pullback.prepare_segments(ids, 5), jax.numpy.ones((16, 4))
    want = pullback.segment_sum(np.ones((16, 4), np.float32), ids, 5)
    for _ in range(2):
        found = jax.jit(lambda x: pullback.segment_sum(x, index))(x)
        assert np.array_equal(np.asarray(found), want)
