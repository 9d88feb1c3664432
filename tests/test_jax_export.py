"""jax.export: programs that run in a process in which no function was called."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb

jax = pytest.importorskip("jax")
from jax import export  # noqa: E402

X, IDS = np.arange(12, dtype=np.float32).reshape(3, 4) / 8, np.array([0, 1, 1], np.int32)
ALLOWED = [export.DisabledSafetyCheck.custom_call("pullback")]

# What serialisation keeps, without the package it needs: a program, trees, types.
RUN = """
import pickle, sys
{imports}
assert not {{"numba", "torch"}} & sys.modules.keys()
from jax import export
with open({path!r}, "rb") as file:
    parts, given, wanted = pickle.load(file)
program = export.Exported(**parts, _get_vjp=None)
assert "numba" not in sys.modules
for got, want in zip(program.call(*given), wanted, strict=True):
    assert (got == want).all()
try:
    jax.block_until_ready(program.call(given[0], given[1] + 7))
except (jax.errors.JaxRuntimeError, ValueError) as error:
    assert "segment_sum: `segment_ids` must be in [0, 3), got 7 at position 0" in str(error)
else:
    raise AssertionError
assert (pullback.cumsum(given[0]) == given[0].cumsum(-1)).all()
"""


def model(x: Any, ids: Any) -> Any:
    slopes = jax.grad(lambda x: (pb.cumprod(x, -1) ** 2).sum())
    return pb.segment_sum(pb.softmax(x), ids, 3), slopes(x)


@pytest.mark.parametrize("imports", ["import jax, pullback", "import pullback, jax"])
def test_exported_programs_run_where_nothing_was_called(imports: str, tmp_path: Path) -> None:
    exported = export.export(jax.jit(model), disabled_checks=ALLOWED)(X, IDS)
    names = (field.name for field in fields(exported) if field.name != "_get_vjp")
    parts = {name: getattr(exported, name) for name in names}
    wanted = [np.asarray(result) for result in jax.jit(model)(X, IDS)]
    path = tmp_path / "program"
    path.write_bytes(pickle.dumps((parts, (X, IDS), wanted)))
    script = RUN.format(imports=imports, path=str(path))
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-2000:]


def test_exported_programs_run_beside_others() -> None:
    exported = export.export(jax.jit(model), disabled_checks=ALLOWED, platforms=["cpu"])(X, IDS)
    for got, want in zip(exported.call(X, IDS), jax.jit(model)(X, IDS), strict=True):
        assert np.array_equal(np.asarray(got), np.asarray(want))


def test_symbolic_shapes_are_refused_in_one_sentence() -> None:
    (extent,) = export.symbolic_shape("n")
    symbolic = jax.ShapeDtypeStruct((3, extent), np.float32)
    with pytest.raises(pb.Unsupported, match=r"cumsum: `x` must be of a fixed shape.*got shape"):
        export.export(jax.jit(pb.cumsum), disabled_checks=ALLOWED)(symbolic)


def test_importing_jax_later_leaves_nothing_behind() -> None:
    script = (
        "import pullback, sys; count = len(sys.meta_path); import jax; "
        "assert len(sys.meta_path) == count - 1; import importlib; "
        "assert type(jax.__spec__.loader).__module__.startswith('_frozen'); importlib.reload(jax)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-2000:]
