"""PyTorch's own ops, patched: the same results, and PyTorch again afterwards."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pullback.patch  # noqa: E402
from pullback import InvalidProblem  # noqa: E402
from pullback.patch.served import FLOATS, SERVED  # noqa: E402

F = torch.nn.functional
CLOSE = {torch.float16: 1e-2, torch.bfloat16: 4e-2, torch.float32: 1e-5, torch.float64: 1e-12}


def drawn(*shape: int, dtype: Any = torch.float32, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ids(count: int, limit: int) -> Any:
    return torch.randint(0, limit, (count,), generator=torch.Generator().manual_seed(1))


def special(dtype: Any) -> Any:
    """Rows with NaN, infinities of both signs, and ties."""
    x = drawn(9, 30, dtype=dtype)
    x[1, [4, 9]] = torch.nan
    x[2, 5], x[3, 7] = torch.inf, -torch.inf
    x[4] = -torch.inf
    x[5, :6] = -torch.inf
    x[6, [3, 8, 20]] = 5.0
    x[7, [2, 3]] = torch.tensor([0.0, -0.0], dtype=dtype)
    return x


def gradients(f: Callable[..., Any], *leaves: Any) -> Any:
    leaves = tuple(leaf.clone().requires_grad_() for leaf in leaves)
    y = f(*leaves)
    return torch.autograd.grad(y, leaves, drawn(*y.shape, dtype=y.dtype, seed=3))


def scans(dtype: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    for x in (drawn(40, 30, dtype=dtype), special(dtype), drawn(3, 0, 4, dtype=dtype)):
        for dim in (0, 1, -1):
            yield "cumsum", lambda x=x, dim=dim: x.cumsum(dim)
            yield "cumprod", lambda x=x, dim=dim: x.mT.cumprod(dim)
            yield "_cummax_helper", lambda x=x, dim=dim: x.cummax(dim)
            yield "_cummin_helper", lambda x=x, dim=dim: x[::2].cummin(dim)
            yield "_logcumsumexp", lambda x=x, dim=dim: x.logcumsumexp(dim)


def tables(dtype: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    weight, rows, starts = drawn(20, 8, dtype=dtype), ids(50, 20), torch.tensor([0, 3, 3, 20, 41])
    shares = drawn(50, dtype=dtype, seed=5)
    for pad in (None, int(rows[4])):
        for often in (False, True):
            options = {"padding_idx": pad, "scale_grad_by_freq": often}
            yield (
                "embedding_dense_backward",
                lambda o=options: gradients(lambda w: F.embedding(rows, w, **o), weight),
            )
        for mode in ("sum", "mean"):
            given = {"mode": mode, "padding_idx": pad}
            yield (
                "_embedding_bag_dense_backward",
                lambda o=given: gradients(lambda w: F.embedding_bag(rows, w, starts, **o), weight),
            )
    yield (
        "_embedding_bag_per_sample_weights_backward",
        lambda: gradients(
            lambda w, s: F.embedding_bag(
                rows, w, starts, mode="sum", per_sample_weights=s, padding_idx=int(rows[4])
            ),
            weight,
            shares,
        ),
    )


def segments(dtype: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    source, rows, base = drawn(60, 17, dtype=dtype), ids(60, 11), drawn(11, 17, dtype=dtype, seed=2)
    yield "scatter_add", lambda: base.scatter_add(0, rows[:, None].expand(60, 17), source)
    yield "scatter_add", lambda: base.T.scatter_add(-1, rows[None].expand(17, 60), source.T)
    yield "index_add", lambda: base.index_add(0, rows, source)
    yield "index_add", lambda: base.T.index_add(1, rows.int(), source.T)
    source[5, 2] = torch.nan
    lengths = torch.tensor([10, 0, 20, 30])
    for reduce in ("sum", "mean", "max", "min", "prod"):
        yield (
            "segment_reduce",
            lambda reduce=reduce: torch.segment_reduce(source, reduce, lengths=lengths),
        )


def equal(got: Any, want: Any, dtype: Any) -> None:
    close = {"rtol": CLOSE[dtype], "atol": CLOSE[dtype], "equal_nan": True}
    for mine, theirs in zip(
        *(v if isinstance(v, tuple) else (v,) for v in (got, want)), strict=True
    ):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs, **close)


@pytest.mark.parametrize("dtype", sorted(FLOATS, key=str), ids=str)
@pytest.mark.parametrize("group", [scans, tables, segments])
def test_results_are_those_of_pytorch(group: Any, dtype: Any) -> None:
    for name, call in group(dtype):
        want = call()
        before = pullback.patch.report().get(name, (0, 0))[0]
        with pullback.patch.torch(least=0):
            got = call()
        empty = not (want[0] if isinstance(want, tuple) else want).numel()
        assert empty or pullback.patch.report()[name].served > before, name
        equal(got, want, dtype)


def left() -> dict[str, Callable[[], Any]]:
    """Forms that stay PyTorch's, and mistakes."""
    x, rows = drawn(60, 7), ids(60, 11)
    base = torch.zeros(11, 7)
    return {
        "integers": lambda: rows.cumsum(0),
        "another dtype": lambda: x.cumsum(0, dtype=torch.float64),
        "a scalar": lambda: torch.tensor(3.0).cumprod(0),
        "into": lambda: torch.cumsum(x, 0, out=torch.empty(60, 7)),
        "in place": lambda: x.clone().cumsum_(0),
        "an index of elements": lambda: base.scatter_add(0, ids(420, 11).reshape(60, 7), x),
        "a factor": lambda: base.index_add(0, rows, x, alpha=2),
        "one column": lambda: base[:, 0].index_add(0, rows, x[:, 0]),
        "an initial value": lambda: torch.segment_reduce(
            x, "max", lengths=torch.tensor([60]), initial=1.0
        ),
        "a maximum of bags": lambda: gradients(
            lambda w: F.embedding_bag(rows, w, torch.tensor([0, 9]), mode="max"), x
        ),
        "no such axis": lambda: x.cumsum(2),
        "no such row": lambda: base.index_add(0, rows + 5, x),
        "another shape": lambda: base.index_add(0, rows, x[:, :3]),
        "lengths of less": lambda: torch.segment_reduce(x, "sum", lengths=torch.tensor([3, 4])),
    }


