"""Bitcode to an object file for one target."""

from __future__ import annotations

import llvmlite.binding as llvm
from numba.core import config

from pullback.aot.capture import Captured
from pullback.aot.targets import Target
from pullback.internals.numba import create_pass_builder

# What every function is called in its object, until objects are linked.
PLACEHOLDER = "pullback_function"

_WRAPPER = "cfunc."  # of Numba: calls the function after it, and prints what that raises

# A function of ours is `int status(result *, exception **, arguments...)` in Numba's convention.
# Kernels raise nothing, so neither word is looked at.
_ENTRY = """
declare i32 @"{inner}"(ptr, ptr, {kinds})
define {result} @{symbol}({parameters}) {{
  %result = alloca i64
  %exception = alloca ptr
  %status = call i32 @"{inner}"(ptr %result, ptr %exception, {parameters})
  {end}
}}
"""
_RETURN_WORD = "%word = load i64, ptr %result\n  ret i64 %word"


class Emitter:
    """Makes objects for one target."""

    def __init__(self, target: Target) -> None:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        self.target = target
        self._machine = llvm.Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu, opt=config.OPT, reloc="pic", codemodel="small"
        )

    def emit(self, captured: Captured) -> bytes:
        """The function as a C function, PLACEHOLDER, and nothing else to be seen from outside."""
        module = llvm.parse_bitcode(captured.bitcode)
        (wrapper,) = (f.name for f in module.functions if f.name.startswith(_WRAPPER))
        inner = wrapper.removeprefix(_WRAPPER)
        kinds = [str(argument.type) for argument in module.get_function(inner).arguments][2:]
        parameters = ", ".join(f"{kind} %a{number}" for number, kind in enumerate(kinds))
        entry = _ENTRY.format(
            inner=inner,
            kinds=", ".join(kinds),
            parameters=parameters,
            symbol=PLACEHOLDER,
            result="i64" if captured.returns else "void",
            end=_RETURN_WORD if captured.returns else "ret void",
        )
        module.link_in(llvm.parse_assembly(entry))
        return self._object(module, {PLACEHOLDER})

    def zeroed(self, symbols: dict[str, int]) -> bytes:
        """An object of zeroed memory: so many bytes under each name."""
        text = "\n".join(
            f"@{name} = global [{size} x i8] zeroinitializer, align 128"
            for name, size in symbols.items()
        )
        return self._object(llvm.parse_assembly(text), set(symbols))

    def _object(self, module: llvm.ModuleRef, seen: set[str]) -> bytes:
        module.triple = self.target.triple
        module.data_layout = str(self._machine.target_data)
        for value in (*module.functions, *module.global_variables):
            if not value.is_declaration and value.name not in seen:
                value.linkage = "internal"
        module.verify()
        builder = create_pass_builder(
            self._machine,
            opt=config.OPT,
            loop_vectorize=config.LOOP_VECTORIZE,
            slp_vectorize=config.SLP_VECTORIZE,
        )
        builder.getModulePassManager().run(module, builder)
        # What is left has names of Numba's, which hold addresses of this process.
        values = (*module.functions, *module.global_variables)
        for number, value in enumerate(v for v in values if v.linkage == llvm.Linkage.internal):
            value.name = f"l{number}"
        return bytes(self._machine.emit_object(module))
