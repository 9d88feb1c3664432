"""Devices and streams of the framework: Triton itself is looked for only when a GPU is meant."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from importlib.util import find_spec
from typing import Any

from pullback.contract.errors import Unsupported


def require(op: str, device: str) -> None:
    """One sentence for a tensor on a GPU where Triton is missing."""
    if find_spec("triton") is None or find_spec("torch") is None:
        expected = "on cpu, or on a GPU with Triton (pip install 'pullback[gpu]')"
        raise Unsupported(op, "device", expected, device)


@cache
def arch(device: str) -> str:
    """What telemetry calls a GPU: "sm_90", "gfx942"."""
    import torch

    try:
        facts = torch.cuda.get_device_properties(device)
    except (AssertionError, RuntimeError) as error:
        expected = "cpu, or a GPU that torch can use"
        raise Unsupported("Stream.cuda", "device", expected, f"{device} ({error})") from None
    amd = getattr(facts, "gcnArchName", "")
    return amd.split(":")[0] if torch.version.hip else f"sm_{facts.major}{facts.minor}"


def scratch(nbytes: int, device: str) -> Any:
    """Uninitialised bytes on a GPU, from the framework's allocator."""
    import torch

    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def using(device: str, handle: int) -> AbstractContextManager[Any]:
    """Make a raw stream the framework's current one, which is where kernels are launched."""
    import torch

    return torch.cuda.stream(torch.cuda.ExternalStream(handle, device=device))
