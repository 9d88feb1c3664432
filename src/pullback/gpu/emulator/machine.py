"""The machine: programs one after another, the warps of each in turn from barrier to barrier.

The lanes of a warp run in lock step. Where they part, those furthest behind run first, until they
meet the others again. Code that few lanes need may stand at the end, from where it jumps back:
where a warp does something together, lanes wait for those that are still on their way.
"""

from __future__ import annotations

from numba import types
from numba.extending import register_jitable

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import native
from pullback.cpu.memory import (
    advance,
    as_f32_pointer,
    as_f64_pointer,
    as_i32_pointer,
    as_i64_pointer,
)
from pullback.gpu.emulator import table as t
from pullback.gpu.emulator import units
from pullback.gpu.emulator.memory import fail
from pullback.gpu.emulator.transfers import (
    asynchronous,
    atomic,
    load,
    matrix,
    parameter,
    redux,
    repacked,
    shuffle,
    store,
)
from pullback.gpu.emulator.vectors import ones

_INT = types.int64
_NOWHERE = 1 << 40
_float32, _float64, _float32x2, _half = units.float32, units.float64, units.float32x2, units.half
_int32, _int64, _wide, _setp, _selp = units.int32, units.int64, units.wide, units.setp, units.selp
_mov, _cvt_to_float, _cvt_to_int = units.mov, units.cvt_to_float, units.cvt_to_int
_predicate, _vote = units.predicate, units.vote


@register_jitable
def _furthest_behind(state, places):
    """Where the lanes that are furthest behind stand, which ones they are, and where the next. If
    all wait, they wait no longer."""
    if state[t.ALIVE] & ~state[t.PARKED] == 0:
        state[t.PARKED] = 0
    here, after, mask = _NOWHERE, _NOWHERE, 0
    for lane in range(t.LANES):
        if (state[t.ALIVE] & ~state[t.PARKED]) >> lane & 1:
            place = places[lane]
            if place < here:
                here, after, mask = place, here, 1 << lane
            elif place == here:
                mask |= 1 << lane
            elif place < after:
                after = place
    return here, mask, after


@register_jitable
def _place(places, bits, pc):
    for lane in range(t.LANES):
        if bits >> lane & 1:
            places[lane] = pc


@inlined
def _compute(code, words, doubles, reals, long_reals, pairs, predicates, bits):
    """Instructions that stay within registers of their lanes."""
    unit = code[t.UNIT]
    if unit == t.FLOAT32:
        _float32(code, words, reals, bits)
    elif unit == t.FLOAT64:
        _float64(code, long_reals, bits)
    elif unit == t.INT32:
        _int32(code, words, bits)
    elif unit == t.INT64:
        _int64(code, words, doubles, bits)
    elif unit == t.WIDE:
        _wide(code, words, doubles, bits)
    elif unit == t.SETP:
        _setp(code, words, doubles, reals, long_reals, predicates, bits)
    elif unit == t.SELP:
        _selp(code, words, doubles, predicates, bits)
    elif unit == t.MOV:
        _mov(code, words, doubles, bits)
    elif unit == t.CVT:
        if (
            code[t.TYPE] == t.F64
            or code[t.TYPE] == t.F32
            or code[t.TYPE] == t.F16
            or code[t.TYPE] == t.BF16
        ):
            _cvt_to_float(code, words, doubles, reals, long_reals, bits)
        else:
            _cvt_to_int(code, words, doubles, reals, long_reals, bits)
    elif unit == t.PREDICATE:
        _predicate(code, predicates, bits)
    elif unit == t.FLOAT32X2:
        _float32x2(code, pairs, bits)
    elif unit == t.HALF:
        _half(code, words, bits)


@inlined
def _transfer(task, pc, code, words, doubles, reals, predicates, bits, mask, state):
    """Instructions that reach beyond their lane; False after a fault."""
    unit = code[t.UNIT]
    fine = True
    if unit == t.LOAD:
        fine = load(task, pc, code, words, doubles, bits)
    elif unit == t.STORE:
        fine = store(task, pc, code, words, doubles, bits)
    elif unit == t.PARAM:
        parameter(task, code, words, doubles, bits)
    elif unit == t.UNPACK or unit == t.PACK:
        repacked(code, words, doubles, bits)
    elif unit == t.SHUFFLE:
        fine = shuffle(task, pc, code, words, predicates, bits, mask)
    elif unit == t.REDUX:
        redux(code, words, reals, bits)
    elif unit == t.VOTE:
        _vote(code, words, predicates, bits)
    elif unit == t.MATRIX:
        fine = matrix(task, pc, code, words, bits)
    elif unit == t.ATOM:
        fine = atomic(task, pc, code, words, doubles, bits)
    elif unit == t.ASYNC:
        fine = asynchronous(task, pc, code, words, doubles, bits, state)
    elif unit == t.TRAP:
        fail(task, t.TRAPPED, pc, 0, 0, 0, 0)
        fine = False
    return fine


@inlined
def _is_common(unit):
    """Whether the lanes of a warp do it together."""
    return t.SHUFFLE <= unit <= t.BARRIER


