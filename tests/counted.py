"""Run by test_distributed: one rank of 1,024 that are not real (PyTorch's fake process group), with
the collectives and bytes that it gives, which have to be those of distributed/cost.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import pullback as pb
from pullback import distributed
from pullback.distributed.cost import collectives

RANKS, ROWS = 1024, 6
# What does not go by the data that others send, which nobody does here.
NAMES = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "linear_scan")
MAPS = ("softmax", "log_softmax")
GATHERS = ("all_gather_into_tensor", "_allgather_base_", "all_gather_single")


class Counted(TorchDispatchMode):  # type: ignore[misc]
    """Bytes that are given to each all-gather."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        if "c10d" in func.namespace and name not in ("wait_tensor", "_wrap_tensor_autograd"):
            assert name in GATHERS, name
            own = min(x.nbytes for x in args if isinstance(x, torch.Tensor))
            self.given.append(own)
        return func(*args, **(kwargs or {}))


def faults() -> Iterator[str]:
    group = dist.group.WORLD
    for dtype, element in (
        (torch.float32, pb.ElementKind.F32),
        (torch.float64, pb.ElementKind.F64),
        (torch.bfloat16, pb.ElementKind.BF16),
    ):
        for name in (*NAMES, *MAPS):
            x = torch.randn(ROWS, 5).to(dtype).requires_grad_()
            tensors = (x, x) if name == "linear_scan" else (x,)
            with Counted() as forward:
                y = getattr(distributed, name)(*tensors, over=group)
            with Counted() as backward:
                y.backward(torch.ones_like(y))
            for called, counted in ((name, forward), (f"{name}_backward", backward)):
                cost = collectives(called, element)
                assert cost is not None
                count, sent = len(counted.given), sum(counted.given)
                if name in ("cummax", "cummin") and called != name:
                    # The forward has kept what one of the two all-gathers is for.
                    if (count, sent) != (1, 16 * ROWS):
                        yield f"{called} {dtype}: {count} all-gathers, {sent} bytes"
                elif (count, sent) != (cost.count, cost.sent(ROWS)):
                    wanted = f"{cost.count} of {cost.sent(ROWS)}"
                    yield f"{called} {dtype}: {count} all-gathers of {sent} bytes, not {wanted}"
                if cost.received(ROWS, RANKS) != RANKS * cost.sent(ROWS):
                    yield f"{called}: received"


if __name__ == "__main__":
    dist.init_process_group("fake", rank=700, world_size=RANKS, store=FakeStore())
    for fault in faults():
        print(fault)
    dist.destroy_process_group()
