"""The gradients of entmax in Numba, for any alpha. With s = y^(1-b) = ∂p/∂w on the support:

    dx     = s·(dy - Σ s·dy / Σ s)
    dalpha = Σ dy·(a - s·Σ a / Σ s)    a = ∂p/∂b at fixed w = -p·w²·h(b·w)
                                       h(s) = (log(1+s) - s/(1+s)) / s²

dx follows from y alone; dalpha takes p, w and s from x, at its root. Off the support neither reads
dy: both go by lists of it (see cpu_rows).
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import numpy as np

from pullback.cpu.elementary import exp, log
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, real, word, words
from pullback.cpu.loops import extent, offset, step
from pullback.cpu.memory import as_f64_pointer, get, put
from pullback.cpu.program import TENSORS, WORKSPACE
from pullback.cpu.tiles import by_type, stack
from pullback.cpu.vector import (
    absolute,
    is_nan,
    like,
    minimum,
    reduce_add,
    reduce_max,
    select,
    splat,
    to_f64,
)
from pullback.ops.entmax.cpu_map import BACKWARD_SLOTS, HEADER, alpha_at, on_row, own_kernel
from pullback.ops.entmax.cpu_rows import (
    INFINITY,
    LANES,
    NAN,
    ROOM,
    SERIES,
    fetch,
    fill,
    is_double,
    listed_from,
    load,
    log_base,
    note,
    powers,
    root,
    scatter,
    store_one,
    survey,
    top_of,
)

WORDS = TENSORS + BACKWARD_SLOTS
WALK = WORDS + HEADER
SECOND, ROWS, ELEMENTS, THIRD = range(WORDS + 1, WORDS + 5)  # offsets of walks, and counts


# --- dx -----------------------------------------------------------------------------------------


@by_type
def _least(p):
    """The least positive number of the compute type."""
    least = 5e-324 if is_double(p) else np.float32(1e-45)
    return lambda p: least


@inlined
def _support(y, dy, n, begin, found, given, places):
    """List where y is positive, or NaN: y and dy there; LANES zeros follow."""
    count, end = note(y, n, begin, _least(y[0]), places)
    fetch(y, begin, places, count, found)
    fetch(dy, begin, places, count, given)
    put(found, count, 1, splat(0.0, LANES), False)
    put(given, count, 1, splat(0.0, LANES), False)
    return count, end


@inlined
def _largest_exponent(y, n, beta):
    """Of the weights of alpha > 2, which may be beyond all numbers: they are taken relative to it.
    Others are at most 1."""
    if beta <= 1.0:
        return 0.0
    least = splat(1.0, LANES)
    for j in range(0, n, LANES):
        v = to_f64(load(y, j, n - j, 0.0))
        least = minimum(select(v > 0, v, 1.0), least)
    return (1.0 - beta) * log(-reduce_max(-least))


@inlined
def _weights(y, beta, exponent):
    """s = y^(1-b) on the support relative to the exponent, 0 off it, NaN where y is."""
    support = y > 0
    s = exp((1.0 - beta) * log(select(support, y, 1.0)) - exponent)
    return select(support, s, y * 0.0)


@inlined
def _gradient(dy, y, dx, n, beta, found, given, places):
    zero, exponent = splat(0.0, LANES), _largest_exponent(y, n, beta)
    products, masses, begin, count, end = zero, zero, 0, 0, 0
    while begin < n:
        count, end = _support(y, dy, n, begin, found, given, places)
        for k in range(0, count, LANES):
            s = _weights(get(found, k, 1, LANES), beta, exponent)
            products = products + s * get(given, k, 1, LANES)
            masses = masses + s
            put(found, k, 1, s, False)
        if begin == 0 and end == n:
            break
        begin = end
    whole = begin == 0 and end == n
    mass = reduce_add(masses)
    mean = reduce_add(products) / (1.0 if mass == 0 else mass)
    nothing = NAN if mass != mass else 0.0
    begin = 0
    while begin < n:
        if not whole:
            count, end = _support(y, dy, n, begin, found, given, places)
            for k in range(0, count, LANES):
                s = _weights(get(found, k, 1, LANES), beta, exponent)
                put(found, k, 1, s, False)
        for k in range(0, count, LANES):
            v = get(found, k, 1, LANES) * (get(given, k, 1, LANES) - mean)
            if beta > 1.0:
                v = select(v == 0, 0.0, v * exp(like(v, exponent)))
            put(found, k, 1, select(is_nan(v), like(v, NAN), v), False)
        fill(dx, begin, end, nothing)
        scatter(dx, begin, places, count, found)
        begin = end


@kernel
def gradient_rows(task, lo, hi):
    w, beta = words(task, WALK), real(task, WORDS)
    found, given, places = stack(0.0, ROOM), stack(0.0, ROOM), stack(np.int32(0), ROOM)
    for row in range(lo, hi):
        dy, y, dx = (
            on_row(task, 0, w, 0, row),
            on_row(task, 1, w, 1, row),
            on_row(task, 4, w, 2, row),
        )
        _gradient(dy, y, dx, extent(w), beta, found, given, places)


@kernel
def gradient_each(task, lo, hi):
    """Rows that have each their own alpha: dy, y, alpha and dx in the walk."""
    w = words(task, WALK)
    found, given, places = stack(0.0, ROOM), stack(0.0, ROOM), stack(np.int32(0), ROOM)
    for row in range(lo, hi):
        beta = alpha_at(task, 2, w, 2, row) - 1.0
        if not own_kernel(beta):
            dy, y, dx = (
                on_row(task, 0, w, 0, row),
                on_row(task, 1, w, 1, row),
                on_row(task, 4, w, 3, row),
            )
            _gradient(dy, y, dx, extent(w), beta, found, given, places)


# --- dalpha -------------------------------------------------------------------------------------


@inlined
def _curve(s, log_u, u):
    """h(s) = (log(1+s) - s/(1+s)) / s², 1/2 at 0."""
    near = absolute(s) < SERIES
    series = like(s, 12.0 / 13.0)
    for k in range(10, -1, -1):
        series = (k + 1.0) / (k + 2.0) - s * series
    safe = select(near, 1.0, s)
    return select(near, series, (log_u - s / u) / (safe * safe))


@inlined
def _alpha_gradient(dy, x, n, beta, found, given, places):
    """Of one row."""
    tops, nan = survey(x, n)
    top = top_of(tops)
    if nan:
        return NAN
    if top == -INFINITY:
        return 0.0
    at, listed, cut = root(x, n, tops, top, beta, found, places)
    zero, begin = splat(0.0, LANES), 0
    bends, slopes, with_bends, with_slopes = zero, zero, zero, zero
    while begin < n:
        count, end = listed_from(x, n, begin, listed, cut, top, found, places)
        fetch(dy, begin, places, count, given)
        put(given, count, 1, zero, False)
        for k in range(0, count, LANES):
            z = get(found, k, 1, LANES)
            u, p, slope = powers(z, at, beta)
            support = p > 0
            z, g = select(support, z, 0.0), select(support, get(given, k, 1, LANES), 0.0)
            w = z - at[0]
            curve = _curve(beta * w, log_base(z, at, beta), u)
            a = select(support, -p * w * w * curve, 0.0)
            bends, slopes = bends + a, slopes + slope
            with_bends, with_slopes = with_bends + g * a, with_slopes + g * slope
        begin = end
    rate = reduce_add(bends) / reduce_add(slopes)
    return reduce_add(with_bends) - reduce_add(with_slopes) * rate


@kernel
def alpha_gradients(task, lo, hi):
    """The gradient of each row's alpha, to the workspace: dy, x and alpha in the second walk."""
    w, results = words(task, WORDS + word(task, SECOND)), as_f64_pointer(word(task, WORKSPACE))
    found, given, places = stack(0.0, ROOM), stack(0.0, ROOM), stack(np.int32(0), ROOM)
    for row in range(lo, hi):
        results[row] = 0.0
        if extent(w) > 0:  # of empty rows no tensor is read: an empty view has no memory
            beta = alpha_at(task, 2, w, 2, row) - 1.0
            dy, x = on_row(task, 0, w, 0, row), on_row(task, 3, w, 1, row)
            results[row] = _alpha_gradient(dy, x, extent(w), beta, found, given, places)


@kernel
def sum_gradients(task, lo, hi):
    """Rows that share an alpha, added up in order with their rounding errors. The last tensor of
    the walk counts the elements of alpha."""
    w = words(task, WORDS + word(task, SECOND))
    rows, many = word(task, ROWS), word(task, ELEMENTS)
    found, sums = as_f64_pointer(word(task, WORKSPACE)), word(task, WORKSPACE) + 8 * rows
    total, error = as_f64_pointer(sums), as_f64_pointer(sums + 8 * many)
    for k in range(many):
        total[k], error[k] = 0.0, 0.0
    for row in range(rows):
        k, term = offset(w, 3, row), found[row]
        whole = total[k] + term
        seen = whole - total[k]
        error[k] += (total[k] - (whole - seen)) + (term - seen)
        total[k] = whole
    out, at = pointer(task, TENSORS + 5), words(task, WORDS + word(task, THIRD))
    for outer in range(many // max(extent(at), 1)):
        for j in range(extent(at)):
            k = offset(at, 0, outer) + j * step(at, 0)
            value = total[k] + error[k] if total[k] - total[k] == 0.0 else total[k]
            store_one(out, offset(at, 1, outer) + j * step(at, 1), value)
