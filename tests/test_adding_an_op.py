"""docs/adding-an-op.md, done: its blocks in a copy of the tree, and what follows from them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pullback

pytest.importorskip("torch")
pytest.importorskip("jax")

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "adding-an-op.md"
BLOCK = re.compile(r"^```python\n# (ops/(\w+)/\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# In a process of its own: what a newcomer would look at first. One dtype: a kernel each.
CHECKS = """
import doctest, sys
import jax, numpy as np, torch
import pullback as pb
from pullback.bench.workload import F32, Draw, families, rows_of
from pullback.cli.catalog import catalog_page
from pullback.verify import laws
from pullback.verify.subject import subjects

op, family = sys.argv[1], sys.argv[2]
names = [op, f"{op}_backward"]
assert [n for n, s in subjects().items() if s.family == family] == names
function, backward = (getattr(pb, name) for name in names)

# --- laws
for name in names:
    subject, tried = subjects()[name], 0
    for _, arguments in laws.trials(subject, F32, 3):
        laws.equals_the_oracle(subject, arguments)
        laws.keeps_bits_in_any_layout(subject, arguments)
        laws.leaves_no_traces(subject, arguments)
        laws.works_in_place(subject, arguments)
        laws.agrees_with_its_plan(subject, arguments)
        tried += 1
    assert tried > 10, name
    for case in subject.large_cases()[:3]:
        arguments = subject.arguments(case, F32, None, subject.variants[0], exact=False)
        laws.keeps_bits_on_any_threads(subject, arguments)
print("laws kept")

# --- front ends
x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
y = function(x, axis=0)
theirs = torch.from_numpy(x).requires_grad_(True)
out = function(theirs, axis=0)
assert np.array_equal(out.detach().numpy(), y)
dy = torch.arange(12, dtype=torch.float32).reshape(3, 4)
out.backward(dy)
assert np.array_equal(theirs.grad.numpy(), backward(dy.numpy(), axis=0))
value, pull = jax.vjp(lambda a: function(a, axis=0), jax.numpy.asarray(x))
assert np.array_equal(np.asarray(value), y)
assert np.array_equal(np.asarray(pull(jax.numpy.asarray(dy.numpy()))[0]), theirs.grad.numpy())
try:
    function(x, dim=0)
except TypeError as error:
    assert "did you mean 'axis'" in str(error)
else:
    raise AssertionError
print("front ends agree")

# --- benchmark and catalog
rows = [*rows_of(families()[family])]
assert {row.direction for row in rows} == {"forward", "backward"}
small = [row for row in rows if row.workload.name == "64x64"]
for row in small:
    problem, _ = row.problems(Draw(F32))
    assert problem.answer()[0].shape == (64, 64)
    assert "numpy" in families()[family].peers.tables
assert len(small) == 2
assert f"| `{op}` |" in catalog_page()
assert f"| `{op}_backward` |" in catalog_page()
for name in names:
    test = doctest.DocTestParser().get_doctest(getattr(pb, name).__doc__, {}, name, None, 0)
    done = doctest.DocTestRunner().run(test)
    assert done.attempted > 1 and not done.failed
print("rows and catalog are there")
"""


def test_the_page_as_it_stands(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) == PAGE.read_text().count("```python") >= 10
    (family,) = {family for _, family, _ in blocks}
    assert not (Path(pullback.__file__).parent / "ops" / family).exists()
    tree = tmp_path / "pullback"
    left_out = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(Path(pullback.__file__).parent, tree, ignore=left_out)
    for path, _, text in blocks:
        (tree / path).parent.mkdir(exist_ok=True)
        (tree / path).write_text(text)
    checked = subprocess.run(
        [sys.executable, "-c", CHECKS, family, family],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.split("\n")[:3] == [
        "laws kept",
        "front ends agree",
        "rows and catalog are there",
    ]
