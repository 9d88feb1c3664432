"""Kernels compiled ahead: a small library is built, and used by processes without Numba."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pullback.aot import elf
from pullback.aot.build import undefined
from pullback.cpu import cache as kernel_cache
from pullback.cpu import library, standin

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "pullback"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux"
    or platform.machine() != "x86_64"
    or shutil.which("ld") is None
    or not library.targets(),
    reason="libraries are built on Linux, for processors with AVX2",
)

BLOCKED = """
import sys
sys.modules['numba'] = sys.modules['llvmlite'] = None  # whoever imports them fails
"""

# Contiguous, strided, twice each (the second by the call cache), with threads, and the gradient.
CALLS = """
import hashlib, numpy as np, pullback as pb
digest = hashlib.sha256()
for shape in ((3, 5), (257, 4099)):
    a, b = (np.random.default_rng(seed).standard_normal(shape, np.float32) for seed in (1, 2))
    for _ in range(2):
        for x, y in ((a, b), (a[:, ::2], b[:, 1::2].T.copy().T)):
            n = min(x.shape[1], y.shape[1])
            out = pb.lerp(x[:, :n], y[:, :n], 0.25)
            digest.update(out.tobytes())
            for part in pb.lerp_backward(out, 0.25):
                digest.update(part.tobytes())
print(digest.hexdigest())
"""


def run(code: str, folder: Path | str, **more: str) -> str:
    done = _run(code, folder, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _run(code: str, folder: Path | str, **more: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PULLBACK_LIBRARY": str(folder), "PYTHONPATH": path, **more}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    options = ["lerp", "--dtype", "f32", "--target", "x86-64-v3", "--jobs", "1"]
    options += ["--objects", str(folder / "objects")]
    subprocess.run([sys.executable, "-m", "pullback.aot", folder / "lib", *options], check=True)
    return folder / "lib"


def test_the_same_bits_without_numba(built: Path) -> None:
    ahead = run(BLOCKED + CALLS, built)
    assert ahead == run(CALLS, "0")
    assert ahead == run(BLOCKED + CALLS, built, PULLBACK_SAFE="1", PULLBACK_NUM_THREADS="1")


def test_torch_tensors_without_numba(built: Path) -> None:
    code = """
import torch, pullback as pb
a, b = torch.ones(4, 5, requires_grad=True), torch.zeros(4, 5)
for _ in range(3):
    a.grad = None
    pb.lerp(a, b, 0.25).sum().backward()
print(float(a.grad[0, 0]), 'numba' in sys.modules and sys.modules['numba'])
"""
    assert run(BLOCKED + code, built) == "0.75 None"


def test_jax_arrays_without_numba(built: Path) -> None:
    code = """
import jax, jax.numpy as jnp, pullback as pb
f = jax.jit(jax.grad(lambda a: pb.lerp(a, jnp.zeros((4, 5)), 0.25).sum()))
print(float(f(jnp.ones((4, 5)))[0, 0]))
"""
    assert run(BLOCKED + code, built) == "0.75"


def test_a_kernel_that_is_missing_is_compiled_beside_those_of_the_library(built: Path) -> None:
    code = """
import sys, numpy as np, pullback as pb
x = np.arange(12, dtype=np.float64).reshape(3, 4)
pb.lerp(np.ones(3, np.float32), np.zeros(3, np.float32), 0.5)
before = 'numba' in sys.modules
print(np.array_equal(pb.cumsum(x), x.cumsum(1)), before, 'numba' in sys.modules)
print(float(pb.lerp(np.ones(3, np.float32), np.zeros(3, np.float32), 0.5)[0]))
"""
    assert run(code, built).split() == ["True", "False", "True", "0.5"]


def test_a_kernel_that_is_missing_without_numba_is_one_sentence(built: Path) -> None:
    hidden = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == 'numba' else find(name, *rest)
"""
    code = "import numpy, pullback; pullback.cumsum(numpy.ones(9))"
    done = _run(BLOCKED + hidden + code, built)
    last = done.stderr.strip().splitlines()[-1]
    assert "Unsupported: " in last
    assert "`kernel` must be one of those compiled ahead (pip install 'pullback[jit]'" in last


