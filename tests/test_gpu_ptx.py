"""The laws on compiled kernels: the PTX of sm_80, sm_90 and sm_100, executed by the emulator.

A share runs here; `make test-ptx` runs what `test_gpu_interpreter` runs, on every target.
"""

from __future__ import annotations

import mmap
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

import triton
import triton.language as tl

from interpreted import (
    CHUNKED,
    SUBJECTS,
    Emulated,
    Interpreted,
    chunked,
    dealt,
    equals_the_oracle,
    tiles,
    trials,
)
from pullback.contract.element import FLOATS, ElementKind
from pullback.gpu.emulator import compile
from pullback.gpu.emulator.isa import decoded
from pullback.gpu.emulator.launch import KernelFault, Span
from pullback.gpu.emulator.run import Emulation
from pullback.gpu.program import Operand, Step
from pullback.gpu.runner import pointer_to
from pullback.verify import laws
from pullback.verify.emulated import emulated
from pullback.verify.subject import Arguments, Subject

NVIDIA = ("sm_80", "sm_90", "sm_100")


def _emulated(subject: Subject, target: str, layout: Any = None) -> Emulated:
    if layout is None:
        return Emulated(subject.function, subject.family, target=target)
    return Emulated(subject.function, subject.family, layout, target)


def _keep(
    law: Callable[[Subject, Arguments], Any],
    tried: Iterator[tuple[str, Arguments]],
    subject: Subject,
) -> None:
    for name, arguments in tried:
        try:
            law(subject, arguments)
        except laws.LawBroken as broken:
            pytest.fail(f"{name}: {broken}")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_compiled_code_equals_the_oracle(subject: Interpreted) -> None:
    """One case of every function; targets, elements and cases in turn."""
    turn = SUBJECTS.index(subject)
    emulated = _emulated(subject, NVIDIA[turn % len(NVIDIA)])
    cases = dealt(subject)
    _, name, arguments = cases[turn % len(cases)]
    _keep(equals_the_oracle, iter([(name, arguments)]), emulated)


@pytest.mark.ptx
@pytest.mark.parametrize("target", NVIDIA)
@pytest.mark.parametrize("element", FLOATS, ids=lambda element: element.value)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_case_equals_the_oracle(
    subject: Interpreted, element: ElementKind, target: str
) -> None:
    """The cases of each variant are dealt out over the targets; few of them run on all."""
    share = 2 if tiles(subject.family).alone else 4
    by_variant: dict[str, list[tuple[str, Arguments]]] = {}
    for name, arguments in trials(subject, element, share):
        by_variant.setdefault(name[name.rindex("{") :], []).append((name, arguments))
    emulated = _emulated(subject, target)
    turn = NVIDIA.index(target)
    for cases in by_variant.values():
        few = len(cases) < len(NVIDIA)
        _keep(equals_the_oracle, iter(cases if few else cases[turn :: len(NVIDIA)]), emulated)


