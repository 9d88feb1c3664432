"""Kernels compiled ahead, from Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.bench import ahead, inventory
from pullback.contract.element import FLOATS
from pullback.contract.errors import InvalidProblem, KernelFailure

F32, F64, BF16 = pb.ElementKind.F32, pb.ElementKind.F64, pb.ElementKind.BF16


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The steps that would be compiled."""
    found: list[tuple[Any, ...]] = []

    def note(*step: Any) -> str:
        found.append(step)
        return ""

    monkeypatch.setattr(inventory, "compile_ahead", note)
    return found


def test_a_function_is_warmed_with_its_gradient_and_what_every_call_needs(
    asked: list[tuple[Any, ...]],
) -> None:
    pb.warm(pb.softmax, dtypes=np.float32)
    assert asked[0] == (inventory.CALLS, FLOATS[0], None)
    assert {op for _, _, op in asked[1:]} == {"softmax", "softmax_backward"}
    assert {element for _, element, _ in asked[1:]} == {F32}


def test_segments_are_warmed_sorted_and_unsorted(asked: list[tuple[Any, ...]]) -> None:
    pb.warm("segment_max", dtypes=["float64", "bfloat16", F64])
    ops = {"segment_max", "segment_max_backward"}
    assert {op for _, _, op in asked[1:]} == ops | {f"unsorted_{op}" for op in ops}
    assert {element for _, element, _ in asked[1:]} == {F64, BF16}


def test_a_family_covers_its_functions_and_nothing_means_all(asked: list[tuple[Any, ...]]) -> None:
    pb.warm(pb.cumsum, "scan", dtypes="f32")
    scans = {plan.__name__ for family, plan in inventory.plans() if family == "scan"}
    assert sorted(asked[1:]) == sorted((name, F32, None) for name in scans)
    asked.clear()
    pb.warm()
    assert len(asked) == 1 + len(FLOATS) * len(list(inventory.plans()))


@pytest.mark.parametrize(
    ("given", "dtypes", "sentence"),
    [
        (("cumsun",), None, "got 'cumsun', did you mean 'cumsum'?"),
        ((len,), None, "warm: `functions` must be functions of pullback, or names of functions"),
        ((pb.cumsum,), ["int32"], "warm: `dtypes` must be dtypes among float16, bfloat16"),
    ],
)
def test_what_cannot_be_warmed_is_refused(given: Any, dtypes: Any, sentence: str) -> None:
    with pytest.raises(InvalidProblem) as caught:
        pb.warm(*given, dtypes=dtypes)
    assert sentence in str(caught.value)


def test_a_kernel_that_does_not_compile_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    (plan,) = (plan for _, plan in inventory.plans() if plan.__name__ == "LerpPlan")
    monkeypatch.setattr(inventory, "SIZES", (inventory.SMALL,))
    monkeypatch.setattr(plan, "lay_out", lambda *_: 1 / 0)
    with pytest.raises(KernelFailure) as caught:
        pb.warm("lerp", dtypes="f32")
    assert "ZeroDivisionError" in caught.value.__notes__[0]


def test_kernels_have_addresses_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    from pullback.cpu.kernel import Kernel

    compiled: set[tuple[str, Any]] = set()
    address = Kernel.address

    def noting(self: Kernel, element: Any, index: Any = pb.ElementKind.I64) -> int:
        compiled.add((self.name.rpartition(".")[2], element))
        return address(self, element, index)

    monkeypatch.setattr(Kernel, "address", noting)
    monkeypatch.setattr(inventory, "SIZES", (inventory.SMALL,))
    pb.warm("cumsum", dtypes="f32")
    assert {name.partition("_")[0] for name, _ in compiled} >= {"cumsum"}
    assert not any("cumprod" in name for name, _ in compiled)


def test_the_notice_comes_back_after_warming(asked: list[tuple[Any, ...]]) -> None:
    from pullback.cpu.notice import compiling

    before = compiling.told
    for _ in ahead.compiled(ahead.steps(["lerp"], (F32,)), 1):
        assert compiling.told
    assert compiling.told is before


def test_one_line_with_options_is_warmed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for few lines: a call of cumprod_backward on one row compiled after everything was
    warm."""
    from pullback.aot import collect

    monkeypatch.setattr(inventory, "SIZES", inventory.SIZES[:3])
    found = collect.requests(ahead.steps(["cumprod"], (F32,)))
    walks = {name.split()[0].rpartition(".cumprod_backward_")[2] for name in found}
    assert {"along", "exclusive_along"} <= walks
    # Those of offsets and of initial values.
    begin = "pullback.cpu.extended.extended_begin f32"
    assert {f"{begin} i32", f"{begin} i64"} <= found.keys()
    assert {"pullback.cpu.piecewise.run_pieces f32 i64"} <= found.keys()


def test_an_entry_is_found_by_its_name_in_any_process() -> None:
    """What builds a library hands names to its workers."""
    from pullback.aot import collect

    steps = ahead.steps(["lerp"], (F32,))
    for name, (kernel, element, index) in collect.requests(steps).items():
        function, signature = collect.entry(name)
        assert (function, signature) == (kernel._function, kernel.signature(element, index))
    runtime = [name for name in collect.names(steps) if " " not in name]
    assert "pullback.cpu.workers.work" in runtime
    for name in runtime:
        function, _ = collect.entry(name)
        assert name == f"{function.__module__}.{function.__qualname__}"
