"""Instructions that move values between registers, memory and lanes of a warp."""

from __future__ import annotations

from numba.extending import register_jitable

from pullback.cpu.memory import as_f32_pointer, as_i64_pointer
from pullback.gpu.emulator import table as t
from pullback.gpu.emulator.memory import (
    READS,
    REPEATS,
    WRITES,
    count_sectors,
    fail,
    global_access,
    loaded,
    shared_access,
    stored,
)

_DOUBLES = 2  # the file of double words


@register_jitable
def width_of(kind):
    return 1 if kind <= t.S8 else 2 if kind <= t.S16 else 4 if kind <= t.S32 else 8


@register_jitable
def is_signed(kind):
    return kind == t.S8 or kind == t.S16 or kind == t.S32


@register_jitable
def element_bytes(kind):
    if kind == t.F16 or kind == t.BF16:
        return 2
    if kind == t.F32:
        return 4
    return width_of(kind) if kind <= t.S64 else 8


@register_jitable
def set_register(words, doubles, file, row, lane, value):
    if file == _DOUBLES:
        doubles[row * t.LANES + lane] = value
    else:
        words[row * t.LANES + lane] = value


@register_jitable
def get_register(words, doubles, file, row, lane):
    if file == _DOUBLES:
        return doubles[row * t.LANES + lane]
    return words[row * t.LANES + lane] + 0


@register_jitable
def base_address(words, doubles, code, lane):
    """Where an access of a lane begins."""
    if code[t.OP] == t.SHARED:
        return (words[code[t.A] * t.LANES + lane] & 0xFFFFFFFF) + code[t.FLAGS]
    return doubles[code[t.A] * t.LANES + lane] + code[t.FLAGS]


@register_jitable
def load(task, pc, code, words, doubles, bits):
    """False after a fault."""
    width, count, file = element_bytes(code[t.TYPE]), code[t.COUNT], code[t.FROM]
    nbytes, signed = width * count, is_signed(code[t.TYPE])
    addresses = as_i64_pointer(task[t.TEMPORARY] + 8 * t.LANES)
    for lane in range(t.LANES):
        if bits >> lane & 1:
            address = base_address(words, doubles, code, lane)
            if code[t.OP] == t.SHARED:
                host = shared_access(task, pc, lane, address, nbytes, READS)
                if host == 0:
                    return False
            else:
                if not global_access(task, pc, lane, address, nbytes, READS):
                    return False
                host = address
                addresses[lane] = address
            for part in range(count):
                value = loaded(host + part * width, width, signed)
                set_register(words, doubles, file, code[t.V + part], lane, value)
    if code[t.OP] == t.GLOBAL:
        count_sectors(task, addresses, bits, nbytes, False)
    return True


@register_jitable
def store(task, pc, code, words, doubles, bits):
    """False after a fault."""
    width, count, file = element_bytes(code[t.TYPE]), code[t.COUNT], code[t.FROM]
    nbytes = width * count
    addresses = as_i64_pointer(task[t.TEMPORARY] + 8 * t.LANES)
    for lane in range(t.LANES):
        if bits >> lane & 1:
            address = base_address(words, doubles, code, lane)
            host = address
            if code[t.OP] == t.SHARED:
                if address < 0 or address + nbytes > task[t.SHARED_BYTES]:
                    shared_access(task, pc, lane, address, nbytes, WRITES)
                    return False
                host = task[t.SHARED_AT] + address
            elif not global_access(task, pc, lane, address, nbytes, REPEATS):
                return False
            changes = False
            for part in range(count):
                value = get_register(words, doubles, file, code[t.V + part], lane)
                before = loaded(host + part * width, width, True)
                stored(host + part * width, width, value)
                changes = changes or loaded(host + part * width, width, True) != before
            access = WRITES if changes else REPEATS
            if code[t.OP] == t.SHARED:
                if shared_access(task, pc, lane, address, nbytes, access) == 0:
                    return False
            else:
                if changes and not global_access(task, pc, lane, address, nbytes, WRITES):
                    return False
                addresses[lane] = address
    if code[t.OP] == t.GLOBAL:
        count_sectors(task, addresses, bits, nbytes, True)
    return True


@register_jitable
def combined(op, kind, old, value, other):
    """What an atomic operation leaves in memory."""
    if op == t.ADD:
        return old + value
    if op == t.AND:
        return old & value
    if op == t.OR:
        return old | value
    if op == t.XOR:
        return old ^ value
    if op == t.EXCH:
        return value
    if op == t.CAS:
        return other if old == value else old
    # Numbers of 64 bits keep their order when the sign bit of unsigned ones is turned.
    flip = -(1 << 63) if kind == t.U64 else 0
    if op == t.MIN:
        return value if value ^ flip < old ^ flip else old
    return value if value ^ flip > old ^ flip else old


