"""Run by test_distributed: as many processes as the argument says, joined by gloo, run all cases of
DTensor and print what is wrong. One start of processes for all cases: a start takes seconds."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import pullback as pb
from pullback import distributed
from rank_segments import segment_faults
from rank_training import training_faults

torch.manual_seed(0)
X, Y, TABLE = torch.randn(6, 11), torch.randn(6, 11), torch.randn(9, 6)
IDS = torch.randint(0, 5, (6,))
ROWS, COLUMNS, WHOLE = Shard(0), Shard(1), Replicate()
Placed = tuple[Placement, ...]

# A function, its arguments, their placements, that of the result, and how many collectives the
# value and the gradient take.
Case = tuple[str, Callable[..., Any], tuple[Tensor, ...], Placed, Placement, int, int]
X8 = X.double()
CASES: list[Case] = [
    ("sum along", lambda x: pb.cumsum(x, -1), (X,), (COLUMNS,), COLUMNS, 1, 1),
    ("sum back", lambda x: pb.cumsum(x, -1, reverse=True), (X,), (COLUMNS,), COLUMNS, 1, 1),
    ("product along", lambda x: pb.cumprod(x, 0, exclusive=True), (X,), (ROWS,), ROWS, 1, 1),
    ("extremum along", lambda x: pb.cummin(x, 1), (X,), (COLUMNS,), COLUMNS, 1, 2),
    ("log along", lambda x: pb.logcumsumexp(x), (X8,), (COLUMNS,), COLUMNS, 1, 1),
    ("recurrence along", pb.linear_scan, (X, Y), (COLUMNS, COLUMNS), COLUMNS, 1, 1),
    ("discount along", pb.discounted_sum, (X, X[0, :1]), (COLUMNS, WHOLE), COLUMNS, 1, 2),
    ("loss along", pb.softmax_loss, (X8, IDS), (COLUMNS, WHOLE), WHOLE, 1, 1),
    ("softmax along", pb.softmax, (X8,), (COLUMNS,), COLUMNS, 1, 1),
    ("log_softmax along", pb.log_softmax, (X8,), (COLUMNS,), COLUMNS, 1, 1),
    ("sparsemax along", pb.sparsemax, (X8,), (COLUMNS,), COLUMNS, 1, 1),
    ("entmax along", lambda x: pb.entmax(x, 1.3), (X8,), (COLUMNS,), COLUMNS, 1, 1),

    ("rows", lambda x: pb.cumsum(x, -1), (X,), (ROWS,), ROWS, 0, 0),
    ("columns", lambda x: pb.cumprod(x, 0), (X,), (COLUMNS,), COLUMNS, 0, 0),
    ("indices", lambda x: pb.cummax(x, return_indices=True)[0], (X,), (ROWS,), ROWS, 0, 0),
    ("pieces", lambda x, o: pb.cumsum(x, 1, offsets=o), (X, torch.tensor([0, 4, 11])),
     (ROWS, WHOLE), ROWS, 0, 0),
    ("initial", lambda x, i: pb.logcumsumexp(x, -1, initial=i), (X, X[:, 0]),
     (ROWS, ROWS), ROWS, 0, 0),
    ("recurrence", lambda a, b: pb.linear_scan(a, b, 0), (X, Y), (COLUMNS, COLUMNS), COLUMNS, 0, 0),
    ("started", lambda x: pb.cumsum(x, initial=2.0), (X,), (ROWS,), ROWS, 0, 1),
    ("factor in common", pb.linear_scan, (X8[0], Y.double()), (WHOLE, ROWS), ROWS, 0, 1),
    ("lerp to one row", lambda a, b: pb.lerp(a, b, 0.3), (X, Y[:1]), (ROWS, WHOLE), ROWS, 0, 1),
    ("softmax", pb.softmax, (X,), (ROWS,), ROWS, 0, 0),
    ("entmax", lambda x: pb.entmax(x, 1.3, 0), (X,), (COLUMNS,), COLUMNS, 0, 0),
    ("loss", pb.softmax_loss, (X, IDS), (ROWS, ROWS), ROWS, 0, 0),
    ("lerp", lambda a, b: pb.lerp(a, b, 0.3), (X, Y), (COLUMNS, COLUMNS), COLUMNS, 0, 0),
    ("features", lambda x, i: pb.segment_sum(x, i, 5), (X, IDS), (COLUMNS, WHOLE), COLUMNS, 0, 0),
    ("table by columns", pb.embedding, (TABLE, IDS), (COLUMNS, WHOLE), COLUMNS, 0, 0),
    ("table by rows", pb.embedding, (TABLE, IDS), (ROWS, WHOLE), WHOLE, 2, 0),
    ("positions", pb.embedding, (TABLE, IDS), (WHOLE, ROWS), ROWS, 0, 2),
    ("bags", lambda w, i, o: pb.embedding_bag(w, i, o, mode="max"),
     (TABLE, IDS, torch.tensor([0, 2, 2])), (COLUMNS, WHOLE, WHOLE), COLUMNS, 0, 0),
    ("equal bags", lambda w, i, p: pb.embedding_bag(w, i, mode="sum", per_sample_weights=p),
     (TABLE, IDS.view(3, 2), X[:3, :2]), (WHOLE, ROWS, ROWS), ROWS, 0, 3),
    ("graph", lambda x, g, s: pb.gather_segment_reduce(x, g, s, 5), (TABLE, IDS, IDS),
     (COLUMNS, WHOLE, WHOLE), COLUMNS, 0, 0),
    ("reduced rows", lambda x, i: pb.segment_max(x, i, 5), (X, IDS), (ROWS, ROWS), WHOLE, 2, 2),
]  # fmt: skip


def dtensor_faults(mesh: Any) -> Iterator[str]:
    for name, function, tensors, placements, wanted, forward, backward in CASES:
        plain = [t.clone().requires_grad_(t.is_floating_point()) for t in tensors]
        whole = function(*plain)
        (whole * whole).sum().backward()
        parts = [
            distribute_tensor(t, mesh, [p]).requires_grad_(t.is_floating_point())
            for t, p in zip(tensors, placements, strict=True)
        ]
        with CommDebugMode() as counted:
            result = function(*parts)
        if counted.get_total_counts() != forward:
            yield f"{name}: collectives {counted.get_comm_counts()}"
        if result.placements != (wanted,):
            yield f"{name}: placed {result.placements}"
        # With placements of its own, `sum` would leave out some of what goes back.
        with CommDebugMode() as counted:
            result.backward(2 * result.detach())
        if counted.get_total_counts() != backward:
            yield f"{name}: collectives of the gradient {counted.get_comm_counts()}"
        if not same(result.full_tensor(), whole):
            yield f"{name}: other values"
        for part, model in zip(parts, plain, strict=True):
            if model.requires_grad and not same(part.grad.full_tensor(), model.grad):
                yield f"{name}: other values of the gradient"


def same(found: Tensor, wanted: Tensor) -> bool:
    """The same bits in float32, whose carries are wider; nearly the same in float64."""
    if wanted.dtype == torch.float64:
        return torch.allclose(found, wanted, rtol=1e-13, atol=1e-14)
    return torch.equal(found, wanted)


def further_faults(mesh: Any) -> Iterator[str]:
    """Placements that are changed first, mixtures, torch.compile."""
    rows = distribute_tensor(X, mesh, [ROWS])
    total = rows.sum(0, keepdim=True)
    if not total.placements[0].is_partial() or pb.softmax(total).placements != (WHOLE,):
        yield "a partial sum is not summed first"
    if not torch.equal(pb.cumsum(total).full_tensor(), pb.cumsum(total.full_tensor())):
        yield "a partial sum: other bits"
    try:
        pb.lerp(rows, X, 0.5)
        yield "a plain tensor beside a DTensor: no error"
    except pb.Unsupported as error:
        if "lerp: `b` must be a DTensor, as the others" not in str(error):
            yield str(error)
    mixed = torch.compile(
        lambda x: pb.cumsum(x * 2, -1).relu(), fullgraph=True, backend="aot_eager"
    )
    leaf = rows.detach().requires_grad_()
    result = mixed(leaf)
    result.backward(torch.ones_like(result))
    assert leaf.grad is not None
    if (result.placements, leaf.grad.placements) != ((ROWS,), (ROWS,)):
        yield "compiled: other placements"
    if not torch.equal(result.full_tensor(), pb.cumsum(X * 2, -1).relu()):
        yield "compiled: other bits"


# Functions of one rank's part, and how many collectives each way.
LOCAL: list[tuple[str, dict[str, Any], int]] = [
    *((name, options, 1)
      for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
      for options in ({}, {"reverse": True, "exclusive": True}, {"initial": X8[:, 2]})),
    ("softmax", {}, 1),
    ("log_softmax", {}, 1),
    ("sparsemax", {}, 1),
    ("entmax15", {}, 1),
    ("entmax", {"alpha": 1.7}, 1),
    ("cumsum", {"exact": True}, 3),
]  # fmt: skip


def local_faults(mesh: Any, rank: int, size: int) -> Iterator[str]:
    """Parts of any extents, one of them empty."""
    borders = [0, 3, 3, 10, 11] if size == 4 else [0, 7, 11]
    own = slice(borders[rank], borders[rank + 1])
    for name, options, count in LOCAL:
        plain = {n: v for n, v in options.items() if n != "exact"}
        whole = X8.clone().requires_grad_()
        wanted = getattr(pb, name)(whole, **plain)
        wanted.backward(Y.double())
        part = X8[:, own].clone().requires_grad_()
        with CommDebugMode() as counted:
            found = getattr(distributed, name)(part, over=mesh, **options)
        if counted.get_total_counts() != count:
            yield f"{name} {options}: collectives {counted.get_comm_counts()}"
        with CommDebugMode() as counted:
            found.backward(Y.double()[:, own])
        if counted.get_total_counts() != count:
            yield f"{name} {options}: collectives of the gradient {counted.get_comm_counts()}"
        assert whole.grad is not None
        assert part.grad is not None
        compare = torch.equal if "exact" in options else same
        if not compare(found, wanted[:, own]):
            yield f"{name} {options}: other values"
        if not compare(part.grad, whole.grad[:, own]):
            yield f"{name} {options}: other values of the gradient"
    values, places = distributed.cummax(X[:, own], over=mesh.get_group(), return_indices=True)
    wanted = pb.cummax(X, return_indices=True)
    if not torch.equal(values, wanted[0][:, own]) or not torch.equal(places, wanted[1][:, own]):
        yield "cummax with indices: other values"
    yield from loss_faults(mesh, own)
    yield from table_faults(mesh, own, borders, rank)
    yield from exact_faults(mesh, own)
    for wrong in (None, "sp", 3):
        try:
            distributed.cumsum(X, over=wrong)
            yield f"over={wrong}: no error"
        except pb.InvalidProblem:
            pass


def exact_faults(mesh: Any, own: slice) -> Iterator[str]:
    """Sixteen bits, a vector, segments, and what cannot be promised."""
    ids = torch.arange(11) // 4
    for name, args in (
        ("logcumsumexp", (X,)),
        ("cumprod", (X.bfloat16(),)),
        ("softmax", (X.half(),)),
        ("cumsum", (X[0],)),
        ("segment_logsumexp", (X.t().contiguous(), ids, 3)),
    ):
        whole = getattr(pb, name)(*args)
        parts = (args[0][own], ids[own], 3) if name.startswith("segment") else (args[0][..., own],)
        found = getattr(distributed, name)(*parts, over=mesh, exact=True)
        wanted = whole if name.startswith("segment") else whole[..., own]
        if not torch.equal(found, wanted):
            yield f"{name} of {args[0].dtype}, exact: other bits"
    part = X8[:, own].clone().requires_grad_()
    calls: list[Callable[[], Any]] = [
        lambda: distributed.embedding_bag(TABLE, IDS.view(3, 2), over=mesh, exact=True),
        lambda: torch.autograd.grad(
            distributed.cumsum(part, over=mesh, exact=True).sum(), part, create_graph=True
        ),
    ]
    for call in calls:
        try:
            call()
            yield "exact where it cannot be: no error"
        except pb.Unsupported as error:
            if "`exact` must be False" not in str(error):
                yield str(error)


def loss_faults(mesh: Any, own: slice) -> Iterator[str]:
    """Classes in parts: one collective (two where parts are uneven), and none for the gradient."""
    classes = torch.tensor([0, 3, 10, 7, 2, 5])
    for name, target in (("softmax_loss", classes), ("sparsemax_loss", classes)):
        whole, part = X.clone().requires_grad_(), X[:, own].clone().requires_grad_()
        wanted = getattr(pb, name)(whole, target)
        wanted.backward(torch.ones_like(wanted))
        found = getattr(distributed, name)(part, target, over=mesh)
        with CommDebugMode() as counted:
            found.backward(torch.ones_like(found))
        if name == "softmax_loss" and counted.get_total_counts():
            yield f"{name}: collectives of the gradient {counted.get_comm_counts()}"
        assert whole.grad is not None
        assert part.grad is not None
        if not torch.allclose(found, wanted, rtol=1e-6):
            yield f"{name}: other values"
        if not torch.allclose(part.grad, whole.grad[:, own], rtol=1e-6, atol=1e-7):
            yield f"{name}: other values of the gradient"
    try:
        distributed.softmax_loss(X[:, own], torch.full((6,), 11), over=mesh)
        yield "a class out of range: no error"
    except pb.IndexOutOfRange as error:
        if "in [0, 11), got 11 at position 0" not in str(error):
            yield f"a class out of range: {error}"


def bag_faults(mesh: Any, own: slice, weight: Tensor) -> Iterator[str]:
    """Bags, and rows gathered along edges: each rank's own, from a table by rows."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ids = torch.randint(0, 11, (size, 8))
    shares, offsets = torch.randn(size, 8), torch.tensor([0, 3, 3])
    calls: list[Callable[..., Any]] = [
        *(partial(_bag, mode=mode) for mode in ("sum", "mean", "max")),
        partial(_bag, mode="sum", per_sample_weights=shares),
        _edges,
    ]
    for number, call in enumerate(calls):
        whole, part = weight.clone().requires_grad_(), weight[own].clone().requires_grad_()
        # The table gets what all ranks' bags send back; results are one rank's.
        wanted = [call(pb, whole, ids[r], offsets, r) for r in range(size)]
        sum((y * y).sum() for y in wanted).backward()
        found = call(partial(_over, mesh), part, ids[rank], offsets, rank)
        (found * found).sum().backward()
        assert whole.grad is not None
        assert part.grad is not None
        if not torch.equal(found, wanted[rank]):
            yield f"bags {number}: other bits"
        if not torch.allclose(part.grad, whole.grad[own], rtol=1e-5, atol=1e-6):
            yield f"bags {number}: other values of the gradient"


