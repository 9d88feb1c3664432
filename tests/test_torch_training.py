"""Training: modules, threads, workers, checkpoints, two processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pullback  # noqa: E402
import pullback.torch.nn as modules  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


# --- modules ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"scale_grad_by_freq": True}, {"sparse": True}], ids=str)
def test_embedding_is_torchs(options: dict[str, Any]) -> None:
    theirs = torch.nn.Embedding(7, 3, padding_idx=2, **options)
    ours = modules.Embedding(7, 3, padding_idx=2, **options)
    ours.load_state_dict(theirs.state_dict())
    ids = torch.tensor([[0, 2, 5], [5, 6, 0]])
    results = [module(ids) for module in (ours, theirs)]
    torch.testing.assert_close(*results)
    for result in results:
        result.square().sum().backward()
    gradients = [module.weight.grad for module in (ours, theirs)]
    assert gradients[0].is_sparse == gradients[1].is_sparse
    torch.testing.assert_close(*(g.to_dense() for g in gradients))


@pytest.mark.parametrize("options", [{}, {"scale_grad_by_freq": True}, {"sparse": True}], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag_is_torchs(mode: str, options: dict[str, Any]) -> None:
    theirs = torch.nn.EmbeddingBag(7, 3, mode=mode, padding_idx=2)
    ours = modules.EmbeddingBag(7, 3, mode=mode, padding_idx=2, **options)
    ours.load_state_dict(theirs.state_dict())
    flat, offsets = torch.tensor([0, 2, 5, 5, 6, 0]), torch.tensor([0, 2, 2])
    # By hand: torch's own scaling on the CPU looks the frequencies of other rows up.
    counts = torch.bincount(flat[flat != 2], minlength=7).clamp(min=1)[:, None]
    for given in ((flat, offsets), (flat.reshape(2, 3),)):
        results = [module(*given) for module in (ours, theirs)]
        torch.testing.assert_close(*results)
        for module, result in zip((ours, theirs), results, strict=True):
            module.zero_grad()
            result.square().sum().backward()
        want = (
            theirs.weight.grad / counts if "scale_grad_by_freq" in options else theirs.weight.grad
        )
        assert ours.weight.grad.is_sparse == ("sparse" in options)
        torch.testing.assert_close(ours.weight.grad.to_dense(), want)


def test_embedding_bag_with_weights() -> None:
    theirs, ours = (
        kind(7, 3, mode="sum") for kind in (torch.nn.EmbeddingBag, modules.EmbeddingBag)
    )
    ours.load_state_dict(theirs.state_dict())
    weights = [torch.rand(2, 3, generator=torch.manual_seed(0)).requires_grad_() for _ in "ab"]
    ids = torch.tensor([[0, 2, 5], [5, 6, 0]])
    for module, given in zip((ours, theirs), weights, strict=True):
        module(ids, per_sample_weights=given).square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    torch.testing.assert_close(weights[0].grad, weights[1].grad)


def test_maps_and_pools() -> None:
    x = torch.rand(4, 3)
    assert torch.equal(modules.Sparsemax(0)(x), pullback.sparsemax(x, 0))
    assert torch.equal(modules.Entmax15()(x), pullback.entmax15(x))
    ids = torch.tensor([1, 0, 1, 1])
    for reduce in ("sum", "mean", "max", "min", "prod"):
        want = getattr(pullback, f"segment_{reduce}")(x, ids)
        assert torch.equal(modules.SegmentPool(reduce)(x, ids), want)
    with pytest.raises(pullback.InvalidProblem, match="reduce"):
        modules.SegmentPool("median")


# --- surroundings -------------------------------------------------------------------------------


def step(x: Any) -> Any:
    """Something of several families, and its gradient."""
    x = x.detach().requires_grad_()
    y = pullback.cumprod(pullback.softmax(x) + 0.9)
    pullback.segment_max(y, torch.arange(len(x)) // 2, len(x)).square().sum().backward()
    return x.grad


def test_threads() -> None:
    """Several autograd threads at once, each with its own gradients."""
    inputs = [torch.rand(64, 50, generator=torch.manual_seed(i)) for i in range(8)]
    wanted = [step(x) for x in inputs]
    found: dict[int, list[Any]] = {}

    def work(i: int) -> None:
        found[i] = [step(inputs[i]) for _ in range(10)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(g, wanted[i]) for i, grads in found.items() for g in grads)


def test_checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.rand(5, 6, requires_grad=True)
    (want,) = torch.autograd.grad(pullback.logcumsumexp(x).sin().sum(), x)
    for reentrant in (False, True):
        x.grad = None
        y = checkpoint(lambda x: pullback.logcumsumexp(x).sin(), x, use_reentrant=reentrant)
        y.sum().backward()
        assert torch.equal(x.grad, want)


class Rows(torch.utils.data.Dataset):  # type: ignore[misc,type-arg]
    """A dataset that computes with the library, in whatever process it is asked."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> Any:
        return step(torch.full((8, 300), float(i)))


def test_data_loader_workers() -> None:
    rows = Rows()
    wanted = torch.stack([rows[i] for i in range(len(rows))])
    loader = torch.utils.data.DataLoader(
        rows, batch_size=3, num_workers=2, multiprocessing_context="fork"
    )
    assert torch.equal(torch.cat(list(loader)), wanted)


def share(rank: int, port: int) -> None:
    """One of two processes that train together gets the gradient that one alone would get."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    where, patience = f"tcp://127.0.0.1:{port}", timedelta(minutes=2)
    dist.init_process_group("gloo", where, timeout=patience, rank=rank, world_size=2)
    try:
        torch.manual_seed(0)
        table = modules.Embedding(9, 4)
        model = DistributedDataParallel(torch.nn.Sequential(table, modules.Sparsemax()))
        batches = torch.randint(0, 9, (2, 6), generator=torch.manual_seed(1))
        model(batches[rank]).square().sum().backward()
        alone = modules.Embedding(9, 4)
        alone.load_state_dict(table.state_dict())
        (pullback.sparsemax(alone(batches)).square().sum() / 2).backward()
        torch.testing.assert_close(table.weight.grad, alone.weight.grad)
    finally:
        dist.destroy_process_group()


def test_distributed_data_parallel() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = f"from test_torch_training import share; share(1, {port})"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    other = subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
    )
    try:
        share(0, port)
    finally:
        _, errors = other.communicate(timeout=120)
    assert other.returncode == 0, errors
