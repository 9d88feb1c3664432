"""The simplex maps on the CPU: which kernels run for a descriptor."""

from __future__ import annotations

from typing import Any

from pullback.contract.kinds import SoftmaxKind
from pullback.cpu.program import Program
from pullback.cpu.rows import row_program
from pullback.ops.simplex import cpu_backward, cpu_softmax, cpu_sparse
from pullback.ops.simplex.contract import kind_of

FORWARD = {
    SoftmaxKind.SOFTMAX: cpu_softmax.SOFTMAX,
    SoftmaxKind.LOG_SOFTMAX: cpu_softmax.LOG_SOFTMAX,
    SoftmaxKind.SPARSEMAX: cpu_sparse.SPARSEMAX,
    SoftmaxKind.ENTMAX15: cpu_sparse.ENTMAX15,
}
BACKWARD = {
    SoftmaxKind.SOFTMAX: cpu_backward.SOFTMAX,
    SoftmaxKind.LOG_SOFTMAX: cpu_backward.LOG_SOFTMAX,
    SoftmaxKind.SPARSEMAX: cpu_backward.SPARSEMAX,
    SoftmaxKind.ENTMAX15: cpu_backward.ENTMAX15,
}


def forward(desc: Any, x: Any, y: Any) -> Program:
    return row_program(FORWARD[kind_of(desc)], desc, x, y)


def backward(desc: Any, dy: Any, y: Any, dx: Any) -> Program:
    return row_program(BACKWARD[kind_of(desc)], desc, dy, y, dx)
