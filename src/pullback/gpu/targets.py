"""Compile a step for a GPU that is not there, and read what the code takes.

Triton's wheel brings the assemblers, so a cubin or an hsaco needs no toolkit and no driver. A step
is specialised as a launch would: by the alignment of pointers, by strides of one, by divisors.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from pullback.gpu.program import Operand, Scratch, Step
from pullback.gpu.runner import OPTIONS, Pointer

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}

# What a pointer is taken for when there is no memory: aligned, as allocators align.
_ALIGNED = 1 << 20


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes on one target; `vector` is the widest global access, in bytes."""

    registers: int
    spills: int
    shared: int
    vector: int


def _specialised(step: Step, target: GPUTarget) -> tuple[Any, Any]:
    """Source and options of a step, as a launch on this target would compile it."""
    kernel, backend = step.kernel, make_backend(target)
    arguments = {
        name: Pointer(_ALIGNED, value.element) if isinstance(value, Operand | Scratch) else value
        for name, value in step.arguments.items()
    }
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    options = {"num_warps": step.warps, **OPTIONS}
    bound, specialisation, _ = binder(**arguments, **options)
    parsed, signature, constants, attributes = kernel._pack_args(
        backend, options, bound, specialisation, None
    )
    return ASTSource(kernel, signature, constants, attributes), parsed


def fingerprint(step: Step) -> str:
    """Equal for steps that compile to the same code on every target."""
    source, _ = _specialised(step, TARGETS["sm_80"])
    return f"{source.hash()}-{step.warps}"


def build(step: Step, target: str) -> Resources:
    """Compile a step for a target of `TARGETS`."""
    source, options = _specialised(step, TARGETS[target])
    compiled = triton.compile(source, target=TARGETS[target], options=options.__dict__)
    read = _of_amd if TARGETS[target].backend == "hip" else _of_nvidia
    return read(compiled)


def _number(pattern: str, text: str) -> int:
    return int((re.findall(pattern, text) or [0])[0])


def _of_amd(compiled: Any) -> Resources:
    text = compiled.asm["amdgcn"]
    spills = _number(r"\.vgpr_spill_count:\s*(\d+)", text) + _number(
        r"\.sgpr_spill_count:\s*(\d+)", text
    )
    widths = [int(w or 1) for w in re.findall(r"(?:global|buffer)_load_dword(?:x(\d))?", text)]
    registers = _number(r"\.vgpr_count:\s*(\d+)", text)
    return Resources(registers, spills, compiled.metadata.shared, 4 * max(widths, default=0))


def _of_nvidia(compiled: Any) -> Resources:
    text = compiled.asm["ptx"]
    report = _assembled(text, compiled.metadata.target.arch)
    spills = _number(r"(\d+) bytes spill stores", report) + _number(
        r"(\d+) bytes spill loads", report
    )
    loads = re.findall(r"ld\.global(?:\.\w+)*?(?:\.v(\d))?\.b(\d+)", text)
    widest = max((int(count or 1) * int(bits) // 8 for count, bits in loads), default=0)
    return Resources(
        _number(r"Used (\d+) registers", report), spills, compiled.metadata.shared, widest
    )


@cache
def _assembled(ptx: str, capability: int) -> str:
    """What the assembler says of a kernel, with the flags Triton itself gives it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [
            get_ptxas(capability).path,
            "-lineinfo",
            "-v",
            "--regAllocOptLevel=2",
            "--fmad=false",
            f"--gpu-name={sm_arch_from_capability(capability)}",
            str(source),
            "-o",
            f"{source}.cubin",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stderr
