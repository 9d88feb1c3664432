"""Run by test_distributed: one rank of 1,024 that are not real (PyTorch's fake process group). All
others have what this one has: what it gives to a collective it gets from each of them. Results have
to be those of the whole array, of 1,024 equal parts, and collectives and bytes those of
distributed/cost.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import pullback as pb
from pullback import distributed
from pullback.distributed.cost import collectives, exact

RANKS, RANK, ROWS, STEPS = 1024, 700, 6, 5
SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "linear_scan")
MAPS = ("softmax", "log_softmax", "sparsemax", "entmax15")
SEGMENTS = tuple(
    f"segment_{name}" for name in ("sum", "mean", "max", "prod", "logsumexp", "softmax", "std")
)
GATHERS = ("all_gather_into_tensor", "all_gather_single", "_allgather_base_")
EXCHANGES = ("alltoall_base_",)
OWN = slice(RANK * STEPS, (RANK + 1) * STEPS)


class Counted(TorchDispatchMode):  # type: ignore[misc]
    """Collectives among equal ranks, and the bytes that one gives to each."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        if "c10d" not in func.namespace or name in ("wait_tensor", "_wrap_tensor_autograd"):
            return func(*args, **(kwargs or {}))
        found = func(*args, **(kwargs or {}))
        if name in EXCHANGES:
            into, own, _group, _receives, sends = args[:5]
            share = own.split(sends)[RANK] if sends else own.chunk(RANKS)[RANK]
            into.copy_(torch.cat([share] * RANKS))
        else:
            assert name in GATHERS, name
            own, into = args[0], found
            found.copy_(torch.cat([own] * RANKS).view_as(found))
        self.given.append(own.nbytes)
        return found


def random(rows: int, dtype: torch.dtype, same_rows: bool) -> Tensor:
    x = torch.randn(rows, STEPS)
    return (x[:1].repeat(rows, 1) if same_rows else x).to(dtype)


def near(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> bool:
    return torch.allclose(found, wanted, rtol=16 * torch.finfo(dtype).eps, atol=1e-6)


def along(name: str, dtype: torch.dtype, element: Any, same_bits: bool) -> Iterator[str]:
    """Scans and simplex maps of an axis in 1,024 parts. Rows that ranks share have to be equal for
    ranks to be so."""
    torch.manual_seed(len(name))
    rows = RANKS if same_bits else ROWS
    x, dy = (random(rows, dtype, same_bits) for _ in range(2))
    if name == "cumprod":
        x = 1.0 + x / 1e4
    tensors = (x * 0.5, x) if name == "linear_scan" else (x,)
    parts = [t.clone().requires_grad_() for t in tensors]
    whole = [t.repeat(1, RANKS).requires_grad_() for t in tensors]
    where = f"{name} {dtype}{' exact' if same_bits else ''}"
    with Counted() as forward:
        y = getattr(distributed, name)(*parts, over=dist.group.WORLD, exact=same_bits)
    with Counted() as backward:
        y.backward(dy)
    wanted = getattr(pb, name)(*whole)
    wanted.backward(dy.repeat(1, RANKS))
    pairs = [(y, wanted[:, OWN])]
    if name not in (
        "cumprod",
        "logcumsumexp",
    ):  # whose gradients ask for results, unlike over ranks
        pairs += [(p.grad, w.grad[:, OWN]) for p, w in zip(parts, whole, strict=True)]
    for found, want in pairs:
        if not (torch.equal(found, want) if same_bits else near(found, want, dtype)):
            yield f"{where}: other values by {(found - want).abs().max()}"
    kept = name in ("cummax", "cummin")
    for called, counted, operands, results in (
        (name, forward, len(parts), 1),
        (f"{name}_backward", backward, _operands(f"{name}_backward"), len(parts)),
    ):
        cost = collectives(called, element)
        assert cost is not None
        wanted_cost = (cost.count, cost.sent(rows))
        if same_bits and not (kept and called == name):
            wanted_cost = exact(operands, results, y.nbytes)
        elif kept and called != name:  # the forward has kept what one of the two is for
            wanted_cost = (1, 16 * rows)
        given = (len(counted.given), sum(counted.given))
        if given != wanted_cost:
            yield f"{where}, {called}: {given} collectives and bytes, not {wanted_cost}"
        if cost.received(rows, RANKS) != RANKS * cost.sent(rows):
            yield f"{called}: received"


def _operands(name: str) -> int:
    tensors = getattr(pb, name).function.tensors
    return sum(n not in ("initial", "offsets", "alpha") for n in tensors)


def segments(name: str) -> Iterator[str]:
    """Rows of segments in 1,024 parts; the result is whole."""
    x, ids = torch.randn(9, ROWS), torch.tensor([0, 0, 3, 3, 3, 1, 1, 4, 0])
    with Counted() as counted:
        found = getattr(distributed, name)(x, ids, 6, over=dist.group.WORLD)
    wanted = getattr(pb, name)(x.repeat(RANKS, 1), ids.repeat(RANKS), 6)
    if wanted.shape[0] != 6:
        wanted = wanted[RANK * 9 : (RANK + 1) * 9]
    if not torch.allclose(found, wanted, rtol=1e-5, atol=1e-5):
        yield f"{name}: other values by {(found - wanted).abs().max()}"
    cost = collectives(name, pb.ElementKind.F32)
    assert cost is not None
    given, sent = (len(counted.given), sum(counted.given)), cost.sent(4 * ROWS, 4)
    if given != (cost.count, sent):
        yield f"{name}: {given} collectives and bytes, not {cost.count} of {sent}"


def faults() -> Iterator[str]:
    for dtype, element in (
        (torch.float32, pb.ElementKind.F32),
        (torch.float64, pb.ElementKind.F64),
        (torch.bfloat16, pb.ElementKind.BF16),
    ):
        for name in (*SCANS, *MAPS):
            yield from along(name, dtype, element, False)
            if dtype == torch.float32:
                yield from along(name, dtype, element, True)
    for name in SEGMENTS:
        yield from segments(name)


if __name__ == "__main__":
    dist.init_process_group("fake", rank=RANK, world_size=RANKS, store=FakeStore())
    for fault in faults():
        print(fault)
    dist.destroy_process_group()
