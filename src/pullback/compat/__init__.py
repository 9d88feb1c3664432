"""Names of other packages, served by this one: each module stands in for the package it is named
after, and is imported when first used."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from pullback.contract.imports import imported


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return imported(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
