"""The gradients of entmax in Numba, for any alpha. With s = y^(1-b) = ∂p/∂w on the support:

    dx     = s·(dy - Σ s·dy / Σ s)
    dalpha = Σ dy·(a - s·Σ a / Σ s)    a = ∂p/∂b at fixed w = -p·w²·h(b·w)
                                       h(s) = (log(1+s) - s/(1+s)) / s²

dx follows from y alone; dalpha takes p, w and s from x, at its root. Off the support neither reads
dy.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from pullback.cpu.elementary import exp, log
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, real, word, words
from pullback.cpu.loops import extent, offset, step
from pullback.cpu.memory import as_f64_pointer
from pullback.cpu.program import TENSORS, WORKSPACE
from pullback.cpu.tiles import spread
from pullback.cpu.vector import absolute, any_lane, is_nan, lane, like, not_le, select, splat
from pullback.ops.entmax.cpu_map import BACKWARD_SLOTS, HEADER, alpha_at, own_kernel, strip
from pullback.ops.entmax.cpu_rows import (
    INFINITY,
    LANES,
    NAN,
    SERIES,
    add,
    clear,
    count_at,
    cursor,
    fold,
    load,
    log1p,
    partial,
    powers,
    relative,
    root,
    store,
    store_one,
    stride,
    top_of,
)

WORDS = TENSORS + BACKWARD_SLOTS
WALK = WORDS + HEADER
SECOND, ROWS, ELEMENTS, THIRD = range(WORDS + 2, WORDS + 6)  # offsets of walks, and counts


# --- dx -----------------------------------------------------------------------------------------


@inlined
def _weights(y, beta):
    """s = y^(1-b) on the support, 0 off it, NaN where y is."""
    support = y > 0
    s = exp((1.0 - spread(beta, y)) * log(select(support, y, 1.0)))
    return select(support, s, y * 0.0)


@inlined
def _gradient(dy, y, dx, n, width, beta, cells, L):
    products, masses = cells[0], cells[1]
    clear(products, L)
    clear(masses, L)
    for j in range(0, n, stride(L)):
        count = count_at(n, width, j, L)
        at = load(y, j, count, 0.0)
        if any_lane(not_le(at, 0.0)):
            s = _weights(at, beta)
            add(products, j, select(not_le(s, 0.0), s * load(dy, j, count, 0.0), 0.0), L)
            add(masses, j, s, L)
    mass = fold(masses, L)
    mean = fold(products, L) / select(mass == 0, 1.0, mass)
    for j in range(0, n, stride(L)):
        count = count_at(n, width, j, L)
        s = load(y, j, count, 0.0)
        if any_lane(not_le(s, 0.0)):
            s = _weights(s, beta)
        v = select(not_le(s, 0.0), s * (load(dy, j, count, 0.0) - spread(mean, s)), 0.0)
        spoiled = is_nan(v) | is_nan(spread(mass, v))
        store(dx, j, count, select(spoiled, like(v, NAN), v))


@inlined
def _gradient_all(task, lo, hi, L):
    w, n = words(task, WALK), extent(words(task, WALK))
    dy, y, dx = pointer(task, TENSORS), pointer(task, TENSORS + 1), pointer(task, TENSORS + 4)
    cells = partial(L), partial(L)
    beta = splat(real(task, WORDS + 1), L)
    for item in range(lo, hi):
        row, width = strip(word(task, WORDS), item, L)
        at_dy = cursor(dy, offset(w, 0, row), step(w, 0), L)
        at_y = cursor(y, offset(w, 1, row), step(w, 1), L)
        at_dx = cursor(dx, offset(w, 2, row), step(w, 2), L)
        _gradient(at_dy, at_y, at_dx, n, width, beta, cells, L)


@kernel
def gradient_rows(task, lo, hi):
    _gradient_all(task, lo, hi, 1)


@kernel
def gradient_columns(task, lo, hi):
    _gradient_all(task, lo, hi, LANES)


@kernel
def gradient_each(task, lo, hi):
    """Rows that have each their own alpha: dy, y, alpha and dx in the walk."""
    w, cells = words(task, WALK), (partial(1), partial(1))
    dy, y, dx = pointer(task, TENSORS), pointer(task, TENSORS + 1), pointer(task, TENSORS + 4)
    for row in range(lo, hi):
        beta = alpha_at(task, 2, w, 2, row) - 1.0
        if not own_kernel(beta):
            at_dy = cursor(dy, offset(w, 0, row), step(w, 0), 1)
            at_y = cursor(y, offset(w, 1, row), step(w, 1), 1)
            at_dx = cursor(dx, offset(w, 3, row), step(w, 3), 1)
            _gradient(at_dy, at_y, at_dx, extent(w), 1, splat(beta, 1), cells, 1)


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
def _alpha_gradient(dy, x, n, beta, cells):
    """Of one row."""
    top = top_of(x, n, 1, cells[3], 1)
    c = root(x, n, 1, top, beta, cells[:3], cells[3], 1)
    for k in range(4):
        clear(cells[k], 1)
    for j in range(0, n, LANES):
        v = load(x, j, n - j, -INFINITY)
        w = relative(v, top, c)
        u, p = powers(w, beta)
        support = p > 0
        b = spread(beta, w)
        w, g = select(support, w, 0.0), select(support, load(dy, j, n - j, 0.0), 0.0)
        a = select(support, -p * w * w * _curve(b * w, log1p(b * w), u), 0.0)
        slope = select(support, p / u, 0.0)
        add(cells[0], j, a, 1)
        add(cells[1], j, slope, 1)
        add(cells[2], j, g * a, 1)
        add(cells[3], j, g * slope, 1)
    rate = fold(cells[0], 1) / fold(cells[1], 1)
    found = fold(cells[2], 1) - fold(cells[3], 1) * rate
    found = select(is_nan(c), like(found, NAN), found)
    return lane(select(top == -INFINITY, 0.0, found), 0)


@kernel
def alpha_gradients(task, lo, hi):
    """The gradient of each row's alpha, to the workspace: dy, x and alpha in the second walk."""
    w = words(task, WORDS + word(task, SECOND))
    dy, x, found = pointer(task, TENSORS), pointer(task, TENSORS + 3), word(task, WORKSPACE)
    cells = partial(1), partial(1), partial(1), partial(1)
    for row in range(lo, hi):
        beta = splat(alpha_at(task, 2, w, 2, row) - 1.0, 1)
        at_dy = cursor(dy, offset(w, 0, row), step(w, 0), 1)
        at_x = cursor(x, offset(w, 1, row), step(w, 1), 1)
        as_f64_pointer(found)[row] = _alpha_gradient(at_dy, at_x, extent(w), beta, cells)


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