@inlined
def unit_at(table, pc):
    return table[pc * t.COLUMNS + t.UNIT]


@inlined
def _run_warp(task, warp, state):
    """Until the warp waits, ends or fails; False after a fault."""
    task[t.WARP] = warp
    table = as_i32_pointer(task[t.CODE])
    predicates = as_i64_pointer(task[t.PREDICATES] + warp * task[t.PREDICATE_ROWS] * 8)
    at = task[t.WORDS] + warp * task[t.WORD_ROWS] * t.LANES * 4
    words, reals = as_i32_pointer(at), as_f32_pointer(at)
    at = task[t.DOUBLES] + warp * task[t.DOUBLE_ROWS] * t.LANES * 8
    doubles, long_reals, pairs = as_i64_pointer(at), as_f64_pointer(at), as_f32_pointer(at)
    counts, places = as_i64_pointer(task[t.COUNTS]), advance(state, t.PLACES)
    pc, mask, after = _furthest_behind(state, places)
    while True:
        if pc >= after:
            _place(places, mask, pc)
            pc, mask, after = _furthest_behind(state, places)
        code = advance(table, pc * t.COLUMNS)
        bits = mask
        if code[t.GUARD] >= 0:
            bits &= predicates[code[t.GUARD]] ^ (code[t.FLIP] & t.FULL)
        if mask != state[t.ALIVE] and _is_common(code[t.UNIT]):
            state[t.PARKED] |= mask
            _place(places, mask, pc)
            met = state[t.PARKED] == state[t.ALIVE]
            pc, mask, after = _furthest_behind(state, places)
            if met and mask != state[t.ALIVE]:
                fault = t.DIVERGENT_BARRIER if unit_at(table, pc) == t.BARRIER else t.INACTIVE_LANE
                fail(task, fault, pc, 0, 0, 0, mask)
                return False
            continue
        counts[code[t.KIND]] += ones(bits)
        task[t.EXECUTED] += 1
        unit = code[t.UNIT]
        if unit == t.BRANCH:
            if bits == mask:
                pc = code[t.A]
            elif bits == 0:
                pc += 1
            else:
                _place(places, bits, code[t.A])
                _place(places, mask & ~bits, pc + 1)
                pc, mask, after = _furthest_behind(state, places)
            if task[t.EXECUTED] > task[t.LIMIT]:
                fail(task, t.ENDLESS, pc, 0, 0, 0, task[t.EXECUTED])
                return False
            continue
        if unit == t.EXIT:
            state[t.ALIVE] &= ~bits
            _place(places, mask & ~bits, pc + 1)
            if state[t.ALIVE] == 0:
                state[t.STATUS] = t.ENDED
                return True
            pc, mask, after = _furthest_behind(state, places)
            continue
        if unit == t.BARRIER:
            _place(places, mask, pc + 1)
            state[t.STATUS] = t.WAITING
            return True
        if bits != 0:
            if (unit <= t.CVT and unit != t.UNPACK and unit != t.PACK) or unit == t.PREDICATE:
                _compute(code, words, doubles, reals, long_reals, pairs, predicates, bits)
            elif not _transfer(
                task, pc, code, words, doubles, reals, predicates, bits, mask, state
            ):
                return False
        pc += 1


@register_jitable
def _state(task, warp):
    return as_i64_pointer(task[t.STATES] + warp * t.STATE_WORDS * 8)


@register_jitable
def _begin(task, cta):
    """A program, its threads at the first instruction."""
    task[t.EPOCH] += 1
    task[t.CTA_EPOCH] = task[t.EPOCH]
    for warp in range(task[t.WARPS]):
        state = _state(task, warp)
        state[t.ALIVE], state[t.STATUS], state[t.PARKED] = t.FULL, t.READY, 0
        state[t.OPEN_COPIES], state[t.COMMITTED] = 0, 0
        _place(advance(state, t.PLACES), t.FULL, 0)
        words = as_i32_pointer(task[t.WORDS] + warp * task[t.WORD_ROWS] * t.LANES * 4)
        for lane in range(t.LANES):
            words[task[t.CTA_ROW] * t.LANES + lane] = cta


@native(_INT(_INT))
def launch(address):
    """All programs of a launch; what went wrong, 0 for nothing."""
    task = as_i64_pointer(address)
    for cta in range(task[t.FIRST], task[t.GRID]):
        task[t.FAULT_CTA] = cta
        _begin(task, cta)
        running = True
        while running:
            running = False
            # The warps in turn: from either end, by whether the number of barriers is even.
            for number in range(task[t.WARPS]):
                warp = number if task[t.EPOCH] & 1 else task[t.WARPS] - 1 - number
                state = _state(task, warp)
                if state[t.STATUS] == t.READY:
                    task[t.FAULT_WARP] = warp
                    if not _run_warp(task, warp, state):
                        return task[t.FAULT]
            for warp in range(task[t.WARPS]):
                state = _state(task, warp)
                if state[t.STATUS] == t.WAITING:
                    state[t.STATUS] = t.READY
                    running = True
            task[t.EPOCH] += 1
    return 0
