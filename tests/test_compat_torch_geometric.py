"""The functions PyG aggregates with, against PyG's own."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pyg = pytest.importorskip("torch_geometric")
    import torch_geometric.nn
    from torch_geometric import utils

from pullback import IndexOutOfRange  # noqa: E402
from pullback.compat import torch_geometric as ours  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
THEIRS = {"scatter": utils.scatter, "softmax": utils.softmax}


@pytest.fixture
def installed() -> Iterator[None]:
    before = {name: module for name, module in sys.modules.items() if "torch_scatter" in name}
    ours.install()
    yield
    ours.uninstall()
    for name in [name for name in sys.modules if name.startswith("torch_scatter")]:
        if name not in before:
            del sys.modules[name]


def drawn(*shape: int, dtype: Any = torch.float64) -> Any:
    """Small whole numbers, so that there are ties."""
    return torch.randint(1, 5, shape, generator=torch.manual_seed(0)).to(dtype).requires_grad_()


INDEX = torch.tensor([2, 0, 2, 5, 0, 2, 2])


def agree(call: Any, theirs: Any, x: Any) -> None:
    """Values and gradients."""
    results = []
    for function in (call, theirs):
        y = function(x)
        weights = torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape)
        results.append((y, *torch.autograd.grad((y * weights).sum(), x)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("reduce", ["sum", "add", "mean", "mul", "min", "amin", "max", "amax"])
@pytest.mark.parametrize("dim", [0, 1, -2])
def test_scatter_with_empty_groups_and_ties(reduce: str, dim: int) -> None:
    x = drawn(*((7, 3) if dim in (0, -2) else (3, 7)))
    for size in (None, 8):
        options = {"index": INDEX, "dim": dim, "dim_size": size, "reduce": reduce}
        agree(
            lambda v, o=options: ours.scatter(v, **o), lambda v, o=options: utils.scatter(v, **o), x
        )


@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 4, 2)])
def test_softmax(shape: tuple[int, ...]) -> None:
    x = drawn(*shape)
    agree(lambda v: ours.softmax(v, INDEX), lambda v: utils.softmax(v, INDEX), x)
    pointers = {"ptr": torch.tensor([0, 3, 3, 7])}
    agree(lambda v: ours.softmax(v, **pointers), lambda v: utils.softmax(v, **pointers), x)
    assert (ours.softmax(torch.full((7,), -torch.inf), INDEX) == 0).all()


def layers() -> dict[str, Any]:
    nn, degrees = torch_geometric.nn, torch.tensor([0, 3, 2, 1])
    return {
        "GCN": nn.GCNConv(3, 4),
        "GAT": nn.GATConv(3, 4, heads=2),
        "SAGE": nn.SAGEConv(3, 4, aggr="max"),
        "PNA": nn.PNAConv(3, 4, ["mean", "max", "min", "std"], ["identity"], degrees),
    }


@pytest.mark.parametrize("name", layers())
def test_layers_are_served_and_agree(
    name: str, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, edges = layers()[name].double(), torch.stack([INDEX.flip(0), INDEX])
    x, count = drawn(6, 3), 0
    served = ours._is_served

    def counted(*given: Any) -> bool:
        nonlocal count
        answer = served(*given)
        count += answer
        return answer

    monkeypatch.setattr(ours, "_is_served", counted)

    def plain(v: Any) -> Any:
        ours.uninstall()
        try:
            return layer(v, edges)
        finally:
            ours.install()

    agree(lambda v: layer(v, edges), plain, x)
    assert count


def test_other_calls_are_pygs_own(installed: None) -> None:
    x = drawn(7, 3).detach()
    assert torch.equal(utils.scatter(x.long(), INDEX), THEIRS["scatter"](x.long(), INDEX))
    assert torch.equal(
        utils.scatter(x > 2, INDEX, reduce="any"), THEIRS["scatter"](x > 2, INDEX, reduce="any")
    )
    want = THEIRS["scatter"](x, INDEX, reduce="max")
    torch.testing.assert_close(torch.jit.script(ours.scatter)(x, INDEX, reduce="max"), want)
    traced = torch.jit.trace(lambda v, i: ours.scatter(v, i, dim_size=6), (x, INDEX))
    torch.testing.assert_close(traced(2 * x, INDEX), THEIRS["scatter"](2 * x, INDEX, dim_size=6))
    with pytest.raises(ValueError, match="one-dimensional"):
        utils.scatter(x, INDEX[:, None])
    with pytest.raises(IndexOutOfRange, match="segment_ids"):
        utils.scatter(x, INDEX, dim_size=3)


def test_pyg_has_its_own_again_afterwards(installed: None) -> None:
    from torch_geometric.nn.aggr import base

    assert utils.scatter is base.scatter is ours.scatter
    assert utils.softmax is ours.softmax
    assert torch_geometric.typing.WITH_TORCH_SCATTER
    ours.install()
    ours.uninstall()
    assert utils.scatter is base.scatter is THEIRS["scatter"]
    assert utils.softmax is THEIRS["softmax"]
    assert (
        torch_geometric.typing.torch_scatter is not object
    ) == torch_geometric.typing.WITH_TORCH_SCATTER
