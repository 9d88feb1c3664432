"""The laws on a real GPU: `make test-gpu`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from interpreted import on_gpu
from pullback.contract.element import FLOATS, ElementKind
from pullback.verify import laws
from pullback.verify.subject import Arguments, Subject, subjects

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from interpreted import equals_the_oracle

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


def _to_gpu(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16).cuda()
    return torch.from_numpy(value).cuda()


def _to_cpu(tensor: Any) -> Any:
    if tensor.dtype is not torch.bfloat16:
        return tensor.cpu().numpy()
    return tensor.view(torch.int16).cpu().numpy().view(ElementKind.BF16.dtype)


class OnGpu(Subject):
    """A public function answered on the GPU."""

    def answer(self, arguments: Arguments, out: Any = None, **options: Any) -> tuple[Any, ...]:
        given = {name: _to_gpu(value) for name, value in arguments.items()}
        result = self.function(**given, **options)
        return tuple(_to_cpu(t) for t in (result if isinstance(result, tuple) else (result,)))


SUBJECTS = [
    OnGpu(subject.function, subject.family) for subject in subjects().values() if on_gpu(subject)
]


@pytest.mark.parametrize("element", FLOATS, ids=lambda element: element.name.lower())
@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_equals_the_oracle(subject: Subject, element: ElementKind) -> None:
    for name, arguments in laws.trials(subject, element, 3):
        try:
            equals_the_oracle(subject, arguments)
        except laws.LawBroken as broken:
            pytest.fail(f"{name}: {broken}")


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_the_same_bits_every_time(subject: Subject) -> None:
    for _, arguments in laws.trials(subject, ElementKind.F32, 17):
        first, again = subject.answer(arguments), subject.answer(arguments)
        assert all(laws.same_bits(a, b) for a, b in zip(first, again, strict=True))


def _scan(shape: tuple[int, ...]) -> Any:
    desc = pb.ScanDescriptor(
        kind=pb.ScanKind.CUMSUM, input_shape=shape, scan_axis=0, element=ElementKind.F32
    )
    return pb.ScanPlan.select(pb.Stream.cuda(), desc)


def test_runs_in_a_captured_graph() -> None:
    """Nothing waits and nothing is allocated, so a graph can hold it."""
    x = torch.randn(1 << 20, device="cuda")
    y = torch.empty_like(x)
    plan = _scan(tuple(x.shape))
    args, scratch = pb.ScanArgs(x=x, y=y), pb.Workspace.allocate(plan)
    plan.run(pb.Stream.cuda(), scratch, args)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(pb.Stream.cuda(), scratch, args)
    x.normal_()
    graph.replay()
    torch.testing.assert_close(y, x.double().cumsum(0).float())


def test_runs_on_the_stream_it_is_given() -> None:
    x = torch.ones(1 << 20, device="cuda")
    y = torch.zeros_like(x)
    plan = _scan(tuple(x.shape))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    stream = pb.Stream.cuda(handle=side.cuda_stream)
    plan.run(stream, pb.Workspace.allocate(plan), pb.ScanArgs(x=x, y=y))
    side.synchronize()
    assert y[-1].item() == x.numel()
