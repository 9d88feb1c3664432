"""The plan API: selection, preferences, workspaces, views, and every sentence of its errors."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest
import torch

import pullback as pb

CPU = pb.Stream.cpu()
NONE = pb.Workspace.NONE


def scan(**changes: Any) -> pb.ScanDescriptor:
    fields: dict[str, Any] = {
        "kind": pb.ScanKind.CUMSUM,
        "input_shape": (3, 4),
        "scan_axis": 1,
        "element": pb.ElementKind.F32,
    }
    return pb.ScanDescriptor(**{**fields, **changes})


def backward(**changes: Any) -> pb.ScanBackwardDescriptor:
    desc = scan(**changes)
    return pb.ScanBackwardDescriptor(**vars(desc))


def ones(*shape: int, dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


# --- arrays known again -----------------------------------------------------------------------


def _changed(x: Any) -> dict[str, Any]:
    """Arrays that differ from `x` in one thing each."""
    frozen = x.copy()
    frozen.flags.writeable = False
    return {
        "the same": x,
        "elsewhere": x.copy(),
        "a view": np.repeat(x, 2, 0)[::2],
        "shape": x[:2],
        "rank": x[0],
        "strides": np.asfortranarray(x),
        "dtype": x.astype(np.float64),
        "read-only": frozen,
        "of bytes": np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
        "a subclass": x.view(np.memmap),
        "beyond its owner": np.lib.stride_tricks.as_strided(x, x.shape, (64, 4)),
        "a view beyond its owner": np.lib.stride_tricks.as_strided(x, (9, 4), (64, 4))[:5][:3],
        "a view within it": np.lib.stride_tricks.as_strided(x, (9, 4), (16, 4))[:3],
    }


@pytest.mark.parametrize("first", _changed(ones(3, 4)))
def test_every_call_is_validated_though_arrays_are_known_again(first: str) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    arrays = _changed(x)

    def answer(array: Any) -> Any:
        try:
            return pb.cumsum(array, -1)
        except pb.PullbackError as error:
            return str(error)

    for name, array in arrays.items():
        answer(arrays[first])
        got = answer(array)
        if name.endswith("beyond its owner"):
            assert "cumsum: `x`" in got
        else:
            want = np.cumsum(array, -1)
            assert got.dtype == want.dtype
            assert (got == want).all(), name


@pytest.mark.parametrize("name", _changed(ones(3, 4)))
def test_plans_validate_every_array_though_they_know_it_again(name: str) -> None:
    plan, x = pb.ScanPlan.select(CPU, scan()), np.arange(12, dtype=np.float32).reshape(3, 4)
    for _ in range(2):
        plan.run(CPU, NONE, pb.ScanArgs(x=x, y=ones(3, 4)))
    array = _changed(np.zeros_like(x))[name]
    args = pb.ScanArgs(x=x, y=array)
    fits = name in ("the same", "elsewhere", "a view", "strides", "a subclass", "a view within it")
    if fits:
        plan.run(CPU, NONE, args)
        assert (array == np.cumsum(x, -1)).all()
    else:
        with pytest.raises(pb.PullbackError):
            plan.run(CPU, NONE, args)
        assert array.flat[1] == 0


@pytest.mark.parametrize("name", _changed(ones(3, 4)))
def test_functions_validate_every_out_though_they_know_it_again(name: str) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for _ in range(2):
        pb.cumsum(x, -1, out=ones(3, 4))
    out = _changed(np.zeros_like(x))[name]
    if name in ("the same", "elsewhere", "a view", "strides", "a subclass", "a view within it"):
        assert pb.cumsum(x, -1, out=out) is out
        assert (out == np.cumsum(x, -1)).all()
    else:
        with pytest.raises(pb.PullbackError):
            pb.cumsum(x, -1, out=out)
        assert out.flat[1] == 0


def test_shapes_matter_of_arrays_that_no_kernel_reads() -> None:
    dy = ones(4, 9)
    for rows in (1, 4, 1, 4):
        da, db = pb.lerp_backward(dy, 0.25, ones(rows, 9), ones(4, 1))
        assert (da.shape, db.shape) == ((rows, 9), (4, 1))


def test_the_two_zeros_are_two_plans() -> None:
    ids, x = np.array([1]), ones(1, 2)
    for empty in (0.0, -0.0, 0.0):
        got = pb.segment_max(x, ids, num_segments=2, empty=empty)[0]
        assert (np.signbit(got) == np.signbit(empty)).all()


# --- selection ------------------------------------------------------------------------------


def test_selection_is_cached_by_descriptor_preference_and_device() -> None:
    plan = pb.ScanPlan.select(CPU, scan(), pb.PlanPreference())
    assert pb.ScanPlan.select(pb.Stream.cpu(3), scan(), pb.PlanPreference()) is plan
    assert pb.ScanPlan.select(CPU, scan(scan_axis=0), pb.PlanPreference()) is not plan
    assert hash(scan()) == hash(scan())


def test_descriptors_are_frozen_and_args_are_keyword_only() -> None:
    with pytest.raises(AttributeError):
        scan().scan_axis = 0
    with pytest.raises(TypeError):
        pb.ScanArgs(ones(3, 4), ones(3, 4))


def test_skus_tell_forward_from_backward_and_f64_from_f32() -> None:
    forward = pb.ScanPlan.select(CPU, scan()).sku
    back = pb.ScanBackwardPlan.select(CPU, backward()).sku
    wide = pb.ScanPlan.select(CPU, scan(element=pb.ElementKind.F64)).sku
    assert len({forward, back, wide}) == 3
    assert wide.precision_guarantee.math_precision is pb.MathPrecision.F64
    assert forward.op is pb.ScanKind.CUMSUM
    assert forward.direction == "forward"
    assert forward.aux_element is None
    assert "\n" not in str(forward)


def test_preferences_are_honoured_or_refused() -> None:
    reference = pb.PlanPreference(prefer_backend=pb.BackendKind.REFERENCE)
    plan = pb.ScanPlan.select(CPU, scan(), reference)
    assert plan.sku.backend is pb.BackendKind.REFERENCE
    y = ones(3, 4)
    plan.run(CPU, NONE, pb.ScanArgs(x=ones(3, 4), y=y))
    assert (y == [1, 2, 3, 4]).all()
    with pytest.raises(pb.Unsupported):
        pb.ScanPlan.select(CPU, scan(), pb.PlanPreference(prefer_backend=pb.BackendKind.TRITON))
    strict = pb.PlanPreference(reproducibility=pb.Reproducibility.ANY_THREADS)
    kept = pb.ScanPlan.select(CPU, scan(), strict).precision_guarantee
    assert kept.reproducibility >= pb.Reproducibility.ANY_THREADS


def test_reproducibility_is_ordered() -> None:
    r = pb.Reproducibility
    assert r.NONE < r.RUN_TO_RUN < r.ANY_THREADS < r.ANY_MACHINE


def test_plans_run_from_many_threads_at_once() -> None:
    plan = pb.ScanPlan.select(CPU, scan(input_shape=(300, 1000)))
    x = np.random.default_rng(0).standard_normal((300, 1000)).astype(np.float32)
    outs = [np.empty_like(x) for _ in range(8)]
    threads = [
        threading.Thread(target=plan.run, args=(CPU, NONE, pb.ScanArgs(x=x, y=out))) for out in outs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((out == outs[0]).all() for out in outs)


def test_torch_tensors_in_plans() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    y = torch.empty(4, 3).T
    pb.ScanPlan.select(CPU, scan()).run(CPU, NONE, pb.ScanArgs(x=x, y=y))
    assert torch.equal(y, x.cumsum(1))


# --- aliasing -------------------------------------------------------------------------------


def test_in_place_and_interleaved_are_fine_overlap_is_not() -> None:
    plan = pb.ScanPlan.select(CPU, scan(input_shape=(4,), scan_axis=0))
    x = ones(4)
    plan.run(CPU, NONE, pb.ScanArgs(x=x, y=x))
    assert (x == [1, 2, 3, 4]).all()
    buffer = ones(8)
    plan.run(CPU, NONE, pb.ScanArgs(x=buffer[::2], y=buffer[1::2]))
    assert (buffer[1::2] == [1, 2, 3, 4]).all()
    with pytest.raises(pb.InvalidProblem, match="shares elements"):
        plan.can_implement(pb.ScanArgs(x=buffer[:4], y=buffer[2:6]))
    with pytest.raises(pb.InvalidProblem, match="shares elements"):
        plan.can_implement(pb.ScanArgs(x=buffer[:4], y=buffer[3::-1]))
    for x, y in ((buffer[:4], buffer[3:7]), (buffer[3:7], buffer[:4])):  # one element of both
        with pytest.raises(pb.InvalidProblem, match="shares elements"):
            plan.can_implement(pb.ScanArgs(x=x, y=y))
    plan.can_implement(pb.ScanArgs(x=buffer[:4], y=buffer[4:]))


def test_one_address_with_other_strides_is_no_place_to_write() -> None:
    plan = pb.ScanPlan.select(CPU, scan(input_shape=(3, 3), scan_axis=0))
    square = ones(3, 3)
    for x, y in ((square, square.T), (square[:, :1].repeat(3, 1), square), (square, square)):
        shares = x is square and y is not square
        for _ in range(2):
            if shares:
                with pytest.raises(pb.InvalidProblem, match="shares elements"):
                    plan.run(CPU, NONE, pb.ScanArgs(x=x, y=y))
                with pytest.raises(pb.InvalidProblem, match="shares elements"):
                    pb.cumsum(x, 0, out=y)
            else:
                plan.run(CPU, NONE, pb.ScanArgs(x=x, y=y))


def test_two_results_that_overlap_are_refused() -> None:
    buffer, dy = ones(6), ones(3)
    for _ in range(2):
        assert (pb.lerp_backward(dy, 0.25, out=(buffer[:3], buffer[3:]))[1] == 0.25).all()
        for out in ((buffer[:3], buffer[2:5]), (buffer[2:5], buffer[:3]), (buffer[:3], buffer[:3])):
            with pytest.raises(pb.InvalidProblem, match="shares elements"):
                pb.lerp_backward(dy, 0.25, out=out)


# --- sentences ------------------------------------------------------------------------------

SENTENCES = [
    (lambda: pb.cumsum([1.0]), "cumsum: `x` must be a NumPy array, a torch tensor, a JAX array or anything with __dlpack__, got a list"),
    (lambda: pb.cumsum(1.0), "cumsum: `x` must be a NumPy array, a torch tensor, a JAX array or anything with __dlpack__, got a float"),
    (lambda: pb.cumsum(np.arange(3)), "cumsum: `x` must be of float16, bfloat16, float32, float64 (x.astype('float32') casts), got an array of int64"),
    (lambda: pb.cumsum(ones(3).astype(">f4")), "cumsum: `x` must be of float16, bfloat16, float32, float64 (x.astype('float32') casts), got float32 in foreign byte order"),
    (lambda: pb.cumsum(ones(3), 1), "cumsum: `axis` must be an integer in [-1, 1), got 1"),
    (lambda: pb.cumsum(ones(3), 0.0), "cumsum: `axis` must be an integer in [-1, 1), got 0.0"),
    (lambda: pb.cumsum(ones(3, 4), True), "cumsum: `axis` must be an integer in [-2, 2), got True"),
    (lambda: pb.cumsum(ones(3), reverse=1), "cumsum: `reverse` must be True or False, got 1"),
    (lambda: pb.cumsum(ones(3), out=ones(4)), "cumsum: `out` must be of shape (3,), got shape (4,)"),
    (lambda: pb.cumsum(ones(3), out=ones(3, dtype=np.float64)), "cumsum: `out` must be float32 (out.astype('float32') casts), got an array of float64"),
    (lambda: pb.cummax(ones(3), ties="frist"), "cummax: `ties` must be one of 'first', 'last', 'split', got 'frist'"),
    (lambda: pb.cummax(ones(3), ties="split"), "cummax: `ties` must be FIRST or LAST, got SPLIT"),
    (lambda: pb.cumprod_backward(ones(3), ones(4), ones(3)), "cumprod_backward: `x` must be of shape (3,), got shape (4,)"),
    (lambda: pb.cumprod_backward(ones(3), ones(3), None), "cumprod_backward: `y` must be the saved forward output, got None"),
    (lambda: pb.cumprod_backward(ones(3), ones(3, dtype=np.float64), ones(3)), "cumprod_backward: `x` must be float32 (x.astype('float32') casts), got an array of float64"),
    (lambda: pb.lerp(ones(3), ones(4), 0.5), "lerp: `shapes` must be shapes that broadcast together, got (3,) and (4,)"),
    (lambda: pb.lerp_backward(ones(3), ones(3)), "lerp_backward: `a` must be given when the weight is a tensor with a gradient, got None"),
    (lambda: pb.cumsum(None), "cumsum: `x` must be given, got None"),
    (lambda: pb.lerp(ones(3), ones(3), None), "lerp: `weight` must be given, got None"),
    (lambda: pb.cumsum(torch.arange(3)), "cumsum: `x` must be of float16, bfloat16, float32, float64 (x.to(torch.float32) casts), got an array of int64"),
    (lambda: pb.lerp(torch.ones(3), torch.ones(3).double(), 0.5), "lerp: `b` must be float32 (b.to(torch.float32) casts), got an array of float64"),
    (lambda: pb.cumsum(np.ma.masked_array(ones(3))), "cumsum: `x` must be a NumPy array, a torch tensor, a JAX array or anything with __dlpack__, got a MaskedArray"),
    (lambda: pb.cumsum(ones(3), out=torch.ones(3)), "cumsum: `out` must be a numpy array, as the others, got torch"),
    (lambda: pb.cumsum(torch.ones(3), out=ones(3)), "cumsum: `out` must be a torch array, as the others, got numpy"),
    (lambda: pb.segment_sum(ones(3), np.zeros(3, int), 1.0), "segment_sum: `num_segments` must be an integer >= 0, got 1.0"),
    (lambda: pb.segment_sum(ones(3, 2), np.zeros(3, int), 2**63), "segment_sum: `num_segments` must be at most 1152921504606846975, for memory to hold them, got 9223372036854775808"),
    (lambda: pb.segment_sum(ones(3, 2), np.zeros(3, int), 2**61), "segment_sum: `num_segments` must be at most 1152921504606846975, for memory to hold them, got 2305843009213693952"),
    (lambda: pb.segment_sum(ones(3), np.zeros(3, int), 1, empty="x"), "segment_sum: `empty` must be a number or None, got 'x'"),
    (lambda: pb.cummax(ones(3), return_indices=1), "cummax: `return_indices` must be True or False, got 1"),
    (lambda: pb.lerp(ones(3), ones(3), 10**400), "lerp: `weight` must be a number that double holds, got a larger one"),
    (lambda: pb.set_num_threads(0), "set_num_threads: `n` must be a whole number of at least 1, got 0"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "sentence"), SENTENCES, ids=lambda v: None)
def test_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(pb.PullbackError) as caught:
        call()
    error = caught.value
    assert str(error) == sentence
    assert error.op
    assert error.argument
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == sentence


def test_descriptor_sentences() -> None:
    with pytest.raises(pb.InvalidProblem, match=r"scan_axis.*an axis in \[0, 2\), got -1"):
        pb.ScanPlan.select(CPU, scan(scan_axis=-1))
    with pytest.raises(pb.InvalidProblem, match=r"scan_axis.*an axis in \[0, 2\), got 2"):
        pb.ScanPlan.select(CPU, scan(scan_axis=2))
    with pytest.raises(pb.InvalidProblem, match="input_shape"):
        pb.ScanPlan.select(CPU, scan(input_shape=(3, -4)))
    with pytest.raises(pb.Unsupported, match="element"):
        pb.ScanPlan.select(CPU, scan(element=pb.ElementKind.I32))
    with pytest.raises(pb.Unsupported, match="SPLIT"):
        pb.ScanBackwardPlan.select(CPU, backward(kind=pb.ScanKind.CUMMAX, ties=pb.TieRule.SPLIT))
    plan = pb.ScanBackwardPlan.select(CPU, backward(kind=pb.ScanKind.CUMMAX))
    with pytest.raises(pb.InvalidProblem, match="saved forward input"):
        plan.can_implement(pb.ScanBackwardArgs(dy=ones(3, 4), dx=ones(3, 4)))


def test_results_given_as_tuples() -> None:
    dy, pair = ones(3), (ones(3), ones(3))
    for _ in range(2):  # a good call in between is no excuse
        for out, got in ((pair[:1], "a tuple of 1"), ((pair[0], None), "None among them")):
            with pytest.raises(pb.InvalidProblem, match=f"tuple of 2 arrays, got {got}"):
                pb.lerp_backward(dy, 0.5, out=out)
        assert pb.lerp_backward(dy, 0.5, out=pair) is pair
        with pytest.raises(pb.Unsupported, match="got a tuple"):
            pb.cumsum(dy, out=pair[:1])
        pb.cumsum(dy, out=pair[0])


def test_other_objects_than_a_plan_asks_for() -> None:
    plan, args = pb.ScanPlan.select(CPU, scan()), pb.ScanArgs(x=ones(3, 4), y=ones(3, 4))
    wrong: Any = "cpu"
    for _ in range(2):
        for call, named in (
            (lambda: plan.run(wrong, NONE, args), "stream"),
            (lambda: plan.run(CPU, wrong, args), "workspace"),
            (lambda: plan.run(CPU, NONE, wrong), "args"),
            (lambda: plan.can_implement(wrong), "args"),
            (lambda: pb.ScanPlan.select(wrong, scan()), "stream"),
            (lambda: pb.ScanPlan.select(CPU, wrong), "desc"),
            (lambda: pb.ScanPlan.select(CPU, scan(), wrong), "pref"),
            (lambda: pb.ScanPlan.select(CPU, scan(input_shape=(3.0, 4))), "input_shape"),
            (lambda: pb.ScanPlan.select(CPU, scan(), pb.PlanPreference(-1)), "max_workspace_bytes"),
            (
                lambda: pb.ScanPlan.select(CPU, scan(), pb.PlanPreference(prefer_backend=wrong)),
                "prefer_backend",
            ),
        ):
            with pytest.raises(pb.InvalidProblem) as caught:
                call()
            assert caught.value.argument == named
        plan.run(CPU, NONE, args)


def test_plans_are_immutable() -> None:
    plan = pb.ScanPlan.select(stream=CPU, desc=scan(), pref=pb.PlanPreference())
    for name in ("sku", "workspace_size", "descriptor", "anything"):
        with pytest.raises(AttributeError, match="immutable"):
            setattr(plan, name, None)
    with pytest.raises(AttributeError, match="immutable"):
        del plan.sku


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(pb.Unsupported, match="a GPU that torch can use, got cuda:0"):
        pb.ScanPlan.select(pb.Stream.cuda(), scan())


def test_errors_are_of_one_family() -> None:
    assert issubclass(pb.InvalidProblem, ValueError)
    assert issubclass(pb.IndexOutOfRange, pb.InvalidProblem)
    assert issubclass(pb.IndexOutOfRange, IndexError)
    assert issubclass(pb.Unsupported, NotImplementedError)
    assert pb.KernelFailure("op", 9).code == 9


def test_nothing_is_written_when_validation_fails() -> None:
    out = np.full((3, 4), 7, np.float32)
    with pytest.raises(pb.PullbackError):
        pb.cumprod_backward(ones(3, 4), ones(3, 5), ones(3, 4), out=out)
    assert (out == 7).all()


def test_workspaces() -> None:
    assert pb.Workspace.allocate(pb.ScanPlan.select(CPU, scan())).nbytes >= 0
    assert pb.Workspace.of(bytearray(10)).nbytes == 10
    assert pb.Workspace.of(torch.empty(10)).nbytes == 40
    with pytest.raises(pb.InvalidProblem, match="writable memory"):
        pb.Workspace.of(bytes(10))
    for buffer in (torch.empty(1).expand(10), torch.empty(10, device="meta"), ones(4, 4)[:, :2], 5):
        with pytest.raises(pb.InvalidProblem, match="`buffer` must be a contiguous buffer"):
            pb.Workspace.of(buffer)
    assert pb.WorkspaceTooSmall("op", "workspace", 8, 4).needed == 8
