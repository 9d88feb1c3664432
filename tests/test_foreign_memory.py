"""Memory that other libraries own: shorter than it says, nowhere, misaligned, or not dense."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import pullback as pb  # noqa: E402
from pullback.contract.element import ElementKind  # noqa: E402
from pullback.frontends import torch_launch  # noqa: E402
from pullback.verify.laws import same_bits, trials  # noqa: E402
from pullback.verify.subject import Subject, subjects  # noqa: E402
from tensors import array, several, tensors  # noqa: E402
from test_call_cache import with_empty_cache  # noqa: E402

STREAM = pb.Stream.cpu()


def cumsum_plan(count: int) -> Any:
    descriptor = pb.ScanDescriptor(
        kind=pb.ScanKind.CUMSUM, input_shape=(count,), scan_axis=0, element=ElementKind.F32
    )
    return pb.ScanPlan.select(STREAM, descriptor)


def resize(tensor: Any, nbytes: int) -> Any:
    """The same tensor over a storage of another size."""
    tensor.untyped_storage().resize_(nbytes)
    return tensor


# Tensors of which only the shape is asked for, or nothing: a repeated call does not look at them.
SHAPES_ALONE = {("lerp_backward", "a"), ("lerp_backward", "b"), ("entmax_backward", "x")}


# --- a storage shorter than shape and strides reach -----------------------------------------------


@pytest.mark.parametrize("subject", subjects().values(), ids=str)
def test_short_storage_is_refused_before_and_after_a_call(subject: Subject) -> None:
    """Every tensor of every function; a byte too few; then long enough again."""
    function = with_empty_cache(subject.name)
    for _, arguments in trials(subject, ElementKind.F32):
        given = tensors(arguments)
        whole = all(v.numel() for v in given.values() if torch.is_tensor(v))
        names = [n for n, v in given.items() if torch.is_tensor(v) and v.ndim]
        if names and whole:
            break
    aside = {name for owner, name in SHAPES_ALONE if owner == subject.name} | {"accumulate_into"}
    fresh = [name for name in names if name not in aside]
    for name in fresh:
        given[name] = given[name].clone()
    for warm in (False, True):
        want = several(function(**given)) if warm else ()
        for name in fresh:
            whole, size = given[name].clone(), given[name].untyped_storage().nbytes()
            resize(given[name], size - 1)
            for _ in range(2):
                with pytest.raises(pb.BufferTooSmall) as failure:
                    function(**given)
                assert failure.value.got == size - 1
            resize(given[name], size).copy_(whole)
        if warm and fresh == names:
            for before, again in zip(want, several(function(**given)), strict=True):
                assert same_bits(array(before), array(again))


# Calls of a tensor whose result is empty, and the shape of the tensor.
EMPTY: dict[str, tuple[Callable[..., Any], tuple[int, int]]] = {
    "lerp": (lambda f, short: f(short, torch.ones(0, 3), 0.5), (1, 3)),
    "entmax": (lambda f, short: f(torch.ones(0, 3), short), (1, 1)),
    "linear_scan": (lambda f, short: f(short, torch.ones(0, 3), 0), (1, 3)),
    "embedding": (lambda f, short: f(short, torch.ones(0, dtype=torch.int64)), (1, 3)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_short_storage_is_refused_where_the_result_is_empty(name: str) -> None:
    """Also if nothing of the tensor is read, as of what is broadcast to an axis of size zero."""
    (call, shape), function = EMPTY[name], with_empty_cache(name)
    for _ in range(2):
        assert call(function, torch.ones(shape)).numel() == 0
    for size in (2, 2, 0):
        with pytest.raises(pb.BufferTooSmall) as failure:
            call(function, resize(torch.ones(shape), size))
        assert failure.value.got == size


@pytest.mark.parametrize("warm", [False, True])
def test_short_storage_of_outputs_views_and_graded_tensors(warm: bool) -> None:
    function, x = with_empty_cache("cumsum"), torch.ones(64)
    calls: dict[str, Callable[[Any], Any]] = {
        "out": lambda short: function(x, out=short),
        "graded": lambda short: function(short.requires_grad_()),
        "parameter": lambda short: function(torch.nn.Parameter(short)),
        "op": lambda short: torch.ops.pullback.cumsum(short, -1, False),
    }
    for name, call in calls.items():
        tensor = torch.ones(64)
        if warm:
            call(tensor.clone())
            call(tensor.clone())
        resize(tensor, 39 * 4)
        for _ in range(2):
            with pytest.raises(pb.BufferTooSmall, match=r"at least \d+ bytes of memory, got 156"):
                call(tensor.detach())
        assert tensor.untyped_storage().nbytes() == 156, name


def test_short_storage_behind_a_view() -> None:
    function, whole = with_empty_cache("cumsum"), torch.arange(80.0)
    view = whole[8:72].view(8, 8)[:, 1:3]
    function(view, 0)
    want, needed = function(view, 0), 4 * (8 + 7 * 8 + 3)
    resize(whole, needed)
    assert torch.equal(function(view, 0), want)
    resize(whole, needed - 1)
    for _ in range(2):
        with pytest.raises(pb.BufferTooSmall, match=rf"at least {needed} .* got {needed - 1}"):
            function(view, 0)


@pytest.mark.parametrize("wrap", [lambda tensor: tensor, pb.TensorMut], ids=["bare", "wrapped"])
def test_plans_refuse_short_storage_when_first_and_last_run(wrap: Any) -> None:
    plan, x, y = cumsum_plan(1000), torch.ones(1000), torch.zeros(1000)
    args = pb.ScanArgs(x=x, y=wrap(y))
    for _ in range(3):
        plan.run(STREAM, pb.Workspace.NONE, args)
    resize(y, 400)
    for _ in range(2):
        with pytest.raises(pb.BufferTooSmall, match=r"`y` must have at least 4000 .* got 400"):
            plan.run(STREAM, pb.Workspace.NONE, args)
        with pytest.raises(pb.BufferTooSmall):
            plan.can_implement(args)
    with pytest.raises(pb.BufferTooSmall):
        cumsum_plan(1000).run(STREAM, pb.Workspace.NONE, pb.ScanArgs(x=y, y=torch.ones(1000)))
    args = pb.ScanArgs(x=x, y=wrap(resize(y, 4000)))
    plan.run(STREAM, pb.Workspace.NONE, args)
    assert torch.equal(y, torch.arange(1.0, 1001.0))


def test_views_and_workspaces_refuse_short_storage() -> None:
    short = resize(torch.ones(100), 399)
    for make in (pb.TensorRef, pb.TensorMut, pb.Workspace.of):
        with pytest.raises(pb.BufferTooSmall, match="at least 400 bytes of memory, got 399"):
            make(short)


def test_storage_is_looked_up_in_python_where_its_words_are_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for words in ({}, {3, 4}):
        with monkeypatch.context() as patch:
            patch.setattr(torch_launch, "_places", lambda *_, found=words: set(found))
            assert torch_launch.storage_words() is None
            assert torch_launch._dispatch_guard() is None
    tensor = torch.ones(10)
    for look in (torch_launch._slow_address, torch_launch._address):
        assert look(tensor, 40) == tensor.data_ptr()
        assert look(tensor[3:], 28) == tensor.data_ptr() + 12
        assert look(tensor, 41) == look(None, 0) == 0


# --- capsules, addresses, layouts -----------------------------------------------------------------


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class Nowhere:
    """Exports memory at no address."""

    def __init__(self, count: int) -> None:
        self.shape = (ctypes.c_int64 * 1)(count)
        self.managed = Managed(None, (1, 0), 1, 2, 32, 1, self.shape)

    def __dlpack__(self) -> Any:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = (
            ctypes.py_object,
            (ctypes.c_void_p, ctypes.c_char_p) * 1 + (ctypes.c_void_p,),
        )
        return make(ctypes.addressof(self.managed), b"dltensor", None)


def test_dlpack_without_an_address() -> None:
    for call in (pb.cumsum, pb.TensorRef):
        with pytest.raises(pb.BufferTooSmall, match="at least 12 bytes of memory, got 0"):
            call(Nowhere(3))
    assert pb.cumsum(Nowhere(0)).shape == (0,)


class Undevised:
    """Exports memory without `__dlpack_device__`: the capsule tells of it too."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


