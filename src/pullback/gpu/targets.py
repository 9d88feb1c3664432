"""Compile a step for a GPU that is not there, and read what the code takes.

Triton's wheel brings the assemblers, so a cubin or an hsaco needs no toolkit and no driver. A step
is specialised as a launch would: by the alignment of pointers, by strides of one, by divisors.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import triton
from triton import knobs

from pullback.gpu.arguments import launched
from pullback.gpu.program import Operand, Scratch, Step
from pullback.gpu.runner import options, pointer_to
from pullback.internals.triton import (
    ASTSource,
    GPUTarget,
    create_function_from_signature,
    get_cache_manager,
    get_ptxas,
    make_backend,
    sm_arch_from_capability,
)

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
    """What one kernel takes on one target, in bytes but for registers. `spills` is what a thread
    keeps in memory for want of registers; `vector` is the widest load from global memory."""

    registers: int
    spills: int
    shared: int
    vector: int


@cache
def binder_of(kernel: Any, target: str) -> tuple[Any, Any]:
    """Triton's backend, and what binds the arguments of a kernel as a launch does."""
    backend = make_backend(TARGETS[target])
    return backend, create_function_from_signature(kernel.signature, kernel.params, backend)


def _bound(step: Step, target: str) -> tuple[Any, Any, Any]:
    """What Triton makes of a launch's arguments and options."""
    arguments = {
        name: pointer_to(value.element)(_ALIGNED) if isinstance(value, Operand | Scratch) else value
        for name, value in launched(step).items()
    }
    _, binder = binder_of(step.kernel, target)
    return binder(**arguments, **options(step.warps, target))


def specialisation(step: Step, target: str = "sm_90") -> str:
    """Equal for steps of which Triton compiles the first one only."""
    _, specialised, chosen = _bound(step, target)
    return f"{step.kernel.__name__} {specialised} {chosen}"


def _specialised(step: Step, target: str) -> tuple[Any, Any]:
    """Source and options of a step, as a launch on this target would compile it."""
    kernel, given = step.kernel, options(step.warps, target)
    backend, _ = binder_of(kernel, target)
    bound, specialised, _ = _bound(step, target)
    parsed, signature, constants, attributes = kernel._pack_args(
        backend, given, bound, specialised, None
    )
    return ASTSource(kernel, signature, constants, attributes), parsed


def fingerprint(step: Step, target: str = "sm_80") -> str:
    """Equal for steps that compile to the same code."""
    source, parsed = _specialised(step, target)
    known = "-".join((triton.__version__, target, source.hash(), parsed.hash()))
    return hashlib.sha256(known.encode()).hexdigest()


def build(step: Step, target: str) -> Resources:
    """Compile a step for a target of `TARGETS`."""
    source, parsed = _specialised(step, target)
    compiled = triton.compile(source, target=TARGETS[target], options=parsed.__dict__)
    read = _of_amd if TARGETS[target].backend == "hip" else _of_nvidia
    return read(compiled)


def remembered(step: Step, target: str) -> Resources:
    """The same, compiled only if Triton's cache folder does not know the answer yet."""
    cache = get_cache_manager(fingerprint(step, target))
    path = cache.get_file(_NOTE)
    if path is None:
        found = build(step, target)
        cache.put(json.dumps(asdict(found)), _NOTE, binary=False)
        return found
    return Resources(**json.loads(Path(path).read_text()))


_NOTE = "taken.json"


def _number(pattern: str, text: str) -> int:
    return int((re.findall(pattern, text) or [0])[0])


# --- AMD: the assembly says it all ---------------------------------------------------------------

_WIDTHS = {"ubyte": 1, "sbyte": 1, "ushort": 2, "sshort": 2, "short": 2, "dword": 4}


def _of_amd(compiled: Any) -> Resources:
    text = compiled.asm["amdgcn"]
    # Scalar registers are parked in vector registers first: only scratch memory is a spill.
    spills = _number(r"\.private_segment_fixed_size:\s*(\d+)", text)
    loads = re.findall(r"(?:global|buffer|flat)_load_([us]?(?:byte|short|dword))(?:x(\d))?", text)
    widest = max((_WIDTHS[kind] * int(times or 1) for kind, times in loads), default=0)
    registers = _number(r"\.vgpr_count:\s*(\d+)", text)
    return Resources(registers, spills, compiled.metadata.shared, widest)


# --- NVIDIA: the cubin says what it takes, PTX what it loads, the assembler what it spills --------


def _of_nvidia(compiled: Any) -> Resources:
    usage = _usage(compiled.asm["cubin"])
    loads = re.findall(r"ld\.global(?:\.\w+)*?(?:\.v(\d))?\.b(\d+)", compiled.asm["ptx"])
    widest = max((int(count or 1) * int(bits) // 8 for count, bits in loads), default=0)
    # A frame holds what was spilled, or the return address of a division: only then is it asked.
    framed = _number(r"STACK:(\d+)", usage) > 0
    spills = _spilled(compiled.asm["ptx"], compiled.metadata.target.arch) if framed else 0
    registers = _number(r"REG:(\d+)", usage)
    return Resources(registers, spills, compiled.metadata.shared, widest)


def _usage(cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _spilled(ptx: str, capability: int) -> int:
    """Assembled once more, with the flags Triton gives."""
    flags = ("-lineinfo", "-v", "--regAllocOptLevel=2", "--fmad=false")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        name = f"--gpu-name={sm_arch_from_capability(capability)}"
        command = [get_ptxas(capability).path, *flags, name, str(source), "-o", f"{source}.cubin"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return sum(int(found) for found in re.findall(r"(\d+) bytes spill stores", said))
