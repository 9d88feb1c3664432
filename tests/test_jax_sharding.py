"""Calls on sharded JAX arrays keep shardings of free axes, with no collective and the same bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pullback.ops.axes import Axes, elementwise, notation

pytest.importorskip("jax")


def test_shardings_of_free_axes_are_kept_without_collectives() -> None:
    script = Path(__file__).with_name("sharded.py")
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600)
    assert (found.stdout, found.returncode) == ("", 0), found.stderr[-2000:]


def test_notation_numbers_the_axes_of_a_star() -> None:
    rule = notation(["i* d"], free="i* d", weight="v d", indices="i*")
    found = rule({"weight": (5, 3), "indices": (2, 4)}, {})
    names = {"weight": ("v", "d"), "indices": ("i0", "i1")}
    assert found == Axes(names, (("i0", "i1", "d"),), frozenset({"i0", "i1", "d"}))
    assert rule({"weight": (5,), "indices": (2, 4)}, {}) is None


def test_an_axis_that_is_stretched_is_not_free() -> None:
    found = elementwise(["a", ""])({"a": (4, 1), "b": (3, 4, 5)}, {})
    assert found is not None
    assert found.arguments == {"a": ("b1", "one2"), "b": ("b0", "b1", "b2")}
    assert found.results == (("b1", "one2"), ("b0", "b1", "b2"))
    assert found.free == {"b1"}
