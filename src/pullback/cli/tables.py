"""How numbers are written."""

from __future__ import annotations

from math import isfinite, isnan


def factor(value: float) -> str:
    """A speed-up; red where it is none."""
    if isnan(value):
        return "-"
    text = f"{value:.0f}x" if value >= 100 else f"{value:.1f}x" if value >= 10 else f"{value:.2f}x"
    return f"[red]{text}[/red]" if value < 1 else text


def percent(value: float) -> str:
    return f"{value:.0%}" if isfinite(value) else "-"


def seconds(value: float) -> str:
    """A duration with three digits and the unit that suits it."""
    if not isfinite(value):
        return "-"
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if value < limit:
            return f"{value * scale:.3g} {unit}"
    return f"{value:.3g} s"


def size(nbytes: float) -> str:
    """Bytes with three digits and the unit that suits them."""
    for limit, unit in ((1e6, "kB"), (1e9, "MB")):
        if nbytes < limit:
            return f"{nbytes / (limit / 1e3):.3g} {unit}"
    return f"{nbytes / 1e9:.3g} GB"
