"""Bags without offsets (a row of indices each), their gradients, and modules that renormalise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import InvalidProblem
from pullback.contract.element import FLOATS
from pullback.verify.laws import same_bits

Array = Any
BAGS = [
    {"mode": "sum"},
    {"mode": "mean"},
    {"mode": "max"},
    {"mode": "sum", "per_sample_weights": True},
]


def problem(
    rng: np.random.Generator, shape: tuple[int, int], dtype: Any, options: dict[str, Any]
) -> tuple[Array, Array, Array, dict[str, Any]]:
    """A table, indices, a gradient of the bags, options."""
    weight = rng.standard_normal((9, 5)).astype(dtype)
    options = {"padding_idx": 3, "out_of_range": "skip", **options}
    if options.pop("per_sample_weights", False):
        options["per_sample_weights"] = rng.standard_normal(shape).astype(dtype)
    dout = rng.standard_normal((shape[0], 5)).astype(dtype)
    return weight, rng.integers(-1, 10, shape), dout, options


@pytest.mark.parametrize("element", FLOATS, ids=lambda e: e.name)
@pytest.mark.parametrize("options", BAGS, ids=str)
@pytest.mark.parametrize("shape", [(4, 3), (0, 3), (3, 0), (1, 700)])
def test_rows_of_indices_are_bags_of_equal_length(shape, options, element) -> None:
    rng = np.random.default_rng(3)
    weight, indices, dout, options = problem(rng, shape, element.dtype, options)
    offsets = np.arange(shape[0]) * shape[1]
    flat = {**options}
    weights = options.get("per_sample_weights")
    if weights is not None:
        flat["per_sample_weights"] = weights.reshape(-1)
    want = pb.embedding_bag(weight, indices.reshape(-1), offsets, **flat)
    assert same_bits(pb.embedding_bag(weight, indices, **options), want)
    if options["mode"] == "max":
        _, winners = pb.embedding_bag(weight, indices, return_indices=True, **options)
        options["output_index"] = flat["output_index"] = winners
    want = pb.embedding_bag_backward(dout, indices.reshape(-1), offsets, 9, **flat)
    assert same_bits(pb.embedding_bag_backward(dout, indices, num_embeddings=9, **options), want)
    rows, found = pb.embedding_bag_backward(dout, indices, None, 9, sparse=True, **options)
    assert same_bits(found, want[rows])
    lookup = {"padding_idx": 3, "out_of_range": "skip"}
    shares = pb.embedding_bag_per_sample_weights_backward
    got = shares(dout, weight, indices, **lookup)
    assert same_bits(got.reshape(-1), shares(dout, weight, indices.reshape(-1), offsets, **lookup))
    assert got.shape == shape


def test_rows_of_indices_in_any_layout() -> None:
    """Indices, weights and their gradient whose rows are not one stride apart."""
    rng = np.random.default_rng(4)
    weight, indices, dout, options = problem(
        rng, (6, 8), np.float32, {"mode": "sum", "per_sample_weights": True}
    )
    weights = options.pop("per_sample_weights")
    want = pb.embedding_bag(weight, indices, per_sample_weights=weights, **options)
    back = pb.embedding_bag_backward(dout, indices, None, 9, per_sample_weights=weights, **options)
    lookup = {"padding_idx": 3, "out_of_range": "skip"}
    shares = pb.embedding_bag_per_sample_weights_backward(dout, weight, indices, **lookup)
    for ids in (indices, np.asfortranarray(indices), np.repeat(indices, 2, axis=1)[:, ::2]):
        for given in (weights, np.asfortranarray(weights), weights[::-1].copy()[::-1]):
            named = {"per_sample_weights": given, **options}
            assert same_bits(pb.embedding_bag(weight, ids, **named), want)
            assert same_bits(pb.embedding_bag_backward(dout, ids, None, 9, **named), back)
        out = np.full((16, 6), 7.0, np.float32).T[:, ::2]
        got = pb.embedding_bag_per_sample_weights_backward(dout, weight, ids, out=out, **lookup)
        assert got is out
        assert same_bits(out.copy(), shares)
        assert (out.base[1::2] == 7).all()


def test_plans_without_offsets() -> None:
    rng = np.random.default_rng(5)
    weight, indices, _, _ = problem(rng, (4, 3), np.float32, {"mode": "sum"})
    shared = {"num_embeddings": 9, "embedding_dim": 5, "element": pb.ElementKind.F32}
    stream = pb.Stream.cpu()
    for backend in (pb.BackendKind.NUMBA, pb.BackendKind.REFERENCE):
        desc = pb.EmbeddingBagDescriptor(num_indices=12, num_bags=4, mode="sum", **shared)
        plan = pb.EmbeddingBagPlan.select(stream, desc, pb.PlanPreference(prefer_backend=backend))
        out = np.empty((4, 5), np.float32)
        args = pb.EmbeddingBagArgs(weight=weight, indices=indices.reshape(-1), out=out)
        plan.run(stream, pb.Workspace.allocate(plan), args)
        want = pb.embedding_bag(weight, indices, mode="sum", out_of_range="skip")
        np.testing.assert_allclose(out, want, rtol=1e-6)
        desc = pb.EmbeddingBagDescriptor(num_indices=12, num_bags=5, mode="sum", **shared)
        plan = pb.EmbeddingBagPlan.select(stream, desc, pb.PlanPreference(prefer_backend=backend))
        args = pb.EmbeddingBagArgs(
            weight=weight, indices=indices.reshape(-1), out=np.empty((5, 5), np.float32)
        )
        with pytest.raises(InvalidProblem, match="`offsets` must be given where bags differ"):
            plan.run(stream, pb.Workspace.allocate(plan), args)


def test_what_bags_without_offsets_refuse() -> None:
    weight, indices = np.ones((9, 5), np.float32), np.zeros((2, 3), np.int64)
    dout = np.ones((2, 5), np.float32)
    faults = [
        (lambda: pb.embedding_bag(weight, indices[0]), "`offsets` must be given with indices of"),
        (lambda: pb.embedding_bag(weight, indices[None]), "`indices` must be of rank 2"),
        (
            lambda: pb.embedding_bag(weight, indices, include_last_offset=True),
            "`include_last_offset` must be False without offsets",
        ),
        (
            lambda: pb.embedding_bag(
                weight, indices, mode="sum", per_sample_weights=np.ones(6, np.float32)
            ),
            "`per_sample_weights` must be of the shape of indices",
        ),
        (lambda: pb.embedding_bag_backward(dout, indices), "`num_embeddings` must be an integer"),
        (
            lambda: pb.embedding_bag_backward(dout[:1], indices, None, 9),
            "`dout` must be of shape",
        ),
    ]
    for call, sentence in faults:
        with pytest.raises(InvalidProblem, match=sentence):
            call()
    assert issubclass(pb.IndexOutOfRange, InvalidProblem)
    with pytest.raises(pb.IndexOutOfRange, match="got 9 at position 4"):
        pb.embedding_bag(weight, np.array([[0, 1, 2], [3, 9, 4]]))


@pytest.mark.parametrize("extent", [40, 5000, 1 << 21, 1 << 40])
def test_rows_of_sparse_gradients_in_any_bucket(extent: int) -> None:
    """Buckets with few entries and with many, of rows near each other and far apart."""
    rng = np.random.default_rng(8)
    near = rng.integers(0, min(extent, 3000), 4000)
    far = rng.integers(0, extent, 4000)
    indices = rng.permutation(np.concatenate([near, far, np.full(700, extent - 1), [-1, extent]]))
    dout = rng.standard_normal((indices.size, 3)).astype(np.float32)
    options = {"padding_idx": int(near[0]), "out_of_range": "skip"}
    rows, found = pb.embedding_backward(dout, indices, extent, sparse=True, **options)
    kept = (indices >= 0) & (indices < extent) & (indices != near[0])
    names, numbers = np.unique(indices[kept], return_inverse=True)
    np.testing.assert_array_equal(rows, names)
    want = pb.embedding_backward(dout[kept], numbers.reshape(-1), len(names))
    assert same_bits(found, want)


def test_plans_of_sparse_gradients() -> None:
    indices, dout = np.array([7, 2, 7]), np.array([[1.0], [2.0], [3.0]])
    shared = {"num_embeddings": 9, "embedding_dim": 1, "num_indices": 3, "accumulate": False}
    desc = pb.EmbeddingBackwardDescriptor(sparse=True, element=pb.ElementKind.F64, **shared)
    stream = pb.Stream.cpu()
    for backend in (pb.BackendKind.NUMBA, pb.BackendKind.REFERENCE):
        preference = pb.PlanPreference(prefer_backend=backend)
        plan = pb.EmbeddingBackwardPlan.select(stream, desc, preference)
        rows, dweight = np.zeros(4, np.int64), np.zeros((3, 1))
        args = pb.EmbeddingBackwardArgs(dout=dout, indices=indices, dweight=dweight, rows=rows)
        plan.run(stream, pb.Workspace.allocate(plan), args)
        assert rows[[0, 1, 3]].tolist() == [2, 7, 2]
        assert dweight[:2, 0].tolist() == [2.0, 4.0]
    with pytest.raises(InvalidProblem, match="`accumulate` must be False with sparse=True"):
        pb.EmbeddingBackwardPlan.select(
            stream,
            pb.EmbeddingBackwardDescriptor(
                sparse=True, element=pb.ElementKind.F64, **{**shared, "accumulate": True}
            ),
        )


# --- front ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_rows_of_indices_are_torchs(mode: str) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.rand(9, 5, generator=torch.manual_seed(0), dtype=torch.float64)
    indices = torch.randint(0, 9, (4, 6), generator=torch.manual_seed(1))
    shares = torch.rand(4, 6, generator=torch.manual_seed(2), dtype=torch.float64)
    given = {"per_sample_weights": shares.requires_grad_()} if mode == "sum" else {}
    weight.requires_grad_()
    inputs = [weight, *given.values()]
    ours = pb.embedding_bag(weight, indices, mode=mode, **given)
    theirs = torch.nn.functional.embedding_bag(indices, weight, mode=mode, **given)
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(y.square().sum(), inputs) for y in (ours, theirs)]
    torch.testing.assert_close(*gradients)

    def bag(*floats: Any) -> Any:
        named = dict(zip(("weight", "per_sample_weights"), floats, strict=False))
        return pb.embedding_bag(indices=indices, mode=mode, **named)

    assert torch.autograd.gradcheck(bag, inputs)
    assert torch.autograd.gradgradcheck(bag, inputs)
    compiled = torch.compile(bag, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), ours)
    each = torch.func.vmap(lambda row: bag_of_row(row, weight.detach(), mode))(indices)
    torch.testing.assert_close(each, pb.embedding_bag(weight.detach(), indices, mode=mode))


def bag_of_row(row: Any, weight: Any, mode: str) -> Any:
    return pb.embedding_bag(weight, row[None], mode=mode)[0]


def test_rows_of_indices_under_jax() -> None:
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(6)
    weight, shares = (rng.standard_normal(s).astype(np.float32) for s in ((9, 5), (4, 6)))
    indices = jax.numpy.asarray(rng.integers(0, 9, (4, 6)).astype(np.int32))

    def ours(weight: Any, shares: Any) -> Any:
        y = pb.embedding_bag(weight, indices, mode="sum", per_sample_weights=shares)
        return (y**2).sum()

    def theirs(weight: Any, shares: Any) -> Any:
        return ((weight[indices] * shares[..., None]).sum(1) ** 2).sum()

    for transform in (jax.grad, lambda f, **o: jax.jit(jax.grad(f, **o))):
        found = [transform(f, argnums=(0, 1))(weight, shares) for f in (ours, theirs)]
        for got, want in zip(*found, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    batch = jax.vmap(lambda w: pb.embedding_bag(w, indices))(np.stack([weight, 2 * weight]))
    np.testing.assert_allclose(batch[1], 2 * weight[indices].mean(1), rtol=1e-5)


# --- modules ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("flat", [False, True])
def test_sparse_bags_give_weights_of_samples_a_gradient(flat: bool, sparse: bool) -> None:
    torch = pytest.importorskip("torch")
    modules = pytest.importorskip("pullback.torch.nn")
    kinds = torch.nn.EmbeddingBag, modules.EmbeddingBag
    theirs, ours = (kind(9, 3, mode="sum", sparse=sparse, padding_idx=2) for kind in kinds)
    ours.load_state_dict(theirs.state_dict())
    ids = torch.tensor([[0, 2, 5], [5, 6, 0]])
    given: tuple[Any, ...] = (ids,)
    if flat:
        given = ids.reshape(-1), torch.tensor([0, 0, 4])
    weights = [torch.rand(given[0].shape, generator=torch.manual_seed(0)) for _ in "ab"]
    for module, shares in zip((ours, theirs), weights, strict=True):
        shares.requires_grad_()
        module(*given, per_sample_weights=shares).square().sum().backward()
    assert ours.weight.grad.is_sparse == sparse
    torch.testing.assert_close(ours.weight.grad.to_dense(), theirs.weight.grad.to_dense())
    torch.testing.assert_close(weights[0].grad, weights[1].grad)
    ours.weight.requires_grad_(False)
    shares = weights[0].detach().requires_grad_()
    ours(*given, per_sample_weights=shares).square().sum().backward()
    torch.testing.assert_close(shares.grad, weights[1].grad)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("options", [{}, {"sparse": True}, {"scale_grad_by_freq": True}], ids=str)
@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
def test_max_norm_is_torchs(kind, norm_type, options, dtype) -> None:
    torch = pytest.importorskip("torch")
    modules = pytest.importorskip("pullback.torch.nn")
    options = {**options, "max_norm": 0.7, "norm_type": norm_type, "padding_idx": 2}
    if kind == "EmbeddingBag":
        options = {**options, "mode": "sum", "scale_grad_by_freq": False}
    theirs, ours = (
        getattr(place, kind)(9, 4, dtype=getattr(torch, dtype), **options)
        for place in (torch.nn, modules)
    )
    ours.load_state_dict(theirs.state_dict())
    ids = torch.tensor([[0, 2, 5, 5], [5, 6, 0, 8]])
    # Torch cannot take bags without a column.
    none = ids[:0] if kind == "EmbeddingBag" else ids[:, :0]
    for given in (ids, none, ids.int(), ids.T):
        results = [module(given) for module in (ours, theirs)]
        torch.testing.assert_close(*results)
        assert torch.equal(ours.weight, theirs.weight)
        for module, result in zip((ours, theirs), results, strict=True):
            module.zero_grad()
            result.float().square().sum().backward()
        torch.testing.assert_close(*(m.weight.grad.to_dense() for m in (ours, theirs)))
    assert not torch.equal(ours.weight[5], modules.Embedding(9, 4).weight[5])
    assert ours.state_dict().keys() == theirs.state_dict().keys()


def test_max_norm_changes_nothing_where_an_index_is_out_of_range() -> None:
    torch = pytest.importorskip("torch")
    modules = pytest.importorskip("pullback.torch.nn")
    module = modules.Embedding(9, 4, max_norm=0.1)
    before = module.weight.detach().clone()
    with pytest.raises(pb.IndexOutOfRange):
        module(torch.tensor([0, 9]))
    assert torch.equal(module.weight, before)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    compiled(torch.tensor([0, 3]))
    assert module.weight[[0, 3]].norm(dim=1).max() <= 0.1001
    assert torch.equal(module.weight[1], before[1])


@pytest.mark.parametrize("recorded", [False, True])
def test_sparse_gradient_leaves_out_the_position_after_the_last_offset(recorded: bool) -> None:
    """Where gradients of it are wanted, rows are found in two steps."""
    arrays: list[Any] = [np.ones((1, 2)), np.array([3, 1, 4, 0]), np.array([0, 2])]
    if recorded:
        torch = pytest.importorskip("torch")
        arrays = [torch.tensor(array) for array in arrays]
        arrays[0].requires_grad_()
    rows, _ = pb.embedding_bag_backward(
        *arrays, 6, mode="sum", include_last_offset=True, sparse=True
    )
    assert rows.tolist() == [1, 3]
