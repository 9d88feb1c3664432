"""What is used of JAX beyond its documented API."""

from __future__ import annotations

from typing import Any

MISSING: list[str] = []


def ask_for_devices(primitive: Any) -> None:
    """Have the lowering of a primitive told of its devices. Where this JAX cannot be asked, calls
    are lowered as if for one, and XLA gathers their operands."""
    try:
        from jax._src.dispatch import prim_requires_devices_during_lowering as primitives
    except ImportError:
        MISSING.append("_src.dispatch.prim_requires_devices_during_lowering")
        return
    primitives.add(primitive)


def varying(x: Any) -> frozenset[Any]:
    """Axes of the mesh along which devices hold different values, inside of shard_map; empty where
    types do not say. JAX 0.10 has renamed the attribute."""
    import jax

    kind = jax.typeof(x)
    found = getattr(getattr(kind, "mat", None), "varying", None)
    return frozenset(getattr(kind, "vma", ()) if found is None else found)