@register_jitable
def atomic(task, pc, code, words, doubles, bits):
    """Lane after lane. Atomic accesses do not race with each other, and with nothing else that is
    looked for here: whoever reads the result in the same launch has to wait in its own way."""
    kind, file = code[t.TYPE], code[t.FROM]
    width, signed = element_bytes(kind), is_signed(kind)
    scratch = task[t.TEMPORARY]
    for lane in range(t.LANES):
        if bits >> lane & 1:
            address = base_address(words, doubles, code, lane)
            if code[t.OP] == t.SHARED:
                host = shared_access(task, pc, lane, address, width, REPEATS)
                if host == 0:
                    return False
            else:
                if not global_access(task, pc, lane, address, width, REPEATS):
                    return False
                host = address
            old = loaded(host, width, signed)
            # As the type reads it: through memory, so that it is cut and extended like `old`.
            stored(scratch, width, get_register(words, doubles, file, code[t.B], lane))
            stored(scratch + 8, width, get_register(words, doubles, file, code[t.C], lane))
            if kind == t.F32:
                a, b = as_f32_pointer(host), as_f32_pointer(scratch)
                a[0] = a[0] + b[0]
            else:
                value, other = loaded(scratch, width, signed), loaded(scratch + 8, width, signed)
                stored(host, width, combined(code[t.COUNT], kind, old, value, other))
            set_register(words, doubles, file, code[t.DST], lane, old)
    return True


@register_jitable
def matrix(task, pc, code, words, bits):
    """ldmatrix and stmatrix: 8 x 8 halves, lane i of eight giving the address of row i."""
    loads = code[t.OP]
    for number in range(code[t.COUNT]):
        for lane in range(t.LANES):
            for half in range(2):
                line, column = lane >> 2, (lane & 3) * 2 + half
                if code[t.FLAGS] & t.TRANSPOSED:
                    line, column = column, line
                giver = 8 * number + line
                address = (words[code[t.A] * t.LANES + giver] & 0xFFFFFFFF) + code[t.C]
                address += 2 * column
                at = shared_access(task, pc, lane, address, 2, READS if loads else REPEATS)
                if at == 0:
                    return False
                place = code[t.V + number] * t.LANES + lane
                kept = words[place] & (0xFFFF << (16 - 16 * half))
                if loads:
                    words[place] = kept | loaded(at, 2, False) << 16 * half
                    continue
                before = loaded(at, 2, False)
                stored(at, 2, words[place] >> 16 * half)
                changes = loaded(at, 2, False) != before
                if changes and shared_access(task, pc, lane, address, 2, WRITES) == 0:
                    return False
    return True


@register_jitable
def shuffle(task, pc, code, words, predicates, bits, mask):
    """shfl.sync as the manual of PTX spells it out."""
    mode, base = code[t.OP], code[t.A] * t.LANES
    kept = as_i64_pointer(task[t.TEMPORARY])
    inside = 0
    for lane in range(t.LANES):
        if bits >> lane & 1:
            by = words[code[t.B] * t.LANES + lane] & 31
            clamp = words[code[t.C] * t.LANES + lane] + 0
            segment = clamp >> 8 & 31
            last = (lane & segment) | (clamp & 31 & ~segment)
            if mode == t.UP:
                other = lane - by
                found = other >= last
            else:
                if mode == t.DOWN:
                    other = lane + by
                elif mode == t.BFLY:
                    other = lane ^ by
                else:
                    other = (lane & segment) | (by & ~segment)
                found = other <= last
            if not found:
                other = lane
            if not mask >> other & 1:
                fail(task, t.INACTIVE_LANE, pc, lane, other, 0, 0)
                return False
            inside |= (1 if found else 0) << lane
            kept[lane] = words[base + other]
    for lane in range(t.LANES):
        if bits >> lane & 1:
            words[code[t.DST] * t.LANES + lane] = kept[lane]
    predicates[code[t.V]] = (predicates[code[t.V]] & ~bits) | inside
    return True


@register_jitable
def redux(code, words, reals, bits):
    """A reduction over the lanes that take part, for all of them."""
    op, kind, base = code[t.OP], code[t.TYPE], code[t.A] * t.LANES
    if kind == t.F32:
        _redux_reals(op, code, reals, bits)
        return
    first = True
    total = 0
    for lane in range(t.LANES):
        if bits >> lane & 1:
            value = words[base + lane] + 0
            if kind == t.U32:
                value &= 0xFFFFFFFF
            total = value if first else combined(op, t.S64, total, value, 0)
            first = False
    for lane in range(t.LANES):
        if bits >> lane & 1:
            words[code[t.DST] * t.LANES + lane] = total


