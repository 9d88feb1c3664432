"""Faults of gathered rows reduced by segment."""

from mutants import Fuzz, Mutant, Suite, laws

OP = "ops/segment_gather"

MUTANTS = (
    Mutant(
        "gather reduce: dropped rows keep their segment",
        f"{OP}/cpu_resolve.py",
        "            if not kept:\n                segment_of[n] = -1\n",
        "",
        "positions whose row is out of range are reduced all the same",
        (laws("gather_segment_reduce"),),
    ),
    Mutant(
        "gather reduce: negative rows pass the check",
        f"{OP}/cpu_resolve.py",
        "            inside = 0 <= r < rows\n",
        "            inside = r < rows\n",
        "reads before the table",
        (Suite("test_laws.py", "gather_segment_reduce and f32"),),
    ),
    Mutant(
        "gather reduce: weights by sorted position",
        f"{OP}/cpu_reduce.py",
        "scales[j] = read_wide(weights, n * word(task, at.WEIGHTS_STEP))",
        "scales[j] = read_wide(weights, i * word(task, at.WEIGHTS_STEP))",
        "weights go to other positions",
        (laws("gather_segment_reduce"),),
    ),
    Mutant(
        "gather reduce backward: the mean is not divided",
        f"{OP}/cpu.py",
        "scaling = at.BY_SIZE if desc.reduce is GatherReduceKind.MEAN else at.UNSCALED",
        "scaling = at.UNSCALED",
        "the gradient of a mean is that of a sum",
        (laws("gather_segment_reduce_backward"),),
    ),
    Mutant(
        "gather reduce backward: every holder receives the gradient",
        f"{OP}/cpu_reduce.py",
        "    share = g / as_wide(source, holders)\n",
        "    share = g\n",
        "shares of equal extrema are too large",
        (laws("gather_segment_reduce_backward"),),
    ),
    Mutant(
        "gather reduce backward: winners of long segments count from the start of all",
        f"{OP}/cpu_reduce.py",
        "        _put_winners(task, s, column, count, best, mark, offsets_of(task)[s])",
        "        _put_winners(task, s, column, count, best, mark, 0)",
        "the gradient of a long segment goes to another",
        (laws("gather_segment_reduce_backward"), Suite("test_segment_gather.py", "gradients")),
    ),
    Mutant(
        "gather reduce: segments that are sorted only in part are taken as they lie",
        f"{OP}/cpu.py",
        "    return _strict(desc) and (desc.ascending or desc.borders)",
        "    return bool(desc.ascending or desc.borders)",
        "dropped positions lie between those of a segment",
        (laws("gather_segment_reduce"), Fuzz("gather_segment_reduce")),
    ),
)
