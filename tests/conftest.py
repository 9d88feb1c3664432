"""Test ids that read aloud, and are the same in every process."""

from __future__ import annotations

from typing import Any

from pullback.verify.subject import Subject


def pytest_make_parametrize_id(config: Any, val: Any, argname: str) -> str | None:
    if isinstance(val, Subject):
        return val.name
    return getattr(val, "__name__", None)
