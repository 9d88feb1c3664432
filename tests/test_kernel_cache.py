"""The disk cache of kernels: what is kept of one, and what it is filed under."""

from __future__ import annotations

import pytest
from llvmlite import binding

from pullback.cpu import cache

CODE = """
declare void @elsewhere()
@there = external global i32
@here = global i32 7
define i32 @answer() {
    call void @elsewhere()
    %found = load i32, ptr @here
    ret i32 %found
}
"""


def test_of_bitcode_the_symbols_are_kept() -> None:
    module = binding.parse_assembly(CODE)
    kept = binding.parse_bitcode(cache.symbols_of(module))
    assert [function.name for function in kept.functions] == ["answer"]
    assert [variable.name for variable in kept.global_variables] == ["here"]


def test_a_kernel_is_filed_under_all_that_it_imports() -> None:
    """Also what its imports import, and modules that a package is asked for."""
    stamps = {cache.module_hash(f"pullback.ops.scan.{name}") for name in ("cpu", "cpu_cumsum")}
    assert len(stamps) == 2
    assert "pullback.ops.scan.cpu_cumsum" in cache.imports("pullback.ops.scan.cpu")
    assert "pullback.cpu.vector" in cache.imports("pullback.ops.scan.cpu_cumsum")
    assert not any(name.startswith("numba") for name in cache.imports("pullback.cpu.kernel"))


def test_an_edit_of_any_import_or_of_the_policy_is_another_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = "pullback.ops.lerp.cpu_elementwise"
    modules, read = [module], cache._read
    for name in modules:  # which grows meanwhile
        modules += cache.imports(name) - {*modules}
    assert "pullback.cpu.transfer" in set(modules) - cache.imports(module)  # of an import's own
    plain = cache.module_hash.__wrapped__(module)
    assert plain == cache.module_hash(module)
    for edited in modules:
        monkeypatch.setattr(cache, "_read", lambda m, e=edited: read(m) + b"#" * (m == e))
        changed = cache.module_hash.__wrapped__(module) != plain
        assert changed == (edited not in cache._ASIDE), edited
    policy = cache._policy_hash.__wrapped__()
    assert policy == cache._policy_hash()
    monkeypatch.setitem(cache.POLICY, "fastmath", True)
    assert cache._policy_hash.__wrapped__() != policy