@pytest.mark.parametrize("form", left())
def test_what_is_not_served_is_as_before(form: str) -> None:
    def outcome() -> Any:
        try:
            return left()[form]()
        except Exception as error:
            return type(error), str(error)

    want = outcome()
    with pullback.patch.torch(least=0):
        got = outcome()
    if isinstance(want, tuple) and isinstance(want[0], type):
        assert got == want
    else:
        torch.testing.assert_close(got, want)


def test_small_calls_are_left_and_counted() -> None:
    with pullback.patch.torch(["cumsum"]):
        before = pullback.patch.report()["cumsum"]
        drawn(4, 8).cumsum(0)
        after = pullback.patch.report()["cumsum"]
        drawn(1 << 9, 1 << 8).cumsum(0)
        last = pullback.patch.report()["cumsum"]
    assert (after.served - before.served, after.left - before.left) == (0, 1)
    assert (last.served - after.served, last.left - after.left) == (1, 0)
    assert "cumsum" in str(pullback.patch.report())


def test_patches_nest_and_end() -> None:
    def served() -> bool:
        before = pullback.patch.report()["cumsum"].served
        drawn(40, 30).cumsum(0)
        return pullback.patch.report()["cumsum"].served > before

    outer = pullback.patch.torch(["cumsum", "cumprod"], least=0)
    with pullback.patch.torch("cumsum", least=0) as inner:
        assert served()
        outer.restore()
        outer.restore()
        assert served()
    assert not served()
    assert "ended" in repr(inner)
    with pytest.raises(InvalidProblem, match=r"patch.torch: `ops` must be among cumsum, "):
        pullback.patch.torch(["softmax"])


ROWS, BORDERS = torch.tensor([0, 2, 2, 1]), torch.tensor([0, 1, 4])
WIDE = ROWS[:, None].expand(4, 16)

# With what PyTorch itself has of them: forward mode, second derivatives, a rule for vmap.
DERIVED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "cumsum": (lambda v: v.cumsum(1), "forward second vmap"),
    "cumprod": (lambda v: v.cumprod(1), "forward second vmap"),
    "logcumsumexp": (lambda v: v.logcumsumexp(1), "forward second vmap"),
    "cummax": (lambda v: v.cummax(0).values, "second vmap"),
    "cummin": (lambda v: v.cummin(0).values, "second vmap"),
    "embedding": (lambda v: F.embedding(ROWS, v), "forward second vmap"),
    "index_add": (lambda v: v.new_zeros(3, 16).index_add(0, ROWS, v), "forward second vmap"),
    "scatter_add": (lambda v: v.new_zeros(3, 16).scatter_add(0, WIDE, v), "forward second vmap"),
    "bags": (lambda v: F.embedding_bag(ROWS, v, BORDERS[:2], mode="mean"), ""),
    "shares": (
        lambda v: F.embedding_bag(ROWS, v, BORDERS[:2], mode="sum", per_sample_weights=v[:, 0]),
        "",
    ),
    "segment_reduce": (lambda v: torch.segment_reduce(v, "mean", offsets=BORDERS), ""),
}