@pytest.mark.ptx
@pytest.mark.parametrize("target", NVIDIA)
@pytest.mark.parametrize("subject", [s for s in SUBJECTS if s.family in CHUNKED])
def test_chunks(subject: Interpreted, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pullback.ops.scan.gpu_cut.CUT_FROM", 2)
    emulated = _emulated(subject, target)
    _keep(equals_the_oracle, ((e.name, chunked(subject, e)) for e in FLOATS), emulated)
    _keep(equals_the_oracle, ((e.name, chunked(subject, e, True)) for e in FLOATS), emulated)
    laws.works_in_place(emulated, chunked(subject, ElementKind.F32))


@pytest.mark.ptx
@pytest.mark.parametrize("layout", laws.LAYOUTS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_any_layout(subject: Interpreted, layout: str) -> None:
    turn = SUBJECTS.index(subject) + list(laws.LAYOUTS).index(layout)
    relaid = _emulated(subject, NVIDIA[turn % len(NVIDIA)], laws.LAYOUTS[layout])
    element = FLOATS[turn % len(FLOATS)]
    for name, arguments in trials(subject, element, 5):
        sizes = [value.size for value in arguments.values() if hasattr(value, "size")]
        if min(sizes) > 0 and max(sizes) <= 168:
            moved = laws._relaid(arguments, laws.LAYOUTS[layout])
            _keep(equals_the_oracle, iter([(name, moved)]), relaid)
            break


# --- planted faults -------------------------------------------------------------------------------


def _given(name: str, **arguments: Any) -> tuple[Emulated, Arguments]:
    subject = next(s for s in SUBJECTS if s.name == name)
    return _emulated(subject, "sm_90"), arguments


def _mutated(monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str]) -> None:
    """Every module is compiled as it is, and changed before it runs."""

    def planted(source: Any, parsed: Any, target: str) -> compile.Module:
        text, shared = compile._ptx(source, parsed, target)
        changed = change(text)
        assert changed != text
        return compile.Module(changed, shared, decoded(changed))

    monkeypatch.setattr(compile, "_MODULES", {})
    monkeypatch.setattr(compile, "_module", planted)


def _without(number: int) -> Callable[[str], str]:
    """One barrier removed."""

    def change(text: str) -> str:
        found = list(re.finditer(r"bar\.sync\s+0;", text))[number]
        return text[: found.start()] + text[found.end() :]

    return change


X = np.random.default_rng(0).standard_normal((2, 1500)).astype(np.float32)


@pytest.mark.parametrize("number", range(2))
def test_a_removed_barrier_is_a_race(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, arguments = _given("cumsum", x=X, axis=1)
    equals_the_oracle(subject, arguments)
    _mutated(monkeypatch, _without(number))
    with pytest.raises(KernelFault, match="shared memory that another warp"):
        subject.answer(arguments)


def test_a_wider_mask_is_out_of_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, arguments = _given("softmax", x=X[:, :301], axis=1)
    _mutated(monkeypatch, lambda text: text.replace("setp.lt.s32", "setp.le.s32"))
    with pytest.raises(KernelFault, match="outside of the memory it was given"):
        subject.answer(arguments)


def test_a_shrunk_mask_leaves_elements_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second thread stores nothing."""
    subject, arguments = _given("lerp", a=X, b=X[::-1].copy(), weight=0.25)
    equals_the_oracle(subject, arguments)
    shrunk = re.compile(r"setp\.lt\.s(32|64)(\s+%p\d+, )(%\w+), (%\w+);")
    _mutated(
        monkeypatch,
        lambda text: shrunk.sub(lambda m: f"add.s{m[1]} {m[3]}, {m[3]}, 8; {m[0]}", text),
    )
    with pytest.raises((laws.LawBroken, KernelFault)):
        equals_the_oracle(subject, arguments)


@triton.jit
def _last_tiles(x, y, first, n, B: tl.constexpr, WIDE: tl.constexpr):
    lane = tl.arange(0, B)
    total = tl.zeros((B,), tl.int32)
    for start in range(first.to(tl.int64) if WIDE else first, n, B):
        at = start + lane
        total += tl.load(x + at, mask=at < n, other=0).to(tl.int32)
    tl.store(y + lane, total)


@pytest.mark.parametrize("wide", [False, True])
def test_a_counter_of_32_bits_is_out_of_bounds(wide: bool) -> None:
    """The step past an extent close to 2^31 wraps, and reads before the row."""
    n, block = 2**31 - 1, 1024
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
    x = np.frombuffer(mmap.mmap(-1, n, flags=flags), np.uint8)
    y = np.zeros(block, np.int32)
    x[-1] = 3
    i32 = ElementKind.I32
    step = Step(_last_tiles, 1, {"x": Operand(0, i32), "y": Operand(1, i32)})
    values = {"first": n + 1 - 2 * block, "n": n, "B": block, "WIDE": wide}
    pointers = {"x": _Bytes(x.ctypes.data), "y": pointer_to(i32)(y.ctypes.data)}
    spans = [Span(x.ctypes.data, n, 1, False), Span(y.ctypes.data, y.nbytes, 4)]
    emulation = Emulation("sm_90", spans, limit=1 << 20)
    if wide:
        emulation(step, {**pointers, **values})
        assert y.sum() == 3
    else:
        with pytest.raises(KernelFault, match="reads outside of the memory"):
            emulation(step, {**pointers, **values})


class _Bytes:
    dtype = "uint8"

    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


# --- what is counted ------------------------------------------------------------------------------


def test_bytes_launches_and_instructions_are_counted() -> None:
    """A row that fits into a program is read once and written once."""
    x = np.zeros((3, 1024), np.float32)
    subject = next(s for s in SUBJECTS if s.name == "softmax")
    counts = emulated(subject, {"x": x, "axis": 1}, "sm_90").counts
    assert counts.launches == 1
    assert counts.programs == 3
    assert counts.read_bytes == counts.written_bytes == x.nbytes
    assert x.nbytes <= counts.dram_bytes // 2 <= x.nbytes + 64
    assert counts.dram_bytes <= counts.sector_bytes <= 1.1 * counts.dram_bytes
    assert counts.instructions["barrier"] > 0
    assert counts.instructions["load_global"] == x.size // 4


@pytest.mark.parametrize("extent", [300, 9000, 17000])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_f32_takes_no_f64(name: str, extent: int) -> None:
    """Neither rows in registers nor those in tiles, which are read twice and written once: of more
    than 32 KB, in gradients of more than 64."""
    subjects = {s.name: s for s in SUBJECTS}
    x = np.random.default_rng(3).standard_normal((2, extent)).astype(np.float32)
    asked = {"x": x, "axis": 1}
    forward = emulated(subjects[name], asked, "sm_90").counts
    (y,) = subjects[name].answer(asked)
    asked = {"dy": x, "y": y, "axis": 1}
    backward = emulated(subjects[f"{name}_backward"], asked, "sm_90").counts
    assert forward.instructions["f64"] == backward.instructions["f64"] == 0
    assert forward.read_bytes == (2 if extent > 8192 else 1) * x.nbytes
    assert backward.read_bytes == 2 * (2 if extent > 16384 else 1) * x.nbytes
    assert forward.written_bytes == backward.written_bytes == x.nbytes


def test_the_command_prints_what_is_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = pytest.importorskip("pullback.cli.app")
    asked = ["pullback", "gpu-counts", "--op", "sparsemax_backward", "--element", "bf16"]
    monkeypatch.setattr(sys, "argv", asked)
    assert commands.run() == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "sparsemax" in line)
    cells = [cell.strip() for cell in re.split(r"[|\u2502]", row.strip())]
    name = cells.index("sparsemax_backward")
    launches, asked_bytes, sector_bytes = map(int, cells[name + 2 : name + 5])
    assert launches >= 1
    assert sector_bytes >= asked_bytes > 0