def test_doctor_and_warm_say_which_kernels_are_compiled_ahead(built: Path) -> None:
    code = """
import pullback
from pullback.cli.doctor import findings
pullback.warm("lerp", dtypes="float32")
found = findings()
print(found['kernels'].startswith('compiled ahead, in '), sorted(found['compiled ahead']))
"""
    assert run(BLOCKED + code, built) == "True ['lerp', 'shared']"


def test_a_library_of_other_sources_is_not_used(built: Path, tmp_path: Path) -> None:
    for file in built.iterdir():
        shutil.copy(file, tmp_path)
    code = "from pullback.cpu import library; print(library.path() is not None)"
    assert run(code, tmp_path) == "True"
    assert run(code, tmp_path, PULLBACK_SOFT_F16="1") == "False"
    manifest = tmp_path / library.MANIFEST
    manifest.write_text(manifest.read_text().replace(library.sources(), "0" * 32))
    assert run(code, tmp_path) == "False"
    assert run(code, "0") == "False"


def test_a_library_shows_its_entries_and_needs_c_and_python_alone(built: Path) -> None:
    (path,) = built.glob("*.so")
    symbols = dict(elf.symbols(path.read_bytes(), elf.DYNSYM))
    assert {name for name, defined in symbols.items() if defined} == {
        "pullback_pool",
        "pullback_xla",
        *_entries(built).values(),
    }
    assert {"Py_IncRef", "pthread_create"} <= undefined(path)
    assert not any(name.startswith(("numba", "fma", "exp", "log")) for name in undefined(path))


def test_kernels_of_a_better_processor_come_first(built: Path, tmp_path: Path) -> None:
    """The same code under the name of one: nothing is compiled that was kept."""
    made = f"""
from pathlib import Path
from pullback.aot import build, targets
from pullback.bench import ahead
from pullback.contract.element import ElementKind
first = targets.TARGETS[0]
better = first._replace(name='x86-64-v4', modules=('pullback.ops.lerp.',))
steps = ahead.steps(['lerp'], [ElementKind.F32])
kept = Path({str(built.parent)!r}, "objects")
build.build(Path({str(tmp_path)!r}), steps, [first, better], 1, kept)
"""
    run(made, "0")
    symbols = dict(elf.symbols((tmp_path / "x86-64-v4.so").read_bytes(), elf.DYNSYM))
    kernels = {s for name, s in _entries(tmp_path).items() if name.startswith("pullback.ops.")}
    assert {name for name, defined in symbols.items() if defined} == kernels
    used = """
import ctypes
from pullback.cpu import library
library.targets = lambda: ('x86-64-v4', 'x86-64-v3')
better, first = library.paths()
entry, symbol = next(e for e in library._symbols().items() if e[0].startswith('pullback.ops.'))
found = ctypes.addressof(ctypes.c_char.in_dll(ctypes.CDLL(str(better)), symbol))
assert library.address(entry) == found and library.path() == first
"""
    assert run(BLOCKED + used + CALLS, tmp_path) == run(CALLS, "0")


def _entries(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / library.MANIFEST).read_text())["entries"]
    return found


def test_kernels_are_made_of_no_module_that_stays_as_it_is_beside_numba() -> None:
    sources = {f"pullback.cpu.{name}" for name in standin.SHARED}
    found = [
        f"pullback.{'.'.join(path.relative_to(PACKAGE).with_suffix('').parts)}"
        for path in PACKAGE.rglob("cpu*.py")
        if "@kernel" in path.read_text()
    ]
    for name in found:  # which grows meanwhile
        found += kernel_cache.imports(name) - set(found)
    about_code = {name.rpartition(".")[2] for name in sources & set(found)}
    assert about_code <= {"block", "notice", "store", "library"}


@pytest.mark.slow
def test_a_library_is_the_same_byte_for_byte(built: Path, tmp_path: Path) -> None:
    options = ["lerp", "--dtype", "f32", "--target", "x86-64-v3", "--jobs", "2"]
    subprocess.run([sys.executable, "-m", "pullback.aot", tmp_path, *options], check=True)
    for file in built.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name
