"""Faults of entmax and of the Fenchel-Young losses."""

from mutants import Mutant, Suite, laws

OP = "ops/entmax"

MUTANTS = (
    Mutant(
        "entmax: the cut leaves out what rounding brought below it",
        f"{OP}/cpu_rows.py",
        "    return top - at[1] / beta - (abs(top) + 1.0 / beta) * _slack(p)",
        "    return top - 0.75 * at[1] / beta",
        "candidates of small shares are dropped",
        (laws("entmax"),),
    ),
    Mutant(
        "entmax: a row ends one position late",
        f"{OP}/cpu_rows.py",
        "    while count > 0 and places[count - 1] >= end - begin:",
        "    while count > 0 and places[count - 1] > end - begin:",
        "off by one: reads and writes the element after a row",
        (laws("entmax_loss"), laws("entmax"), laws("entmax_backward")),
    ),
    Mutant(
        "entmax: what follows the list counts as maxima",
        f"{OP}/cpu_rows.py",
        "    put(found, count, 1, splat(-INFINITY, LANES), False)\n    return count, end",
        "    put(found, count, 1, splat(0.0, LANES), False)\n    return count, end",
        "tail not neutral: rows do not sum to 1",
        (laws("entmax"),),
    ),
    Mutant(
        "entmax: the search ends at the root of a few",
        f"{OP}/cpu_rows.py",
        "        if moved <= (2.0**-48 if bisected else _enough(x[0])) * t:",
        "        if moved <= 0.25 * t:",
        "the search for the root ends early",
        (laws("entmax"),),
    ),
    Mutant(
        "entmax: steps beyond alpha 2 are not bracketed",
        f"{OP}/cpu_rows.py",
        "        if bisected:\n            there",
        "        if bisected and beta <= 1:\n            there",
        "Newton's method leaves the bracket and does not come back",
        (laws("entmax"), Suite("test_entmax.py", "lie_on_the_simplex")),
    ),
    Mutant(
        "entmax: rows of alpha 1.5 are computed by the general kernel",
        f"{OP}/cpu_map.py",
        "    return beta == 0.0 or beta == 0.5 or beta == 1.0",
        "    return beta == 0.0 or beta == 1.0",
        "other bits than entmax15",
        (Suite("test_entmax.py", "named_map"),),
    ),
    Mutant(
        "entmax_backward: a NaN in y stays where it is",
        f"{OP}/cpu_gradient.py",
        "    nothing = NAN if mass != mass else 0.0",
        "    nothing = 0.0",
        "NaN rule: a row of y with a NaN has a gradient",
        (Suite("test_entmax.py", "nan_among"),),
    ),
    Mutant(
        "entmax_backward: gradients of a shared alpha are added up in the order of memory",
        f"{OP}/cpu.py",
        "    return replace(along_axis(shape, axis, strides), rest=ordered)",
        "    return along_axis(shape, axis, strides)",
        "position of a bad class, and bits of dalpha, depend on strides",
        (Suite("test_entmax.py", "out_of_range or shared_alpha"),),
    ),
    Mutant(
        "losses: a class counts among the others in later pieces of a long row",
        f"{OP}/cpu_loss.py",
        "        here = own - begin if begin <= own and own < end else -1",
        "        here = own",
        "dropped offset: the term of the class is counted twice",
        (Suite("test_entmax.py", "losses_of_candidates"),),
    ),
    Mutant(
        "softmax_loss: small losses are 0",
        f"{OP}/cpu_loss.py",
        "    return reduce_max(most) * (1.0 - relative_) <= absolute_",
        "    return True",
        "0 where the map is not the target",
        (Suite("test_entmax.py", "zero_exactly and softmax"),),
    ),
    Mutant(
        "losses: the gradient takes 1 off the first class",
        f"{OP}/cpu_loss.py",
        "            own = class_of(task, w, row)\n            at",
        "            own = 0\n            at",
        "wrong class: its entry keeps p",
        (laws("softmax_loss_backward"),),
    ),
    Mutant(
        "losses: the gradient of a target is that of minus the target",
        f"{OP}/calculus.py",
        "    return xp.where(mass == 0, 0.0, logs - w)",
        "    return xp.where(mass == 0, 0.0, w - logs)",
        "wrong sign",
        (Suite("test_entmax.py", "target_has_a_gradient"),),
    ),
)
