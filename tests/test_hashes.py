"""The bits of every function are those of the table, on this machine and as compiled for others."""

from __future__ import annotations

import numpy as np
import pytest

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
