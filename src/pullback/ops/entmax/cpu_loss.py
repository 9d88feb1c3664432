"""Fenchel-Young losses in Numba: Σ [t·(log_b t - w) - u·(t - p)] / alpha over a row, see cpu_rows.

No term is negative. A row whose target is the map itself, to the last places that its dtype tells
apart, has a loss of exactly 0. The gradient (p - t)·dy takes p as the forward wrote it.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from pullback.cpu.elementary import log
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import index_pointer, kernel, pointer, real, set_word, word, words
from pullback.cpu.loops import extent, offset, step
from pullback.cpu.memory import read, read_wide
from pullback.cpu.program import DETAIL, STATUS, TENSORS
from pullback.cpu.tiles import by_type, spread
from pullback.cpu.vector import (
    absolute,
    any_lane,
    iota,
    is_nan,
    lane,
    like,
    maximum,
    reduce_max,
    select,
    splat,
)
from pullback.ops.entmax.cpu_rows import (
    INFINITY,
    LANES,
    NAN,
    STORAGE_DIGITS,
    add,
    clear,
    cursor,
    expm1,
    fold,
    load,
    log_power,
    partial,
    powers,
    relative,
    root,
    store,
    store_one,
    top_of,
)

SLOTS = 5  # x, target, classes, loss, p; dy, target, classes, p, dx
WORDS = TENSORS + SLOTS
CLASSES, KEEP, WALK = WORDS, WORDS + 2, WORDS + 3  # and b between them
BAD_CLASS = 1


@by_type
def _digits(p):
    """The relative and absolute distance of numbers that the dtype hardly tells apart."""
    relative_, absolute_ = STORAGE_DIGITS[p.dtype]
    return lambda p: (2.0 * relative_, absolute_)


@inlined
def _target(task, at, w, row, j, n):
    """The lanes of the target at position j: a distribution, or 1 at a class."""
    if word(task, CLASSES) == 0:
        return load(at, j, n - j, 0.0)
    c = read_wide(index_pointer(task, TENSORS + 2), offset(w, 2, row))
    places = iota(splat(0.0, LANES)) + j * 1.0
    return select(places == c * 1.0, like(places, 1.0), 0.0)


@inlined
def _log_beta(t, beta):
    """(t^b - 1) / b, log t at b = 0."""
    b = spread(beta, t)
    logs = log(t)
    return select(b == 0, logs, expm1(b * logs) / b)


@inlined
def _loss(task, x, target, p_out, w, row, n, beta, cells):
    """The loss of one row; p goes to its place if it is asked for."""
    terms = cells[3]
    relative_, absolute_ = _digits(x[0])
    top = top_of(x, n, 1, cells[3], 1)
    c = root(x, n, 1, top, beta, cells[:3], cells[3], 1)
    clear(terms, 1)
    beyond = splat(-INFINITY, LANES)
    for j in range(0, n, LANES):
        v = load(x, j, n - j, -INFINITY)
        w_ = relative(v, top, c)
        u, p = powers(w_, beta)
        t = _target(task, target, w, row, j, n)
        short, term = t - p, select(p == 0, 0.0, u * p)
        positive = t > 0
        if any_lane(positive):
            # 1 - p of a class that has nearly all: from its logarithm, which keeps the digits
            short = select((t == 1) & (p > 0), -expm1(log_power(w_, beta)), short)
            distance = _log_beta(select(positive, t, 1.0), beta) - w_
            term = select(positive, t * distance - u * short, term)
        add(terms, j, maximum(term, select(is_nan(t), t, 0.0)), 1)
        beyond = maximum(absolute(short) - (maximum(t, p) * relative_ + absolute_), beyond)
        if word(task, KEEP) != 0:
            kept = select(spread(top, v) == -INFINITY, 0.0, p)
            store(p_out, j, n - j, select(is_nan(spread(c, v)), like(v, NAN), kept))
    total = lane(fold(terms, 1), 0) / (1.0 + lane(beta, 0))
    if reduce_max(beyond) <= 0.0:
        total = 0.0
    if lane(top, 0) == -INFINITY:
        total = 0.0
    return NAN if lane(is_nan(c), 0) else total


@kernel
def losses(task, lo, hi):
    w, n = words(task, WALK), extent(words(task, WALK))
    x, loss = pointer(task, TENSORS), pointer(task, TENSORS + 3)
    cells, beta = (partial(1), partial(1), partial(1), partial(1)), splat(real(task, WORDS + 1), 1)
    for row in range(lo, hi):
        at_x = cursor(x, offset(w, 0, row), step(w, 0), 1)
        at_t = cursor(pointer(task, TENSORS + 1), offset(w, 1, row), step(w, 1), 1)
        at_p = cursor(pointer(task, TENSORS + 4), offset(w, 4, row), step(w, 4), 1)
        value = _loss(task, at_x, at_t, at_p, w, row, n, beta, cells) if n > 0 else 0.0
        store_one(loss, offset(w, 3, row), value)


@kernel
def check_classes(task, lo, hi):
    """Find the first class that is none."""
    w = words(task, WALK)
    n, classes = extent(w), index_pointer(task, TENSORS + 2)
    for row in range(lo, hi):
        c = read_wide(classes, offset(w, 2, row))
        if c < 0 or c >= n:
            set_word(task, DETAIL, row)
            set_word(task, DETAIL + 1, c)
            set_word(task, STATUS, BAD_CLASS)
            return


@kernel
def loss_gradients(task, lo, hi):
    """dx = (p - t)·dy: dy, target, classes, p and dx in the walk. Without mass there is no dx."""
    w, n, mass = words(task, WALK), extent(words(task, WALK)), partial(1)
    for row in range(lo, hi):
        g = splat(read(pointer(task, TENSORS), offset(w, 0, row)) * 1.0, 1)
        at_t = cursor(pointer(task, TENSORS + 1), offset(w, 1, row), step(w, 1), 1)
        at_p = cursor(pointer(task, TENSORS + 3), offset(w, 3, row), step(w, 3), 1)
        at_dx = cursor(pointer(task, TENSORS + 4), offset(w, 4, row), step(w, 4), 1)
        clear(mass, 1)
        for j in range(0, n, LANES):
            add(mass, j, absolute(load(at_p, j, n - j, 0.0)), 1)
        there = fold(mass, 1)
        for j in range(0, n, LANES):
            p = load(at_p, j, n - j, 0.0)
            v = (p - _target(task, at_t, w, row, j, n)) * spread(g, p)
            v = select(is_nan(v), like(v, NAN), v)
            store(at_dx, j, n - j, select(spread(there, v) == 0, 0.0, v))
