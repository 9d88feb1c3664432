"""The bits of every function are those of the table, on this machine and as compiled for others."""

from __future__ import annotations

import subprocess
import sys

import llvmlite.binding as llvm
import numpy as np
import pytest

import pullback
from pullback.contract.element import FLOATS, ElementKind
from pullback.verify import hashes


@pytest.mark.parametrize("row", list(hashes.rows()), ids=str)
def test_same_bits_as_in_the_table(row: hashes.Row) -> None:
    assert not (fault := hashes.fault(str(row), hashes.of_row(row))), fault


def test_inputs_are_those_of_the_table() -> None:
    for name, found in hashes.of_inputs().items():
        assert not (fault := hashes.fault(name, found)), fault


def test_the_table_has_no_other_rows() -> None:
    assert not (fault := hashes.stale()), fault


def test_faults_are_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"cases": "1", "large": "2"}
    rows = {"f f32": known, "gone f32": {"cases": "1"}}
    monkeypatch.setattr(hashes, "table", lambda: rows)
    assert hashes.fault("f f32", known) == ""
    other = hashes.fault("f f32", known | {"large": "3"})
    assert other.startswith("f f32: other bits than in the table (large); ")
    missing = hashes.fault("g f32", {"cases": "1"})
    assert missing == f"g f32: the table has nothing, not cases; run `{hashes.WRITE}`"
    unkept = hashes.fault("gone f32", {})
    assert unkept == f"gone f32: the table has cases, not nothing; run `{hashes.WRITE}`"
    assert hashes.stale().startswith("f f32: in the table, but there is no such function")


def test_any_nan_is_any_other_and_zeros_are_not() -> None:
    same = [hashes.hashed(np.array([v], np.float32)) for v in (np.nan, -np.nan)]
    zeros = [hashes.hashed(np.array([v], np.float32)) for v in (0.0, -0.0)]
    assert same[0] == same[1]
    assert zeros[0] != zeros[1]


@pytest.mark.parametrize("element", FLOATS)
def test_extrema_and_lookups_hand_on_the_nan_they_found(element: ElementKind) -> None:
    x = np.arange(40).reshape(10, 4).astype(element.dtype)
    codes = x.view(f"u{x.itemsize}")
    codes[3, 1] = code = np.array(-np.nan, x.dtype).view(codes.dtype) | codes.dtype.type(5)
    rows, one = np.arange(10), np.zeros(10, np.int64)
    found = [
        *(f(x, 0) for f in (pullback.cummax, pullback.cummin)),
        *(f(x, one, 1) for f in (pullback.segment_max, pullback.segment_min)),
        pullback.embedding(x, rows),
        pullback.embedding_bag(x, rows, one[:1], mode="max"),
    ]
    for y in found:
        assert np.isnan(y).any()
        assert (y.view(codes.dtype)[np.isnan(y)] == code).all()


# Processors by LLVM's names, and what this one must have in order to run code for them. Kernels
# compile anew for each, so each gets another part of the rows; `make test-machines` runs all.
MACHINES = {"nehalem": "sse4.2", "haswell": "avx2", "skylake-avx512": "avx512bw"}
EVERY = 41


@pytest.mark.parametrize("cpu", MACHINES)
def test_same_bits_compiled_for(cpu: str) -> None:
    if not llvm.get_host_cpu_features().get(MACHINES[cpu]):
        pytest.skip(f"this processor has no {MACHINES[cpu]}")
    first = 13 * list(MACHINES).index(cpu)
    rows = ["--every", str(EVERY), "--first", str(first)]
    command = [sys.executable, "-m", "pullback.verify.hashes", "--cpu", cpu, *rows]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(range(first, len(list(hashes.rows())), EVERY))} rows, 0 faults" in done.stdout
