"""The names of torch_scatter against loops over elements, in every dtype, with and without out."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pullback  # noqa: E402
from pullback.compat import torch_scatter as ts  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
DTYPES = ["float16", "bfloat16", "float32", "float64", "int32", "int64", "int16"]


def reduced(kind: str, src: Any, index: Any, dim: int, size: int) -> tuple[Any, Any]:
    """Values and positions by a loop over all elements of an index of the shape of `src`."""
    rows, ids = src.movedim(dim, -1).tolist(), index.movedim(dim, -1).tolist()
    count = src.size(dim)

    def one(row: Any, at: Any) -> tuple[Any, Any]:
        if isinstance(row[0], list):
            pairs = [one(a, b) for a, b in zip(row, at, strict=True)]
            return [values for values, _ in pairs], [places for _, places in pairs]
        values, places = [], []
        for segment in range(size):
            here = [n for n, i in enumerate(at) if i == segment]
            held = [row[n] for n in here]
            best = {"min": min, "max": max}.get(kind)
            if best is not None:
                values.append(best(held) if held else 0)
                places.append(here[held.index(best(held))] if held else count)
                continue
            product = 1
            for value in held:
                product *= value
            total = sum(held)
            mean = total / len(held) if held else 0
            mean = mean if src.is_floating_point() else total // max(len(held), 1)
            values.append({"sum": total, "mul": product, "mean": mean}[kind])
            places.append(0)
        return values, places

    values, places = one(rows, ids)
    found = (torch.tensor(values, dtype=torch.float64), torch.tensor(places))
    return tuple(part.movedim(-1, dim) for part in found)  # type: ignore[return-value]


def drawn(dtype: str, shape: tuple[int, ...] = (3, 7, 4)) -> Any:
    return torch.randint(1, 4, shape, generator=torch.manual_seed(1)).to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["sum", "mul", "mean", "min", "max"])
@pytest.mark.parametrize("form", ["list", "broadcast", "elements"])
def test_scatter(form: str, kind: str, dtype: str) -> None:
    src, dim = drawn(dtype), 1
    shape = {"list": (7,), "broadcast": (3, 1, 1), "elements": (3, 7, 4)}[form]
    index = torch.randint(0, 5, shape, generator=torch.manual_seed(2))
    whole = ts.broadcast(index, src, dim) if form != "broadcast" else index.expand(src.shape)
    want, places = reduced(kind, src, whole, dim, 6)
    given = index if form != "broadcast" else whole
    got = getattr(ts, f"scatter_{kind}")(src, given, dim, None, 6)
    if kind in ("min", "max"):
        got, at = got
        assert torch.equal(at, places)
    assert got.dtype == src.dtype
    tolerance = {"rtol": 2e-2, "atol": 0} if dtype == "bfloat16" else {"rtol": 2e-3, "atol": 0}
    torch.testing.assert_close(got.double(), want, **tolerance)
    torch.testing.assert_close(ts.scatter(src, given, -2, dim_size=6, reduce=kind), got)


def test_out_takes_part_in_scatter_and_is_overwritten_by_pointers() -> None:
    src, index = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0, 0, 2])
    for kind, want in {
        "sum": [14.0, 10.0, 12.0],
        "mul": [30.0, 10.0, 20.0],
        "mean": [7.0, 10.0, 12.0],
        "min": [1.0, 10.0, 2.0],
        "max": [10.0, 10.0, 10.0],
    }.items():
        out = torch.full((3,), 10.0)
        got = getattr(ts, f"scatter_{kind}")(src, index, 0, out)
        assert (got[0] if isinstance(got, tuple) else got) is out
        assert out.tolist() == want
    best, at = ts.scatter_max(src, index, 0, torch.full((3,), 2.5))
    assert best.tolist() == [3.0, 2.5, 2.5]
    assert at.tolist() == [0, 3, 3]
    pointers = torch.tensor([0, 2, 2, 3])
    for kind, want in {
        "sum": [4, 0, 2],
        "mean": [2, 0, 2],
        "min": [1, 0, 2],
        "max": [3, 0, 2],
    }.items():
        out = torch.full((3,), 10.0)
        ts.segment_csr(src, pointers, out, kind)
        assert out.tolist() == want


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("kind", ["sum", "add", "mean", "min", "max"])
def test_segments_are_scatters(kind: str, dtype: str) -> None:
    src = drawn(dtype, (3, 7, 4))
    pointers = torch.tensor([0, 2, 2, 6, 7])
    index = torch.tensor([0, 0, 2, 2, 2, 2, 3])
    want = ts.scatter(src, index, 1, reduce=kind)
    torch.testing.assert_close(ts.segment_csr(src, pointers[None], reduce=kind), want)
    torch.testing.assert_close(ts.segment_coo(src, index[None], reduce=kind), want)
    several = torch.stack([pointers, torch.tensor([0, 1, 1, 1, 7]), torch.tensor([1, 2, 3, 4, 5])])
    got = ts.segment_csr(src, several, reduce=kind)
    for row in range(3):
        begin, *_, end = several[row].tolist()
        inside = src[row, begin:end]
        ids = torch.repeat_interleave(torch.arange(4), several[row].diff())
        torch.testing.assert_close(got[row], ts.scatter(inside, ids, 0, dim_size=4, reduce=kind))
    if kind in ("min", "max"):
        _, places = getattr(ts, f"segment_{kind}_csr")(src, pointers[None])
        _, again = getattr(ts, f"segment_{kind}_coo")(src, index[None])
        assert torch.equal(places, again)


def test_gathers() -> None:
    src = drawn("float64", (2, 3, 4)).requires_grad_()
    pointers = torch.tensor([[0, 2, 2, 5]])
    index = torch.tensor([[0, 0, 2, 2, 2]])
    want = src[:, index[0]]
    for got in (ts.gather_csr(src, pointers), ts.gather_coo(src, index)):
        assert torch.equal(got, want)
        out = torch.empty(2, 5, 4, dtype=torch.float64)
        assert torch.autograd.gradcheck(lambda x: ts.gather_coo(x, index), src)
        with torch.no_grad():
            assert ts.gather_csr(src, pointers, out) is out
        assert torch.equal(out, want)
    rows = torch.tensor([[0, 1, 2], [0, 0, 1]])
    assert torch.equal(ts.gather_coo(src, rows)[1, 2], src[1, 1])


@pytest.mark.parametrize("form", ["list", "elements"])
def test_composites_and_gradients(form: str) -> None:
    src = torch.randn(5, 6, generator=torch.manual_seed(3), dtype=torch.float64).requires_grad_()
    shape = (6,) if form == "list" else (5, 6)
    index = torch.randint(0, 3, shape, generator=torch.manual_seed(4))
    chosen = [ts.broadcast(index, src, 1) == segment for segment in range(4)]
    softmax = ts.scatter_softmax(src, index)
    torch.testing.assert_close(ts.scatter_log_softmax(src, index), softmax.log())
    total = ts.scatter_logsumexp(src, index, dim_size=4)
    spread = ts.scatter_std(src, index, dim_size=4)
    for row in range(5):
        for segment in range(4):
            held = src[row][chosen[segment][row]]
            if not len(held):
                assert total[row, segment] == spread[row, segment] == 0
                continue
            torch.testing.assert_close(total[row, segment], held.logsumexp(0))
            torch.testing.assert_close(softmax[row][chosen[segment][row]], held.softmax(0))
            if len(held) > 1:
                torch.testing.assert_close(spread[row, segment], held.std())
    out = torch.full((5, 4), 0.5, dtype=torch.float64)
    joined = torch.where(total == 0, out, torch.logaddexp(out, total))
    torch.testing.assert_close(ts.scatter_logsumexp(src.detach(), index, -1, out), joined.detach())
    for function in (ts.scatter_softmax, ts.scatter_logsumexp, ts.scatter_mean, ts.scatter_mul):
        assert torch.autograd.gradcheck(lambda x, f=function: f(x, index), src)
    with pytest.raises(ValueError, match="floating-point"):
        ts.scatter_softmax(torch.arange(6), index[..., 0] if form != "list" else index)


def test_bools_scripts_and_errors() -> None:
    flags, index = torch.tensor([True, False, False]), torch.tensor([1, 1, 0])
    assert ts.scatter(flags, index, reduce="max").tolist() == [False, True]
    assert ts.scatter(flags, index, reduce="sum").tolist() == [False, True]
    src = torch.tensor([1.0, 2.0, 4.0])
    for function in (
        ts.scatter,
        ts.segment_csr,
        ts.scatter_softmax,
        ts.scatter_std,
        ts.scatter_max,
    ):
        scripted = torch.jit.script(function)
        given = torch.tensor([0, 1, 3]) if function is ts.segment_csr else index
        torch.testing.assert_close(scripted(src, given), function(src, given))
    with pytest.raises(pullback.IndexOutOfRange):
        ts.scatter_sum(src, torch.tensor([0, 5, 1]), dim_size=2)
    with pytest.raises(ValueError, match="reduce"):
        ts.scatter(src, index, reduce="median")


def test_installed_it_is_found_under_its_name() -> None:
    code = (
        "import pullback.compat.torch_scatter as ours; ours.install(); import torch_scatter; "
        "from torch_scatter import scatter_max; from torch_scatter.utils import broadcast; "
        "from torch_scatter.composite import scatter_softmax; print(torch_scatter is ours)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
