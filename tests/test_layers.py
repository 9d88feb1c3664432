"""The architecture as a test: import directions, file sizes, lazy imports, whole folders."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pullback
from pullback.cpu import cache as kernel_cache

ROOT = Path(pullback.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MODULES = {".".join(p.relative_to(ROOT.parent).with_suffix("").parts): p for p in FILES}

# Each package may import from itself and from the packages before it.
ORDER = (
    *("contract", "internals", "tensor", "cpu", "gpu", "plan", "ops", "frontends", "distributed"),
    "torch",
)
ABOVE = ("verify", "fuzz", "bench", "aot", "cli")
RANK = {package: rank for rank, package in enumerate((*ORDER, *ABOVE))}

# What is loaded by name when first used, not imported: kernels, front ends, the thread pool.
LAZY = {("plan", "cpu"), ("plan", "gpu"), ("plan", "frontends")}


# Parts of a family that belong to packages above `ops`, which load them by name.
PARTS = {"accuracy.py": "verify", "bench.py": "bench"}


def _package(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    if parts[0] == "ops" and len(parts) == 3 and parts[2] in PARTS:
        return PARTS[parts[2]]
    return parts[0].removesuffix(".py")


def _imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return [name for name in found if name.startswith("pullback.")]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    package = _package(path)
    if package not in RANK:
        return
    for name in _imports(path):
        whole = MODULES.get(name)
        target = _package(whole) if whole else name.split(".")[1]
        if target in RANK and (package, target) not in LAZY:
            assert RANK[target] <= RANK[package], f"{package} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_is_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_private_names_stay_at_home(path: Path) -> None:
    names = [name.rpartition(".")[2] for name in _imports(path)]
    assert [name for name in names if name.startswith("_") and not name.startswith("__")] == []


def test_families_are_whole() -> None:
    for family in pullback._FAMILIES:
        names = {p.name for p in (ROOT / "ops" / family).iterdir()}
        assert {
            "__init__.py",
            "contract.py",
            "functions.py",
            "oracle.py",
            "cpu.py",
            "docs.py",
        } <= names


def test_the_kernel_cache_sees_every_import() -> None:
    for name, path in MODULES.items():
        assert MODULES.keys() & _imports(path) <= kernel_cache.imports(name)


@pytest.mark.parametrize("module", MODULES)
def test_kernels_depend_on_nothing_above_them(module: str) -> None:
    """Whoever edits an oracle, a function or how arrays are looked at, compiles no kernel."""
    found = [module] if "\n@kernel" in MODULES[module].read_text() else []
    for name in found:  # which grows meanwhile
        found += kernel_cache.imports(name) - set(found)
    aside = {"oracle", "functions", "cases", "calculus", "view", "adapters"}
    assert aside.isdisjoint(name.rpartition(".")[2] for name in found)


def test_importing_pullback_imports_no_framework() -> None:
    code = (
        "import sys, pullback; "
        "print([m for m in ('numba', 'torch', 'jax', 'triton', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_name_imports_its_family_alone() -> None:
    code = (
        "import sys, pullback; pullback.lerp; "
        "print([f for f in pullback._FAMILIES if f'pullback.ops.{f}' in sys.modules], "
        "hasattr(pullback, 'nonsense'), "
        "pullback.SegmentSumPlan.__name__, 'cumsum' in dir(pullback))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['lerp'] False SegmentSumPlan True"


def test_every_public_name_is_documented() -> None:
    for name in pullback.__all__:
        assert getattr(pullback, name).__doc__, name


def test_the_stub_is_fresh() -> None:
    from pullback.signatures import PATH, PLANS, plans_stub, stub

    assert PATH.read_text() == stub(), "run `python -m pullback.signatures`"
    assert PLANS.read_text() == plans_stub(), "run `python -m pullback.signatures`"


def test_packages_of_their_own_are_found_as_attributes() -> None:
    """Without an import of theirs, and not before."""
    code = (
        "import sys, pullback\n"
        "assert not {'torch', 'pullback.patch', 'pullback.plans'} & sys.modules.keys()\n"
        "print(pullback.plans.ScanPlan.__name__, pullback.patch.report(), pullback.torch.nn,"
        " pullback.compat.entmax.sparsemax)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ScanPlan ")