def test_dlpack_without_a_device_of_its_own() -> None:
    assert pb.cumsum(Undevised(np.ones(3, np.float32))).tolist() == [1, 2, 3]


@pytest.mark.parametrize(("kind", "device"), [(2, "cuda"), (10, "rocm")])
def test_dlpack_memory_of_a_gpu_is_refused_in_a_sentence(kind: int, device: str) -> None:
    """CuPy's, for one: its memory is never looked at, and the sentence says what to do."""

    class Far:
        shape, dtype = (3,), np.dtype(np.float32)

        def __dlpack_device__(self) -> tuple[int, int]:
            return kind, 0

        def __dlpack__(self, **_: Any) -> Any:
            raise AssertionError("exported")

    sentence = rf"on the cpu, or a torch tensor \(torch\.from_dlpack .*\), got a Far on {device}"
    here = np.ones(3, np.float32)
    for call in (lambda: pb.cumsum(Far()), lambda: pb.cumsum(here, out=Far())):
        with pytest.raises(pb.Unsupported, match=sentence):
            call()


def test_views_of_misaligned_memory() -> None:
    misaligned = np.frombuffer(bytearray(17), np.uint8)[1:].view(np.float32)
    for make in (pb.TensorRef, pb.TensorMut, pb.cumsum):
        with pytest.raises(pb.MisalignedOperand, match="at a multiple of 4 bytes"):
            make(misaligned)
    assert pb.TensorRef(misaligned[:0]).shape == (0,)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_nested_tensors_are_refused_in_a_sentence(layout: Any) -> None:
    nested = torch.nested.nested_tensor([torch.ones(3), torch.ones(2)], layout=layout)
    plan, dense = cumsum_plan(3), torch.ones(3)
    calls: list[Callable[[], Any]] = [
        lambda: pb.cumsum(nested),
        lambda: pb.cumsum(dense, out=nested),
        lambda: pb.TensorRef(nested),
        lambda: plan.run(STREAM, pb.Workspace.NONE, pb.ScanArgs(x=nested, y=dense)),
    ]
    for call in calls:
        with pytest.raises(pb.Unsupported, match=r"a dense .* got a nested tensor"):
            call()