def _over(mesh: Any, name: str) -> Any:
    return partial(getattr(distributed, name), over=mesh)


def _bag(
    where: Any, weight: Tensor, ids: Tensor, offsets: Tensor, rank: int, **options: Any
) -> Any:
    if "per_sample_weights" in options:
        options["per_sample_weights"] = options["per_sample_weights"][rank]
    bag = where.embedding_bag if where is pb else where("embedding_bag")
    return bag(weight, ids, offsets, padding_idx=4, **options)


def _edges(where: Any, weight: Tensor, ids: Tensor, offsets: Tensor, rank: int) -> Any:
    reduce = where.gather_segment_reduce if where is pb else where("gather_segment_reduce")
    return reduce(weight, ids, torch.arange(8) % 3, 3)


def table_faults(mesh: Any, own: slice, borders: list[int], rank: int) -> Iterator[str]:
    """A table and segments by rows: the bits of one machine; what one rank finds, all raise."""
    torch.manual_seed(1)
    weight, ids, dout = torch.randn(11, 3), torch.randint(0, 11, (22,)), torch.randn(22, 3)
    weight[4] = -0.0
    whole, part = weight.clone().requires_grad_(), weight[own].clone().requires_grad_()
    pb.embedding(whole, ids, padding_idx=-2).backward(dout)
    batch = slice(2 * own.start, 2 * own.stop)
    wanted = pb.embedding(whole, ids, padding_idx=-2)[batch]
    found = distributed.embedding(part, ids[batch], padding_idx=-2, over=mesh)
    found.backward(dout[batch])
    assert whole.grad is not None
    assert part.grad is not None
    if not torch.equal(found, wanted) or not torch.equal(found.signbit(), wanted.signbit()):
        yield "embedding by rows: other bits"
    if not torch.equal(part.grad, whole.grad[own]):
        yield "embedding by rows: other bits of the gradient"
    bad = torch.where(ids == ids[-1], 99, ids)
    skipped = distributed.embedding(part, bad[batch], out_of_range="skip", over=mesh)
    if not torch.equal(skipped, pb.embedding(weight, bad, out_of_range="skip")[batch]):
        yield "embedding by rows, some skipped: other bits"
    last = torch.full((2,), 99 if rank == dist.get_world_size() - 1 else 0)
    try:
        distributed.embedding(part, last, over=mesh)
        yield "an index out of range: no error"
    except pb.IndexOutOfRange as error:
        if f"99 at position 0 of rank {dist.get_world_size() - 1}" not in str(error):
            yield f"an index out of range: {error}"
    yield from bag_faults(mesh, own, weight)
    columns = distributed.embedding(weight[:, :2], ids, by="columns", over=mesh)
    if not torch.equal(columns, pb.embedding(weight, ids)[:, :2]):
        yield "embedding by columns: other bits"
    rows, segments = torch.randn(11, 4), torch.randint(0, 5, (11,))
    for name in ("segment_sum", "segment_max", "segment_softmax"):
        function = getattr(pb, name)
        whole, part = rows.clone().requires_grad_(), rows[own].clone().requires_grad_()
        wanted = function(whole, segments, 5)
        wanted.backward(torch.ones_like(wanted))
        found = getattr(distributed, name)(part, segments[own], 5, over=mesh)
        found.backward(torch.ones_like(found))
        assert whole.grad is not None
        assert part.grad is not None
        expected = wanted if found.shape[0] == 5 else wanted[own]
        near = torch.equal if name != "segment_softmax" else partial(torch.allclose, rtol=1e-6)
        if not near(found, expected) or not torch.allclose(part.grad, whole.grad[own], atol=1e-7):
            yield f"{name} by rows: other values"


def run(rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))
    faults = [*dtensor_faults(mesh), *further_faults(mesh), *local_faults(mesh, rank, size)]
    faults += [*segment_faults(mesh, rank, size), *training_faults(mesh, rank, size)]
    Path(folder, f"{rank}.txt").write_text("".join(f"rank {rank} of {size}: {f}\n" for f in faults))
    dist.destroy_process_group()


if __name__ == "__main__":
    size = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (size, folder), size)
        for rank in range(size):
            print(Path(folder, f"{rank}.txt").read_text(), end="")
