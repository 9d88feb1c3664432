"""Send PyTorch's own CPU ops to the kernels of this library, for a while or for good.

    import pullback.patch

    pullback.patch.torch()                       from here on
    with pullback.patch.torch(["cumsum"]): ...   within the block, these ops alone
    print(pullback.patch.report())               what was served, and what was left to PyTorch

Results follow PyTorch's rules (ties, padding rows, NaN, empty segments). Calls that are small, or
of a form that is not served, run the kernel that PyTorch had before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pullback.patch.routes import Patch

__all__ = ["Counts", "Report", "report", "torch"]


class Counts(NamedTuple):
    """Calls of one op while it was patched: answered here, and left to PyTorch."""

    served: int
    left: int


class Report(dict[str, Counts]):
    """Counts by op; prints as a table."""

    def __str__(self) -> str:
        width = max([len(name) for name in self], default=0)
        rows = [f"{name:{width}} {c.served:>10} {c.left:>10}" for name, c in self.items()]
        return "\n".join([f"{'op':{width}} {'served':>10} {'left':>10}", *rows])


def torch(ops: Iterable[str] | None = None, *, least: int | None = None) -> Patch:
    """Patch these ops of PyTorch (names below `aten::`), by default all that can be served.

    It takes effect at once; `restore()` or leaving a `with` block ends it. Calls whose largest
    tensor has fewer than `least` elements stay PyTorch's; by default each op has its own limit."""
    from pullback.patch.routes import Patch

    return Patch(ops, least)


def report() -> Report:
    """What has been served since the process began, for every op that was patched."""
    from pullback.patch.routes import counted

    return Report((name, Counts(*pair)) for name, pair in counted().items())
