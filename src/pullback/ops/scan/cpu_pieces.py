"""Scans that are not on the engine, on pieces of lines."""

from pullback.cpu.kernel import Kernel
from pullback.cpu.piecewise import add_piecewise
from pullback.cpu.sweep import AXIS
from pullback.ops.scan.cpu_extremum_backward import (
    first_backward_across,
    first_backward_along,
    last_backward_across,
    last_backward_along,
)
from pullback.ops.scan.cpu_logsumexp import logcumsumexp_across, logcumsumexp_along
from pullback.ops.scan.cpu_logsumexp_backward import (
    logcumsumexp_backward_across,
    logcumsumexp_backward_along,
)
from pullback.ops.scan.cpu_logsumexp_recomputed import (
    logcumsumexp_recomputed_across,
    logcumsumexp_recomputed_along,
)
from pullback.ops.scan.cpu_product_halves_backward import (
    cumprod_recomputed_across,
    cumprod_recomputed_along,
)


def _of(plain: Kernel) -> Kernel:
    return add_piecewise(plain, plain._function, AXIS, __name__)


logcumsumexp_along_pieces = _of(logcumsumexp_along)
logcumsumexp_across_pieces = _of(logcumsumexp_across)
logcumsumexp_backward_along_pieces = _of(logcumsumexp_backward_along)
logcumsumexp_backward_across_pieces = _of(logcumsumexp_backward_across)
logcumsumexp_recomputed_along_pieces = _of(logcumsumexp_recomputed_along)
logcumsumexp_recomputed_across_pieces = _of(logcumsumexp_recomputed_across)
cumprod_recomputed_along_pieces = _of(cumprod_recomputed_along)
cumprod_recomputed_across_pieces = _of(cumprod_recomputed_across)
first_backward_along_pieces = _of(first_backward_along)
first_backward_across_pieces = _of(first_backward_across)
last_backward_along_pieces = _of(last_backward_along)
last_backward_across_pieces = _of(last_backward_across)
