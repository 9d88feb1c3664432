"""Faults of the simplex maps."""

from mutants import Fuzz, Mutant, Suite, laws

OP = "ops/simplex"

MUTANTS = (
    Mutant(
        "softmax: a masked row has probabilities",
        f"{OP}/cpu_softmax.py",
        "    inverse = select(sum == 0, 0.0, 1.0 / sum)",
        "    inverse = 1.0 / sum",
        "a row of only -inf gives NaN",
        (
            Suite("test_simplex.py", "special_rows_are_exact and softmax and float32"),
            Suite("test_simplex.py", "special_rows"),
        ),
    ),
    Mutant(
        "softmax: tails of rows count as e^0",
        f"{OP}/cpu_softmax.py",
        "    reference, maxima = cells\n    x = take(at[0], left, -INFINITY, L)\n"
        "    maxima[0] = maximum(narrowed(x, L), maxima[0])\n    e =",
        "    reference, maxima = cells\n    x = take(at[0], left, 0.0, L)\n"
        "    maxima[0] = maximum(narrowed(x, L), maxima[0])\n    e =",
        "tail not neutral: the sum of a row is too large",
        (laws("softmax"),),
    ),
    Mutant(
        "log_softmax: the others of a peaked row are rounded away",
        f"{OP}/cpu_softmax.py",
        "    return select(all == 1, w, log(all) * (w / (all - 1.0)))",
        "    return log(all)",
        "wrong rounding: small log-probabilities lose their digits",
        (Suite("test_simplex.py", "peaked"),),
    ),
    Mutant(
        "log_softmax: f64 difference rounded twice",
        f"{OP}/cpu_softmax.py",
        "    return once if x.dtype == types.float64 else twice",
        "    return twice",
        "wrong rounding: more than an ulp in f64",
        (Suite("test_hashes.py", "log_softmax and f64"),),
    ),
    Mutant(
        "softmax: a guess that does not fit is kept",
        f"{OP}/cpu_softmax.py",
        "        if all_lanes(fits(guess, top) | ~there):\n            break\n",
        "        break\n",
        "sums overflow or vanish where rows differ much in size",
        (laws("softmax"), Suite("test_simplex.py", "many_short_rows and softmax")),
    ),
    Mutant(
        "sparsemax: the step before the last is the threshold",
        f"{OP}/cpu_threshold.py",
        "        return select(step > spread(last(p, grid), step), t + step, t), step",
        "        return select(step > 0.0625, t + step, t), step",
        "the search for the threshold ends early",
        (laws("sparsemax"),),
    ),
    Mutant(
        "sparsemax: too many candidates are dropped",
        f"{OP}/cpu_threshold.py",
        "                if counts[c] == IN_COLUMN:\n                    return False",
        "                if counts[c] == IN_COLUMN:\n                    continue",
        "limit: columns with a large support lose elements of it",
        (Suite("test_simplex.py", "support_is_everything"),),
    ),
    Mutant(
        "sparsemax: results are written before all of x is read",
        f"{OP}/cpu_sparse.py",
        "            each(nothing, (x, y), cells, n, 1, L)\n            for k in range(count):\n"
        "                write(y[0]",
        "            for k in range(count):\n                write(y[0]",
        "elements off the support stay unwritten",
        (laws("sparsemax"),),
    ),
    Mutant(
        "softmax backward: the lower piece of the mean is dropped",
        f"{OP}/cpu_backward.py",
        "    return dy - spread(cells[0], dy) - spread(cells[1], dy)",
        "    return dy - spread(cells[0], dy)",
        "wrong rounding of the mean that is taken off",
        (Suite("test_hashes.py", "softmax_backward and f32 and not log"),),
    ),
    Mutant(
        "sparsemax backward: dy is read off the support",
        f"{OP}/cpu_backward.py",
        "        return select(not_le(s, 0.0), s * take(at[0], left, 0.0, L), 0.0), s",
        "        return s * take(at[0], left, 0.0, L), s",
        "an infinite dy where y is 0 makes the row NaN",
        (Suite("test_simplex.py", "not_read_off"),),
    ),
    Mutant(
        "simplex backward: steps that are left out of the sums are those without zeros",
        f"{OP}/cpu_backward.py",
        "            if not is_void(y, (n - j,)):",
        "            if is_void(y, (n - j,)):",
        "long rows lose their support",
        (Suite("test_simplex.py", "beside_it and sparsemax and float32"),),
    ),
    Mutant(
        "log_softmax backward: exponentials above the limit",
        f"{OP}/cpu_backward.py",
        "    regular = in_range & (top > -INFINITY) & (top <= LARGE)",
        "    regular = in_range & (top > -INFINITY)",
        "limit too large: a saved y far above 0 overflows",
        (Suite("test_simplex.py", "far_above_zero"),),
    ),
    Mutant(
        "row panels: a panel that is not full",
        "cpu/row_panels.py",
        "            starts[r] = offset(w, tensor, min(first + r, rows - 1))",
        "            starts[r] = offset(w, tensor, first + r)",
        "limit too large: rows behind the last one are read and written",
        (Suite("test_simplex.py", "many_short_rows and sparsemax"), Fuzz("sparsemax")),
    ),
    Mutant(
        "row panels: strides along rows are not looked at",
        "cpu/row_panels.py",
        "        if apart == 1 and n >= B:",
        "        if n >= B:",
        "short strided rows are read as neighbours",
        (Suite("test_simplex.py", "many_short_rows and softmax"), Fuzz("softmax")),
    ),
    Mutant(
        "rows: streams over its own input",
        "cpu/rows.py",
        "        streaming = streaming and word(task, TENSORS + other) != word(task, TENSORS + tensors - 1)",
        "        streaming = streaming and word(task, TENSORS + other) != 0",
        "non-temporal stores where the output is an input",
        (laws("softmax"),),
        equivalent="A non-temporal store changes when memory is written, not what is written, and the "
        "thread that reads the input again sees its own stores.",
    ),
    Mutant(
        "row sums: columns in another order than rows",
        "cpu/row_sums.py",
        "                        found[first + k] = _joined(p, found[first + k], found[first + k + reach])",
        "                        found[first + k] = _joined(p, found[first + k + reach], found[first + k])",
        "bits depend on the layout",
        (laws("softmax", "f64"), Fuzz("softmax_backward")),
        equivalent="Addition commutes and so does its rounding error: the two-sum of (u, v) and of "
        "(v, u) have the same total and error, and the errors are added the same way.",
    ),
    Mutant(
        "simplex calculus: forward mode of log_softmax",
        f"{OP}/calculus.py",
        '    return _masked(xp, p, t["x"] - total(xp, p * t["x"], axis), axis)',
        '    return _masked(xp, p, t["x"] - p * total(xp, t["x"], axis), axis)',
        "the Jacobian is taken for symmetric",
        (Suite("test_torch_gradients.py", "log_softmax"),),
    ),
    Mutant(
        "simplex oracle: entries at the threshold are in the support",
        f"{OP}/oracle.py",
        "    support = p > 0",
        "    support = p >= 0",
        "the definition reads dy where y is 0",
        (Suite("test_oracles.py", "support"),),
    ),
)