@register_jitable
def _redux_reals(op, code, reals, bits):
    base, first, some_nan = code[t.A] * t.LANES, True, False
    total = reals[base]
    nan = total
    for lane in range(t.LANES):
        if bits >> lane & 1:
            value = reals[base + lane]
            if value != value:
                some_nan, nan = True, value
            elif first:
                total, first = value, False
            elif op == t.MIN:
                total = min(value, total)
            else:
                total = max(value, total)
    if first or (some_nan and code[t.FLAGS]):
        total = nan
    for lane in range(t.LANES):
        if bits >> lane & 1:
            reals[code[t.DST] * t.LANES + lane] = total


@register_jitable
def asynchronous(task, pc, code, words, doubles, bits, state):
    """cp.async. What is read is copied when it is waited for, not before: who does not wait, sees
    what was there."""
    queue = task[t.QUEUE] + task[t.WARP] * t.MOST_COPIES * t.COPY_WORDS * 8
    if code[t.OP] == t.COMMIT:
        state[t.COMMITTED] += 1
        return True
    if code[t.OP] == t.WAIT:
        return _wait(task, pc, queue, state, state[t.COMMITTED] - code[t.COUNT])
    addresses = as_i64_pointer(task[t.TEMPORARY] + 8 * t.LANES)
    for lane in range(t.LANES):
        if bits >> lane & 1:
            to = (words[code[t.A] * t.LANES + lane] & 0xFFFFFFFF) + code[t.FLAGS]
            source = doubles[code[t.B] * t.LANES + lane] + code[t.FROM]
            size = code[t.TYPE]
            read = min(words[code[t.C] * t.LANES + lane] & 0xFFFFFFFF, size)
            if read and not global_access(task, pc, lane, source, read, READS):
                return False
            if shared_access(task, pc, lane, to, size, WRITES) == 0:
                return False
            addresses[lane] = source
            if state[t.OPEN_COPIES] == t.MOST_COPIES:
                fail(task, t.TOO_MANY_COPIES, pc, lane, to, size, 0)
                return False
            copy = as_i64_pointer(queue + state[t.OPEN_COPIES] * t.COPY_WORDS * 8)
            copy[t.TO], copy[t.SOURCE], copy[t.SIZE] = to, source, size
            copy[t.READ], copy[t.GROUP] = read, state[t.COMMITTED]
            state[t.OPEN_COPIES] += 1
    count_sectors(task, addresses, bits, code[t.TYPE], False)
    return True


@register_jitable
def _wait(task, pc, queue, state, groups):
    """The copies of all groups before this number arrive."""
    left = 0
    for number in range(state[t.OPEN_COPIES]):
        copy = as_i64_pointer(queue + number * t.COPY_WORDS * 8)
        if copy[t.GROUP] < groups:
            for byte in range(copy[t.SIZE]):
                value = loaded(copy[t.SOURCE] + byte, 1, False) if byte < copy[t.READ] else 0
                stored(task[t.SHARED_AT] + copy[t.TO] + byte, 1, value)
        else:
            kept = as_i64_pointer(queue + left * t.COPY_WORDS * 8)
            for word in range(t.COPY_WORDS):
                kept[word] = copy[word]
            left += 1
    state[t.OPEN_COPIES] = left
    return True


@register_jitable
def parameter(task, code, words, doubles, bits):
    """ld.param: one word of eight bytes for each."""
    kind = code[t.TYPE]
    place = task[t.PARAMETERS] + 8 * code[t.A]
    value = loaded(place, element_bytes(kind), is_signed(kind))
    for lane in range(t.LANES):
        if bits >> lane & 1:
            set_register(words, doubles, code[t.FROM], code[t.V], lane, value)


@register_jitable
def repacked(code, words, doubles, bits):
    """mov between a register and the two halves of it."""
    halves = code[t.FROM] == t.U16
    shift = 16 if halves else 32
    for lane in range(t.LANES):
        if bits >> lane & 1:
            if code[t.UNIT] == t.UNPACK:
                file = 1 if halves else _DOUBLES
                whole = get_register(words, doubles, file, code[t.A], lane)
                for part in range(2):
                    words[code[t.V + part] * t.LANES + lane] = whole >> shift * part
            else:
                low = words[code[t.V] * t.LANES + lane] & ((1 << shift) - 1)
                high = words[code[t.V + 1] * t.LANES + lane] + 0
                file = 1 if halves else _DOUBLES
                set_register(words, doubles, file, code[t.DST], lane, low | high << shift)
