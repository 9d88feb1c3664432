"""Views of foreign arrays: zero copy, whatever lends the memory, and memory that is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import pullback as pb


def ones(*shape: int, dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


@pytest.mark.parametrize(
    ("array", "element"),
    [
        (ones(2, 3, dtype=np.float16), pb.ElementKind.F16),
        (ones(2, 3, dtype=ml_dtypes.bfloat16), pb.ElementKind.BF16),
        (torch.ones(2, 3, dtype=torch.bfloat16), pb.ElementKind.BF16),
        (torch.ones(3, 2, dtype=torch.float64).T, pb.ElementKind.F64),
        (ones(2, 3, dtype=np.int32), pb.ElementKind.I32),
    ],
)
def test_views_copy_nothing(array: Any, element: pb.ElementKind) -> None:
    view = pb.TensorRef(array)
    assert (view.shape, view.element, view.device) == ((2, 3), element, "cpu")
    assert pb.ElementKind.of(array) is element
    assert view.strides in ((3, 1), (1, 2))
    address = array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr()
    assert view.address == address


class Exporter:
    """Memory known only through DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class OldExporter(Exporter):
    """The same before the protocol had versions."""

    def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
        return self.array.__dlpack__()


@pytest.mark.parametrize("exporter", [Exporter, OldExporter])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_views_of_dlpack_exporters(exporter: Any, dtype: torch.dtype) -> None:
    x, out = torch.arange(6.0, dtype=dtype).reshape(2, 3), torch.zeros(2, 3, dtype=dtype)
    view = pb.TensorRef(exporter(x))
    assert (view.address, view.element) == (x.data_ptr(), pb.ElementKind.of(x))
    assert pb.cumsum(exporter(x), out=(into := exporter(out))) is into
    assert torch.equal(out, x.cumsum(1))
    y = pb.cumprod(exporter(x))  # a NumPy array, which goes along with what it was made from
    assert type(pb.cumprod_backward(exporter(x), exporter(x), y)) is np.ndarray


def test_exporters_that_refuse_and_memory_that_is_read_only() -> None:
    frozen = ones(3)
    frozen.flags.writeable = False
    for refused in (lambda: pb.TensorMut(Exporter(frozen)), lambda: pb.TensorMut(np.float32(1))):
        with pytest.raises(pb.InvalidProblem, match="writable"):
            refused()
    with pytest.raises(pb.Unsupported, match="require gradient"):
        pb.cumsum(Exporter(torch.ones(3, requires_grad=True)))


def test_writable_views_refuse_bad_memory() -> None:
    frozen = ones(3)
    frozen.flags.writeable = False
    with pytest.raises(pb.InvalidProblem, match="writable memory"):
        pb.TensorMut(frozen)
    overlapping = np.lib.stride_tricks.as_strided(ones(4), (3, 2), (4, 4))
    with pytest.raises(pb.InvalidProblem, match="every element has its own place"):
        pb.TensorMut(overlapping)
    interleaved = np.lib.stride_tricks.as_strided(ones(8), (2, 2), (8, 12))
    pb.TensorMut(interleaved)  # 0 2 3 5: no element twice


def test_views_of_negated_tensors_are_refused() -> None:
    """Their memory holds the numbers before the sign was turned."""
    negated = torch._neg_view(torch.ones(3))
    with pytest.raises(pb.Unsupported, match="resolve_neg"):
        pb.TensorRef(negated)
    pb.TensorRef(negated.resolve_neg())


def test_memory_too_short_and_misaligned() -> None:
    short = np.lib.stride_tricks.as_strided(ones(4), (8,), (4,))
    with pytest.raises(pb.BufferTooSmall) as error:
        pb.TensorRef(short)
    assert (error.value.needed, error.value.got) == (32, 16)
    for array in (np.frombuffer(bytes(16), np.float32), torch.ones(4).numpy(), pb.cumsum(ones(4))):
        with pytest.raises(pb.BufferTooSmall):
            pb.cumsum(np.lib.stride_tricks.as_strided(array, (1 << 20,), (4,)))
    crooked = np.frombuffer(bytes(17), np.uint8)[1:].view(np.float32)
    with pytest.raises(pb.MisalignedOperand):
        pb.cumsum(crooked)