def all_served() -> int:
    return sum(counts.served for counts in pullback.patch.report().values())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", DERIVED)
def test_derivatives_and_vmap(name: str) -> None:
    f, kinds = DERIVED[name]
    x = drawn(4, 16, dtype=torch.float64).requires_grad_()
    batch = drawn(5, 4, 16, seed=2)
    want = torch.stack([f(row) for row in batch])
    with pullback.patch.torch(least=0):
        before = all_served()
        assert torch.autograd.gradcheck(f, x, check_forward_ad="forward" in kinds)
        if "second" in kinds:
            assert torch.autograd.gradgradcheck(f, x)
        if "vmap" in kinds:
            torch.testing.assert_close(torch.vmap(f)(batch), want)
        assert all_served() > before


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_all_ops_in_one_compiled_function() -> None:
    def every(v: Any) -> Any:
        return torch.cat([f(v).flatten() for f, _ in DERIVED.values()])

    x = drawn(4, 16)
    want = every(x), *gradients(every, x)
    with pullback.patch.torch(least=0):
        before = all_served()
        compiled = torch.compile(every, backend="aot_eager")
        got = compiled(x), *gradients(compiled, x)
        assert all_served() > before
    torch.testing.assert_close(got, want)


def test_ops_that_are_not_patched_keep_their_kernels() -> None:
    """They cost nothing: the dispatcher has the same entries for them."""

    def entries() -> dict[str, str]:
        names = torch._C._dispatch_get_registrations_for_dispatch_key("CPU")
        return {n: torch._C._dispatch_dump(n) for n in names if n.startswith("aten::")}

    before = entries()
    with pullback.patch.torch():
        during = entries()
    assert {name for name in before if before[name] != during[name]} == {
        f"aten::{name}" for name in SERVED
    }
    assert len(before) > 500
    assert entries().keys() == before.keys()


def test_a_few_rows_into_many_stay_pytorchs() -> None:
    base, rows = torch.zeros(500, 8), ids(60, 500)
    with pullback.patch.torch(least=0):
        before = pullback.patch.report()["index_add"].served
        base.index_add(0, rows, drawn(60, 8))
        assert pullback.patch.report()["index_add"].served == before


OPS = frozenset(
    {
        *("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "index_add", "scatter_add"),
        *("nn.functional.embedding", "nn.functional.embedding_bag", "_segment_reduce"),
    }
)


def test_samples_of_pytorchs_own_tests() -> None:
    """In a process of its own: what PyTorch's test code imports leaves traces."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[0]) > 150


def run_samples() -> int:
    """Forward and, where there is one, backward of each sample, patched and not."""
    from torch.testing._internal.common_methods_invocations import op_db

    count, seen = 0, set()
    for info in op_db:
        if info.name not in OPS:
            continue
        seen.add(info.name)
        for sample in (
            sample
            for dtype in (torch.float32, torch.float64)
            for sample in info.sample_inputs("cpu", dtype, requires_grad=True)
        ):
            results = []
            for patched in (False, True):
                with pullback.patch.torch(least=0 if patched else 1 << 62):
                    results.append(forward_and_gradients(info, sample))
            torch.testing.assert_close(*results, equal_nan=True)
            count += 1
    assert seen == OPS, OPS - seen
    return count


def forward_and_gradients(info: Any, sample: Any) -> Any:
    y = info(sample.input, *sample.args, **sample.kwargs)
    parts = [v for v in (y if isinstance(y, tuple) else (y,)) if v.requires_grad]
    leaves = [v for v in (sample.input, *sample.args) if getattr(v, "requires_grad", False)]
    if not parts or not leaves:
        return y
    grads = torch.autograd.grad(parts, leaves, [torch.ones_like(v) for v in parts])
    return y, grads


def test_every_op_that_is_served_has_a_kernel_of_its_own() -> None:
    """PyTorch would lose the derivative of one that it composes of others."""
    composed = "CompositeImplicitAutograd"
    for name in SERVED:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CPU")
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", composed)


if __name__ == "__main__":
    print(run_samples(), "samples")
