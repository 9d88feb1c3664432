"""The forms of all families (ops/*/sharded.py), by the name of the function."""

from __future__ import annotations

from functools import cache
from typing import Any

import pullback
from pullback.contract.imports import imported
from pullback.ops.sharding import Form, Sends


@cache
def _modules() -> list[Any]:
    found = []
    for family in pullback._FAMILIES:
        name = f"pullback.ops.{family}.sharded"
        try:
            found.append(imported(name))
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    return found


@cache
def forms() -> dict[str, Form]:
    return {name: form for module in _modules() for name, form in module.SHARDED.items()}


@cache
def sends() -> dict[str, Sends]:
    return {name: sent for module in _modules() for name, sent in module.SENDS.items()}


@cache
def composed() -> dict[str, Any]:
    """Functions that are composed of lookups in tables by rows and of plain functions."""
    tables = (getattr(module, "COMPOSED", {}) for module in _modules())
    return {name: rule for table in tables for name, rule in table.items()}


@cache
def gradients() -> dict[str, tuple[str, dict[str, str]]]:
    """Functions whose gradient is that of another one: its name, and what it calls arguments."""
    tables = (getattr(module, "GRADIENTS", {}) for module in _modules())
    return {name: how for table in tables for name, how in table.items()}


def has_own_indices(function: Any) -> bool:
    """Whether each rank has indices of its own."""
    return getattr(forms().get(function.name), "own_indices", False)
