"""The functions on torch tensors: the bits of NumPy, ordinary tensors, clear refusals."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import pullback  # noqa: E402
from differentiable import SUBJECTS, smooth  # noqa: E402
from pullback.contract.element import FLOATS, ElementKind  # noqa: E402
from pullback.ops.calculus import asked  # noqa: E402
from pullback.verify import laws  # noqa: E402
from pullback.verify.subject import Arguments, Subject  # noqa: E402
from tensors import array, several, tensor, tensors  # noqa: E402

FORWARDS = [subject for subject in SUBJECTS if subject.forward is None]


# --- bits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_has_the_bits_of_numpy(subject: Subject, element: ElementKind) -> None:
    for name, arguments in laws.trials(subject, element, every=15):
        results = several(subject.function(**tensors(arguments)))
        for got, want in zip(results, subject.answer(arguments), strict=True):
            assert laws.same_bits(array(got), want), name


class NumPy:
    """What the pull of a forward function asks of its framework."""

    @staticmethod
    def constant(x: Any) -> Any:
        return x

    @staticmethod
    def linked(value: Any, function: Any, x: Any) -> Any:
        return value


def gradients(subject: Subject, arguments: Arguments, dy: Any) -> dict[str, Any]:
    """The gradients the calculus gives for NumPy arrays, but for those that no kernel computes:
    of targets, which may be indices."""
    function = subject.function
    calculus = function.calculus
    bound = function.bind((), arguments)
    extra = calculus.records(bound) if calculus.records else {}
    results = several(function(**{**arguments, **extra}))
    floats = frozenset(function.tensors) - function.indices - function.either
    known = {
        **bound,
        "options": {n: v for n, v in bound.items() if n not in function.tensors},
        "shapes": {n: np.shape(bound[n]) for n in function.tensors},
        "wanted": frozenset(n for n in floats if isinstance(bound[n], np.ndarray)),
        "result": results[0],
        "recorded": results[1] if len(results) > 1 else None,
    }
    return calculus.pull(NumPy, dy, **{n: known[n] for n in asked(calculus.pull)})  # type: ignore[no-any-return]


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("subject", FORWARDS)
def test_gradients_have_the_bits_of_numpy(subject: Subject, element: ElementKind) -> None:
    for name, arguments in laws.trials(subject, element, every=40):
        given = tensors(arguments, grad=True)
        result = several(subject.function(**given))[0]
        rng = np.random.default_rng(1)
        dy = rng.standard_normal(result.shape).astype(element.dtype)
        wanted = gradients(subject, arguments, dy)
        wanted = {n: g for n, g in wanted.items() if torch.is_tensor(given[n])}
        found = torch.autograd.grad(result, [given[n] for n in wanted], tensor(dy))
        for got, want in zip(found, wanted.values(), strict=True):
            assert laws.same_bits(array(got), want), name


@pytest.mark.parametrize("subject", SUBJECTS)
def test_strides_are_taken_as_they_are(subject: Subject) -> None:
    for arguments in smooth(subject):
        given = tensors(arguments)
        strided = {
            n: v.repeat_interleave(2, -1)[..., ::2] if torch.is_tensor(v) and v.dim() else v
            for n, v in given.items()
        }
        wanted = several(subject.function(**given))
        for got, want in zip(several(subject.function(**strided)), wanted, strict=True):
            assert torch.equal(got, want)
            assert got.is_contiguous()


# --- results ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("extent", [5, 3000])
def test_results_are_ordinary_tensors(dtype: str, extent: int) -> None:
    x = torch.ones(extent, extent, dtype=getattr(torch, dtype))
    y = pullback.cumsum(x)
    assert (y.dtype, y.shape, y.device) == (x.dtype, x.shape, x.device)
    assert not y._is_view()
    assert y.data_ptr() % y.element_size() == 0
    y.add_(1)
    held = y[1:]
    del y
    assert held[0, 0] == 2


def test_small_and_large_gradients_in_place() -> None:
    x = torch.rand(2000, 2000, requires_grad=True)
    pullback.cumsum(x).mul_(2).sum().backward()
    want = torch.autograd.grad(torch.cumsum(x, -1).mul(2).sum(), x)[0]
    torch.testing.assert_close(x.grad, want)


def test_out_is_filled_and_returned() -> None:
    x = torch.rand(3, 4)
    out = torch.empty(4, 3).T
    version = out._version
    assert pullback.cumsum(x, out=out) is out
    assert out._version > version
    assert torch.equal(out, pullback.cumsum(x))
    values, places = torch.empty(3, 4), torch.empty(3, 4, dtype=torch.int64)
    found = pullback.cummax(x, return_indices=True, out=(values, places))
    assert found[0] is values
    assert torch.equal(places, torch.cummax(x, -1).indices)


def test_out_has_no_gradient() -> None:
    x = torch.rand(3, 4, requires_grad=True)
    with pytest.raises(pullback.InvalidProblem, match="`out` must be None where a gradient"):
        pullback.cumsum(x, out=torch.empty(3, 4))
    with torch.no_grad():
        pullback.cumsum(x, out=torch.empty(3, 4))


def test_a_gradient_does_not_change_what_is_returned() -> None:
    """The maxima of bags record their positions for it, and show them to nobody."""
    table, ids, starts = torch.rand(5, 3), torch.tensor([0, 4, 2, 2]), torch.tensor([0, 3])
    for _ in range(3):
        for weight in (table, table.clone().requires_grad_(True)):
            found = pullback.embedding_bag(weight, ids, starts, mode="max")
            assert isinstance(found, torch.Tensor)
            both = pullback.embedding_bag(weight, ids, starts, mode="max", return_indices=True)
            assert isinstance(both, tuple)
            assert torch.equal(found, both[0])


def test_registered_ops_leave_accumulate_into_as_it_is() -> None:
    pullback.cumsum(torch.ones(1))  # registers them
    dout, indices, into = torch.ones(3, 2), torch.tensor([0, 1, 1]), torch.full((3, 2), 5.0)
    for _ in range(2):
        sums = torch.ops.pullback.embedding_backward(dout, indices, 3, accumulate_into=into)
        assert sums[:, 0].tolist() == [6, 7, 5]
        assert (into == 5).all()


def test_written_results_are_noticed_by_autograd() -> None:
    w = torch.rand(3, requires_grad=True)
    x = torch.rand(3)
    y = w * x
    pullback.cumsum(torch.rand(3), out=x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_refusals() -> None:
    for bad in (torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.complex64)):
        with pytest.raises(pullback.Unsupported, match="x"):
            pullback.cumsum(bad)
    with pytest.raises(pullback.Unsupported, match="dense"):
        pullback.cumsum(torch.eye(3).to_sparse())
    with pytest.raises(pullback.Unsupported, match="as the others"):
        pullback.lerp(torch.ones(3), np.ones(3, np.float32), 0.5)
    with pytest.raises(pullback.Unsupported, match="b"):
        pullback.lerp(torch.ones(3), torch.ones(3, dtype=torch.float64), 0.5)
    with pytest.raises(pullback.InvalidProblem, match="axis"):
        pullback.cumsum(torch.ones(3), 1)
    with pytest.raises(TypeError, match="cumsum: unexpected argument"):
        pullback.cumsum(torch.ones(3), direction="up")
    with pytest.raises(pullback.InvalidProblem, match="axis"):
        pullback.cumsum(torch.ones(3), [0])


def test_the_negative_bit_is_seen() -> None:
    x = torch.rand(3, 4)
    negated = torch._neg_view(x)
    assert negated.is_neg()
    assert torch.equal(pullback.cumsum(negated), pullback.cumsum(-x))


@pytest.mark.parametrize("calls_before", [0, 3])
def test_memory_that_was_freed(calls_before: int) -> None:
    """As those do who shard parameters; also where such a call is known."""
    x, out = torch.ones(5000), torch.ones(5000)
    for _ in range(calls_before):
        pullback.cumsum(x)
        pullback.cumsum(x, out=out)
    x.untyped_storage().resize_(0)
    out.untyped_storage().resize_(0)
    sentence = "cumsum: `{}` must have at least 20000 bytes of memory, got 0"
    with pytest.raises(pullback.BufferTooSmall, match=sentence.format("x")):
        pullback.cumsum(x)
    with pytest.raises(pullback.BufferTooSmall, match=sentence.format("out")):
        pullback.cumsum(torch.ones(5000), out=out)
    desc = pullback.ScanDescriptor(
        kind=pullback.ScanKind.CUMSUM, input_shape=(5000,), scan_axis=0, element=ElementKind.F32
    )
    plan = pullback.ScanPlan.select(pullback.Stream.cpu(), desc)
    for args in ({"x": x, "y": torch.ones(5000)}, {"x": torch.ones(5000), "y": out}):
        with pytest.raises(pullback.BufferTooSmall, match="20000 bytes"):
            plan.run(pullback.Stream.cpu(), pullback.Workspace.NONE, pullback.ScanArgs(**args))


@pytest.mark.parametrize("calls_before", [0, 3])
def test_zeros_without_memory(calls_before: int) -> None:
    """Torch's own tangents of what does not depend on the input."""
    for _ in range(calls_before):
        pullback.cumsum(torch.ones(3))
    assert torch.equal(pullback.cumsum(torch._efficientzerotensor((3,))), torch.zeros(3))


