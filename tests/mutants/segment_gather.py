"""Faults of gathered rows reduced by segment."""

from mutants import Fuzz, Mutant, Suite, laws

OP = "ops/segment_gather"

MUTANTS = (
    Mutant(
        "gather reduce: rows that are out of range are read",
        "ops/segment/cpu_list.py",
        "            if (row >= 0) & (row < past) & (row != padding):",
        "            if (row < past) & (row != padding):",
        "reads before the table",
        (Suite("test_segment_gather.py", "dropped"),),
    ),
    Mutant(
        "gather reduce: the check of rows takes those for ids",
        f"{OP}/cpu.py",
        "        at.LAST: last_id(desc.num_rows, gather),\n",
        "        at.LAST: last_id(desc.num_segments, gather),\n",
        "rows are refused, or missed",
        (Fuzz("gather_segment_reduce"),),
    ),
    Mutant(
        "gather reduce backward: a position whose row is dropped counts for the mean",
        f"{OP}/cpu_reduce.py",
        "        if segment_of[n] >= 0 and row_of(task, ids, n, step) >= 0:",
        "        if segment_of[n] >= 0:",
        "the gradient of a mean is divided by too much",
        (Suite("test_segment_gather.py", "dropped"),),
    ),
    Mutant(
        "gather reduce: weights by sorted position",
        "ops/segment/cpu_list.py",
        "                scales[kept] = scale_of(task, scaling, row, n, i - start)\n",
        "                scales[kept] = scale_of(task, scaling, row, i, i - start)\n",
        "weights go to other positions",
        (laws("gather_segment_reduce"),),
    ),
    Mutant(
        "gather reduce backward: the mean is not divided",
        f"{OP}/cpu.py",
        "others[at.SCALING] = at.NUMBERED if extrema else at.BY_SIZE",
        "others[at.SCALING] = at.NUMBERED if extrema else at.UNSCALED",
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
        "gather reduce backward: the row of another position",
        f"{OP}/cpu_reduce.py",
        "        position = order[block[2] + int(numbers[j])]\n",
        "        position = order[block[2] + j]\n",
        "behind a position that is dropped, gradients go to another",
        (laws("gather_segment_reduce_backward"), Fuzz("gather_segment_reduce_backward")),
    ),
)
