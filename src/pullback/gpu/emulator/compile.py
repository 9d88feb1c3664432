"""Steps to PTX, as a launch on a target would compile them, without the assembler's part.

What was compiled once stays in Triton's cache folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import triton

from pullback.gpu.emulator.decode import Code
from pullback.gpu.emulator.isa import decoded
from pullback.gpu.program import Step
from pullback.gpu.runner import options
from pullback.gpu.targets import TARGETS, binder_of
from pullback.internals.triton import (
    ASTSource,
    get_cache_manager,
    ir,
    make_backend,
)

_NOTE = "emulated.json"


@dataclass(frozen=True, slots=True)
class Module:
    """PTX with the bytes of shared memory a program takes, decoded."""

    text: str
    shared: int
    code: Code


_MODULES: dict[tuple[Any, ...], tuple[Module, Mapping[str, Any]]] = {}


def compiled(step: Step, arguments: Mapping[str, Any], target: str) -> tuple[Module, Any]:
    """The module of a step for arguments as they are, and the words of its parameters."""
    kernel = step.kernel
    backend, binder = binder_of(kernel, target)
    given = options(step.warps, target)
    bound, specialisation, _ = binder(**arguments, **given)
    key = kernel, target, step.warps, str(specialisation)
    if key not in _MODULES:
        parsed, signature, constants, attributes = kernel._pack_args(
            backend, given, bound, specialisation, None
        )
        source = ASTSource(kernel, signature, constants, attributes)
        _MODULES[key] = _module(source, parsed, target), signature
    module, signature = _MODULES[key]
    values = [
        value
        for parameter in kernel.params
        for value in _flat(signature[parameter.name], arguments[parameter.name])
    ]
    return module, _words(module.code, values)


def _flat(signature: Any, value: Any) -> Iterator[Any]:
    """What a launch passes: tuples part by part, constants not at all."""
    if isinstance(signature, tuple):
        for kind, part in zip(signature, value, strict=True):
            yield from _flat(kind, part)
    elif signature != "constexpr":
        yield value.data_ptr() if hasattr(value, "data_ptr") else value


def _words(code: Code, values: list[Any]) -> Any:
    """Eight bytes for each parameter; Triton's own, at the end, are none."""
    words = np.zeros(len(code.kernel.parameters), np.uint64)
    for number, ((kind, _), value) in enumerate(zip(code.kernel.parameters, values, strict=False)):
        if kind in ("f64", "f32"):
            real = np.array([value], np.float64 if kind == "f64" else np.float32)
            words[number : number + 1].view(real.dtype)[0] = real[0]
        else:
            words[number] = int(value) & ((1 << 64) - 1)
    return words


def _module(source: Any, parsed: Any, target: str) -> Module:
    known = "-".join((triton.__version__, target, source.hash(), parsed.hash()))
    kept = get_cache_manager(hashlib.sha256(known.encode()).hexdigest())
    path = kept.get_file(_NOTE)
    if path is None:
        text, shared = _ptx(source, parsed, target)
        kept.put(json.dumps({"text": text, "shared": shared}), _NOTE, binary=False)
    else:
        noted = json.loads(Path(path).read_text())
        text, shared = noted["text"], noted["shared"]
    return Module(text, shared, decoded(text))


def _ptx(source: Any, parsed: Any, target: str) -> tuple[str, int]:
    """Triton's stages up to PTX: the assembler would take as long again."""
    backend, context = make_backend(TARGETS[target]), ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, source.language)
    metadata: dict[str, Any] = {"target": TARGETS[target], **parsed.__dict__}
    functions = backend.get_codegen_implementation(parsed)
    made = source.make_ir(TARGETS[target], parsed, functions, backend.get_module_map(), context)
    for name, stage in stages.items():
        made = stage(made, metadata)
        if name == "ptx":
            break
    return str(made), int(metadata["shared"])
