"""The call cache of a function: repeated calls hit it, with the same bits; all others miss it."""

from __future__ import annotations

import inspect
import pickle
import resource
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.bench.inventory import plans
from pullback.contract.element import ElementKind
from pullback.contract.errors import IndexOutOfRange
from pullback.cpu.call_cache import CAPACITY
from pullback.cpu.native_launch import MANY, NativeLaunch
from pullback.cpu.program import Program
from pullback.plan.function import Function
from pullback.verify.laws import same_bits, trials
from pullback.verify.subject import Subject, subjects
from test_pool import python

X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
MISALIGNED = np.zeros(X.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(X.shape)


def with_empty_cache(name: str) -> Function:
    """This function with a call cache of its own."""
    function: Function = getattr(pb, name).function
    return type(function)(function.body)


def lookup(function: Function, *args: Any, out: Any = None, **options: Any) -> Any:
    """The result of a call that hits the cache; None for a miss."""
    return function.lookup(*function.values(args, options), out)


@pytest.mark.parametrize("subject", subjects().values(), ids=str)
def test_a_repeated_call_hits_the_cache(subject: Subject) -> None:
    function = with_empty_cache(subject.name)
    _, arguments = next(trials(subject, ElementKind.F32))
    assert lookup(function, **arguments) is None
    first, again = function(**arguments), lookup(function, **arguments)
    pairs = zip(first, again, strict=True) if isinstance(first, tuple) else [(first, again)]
    for want, got in pairs:
        assert same_bits(want, got)


def test_results_given_are_returned_themselves() -> None:
    buffer = np.full(X.size + 2, np.nan, np.float32)
    out = buffer[1:-1].reshape(X.shape)
    pair = np.empty_like(X), np.empty(X.shape, np.int64)
    cumsum, cummax = with_empty_cache("cumsum"), with_empty_cache("cummax")
    for function, given, options in ((cumsum, out, {}), (cummax, pair, {"return_indices": True})):
        assert function(X, 1, out=given, **options) is given
        assert lookup(function, X, 1, out=given, **options) is given
    assert same_bits(out, np.cumsum(X, 1))
    assert np.isnan(buffer[[0, -1]]).all()


OTHERS: dict[str, tuple[Any, Any, Any]] = {
    "another shape": (X[:2], 1, None),
    "other strides": (X.T.copy().T, 1, None),
    "another dtype": (X.astype(np.float64), 1, None),
    "another dtype of the same size": (X.view(np.int32), 1, None),
    "off its alignment": (MISALIGNED, 1, None),
    "read only": (np.frombuffer(X.tobytes(), np.float32).reshape(X.shape), 1, None),
    "a subclass": (X.view(np.recarray), 1, None),
    "no array": (X.tolist(), 1, None),
    "nothing": (None, 1, None),
    "another axis": (X, 0, None),
    "an axis of another type": (X, True, None),
    "a large axis": (X, 1 << 70, None),
    "somewhere to write": (X, 1, np.empty_like(X)),
    "several to write": (X, 1, (np.empty_like(X),)),
}


def by_torch(array: np.ndarray) -> np.ndarray:
    result: np.ndarray = pytest.importorskip("torch").from_numpy(array.copy()).numpy()
    return result


@pytest.mark.parametrize("over", [by_torch, lambda x: np.from_dlpack(x.copy())])
def test_arrays_over_memory_of_other_libraries_hit(over: Any) -> None:
    function, x = with_empty_cache("cumsum"), over(X)
    assert type(x.base) is not np.ndarray
    function(x, 1)
    assert same_bits(lookup(function, x, 1), np.cumsum(X, 1))
    assert same_bits(lookup(function, over(X + 1), 1), np.cumsum(X + 1, 1))


@pytest.mark.parametrize("over", [by_torch, np.copy])
def test_an_array_with_a_stand_in_for_its_owner_is_looked_at(over: Any) -> None:
    """It may reach beyond the memory it was made from."""
    function, x, few = with_empty_cache("cumsum"), over(X), over(X[:1])
    function(x, 1)
    inside, beyond = (
        np.lib.stride_tricks.as_strided(a, X.shape, X.strides, writeable=True) for a in (x, few)
    )
    assert lookup(function, x, 1) is not None
    assert lookup(function, inside, 1) is lookup(function, beyond, 1) is None
    assert same_bits(function(inside, 1), np.cumsum(X, 1))
    with pytest.raises(pb.BufferTooSmall):
        function(beyond, 1)


@pytest.mark.parametrize("name", OTHERS)
def test_other_arguments_miss_the_cache(name: str) -> None:
    function = with_empty_cache("cumsum")
    function(X, 1)
    x, axis, out = OTHERS[name]
    assert lookup(function, x, axis, out=out) is None
    assert lookup(function, X, 1) is not None


@pytest.mark.parametrize(("first", "second"), [(0.25, 0.5), (0.0, -0.0), (1.0, 1), (1, 1.0)])
def test_numbers_are_compared_exactly(first: float, second: float) -> None:
    lerp = with_empty_cache("lerp")
    lerp(X, X + 1, first)
    assert lookup(lerp, X, X + 1, first) is not None
    assert lookup(lerp, X, X + 1, second) is None
    assert same_bits(lerp(X, X + 1, second), pb.lerp(X, X + 1, np.full((), second, np.float32)))


def test_the_call_unused_for_longest_is_evicted() -> None:
    function = with_empty_cache("cumsum")
    rows = [np.ones((n, 2), np.float32) for n in range(1, CAPACITY + 2)]
    for x in rows[:-1]:
        function(x, 0)
    assert lookup(function, rows[0], 0) is not None  # which makes the second one the oldest
    function(rows[-1], 0)
    assert lookup(function, rows[1], 0) is None
    for x in (rows[0], *rows[2:]):
        assert same_bits(lookup(function, x, 0), np.cumsum(x, 0))


def test_twelve_shapes_in_rotation_stay_in_the_cache() -> None:
    function = with_empty_cache("cumsum")
    rows = [np.ones((n, 3), np.float32) for n in range(1, 13)]
    for x in rows:
        function(x, 0)
    for x in rows * 3:
        assert same_bits(lookup(function, x, 0), np.cumsum(x, 0))


def test_shapes_in_any_order_hit_and_a_new_one_misses_wherever_the_last_hit_was() -> None:
    function, rng = with_empty_cache("cumsum"), np.random.default_rng(5)
    rows = [rng.standard_normal((n, 3)).astype(np.float32) for n in range(1, CAPACITY + 1)]
    wanted = [function(x, 0) for x in rows]
    for n in rng.integers(0, CAPACITY, 500):
        found = lookup(function, rows[n], axis=0)
        assert found is not None
        assert same_bits(wanted[n], found)
        assert lookup(function, np.ones((CAPACITY + 1, 3), np.float32), axis=0) is None


def test_references_are_neither_lost_nor_kept() -> None:
    function, x, out = with_empty_cache("cummax"), X.copy(), (X.copy(), np.empty(X.shape, np.int64))
    held = (x, out, *out, function.lookup)
    for given in (None, out):
        function(x, 1, return_indices=True, out=given)
    before = [sys.getrefcount(thing) for thing in held[:-1]]
    for _ in range(100):
        values, places = function(x, 1, return_indices=True)
        function(x, 1, return_indices=True, out=out)
        function(x[:, ::-1], 1)
    assert sys.getrefcount(values) == sys.getrefcount(places) == 2
    assert [sys.getrefcount(thing) for thing in held[:-1]] == before


def test_an_error_of_the_launch_is_raised_every_time() -> None:
    embedding, ids = with_empty_cache("embedding"), np.array([0, 1, 2])
    embedding(X, ids)
    ids[1] = 3
    for _ in range(2):
        with pytest.raises(IndexOutOfRange):
            embedding(X, ids)


def test_a_result_may_be_an_argument_where_the_contract_says_so() -> None:
    function, x = with_empty_cache("cumsum"), X.copy()
    function(x.copy(), 1, out=x)
    assert lookup(function, x, 1, out=x) is x
    assert same_bits(x, np.cumsum(np.cumsum(X, 1), 1))


OPTIONS: dict[str, tuple[str, tuple[Any, ...], list[Any]]] = {
    "axis": ("cumsum", (X,), [np.int64(0), np.int64(1), np.int32(0), 1]),
    "weight": ("lerp", (X, X + 1), [np.float64(0.25), np.float64(0.75), np.float32(0.5), -0.0]),
    "num_segments": ("segment_sum", (X, np.zeros(3, int)), [np.int64(1), np.int64(4), 2]),
    "empty": ("segment_sum", (X, np.zeros(3, int), 2), [np.float64(-0.0), np.float64(0.0), 3]),
    "num_embeddings": ("embedding_backward", (X, np.zeros(3, int)), [np.int64(1), np.int64(4)]),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_numbers_of_numpy_are_known_by_their_value(name: str) -> None:
    function, args, values = OPTIONS[name]
    fresh = with_empty_cache(function)
    for value in (*values, *values):
        plain = value.item() if isinstance(value, np.generic) else value
        want = getattr(pb, function)(*args, **{name: plain})
        assert same_bits(fresh(*args, **{name: value}), want)


@pytest.mark.parametrize("name", sorted(OPTIONS.keys() - {"weight"}))
def test_arrays_are_no_options(name: str) -> None:
    function, args, values = OPTIONS[name]
    fresh = with_empty_cache(function)
    for value in values:
        for array in (np.array(value), np.full(3, value)):
            with pytest.raises(pb.InvalidProblem, match=f"`{name}` must be a value, not an array"):
                fresh(*args, **{name: array})
        fresh(*args, **{name: value})


def test_overlapping_memory_misses_and_is_refused() -> None:
    function, buffer = with_empty_cache("cumsum"), np.ones(12, np.float32)
    function(buffer[:4].copy(), 0, out=buffer[8:])
    with pytest.raises(pb.InvalidProblem, match="memory apart"):
        function(buffer[:4], 0, out=buffer[2:6])


def test_out_of_memory_is_an_error_like_any_other() -> None:
    function, x = with_empty_cache("cumsum"), np.broadcast_to(np.float32(1), 1 << 26)
    function(x, 0)
    pb.empty_cache()
    before, limits = sys.getrefcount(x), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (x.nbytes, limits[1]))  # the process has more already
    try:
        with pytest.raises(MemoryError):
            lookup(function, x, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert sys.getrefcount(x) == before


def test_many_threads_share_one_cache() -> None:
    function = with_empty_cache("cumsum")
    rows = [np.arange(n, dtype=np.float64) for n in range(1, 3 * CAPACITY)]
    want = [np.cumsum(x) for x in rows]

    def run(first: int) -> bool:
        order = np.random.default_rng(first).permutation(len(rows) * 20) % len(rows)
        return all(same_bits(function(rows[i], 0), want[i]) for i in order)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(run, range(8)))


def test_the_first_calls_of_all_may_come_at_once() -> None:
    script = """
        import numpy as np
        import pullback as pb

        sys.setswitchinterval(1e-5)
        gate, x = threading.Barrier(8), np.ones(8, np.float32)
        desc = pb.ScanDescriptor(
            kind=pb.ScanKind.CUMPROD, input_shape=(8,), scan_axis=0, element=pb.ElementKind.F32
        )
        plan = pb.ScanPlan.select(pb.Stream.cpu(), desc, pb.PlanPreference())

        def run():
            gate.wait()
            for _ in range(100):
                assert pb.cumsum(x)[-1] == 8
                args = pb.ScanArgs(x=x, y=np.empty_like(x))
                plan.run(pb.Stream.cpu(), pb.Workspace.NONE, args)
                assert args.y[-1] == 1

        callers = [threading.Thread(target=run) for _ in range(8)]
        for caller in callers: caller.start()
        for caller in callers: caller.join()
        rubbish = [bytes(30 + i % 30) for i in range(100_000)]  # where somebody's was
        gate = threading.Barrier(1)
        run()
    """
    python(script, prelude=False)


def test_functions_are_plain_functions() -> None:
    assert pickle.loads(pickle.dumps(pb.cumsum)) is pb.cumsum
    assert inspect.isfunction(pb.cumsum)
    assert pb.cumsum.__doc__
    for name, subject in subjects().items():
        declared = inspect.signature(subject.function.body).parameters
        exported = inspect.signature(getattr(pb, name)).parameters
        assert list(exported) == [*declared, "out"]
        assert all(exported[n].default is p.default for n, p in declared.items())


def test_a_prepared_index_is_known_while_it_lives() -> None:
    function = with_empty_cache("segment_sum")
    first, second = (
        pb.prepare_segments(ids, 2) for ids in (np.array([0, 1, 1]), np.array([1, 0, 1]))
    )
    for index in (first, second):
        function(X, index, 2)
    for index in (first, second):
        assert same_bits(lookup(function, X, index, 2), pb.segment_sum(X, index.ids, 2))
    gone = weakref.ref(first)
    del first, index
    assert gone() is None
    assert lookup(function, X, second, 2) is not None
    for _ in range(100):  # one of these is where the first was
        assert lookup(function, X, pb.prepare_segments(np.array([0, 0, 1]), 2), 2) is None


def test_a_long_call_hits_the_cache() -> None:
    """One that releases the interpreter's lock while it runs."""
    cumsum, x = with_empty_cache("cumsum"), np.ones((4, 1 << 13), np.float32)
    assert same_bits(lookup_after(cumsum, x, 1), np.cumsum(x, 1))


def test_a_call_over_pieces_hits_the_cache() -> None:
    offsets = np.array([0, 2, 3])
    again = lookup_after(with_empty_cache("cumsum"), X, 0, offsets=offsets)
    assert same_bits(again, np.concatenate([np.cumsum(X[:2], 0), X[2:]]))


def test_arrays_of_another_rank_miss() -> None:
    cumsum = with_empty_cache("cumsum")
    assert lookup_after(cumsum, X, 0) is not None
    assert lookup(cumsum, X.reshape(3, 2, 2), 0) is None
    assert lookup(cumsum, X[0], 0) is None


def test_views_over_memory_that_no_array_owns_hit() -> None:
    outer = np.frombuffer(bytearray(X.nbytes + 16), np.float32)
    x = outer[4:].reshape(X.shape)
    x[...] = X
    assert same_bits(lookup_after(with_empty_cache("cumsum"), x, 1), np.cumsum(X, 1))


def test_a_launch_has_room_for_the_slots_of_every_plan() -> None:
    assert max(len(plan.record.slots) for _, plan in plans()) <= MANY
    with pytest.raises(ValueError, match=f"at most {MANY} slots, not {MANY + 1}"):
        NativeLaunch.of(Program((), ()), ElementKind.F32, MANY + 1)


def lookup_after(function: Function, *args: Any, **options: Any) -> Any:
    """What the cache gives for a call after the first like it."""
    function(*args, **options)
    return lookup(function, *args, **options)
