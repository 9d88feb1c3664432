"""The plans: every `XDescriptor`, `XArgs` and `XPlan`, and nothing else.

    from pullback import plans

    desc = plans.SoftmaxDescriptor(...)
    plan = plans.SoftmaxPlan.select(pullback.Stream.cpu(), desc)

They are attributes of `pullback` too; here completion shows them without the functions.
"""

from __future__ import annotations

from typing import Any

import pullback as _pullback

_ENDINGS = ("Descriptor", "Args", "Plan")


def __getattr__(name: str) -> Any:
    if name == "__all__":
        globals()[name] = sorted(n for n in _pullback.__all__ if n.endswith(_ENDINGS))
        return globals()[name]
    if name.endswith(_ENDINGS) and not name.startswith("_") and hasattr(_pullback, name):
        globals()[name] = getattr(_pullback, name)
        return globals()[name]
    raise AttributeError(f"module 'pullback.plans' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __getattr__("__all__")  # type: ignore[no-any-return]