def test_out_is_checked_whichever_way_a_call_goes() -> None:
    x = torch.ones(3, dtype=torch.complex64)
    for given in (x.real, x.conj().imag):
        kept = torch.zeros(3)
        outs = (torch.zeros(2, 3), torch.zeros(3).double(), [kept], torch.zeros(3, device="meta"))
        for out in outs:
            with pytest.raises(pullback.PullbackError, match="cumsum: `out` must be"):
                pullback.cumsum(given, out=out)
        for pair in (kept, (kept,), (kept, torch.zeros(3))):
            with pytest.raises(pullback.PullbackError, match="cummax: `out` must be"):
                pullback.cummax(given, return_indices=True, out=pair)
        assert torch.equal(kept, torch.zeros(3))


def test_subclasses_keep_their_shapes_apart() -> None:
    class Named(torch.Tensor):  # type: ignore[misc]
        pass

    for extent in (3, 5):
        x = torch.rand(extent, extent).as_subclass(Named)
        y = pullback.cumsum(x)
        assert torch.equal(
            y.as_subclass(torch.Tensor), pullback.cumsum(x.as_subclass(torch.Tensor))
        )


# --- the surroundings of a call -----------------------------------------------------------------


def test_modes() -> None:
    x = torch.rand(3, 4, requires_grad=True)
    with torch.no_grad():
        assert not pullback.cumsum(x).requires_grad
    with torch.inference_mode():
        assert pullback.cumsum(x).is_inference()
    torch.use_deterministic_algorithms(True)
    try:
        pullback.cumsum(x).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_autocast_changes_no_dtype() -> None:
    x = torch.rand(3, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert pullback.cumsum(x).dtype == torch.float32
        half = x @ torch.rand(4, 4)
        y = pullback.cumsum(half)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32


def test_segment_index() -> None:
    ids = torch.tensor([2, 0, 2, 1, 0])
    index = pullback.prepare_segments(ids, 3)
    for name in ("sum", "mean", "max", "min", "prod"):
        pool = getattr(pullback, f"segment_{name}")
        x, z = (torch.rand(5, 2, generator=torch.manual_seed(0)).requires_grad_() for _ in "ab")
        y = pool(x, index)
        assert torch.equal(y, pool(z, ids, 3))
        y.square().sum().backward()
        pool(z, ids, 3).square().sum().backward()
        assert torch.equal(x.grad, z.grad)
    with pytest.raises(pullback.InvalidProblem):
        pullback.segment_sum(torch.rand(5, 2), index, 4)


def test_a_missing_framework_is_one_sentence() -> None:
    code = "import sys; sys.modules['torch'] = None; import pullback.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last == "ImportError: pullback.torch needs PyTorch: pip install 'pullback[torch]'"


def test_gpu_tensors_name_the_extra() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    from pullback.frontends.torch_library import OPS

    op = OPS["cumsum", ()]
    assert torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CUDA")


def test_ops_take_a_number_in_place_of_a_tensor() -> None:
    a, b = torch.rand(4, requires_grad=True), torch.rand(4)
    want, ops = pullback.lerp(a, b, 0.3), torch.ops.pullback
    assert torch.equal(ops.lerp(a, b, 0.3), want)
    assert torch.equal(ops.lerp(a, b, weight=1), b)
    assert all(map(torch.equal, ops.lerp_backward(b, 0.3), pullback.lerp_backward(b, 0.3)))
    found = torch.library.opcheck(ops.lerp.number, (a, b, 0.3))
    assert set(found.values()) == {"SUCCESS"}
