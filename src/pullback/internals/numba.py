"""What is used of Numba beyond its documented API: its code generator, and how it links.

A kernel is compiled once, not once per level of the functions it is made of.

Numba optimises every function it meets and makes machine code of it, together with all it calls,
before the caller does the same again: a kernel of ten small functions deep pays ten times. Ours are
always inlined and never called on their own, so here they are only linked; what is optimised and
made into machine code is the kernel. That more than halves the time of compilation. Another tenth
goes with the passes over things that no kernel has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

from numba.core.codegen import JITCodeLibrary, create_pass_builder
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager
from numba.core.registry import cpu_target

from pullback.contract.settings import SAFE

__all__ = ["codegen", "create_pass_builder", "linked_into", "target_machine"]


def codegen() -> Any:
    """What makes machine code here. With it LLVM learns the symbols of the process."""
    return cpu_target.target_context.codegen()


def target_machine() -> Any:
    """LLVM's description of the processor that Numba compiles for."""
    return codegen()._tm


# --- linking -------------------------------------------------------------------------------------

# Passes for with statements, closures, array expressions, literal arguments and parallel loops.
_UNUSED = frozenset(
    (
        "WithLifting",
        "InlineClosureLikes",
        "InlineOverloads",
        "RewriteDynamicRaises",
        "MakeFunctionToJitFunction",
        "FindLiterallyCalls",
        "LiteralUnroll",
        "LiteralPropagationSubPipelinePass",
        "NopythonRewrites",
        "NoPythonSupportedFeatureValidation",
        "DumpParforDiagnostics",
    )
)


_ADD_PASS = PassManager.add_pass


def _add_used_pass(manager: Any, kind: Any, description: str = "") -> None:
    if kind.__name__ not in _UNUSED:
        _ADD_PASS(manager, kind, description)


class _Part(JITCodeLibrary):  # type: ignore[misc]
    """The code of one function; only that of the kernel itself becomes machine code."""

    kernel: ClassVar[str]

    def finalize(self) -> None:
        if self.name == self.kernel:
            self._linking_libraries = _needed(self)
            super().finalize()
            return
        self._finalize_dynamic_globals()
        self._finalized = True

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        """One run: the other prepares for reference counts, which no kernel has."""
        manager, builder = self._codegen._module_pass_manager()
        manager.run(self._final_module, builder)

    def get_pointer_to_function(self, name: str) -> int:
        return int(super().get_pointer_to_function(name)) if self.name == self.kernel else 0


def _needed(library: Any) -> list[Any]:
    """The libraries that one links, those that these link, and so on, each once."""
    found = dict.fromkeys(library._linking_libraries)
    todo = list(found)
    for one in todo:  # which grows meanwhile
        new = [other for other in one._linking_libraries if other not in found]
        found.update(dict.fromkeys(new))
        todo += new
    return todo


@contextmanager
def linked_into(kernel: str) -> Iterator[None]:
    """While this lasts, what Numba compiles are parts of the function of this name. A signal
    handler may come here while the code it interrupted is here already."""
    generator = codegen()
    if SAFE or not _is_known(generator):
        yield
        return
    library = type("PartOfKernel", (_Part,), {"kernel": kernel})
    set_env = partial(_set_environment, generator)
    with (
        global_compiler_lock,
        _replaced(generator, _library_class=library, set_env=set_env),
        _replaced(PassManager, add_pass=_add_used_pass),
    ):
        yield


@contextmanager
def _replaced(owner: Any, **ours: Any) -> Iterator[None]:
    """Attributes of an object or a class, other ones for a while."""
    before = {name: vars(owner)[name] for name in ours if name in vars(owner)}
    for name, value in ours.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in ours:
            delattr(owner, name)
        for name, value in before.items():
            setattr(owner, name, value)


def _is_known(codegen: Any) -> bool:
    """Whether this Numba has what is replaced above; if not, it compiles in its own way."""
    uses = ("_optimize_functions", "_optimize_final_module", "_finalize_dynamic_globals")
    managers = getattr(codegen, "_module_pass_manager", None)
    return (
        all(hasattr(JITCodeLibrary, name) for name in uses)
        and hasattr(codegen, "_library_class")
        and hasattr(codegen, "set_env")
        and managers is not None
        and type(managers()) is tuple
    )


def _set_environment(codegen: Any, name: str, environment: Any) -> None:
    """Python's side of a function, for those that have machine code."""
    if codegen._engine.is_symbol_defined(name):
        type(codegen).set_env(codegen, name, environment)
