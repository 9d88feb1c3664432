"""Groups on the GPU by blocks of sorted positions: workspaces, launches, prepared indices, sparse
gradients. Kernels run in Triton's interpreter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch

import pullback as pb
from interpreted import GUARD
from pullback.contract.element import ElementKind
from pullback.contract.kinds import BackendKind
from pullback.frontends.torch_gpu import on_gpu
from pullback.gpu.program import Step
from pullback.gpu.sketch import Sketch
from pullback.gpu.targets import build
from pullback.ops.segment.gpu_reduce import LONGEST, SHORTEST, levels_of
from pullback.ops.segment.index import gpu_index_of
from pullback.plan.plan import Plan
from pullback.tensor.layout import contiguous_strides


def _table_plan(rows: int, columns: int, count: int, element: Any, **options: Any) -> Any:
    sizes = {"num_embeddings": rows, "embedding_dim": columns, "num_indices": count}
    desc = pb.EmbeddingBackwardDescriptor(**sizes, element=element, **options)
    return pb.EmbeddingBackwardPlan(desc, "cpu", BackendKind.TRITON)


TABLES = [
    (50_257, 768, 1 << 16, ElementKind.BF16),
    (128_256, 4096, 1 << 16, ElementKind.BF16),
    (128_256, 4096, 1 << 18, ElementKind.BF16),
    (10_000_000, 128, 1 << 16, ElementKind.F32),
    (100_000_000, 64, 1 << 18, ElementKind.F32),
]


@pytest.mark.parametrize(("rows", "columns", "count", "element"), TABLES)
def test_the_workspace_of_a_table_gradient_follows_the_positions(
    rows: int, columns: int, count: int, element: ElementKind
) -> None:
    plan = _table_plan(rows, columns, count, element)
    assert plan.workspace_size < 100e6
    assert plan.workspace_size == _table_plan(10 * rows, columns, count, element).workspace_size


def _sketch(shape: tuple[int, ...], element: ElementKind = ElementKind.I64) -> Sketch:
    return Sketch(shape, contiguous_strides(shape), element)


def _steps(rows: int, received: Any = None, prepared: bool = False, **options: Any) -> list[Step]:
    count = 1 << 16
    plan = _table_plan(rows, 128, count, ElementKind.F32, **options)
    dout, table = (_sketch((n, 128), ElementKind.F32) for n in (count, rows))
    tables = (_sketch((count,)), _sketch((rows + 2,))) if prepared else (None, None)
    program = plan._layout(plan.descriptor, dout, _sketch((count,)), table, *tables, received)
    return [step for step in program.steps if isinstance(step, Step)]


def test_a_table_gradient_launches_nothing_for_its_rows() -> None:
    """As many programs for ten million rows as for ten thousand."""
    small, large = _steps(10_000), _steps(10_000_000)
    assert [step.grid for step in small] == [step.grid for step in large]


def test_kernels_of_sparse_gradients_and_prepared_indices_compile() -> None:
    """The samples of the table in docs/gpu.md have neither."""
    steps = _steps(10_000, _sketch((10_001,)), True, sparse=True, accumulate=False, padding_idx=3)
    found = {step.kernel.__name__: step for step in steps}
    for name in ("gather_keys", "count_rows", "rank_rows"):
        assert build(found[name], "sm_90").spills == 0


def test_levels_end_with_one_block() -> None:
    for positions in (1, 64, 65, 4096, 1 << 20, 1 << 31):
        for columns in (1, 8, 4096):
            levels = levels_of(positions, columns)
            assert levels[-1].blocks == 1
            assert all(level.blocks > 1 and level.length <= LONGEST for level in levels[:-1])
            assert len(levels) <= 6


def _ran(plan: Any, **tensors: Any) -> None:
    buffer = np.full(plan.workspace_size + GUARD, 0xA5, np.uint8)
    scratch = pb.Workspace.of(buffer[: plan.workspace_size])
    plan.run(pb.Stream.cpu(), scratch, SimpleNamespace(**{"rows": None, "x": None, **tensors}))
    assert (buffer[plan.workspace_size :] == 0xA5).all(), "wrote beyond the workspace"


HOT = np.where(np.random.default_rng(1).random(4300) < 0.8, 5, np.arange(4300) % 90 - 1)


def test_a_hot_row_is_summed_over_several_levels() -> None:
    """Sums of integers are exact, whatever their order."""
    values = np.random.default_rng(2).integers(-8, 9, (HOT.size, 2)).astype(np.float32)
    assert len(levels_of(HOT.size, 2)) >= 3
    want = np.zeros((90, 2), np.float32)
    np.add.at(want, HOT[HOT >= 0], values[HOT >= 0])
    got = np.full((90, 2), 77, np.float32)
    plan = _table_plan(90, 2, HOT.size, ElementKind.F32, accumulate=False)
    _ran(plan, dout=values, indices=HOT, dweight=got)
    assert (got == want).all()
    plan = _table_plan(90, 2, HOT.size, ElementKind.F32)
    _ran(plan, dout=values, indices=HOT, dweight=got)
    assert (got == 2 * want).all()


@pytest.mark.parametrize("more", [1, 2])
def test_a_run_goes_on_in_a_last_block_of_few_positions(more: int) -> None:
    ids = np.full(SHORTEST + more, 5)
    assert [level.blocks for level in levels_of(ids.size, 2)] == [2, 1]
    got = np.full((9, 2), 77, np.float32)
    plan = _table_plan(9, 2, ids.size, ElementKind.F32, accumulate=False)
    _ran(plan, dout=np.ones((ids.size, 2), np.float32), indices=ids, dweight=got)
    assert (got == np.eye(9, dtype=np.float32)[5][:, None] * ids.size).all()


SPARSE = [
    (np.array([3, 1, 3, 9, -2, 4, 1, 2, 40]), 12, 2),
    (np.arange(1500) % 7 * 3, 30, None),
    (np.array([], np.int64), 4, None),
    (np.array([2, 2, 2]), 3, 2),
]


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize(("ids", "extent", "padding"), SPARSE)
def test_sparse_gradients_are_those_of_the_cpu(
    ids: Any, extent: int, padding: int | None, prepared: bool
) -> None:
    dout = np.random.default_rng(3).integers(-8, 9, (ids.size, 3)).astype(np.float32)
    options = {"padding_idx": padding, "scale_grad_by_freq": bool(padding)}
    want = pb.embedding_backward(dout, ids, extent, sparse=True, out_of_range="skip", **options)
    plan = _table_plan(
        extent, 3, ids.size, ElementKind.F32, sparse=True, accumulate=False, **options
    )
    capacity = min(ids.size, extent)
    rows, table = np.full(capacity + 1, 77), np.full((capacity, 3), 77, np.float32)
    indices = pb.prepare_segments(ids, extent) if prepared else ids
    _ran(plan, dout=dout, indices=indices, dweight=table, rows=rows)
    count = rows[-1]
    assert (rows[:count] == want[0]).all()
    assert count == len(want[0])
    assert (table[:count] == want[1]).all()
    assert (table[count:] == 77).all()


# --- functions, on tensors that stand for those of a GPU ----------------------------------------


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    def select(cls: Any, stream: Any, desc: Any) -> Any:
        return cls(desc, "cpu", BackendKind.TRITON)

    monkeypatch.setattr(Plan, "select", classmethod(select))


def _on_gpu(face: Any, out: Any = None, **arguments: Any) -> Any:
    return on_gpu(face.function, out, **face.function.completed(face.function.bind((), arguments)))


UNSORTED = torch.tensor([4, 0, 2, 2, -1, 9, 0, 3])
SORTED = torch.tensor([0, 0, 1, 3, 3, 3, 4, 4])


@pytest.mark.parametrize("ids", [UNSORTED, SORTED, UNSORTED.int(), UNSORTED[:0]], ids=str)
def test_an_index_on_a_gpu_is_that_of_the_cpu(ids: torch.Tensor) -> None:
    got, want = gpu_index_of(ids, 5), pb.prepare_segments(ids, 5)
    assert torch.equal(got.offsets[:-1], torch.tensor(want.offsets)[:-1])
    assert (got.order is None) == (want.order is None)
    if got.order is not None:
        assert torch.equal(got.order, torch.tensor(want.order))
    assert (got.first_outside, got.first_descent) == (want.first_outside, want.first_descent)
    assert got.bundle_key[1] == want.bundle_key[1]


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("name", ["segment_sum", "segment_max", "segment_prod"])
@pytest.mark.parametrize("ids", [UNSORTED, SORTED], ids=["unsorted", "sorted"])
def test_a_prepared_index_gives_what_its_ids_give(name: str, ids: torch.Tensor) -> None:
    index, x = gpu_index_of(ids, 5), torch.randn(8, 3)
    function, backward = getattr(pb, name), getattr(pb, f"{name}_backward")
    skip = {"out_of_range": "skip"}
    y = _on_gpu(function, x=x, segment_ids=index, **skip)
    assert torch.equal(y, _on_gpu(function, x=x, segment_ids=ids, num_segments=5, **skip))
    saved = {} if name == "segment_sum" else {"x": x}
    dx = [_on_gpu(backward, dy=y, segment_ids=i, **saved, **skip) for i in (index, ids)]
    assert torch.equal(*dx)
    if index.first_outside:
        with pytest.raises(pb.IndexOutOfRange, match="-1 at position 4"):
            _on_gpu(function, x=x, segment_ids=index)


@pytest.mark.usefixtures("interpreted")
def test_results_are_written_to_out_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(8, 3)
    out = torch.full((5, 6), 7.0)[:, ::2]
    monkeypatch.setattr(torch, "empty", None)  # nothing is allocated for a result
    got = _on_gpu(pb.segment_sum, out, x=x, segment_ids=SORTED, num_segments=5)
    assert got is out
    torch.testing.assert_close(out, torch.zeros(5, 3).index_add(0, SORTED, x))
    for wrong, error, said in (
        (torch.zeros(4, 3), pb.InvalidProblem, r"of shape \(5, 3\)"),
        (torch.zeros(5, 3, dtype=torch.float64), pb.Unsupported, "of dtype torch.float32"),
        ((out, out), pb.Unsupported, "a torch array"),
    ):
        with pytest.raises(error, match=f"^segment_sum: `out` must be {said}"):
            _on_gpu(pb.segment_sum, wrong, x=x, segment_ids=SORTED, num_segments=5)
