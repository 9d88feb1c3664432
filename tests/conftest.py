"""Test ids that read aloud, and are the same in every process; a heap that is quick to collect."""

from __future__ import annotations

import gc
import os
from typing import Any

os.environ.setdefault("PULLBACK_NOTICE", "0")  # processes of tests are asked what they print

from pullback.contract.element import ElementKind
from pullback.contract.settings import SAFE
from pullback.verify.subject import Subject

# With PULLBACK_SAFE=1 there are no shortcuts to test.
collect_ignore = (
    ["test_call_cache.py", "test_call_cache_torch.py", "test_plan_run.py", "test_buffer_pool.py"]
    if SAFE
    else []
)


def pytest_make_parametrize_id(config: Any, val: Any, argname: str) -> str | None:
    if isinstance(val, Subject):
        return val.name
    if isinstance(val, ElementKind):
        return val.name.lower()
    return getattr(val, "__name__", None)


def pytest_collection_finish(session: Any) -> None:
    """Frameworks and thousands of tests are here to stay: the cycle collector may pass them by."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: Any) -> None:
    """At exit all of it is to be freed: extension modules report what is left."""
    gc.unfreeze()
