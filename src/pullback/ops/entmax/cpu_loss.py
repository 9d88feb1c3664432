"""Fenchel-Young losses in Numba: Σ [t·(log_b t - w) - u·(t - p)] / alpha over a row, see cpu_rows.

No term is negative; a row whose target is the map itself, to the last places that its dtype tells
apart, has a loss of exactly 0. Where the target is a class, only the candidates for the support and
the class itself have terms; of softmax, the loss is log Σ e^(x - m) + m less x at the class. The
gradient (p - t)·dy takes p as the forward wrote it.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import numpy as np

from pullback.cpu.elementary import log
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, real, set_word, word, words
from pullback.cpu.loops import extent, offset
from pullback.cpu.memory import as_i32_pointer, as_i64_pointer, get, read, read_wide
from pullback.cpu.program import DETAIL, STATUS, TENSORS
from pullback.cpu.tiles import by_type, stack
from pullback.cpu.vector import (
    absolute,
    any_lane,
    iota,
    is_nan,
    lane,
    like,
    maximum,
    reduce_add,
    reduce_max,
    select,
    splat,
    to_f64,
)
from pullback.ops.entmax.cpu_map import on_row, write_map
from pullback.ops.entmax.cpu_rows import (
    INFINITY,
    LANES,
    NAN,
    ROOM,
    STORAGE_DIGITS,
    exact_exp_below,
    exp_below,
    expm1,
    fill,
    listed_from,
    load,
    log1p,
    log_power,
    powers,
    relative,
    root,
    store,
    store_one,
    survey,
    top_of,
)

SLOTS = 5  # x, target, classes, loss, p; dy, target, classes, p, dx
WORDS = TENSORS + SLOTS
# NARROW: whether classes are i32, so that one kernel serves both.
BETA, KEEP, NARROW, ORDERED, WALK = (WORDS + k for k in range(5))
BAD_CLASS = 1


@by_type
def _digits(p):
    """The relative and absolute distance of numbers that the dtype hardly tells apart."""
    relative_, absolute_ = STORAGE_DIGITS[p.dtype]
    return lambda p: (2.0 * relative_, absolute_)


@inlined
def class_at(task, i):
    if word(task, NARROW) != 0:
        return read_wide(as_i32_pointer(word(task, TENSORS + 2)), i)
    return as_i64_pointer(word(task, TENSORS + 2))[i]


@inlined
def class_of(task, w, row):
    return class_at(task, offset(w, 2, row))


@inlined
def element(at, j):
    p, start, along = at
    return read(p, start + j * along) * 1.0


@inlined
def _without_root(at, keep, n, nan):
    """The loss of a row with a NaN or without mass; p follows it."""
    value = NAN if nan else 0.0
    if keep:
        fill(at, 0, n, value)
    return value


# --- a class, softmax ---------------------------------------------------------------------------


@inlined
def _is_one_hot(x, n, own, top, rest):
    """Whether the map is 1 at `own`, and 0 elsewhere, as far as the dtype tells."""
    relative_, absolute_ = _digits(x[0])
    if rest > relative_ + absolute_ or rest > 2.0 * n * absolute_:
        return False
    most = splat(0.0, LANES)
    for j in range(0, n, LANES):
        e = to_f64(exp_below(load(x, j, n - j, -INFINITY), top))
        places = iota(most) + j * 1.0
        most = maximum(select(places == own * 1.0, 0.0, e), most)
    return reduce_max(most) * (1.0 - relative_) <= absolute_


@inlined
def _softmax_loss(x, p_out, keep, n, own):
    tops, nan = survey(x, n)
    top, peak = top_of(tops), reduce_max(tops)
    if nan or top == -INFINITY:
        return _without_root(p_out, keep, n, nan)
    sums, many = splat(0.0, LANES), like(tops, 0.0)
    for j in range(0, n, LANES):
        v = load(x, j, n - j, -INFINITY)
        highest = v == peak
        sums = sums + to_f64(select(highest, 0.0, exp_below(v, peak)))
        many = many + select(highest, like(v, 1.0), 0.0)
    # Without the maximum, so that a loss next to 0 keeps its digits.
    rest, at = reduce_add(sums) + (reduce_add(to_f64(many)) - 1.0), element(x, own)
    value = lane(log1p(splat(rest, 1)), 0) + (0.0 if at == top else top - at)
    if at == top and _is_one_hot(x, n, own, peak, rest):
        value = 0.0
    if keep:
        inverse = 1.0 / (1.0 + rest)
        for j in range(0, n, LANES):
            e = exact_exp_below(load(x, j, n - j, -INFINITY), peak)
            store(p_out, j, n - j, to_f64(e) * inverse)
    return value


@kernel
def softmax_class_losses(task, lo, hi):
    w, keep = words(task, WALK), word(task, KEEP) != 0
    for row in range(lo, hi):
        x, p = on_row(task, 0, w, 0, row), on_row(task, 4, w, 4, row)
        value = _softmax_loss(x, p, keep, extent(w), class_of(task, w, row))
        store_one(pointer(task, TENSORS + 3), offset(w, 3, row), value)


# --- a class, any other alpha -------------------------------------------------------------------


@inlined
def _class_term(own, at, beta):
    """The term of the class itself, and 1 - p: from its logarithm, which keeps the digits."""
    z = splat(own, 1)
    u, p, _ = powers(z, at, beta)
    short = select(p > 0, -expm1(log_power(z, at, beta)), 1.0)
    return lane((at[0] - z) - u * short, 0), lane(short, 0)


@inlined
def _class_loss(x, p_out, keep, n, own, beta, found, places):
    tops, nan = survey(x, n)
    top = top_of(tops)
    if nan or top == -INFINITY:
        return _without_root(p_out, keep, n, nan)
    at, listed, cut = root(x, n, tops, top, beta, found, places)
    relative_, absolute_ = _digits(x[0])
    score = element(x, own)
    term, short = _class_term(0.0 if score == top else score - top, at, beta)
    terms, most, begin = splat(0.0, LANES), splat(0.0, LANES), 0
    while begin < n:
        count, end = listed_from(x, n, begin, listed, cut, top, found, places)
        here = own - begin if begin <= own and own < end else -1
        for k in range(0, count, LANES):
            u, p, _ = powers(get(found, k, 1, LANES), at, beta)
            there = get(places, k, 1, LANES)
            p = select(there == like(there, here), 0.0, p)
            terms = terms + select(p > 0, u * p, 0.0)
            most = maximum(p, most)
        begin = end
    value = (reduce_add(terms) + max(term, 0.0)) / (1.0 + beta)
    if short <= relative_ + absolute_ and reduce_max(most) * (1.0 - relative_) <= absolute_:
        value = 0.0
    if keep:
        write_map(x, p_out, n, top, at, beta, listed, cut, found, places)
    return value


@kernel
def class_losses(task, lo, hi):
    w, keep, beta = words(task, WALK), word(task, KEEP) != 0, real(task, BETA)
    found, places = stack(0.0, ROOM), stack(np.int32(0), ROOM)
    for row in range(lo, hi):
        x, p = on_row(task, 0, w, 0, row), on_row(task, 4, w, 4, row)
        own = class_of(task, w, row)
        value = _class_loss(x, p, keep, extent(w), own, beta, found, places)
        store_one(pointer(task, TENSORS + 3), offset(w, 3, row), value)


@kernel
def check_classes(task, lo, hi):
    """Find the first class that is none, in the order of the tensor."""
    w, n = words(task, WORDS + word(task, ORDERED)), extent(words(task, WALK))
    for row in range(lo, hi):
        c = class_at(task, offset(w, 0, row))
        if c < 0 or c >= n:
            set_word(task, DETAIL, row)
            set_word(task, DETAIL + 1, c)
            set_word(task, STATUS, BAD_CLASS)
            return


# --- a distribution -----------------------------------------------------------------------------


@inlined
def _log_beta(t, beta):
    """(t^b - 1) / b, log t at b = 0."""
    logs = log(t)
    return logs if beta == 0.0 else expm1(beta * logs) * (1.0 / beta)


@inlined
def _loss(x, target, p_out, keep, n, beta, found, places):
    tops, nan = survey(x, n)
    top = top_of(tops)
    if nan:
        return _without_root(p_out, keep, n, nan)
    at, (relative_, absolute_) = (0.0, 1.0), _digits(x[0])
    if top > -INFINITY:
        at, _, _ = root(x, n, tops, top, beta, found, places)
    terms, beyond = splat(0.0, LANES), splat(-INFINITY, LANES)
    for j in range(0, n, LANES):
        z = relative(to_f64(load(x, j, n - j, -INFINITY)), top)
        t = to_f64(load(target, j, n - j, 0.0))
        u, p, _ = powers(z, at, beta)
        short, term = t - p, select(p == 0, 0.0, u * p)
        positive = t > 0
        if any_lane(positive):
            # 1 - p of a class that has nearly all: from its logarithm, which keeps the digits
            short = select((t == 1) & (p > 0), -expm1(log_power(z, at, beta)), short)
            distance = _log_beta(select(positive, t, 1.0), beta) - (z - at[0])
            term = select(positive, t * distance - u * short, term)
        terms = terms + maximum(term, select(is_nan(t), t, 0.0))
        beyond = maximum(absolute(short) - (maximum(t, p) * relative_ + absolute_), beyond)
        if keep:
            store(p_out, j, n - j, p if top > -INFINITY else like(p, 0.0))
    total = reduce_add(terms)
    if total == total and (top == -INFINITY or reduce_max(beyond) <= 0.0):
        return 0.0
    return total / (1.0 + beta)


@kernel
def losses(task, lo, hi):
    w, n, keep, beta = (
        words(task, WALK),
        extent(words(task, WALK)),
        word(task, KEEP) != 0,
        real(task, BETA),
    )
    found, places = stack(0.0, ROOM), stack(np.int32(0), ROOM)
    for row in range(lo, hi):
        x, t, p = (
            on_row(task, 0, w, 0, row),
            on_row(task, 1, w, 1, row),
            on_row(task, 4, w, 4, row),
        )
        value = 0.0
        if n > 0:
            value = _loss(x, t, p, keep, n, beta, found, places)
        store_one(pointer(task, TENSORS + 3), offset(w, 3, row), value)


# --- gradients ----------------------------------------------------------------------------------


@inlined
def _has_mass(p, n):
    """Whether any is not 0."""
    for j in range(0, n, LANES):
        v = load(p, j, n - j, 0.0)
        if any_lane((v != 0) | is_nan(v)):
            return True
    return False


@inlined
def _times(v, g):
    v = v * g
    return select(is_nan(v), like(v, NAN), v)


@kernel
def class_gradients(task, lo, hi):
    """dx = (p - 1 at the class)·dy: dy, classes, p and dx in the walk, see SLOTS."""
    w, n = words(task, WALK), extent(words(task, WALK))
    for row in range(lo, hi):
        g = read(pointer(task, TENSORS), offset(w, 0, row)) * 1.0
        p, dx = on_row(task, 3, w, 3, row), on_row(task, 4, w, 4, row)
        if _has_mass(p, n):
            own = class_of(task, w, row)
            at = lane(_times(splat(element(p, own) - 1.0, 1), g), 0)
            for j in range(0, n, LANES):
                store(dx, j, n - j, _times(to_f64(load(p, j, n - j, 0.0)), g))
            store_one(dx[0], dx[1] + own * dx[2], at)
        else:
            fill(dx, 0, n, 0.0)


@kernel
def loss_gradients(task, lo, hi):
    """dx = (p - t)·dy: dy, target, p and dx in the walk. Without mass there is no dx."""
    w, n = words(task, WALK), extent(words(task, WALK))
    for row in range(lo, hi):
        g = read(pointer(task, TENSORS), offset(w, 0, row)) * 1.0
        t, p, dx = (
            on_row(task, 1, w, 1, row),
            on_row(task, 3, w, 3, row),
            on_row(task, 4, w, 4, row),
        )
        if _has_mass(p, n):
            for j in range(0, n, LANES):
                v = to_f64(load(p, j, n - j, 0.0)) - to_f64(load(t, j, n - j, 0.0))
                store(dx, j, n - j, _times(v, g))
        else:
            fill(dx, 0, n, 0.0)
