"""Faults that gave wrong results once, planted again."""

from mutants import Fuzz, Mutant, Suite, laws

MUTANTS = (
    Mutant(
        "segment backward: rows that run backwards are written beyond",
        "ops/segment/cpu_panel.py",
        "NOWHERE = -NO_LIMIT  #",
        "NOWHERE = 0  #",
        "writes outside `out` where its rows have negative strides",
        (laws("segment_mean_backward"), Fuzz("segment_mean_backward")),
    ),
    Mutant(
        "segment sum: a block that was scaled down is added as it is",
        "ops/segment/cpu_sum.py",
        "        select(is_endless(found[0]), NAN, finite_rest(found[1])),\n",
        "        finite_rest(found[1]),\n",
        "f64 sums over more than 256 rows that overflow are finite",
        (Suite("test_kernel_regressions.py", "long_segment"),),
    ),
    Mutant(
        "lerp backward: what rounding takes from a sum is dropped",
        "ops/lerp/cpu.py",
        "        rest += (total - (grown - back)) + (v - back)\n",
        "",
        "f64 gradients of broadcast operands drift",
        (Suite("test_kernel_regressions.py", "without_drift"),),
    ),
    Mutant(
        "torch: a known call on a storage that is too short",
        "cpu/operands.py",
        "    if not is_inside_storage(at(operand[STORAGE_AT]), word, place, operand[REACH]):\n        return MISMATCH\n",
        "",
        "reads and writes behind a storage that was made smaller",
        (Suite("test_foreign_memory.py", "before_and_after and cumsum"),),
    ),
    Mutant(
        "torch.jit.trace: a known call returns a constant",
        "internals/torch.py",
        ", tracing: False}",
        "}",
        "a traced graph holds the result of the call it was traced with",
        (Suite("test_torch_tracing.py", "jit_trace_records"),),
    ),
)
