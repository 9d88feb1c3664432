"""Loads and stores of a warp: bounds, alignment, races, sectors.

Every element of a buffer has a word for who wrote it last and one for who read it: the number of
barriers passed so far in the launch, and the warp. Two warps of a program race where both accesses
lie between the same two barriers; two programs of one launch race always. Programs run one after
another, so whatever is older than the first barrier of the program is another's. A store that
changes nothing races with no other access so far: in whichever order they happen, memory is the
same. It is noted as a load, since a store of something else would race with it.
"""

from __future__ import annotations

from numba.extending import register_jitable

from pullback.cpu.memory import (
    as_i16_pointer,
    as_i32_pointer,
    as_i64_pointer,
    as_u8_pointer,
)
from pullback.gpu.emulator import table as t

_SEVERAL = 255  # warps, in place of one
_OTHERS = 1 << 60  # programs before this one
_SECTOR = 5  # log2 of its bytes

READS, WRITES, REPEATS = range(3)  # what an access does: load, change, store what is there


@register_jitable
def fail(task, code, pc, lane, address, nbytes, other):
    task[t.FAULT], task[t.FAULT_PC], task[t.FAULT_LANE] = code, pc, lane
    task[t.FAULT_ADDRESS], task[t.FAULT_BYTES], task[t.FAULT_OTHER] = address, nbytes, other


@register_jitable
def loaded(address, nbytes, signed):
    """So many bytes as a number."""
    if nbytes == 8:
        return as_i64_pointer(address)[0]
    if nbytes == 4:
        word = as_i32_pointer(address)[0] + 0
        return word if signed else word & 0xFFFFFFFF
    if nbytes == 2:
        short = as_i16_pointer(address)[0] + 0
        return short if signed else short & 0xFFFF
    byte = as_u8_pointer(address)[0] + 0
    return byte - ((byte & 0x80) << 1) if signed else byte


@register_jitable
def stored(address, nbytes, value):
    if nbytes == 8:
        as_i64_pointer(address)[0] = value
    elif nbytes == 4:
        as_i32_pointer(address)[0] = value
    elif nbytes == 2:
        as_i16_pointer(address)[0] = value
    else:
        as_u8_pointer(address)[0] = value


# --- races --------------------------------------------------------------------------------------


@register_jitable
def _conflicts(task, seen, several_programs):
    """Whether an access that left this mark may happen at the same time as one made now."""
    if seen == 0:
        return False
    epoch = (seen & (_OTHERS - 1)) >> 8
    if epoch < task[t.CTA_EPOCH]:
        return several_programs
    if several_programs and seen & _OTHERS:
        return True
    return epoch == task[t.EPOCH] and (seen & 255) != task[t.WARP]


@register_jitable
def _note_read(task, readers, writers, at, several_programs, access):
    """True where the read races with a write."""
    if access == READS and _conflicts(task, writers[at], several_programs):
        return True
    mark = task[t.EPOCH] << 8 | task[t.WARP]
    seen = readers[at]
    if seen != mark:
        if seen == 0:
            readers[at] = mark
        elif (seen & (_OTHERS - 1)) >> 8 < task[t.CTA_EPOCH]:
            readers[at] = mark | _OTHERS
        elif (seen & (_OTHERS - 1)) >> 8 == task[t.EPOCH] and (seen & 255) != task[t.WARP]:
            readers[at] = seen | _SEVERAL
        else:
            readers[at] = mark | (seen & _OTHERS)
    return False


@register_jitable
def _note_write(task, readers, writers, at, several_programs):
    """True where the write races with another access."""
    if _conflicts(task, writers[at], several_programs):
        return True
    if _conflicts(task, readers[at], several_programs):
        return True
    writers[at] = task[t.EPOCH] << 8 | task[t.WARP]
    return False


# --- shared memory ------------------------------------------------------------------------------


@register_jitable
def shared_access(task, pc, lane, address, nbytes, access):
    """The host's address of an access to shared memory; 0 after a fault."""
    if address < 0 or address + nbytes > task[t.SHARED_BYTES]:
        fail(task, t.SHARED_OUTSIDE, pc, lane, address, nbytes, task[t.SHARED_BYTES])
        return 0
    if address & (nbytes - 1):
        fail(task, t.MISALIGNED, pc, lane, address, nbytes, 0)
        return 0
    shift = task[t.SHARED_SHIFT]
    readers = as_i64_pointer(task[t.SHARED_READERS])
    writers = as_i64_pointer(task[t.SHARED_WRITERS])
    for at in range(address >> shift, (address + nbytes - 1 >> shift) + 1):
        if access == WRITES:
            if _note_write(task, readers, writers, at, False):
                seen = writers[at]
                fail(task, t.SHARED_WRITE_RACE, pc, lane, address, nbytes, seen & 255)
                return 0
        elif _note_read(task, readers, writers, at, False, access):
            fail(task, t.SHARED_READ_RACE, pc, lane, address, nbytes, writers[at] & 255)
            return 0
    return task[t.SHARED_AT] + address


# --- global memory ------------------------------------------------------------------------------


@register_jitable
def buffer_of(task, address, nbytes):
    """The buffer that holds an access, or None as 0."""
    buffer = as_i64_pointer(task[t.LAST_BUFFER])
    if buffer[t.LOW] <= address and address + nbytes <= buffer[t.HIGH]:
        return task[t.LAST_BUFFER]
    for number in range(task[t.BUFFER_COUNT]):
        place = task[t.BUFFERS] + number * t.BUFFER_WORDS * 8
        buffer = as_i64_pointer(place)
        if buffer[t.LOW] <= address and address + nbytes <= buffer[t.HIGH]:
            task[t.LAST_BUFFER] = place
            return place
    return 0


@register_jitable
def global_access(task, pc, lane, address, nbytes, access):
    """Whether an access is allowed; notes it."""
    place = buffer_of(task, address, nbytes)
    if place == 0:
        code = t.READS_OUTSIDE if access == READS else t.WRITES_OUTSIDE
        fail(task, code, pc, lane, address, nbytes, 0)
        return False
    if address & (nbytes - 1):
        fail(task, t.MISALIGNED, pc, lane, address, nbytes, 0)
        return False
    buffer = as_i64_pointer(place)
    if access != READS and buffer[t.WRITABLE] == 0:
        fail(task, t.READ_ONLY, pc, lane, address, nbytes, 0)
        return False
    if buffer[t.READERS] == 0:  # a thread's own
        return True
    readers, writers = as_i64_pointer(buffer[t.READERS]), as_i64_pointer(buffer[t.WRITERS])
    start, shift = address - buffer[t.LOW], buffer[t.SHIFT]
    for at in range(start >> shift, (start + nbytes - 1 >> shift) + 1):
        if access == WRITES:
            if _note_write(task, readers, writers, at, True):
                fail(task, t.GLOBAL_WRITE_RACE, pc, lane, address, nbytes, writers[at])
                return False
        elif _note_read(task, readers, writers, at, True, access):
            fail(task, t.GLOBAL_READ_RACE, pc, lane, address, nbytes, writers[at])
            return False
    return True


@register_jitable
def count_sectors(task, addresses, bits, nbytes, writes):
    """Bytes that a warp asks for, the sectors they lie in, and those met for the first time."""
    seen = as_i64_pointer(task[t.TEMPORARY])
    found = 0
    asked = 0
    for lane in range(t.LANES):
        if bits >> lane & 1:
            asked += nbytes
            sector = addresses[lane] >> _SECTOR
            known = found > 0 and seen[found - 1] == sector
            if not known:
                for other in range(found):
                    known = known or seen[other] == sector
            if not known:
                seen[found] = sector
                found += 1
    fresh = 0
    for number in range(found):
        address = seen[number] << _SECTOR
        buffer = as_i64_pointer(_buffer_near(task, address))
        at = seen[number] - (buffer[t.LOW] >> _SECTOR)
        marks = as_u8_pointer(buffer[t.SECTORS])
        mark = marks[at] + 0
        if writes:
            fresh += 1 if mark & 2 == 0 else 0
            marks[at] = mark | 2
        else:
            fresh += 1 if mark == 0 else 0
            marks[at] = mark | 1
    if writes:
        task[t.WRITTEN_BYTES] += asked
        task[t.WRITTEN_SECTORS] += found
        task[t.WRITTEN_DISTINCT] += fresh
    else:
        task[t.READ_BYTES] += asked
        task[t.READ_SECTORS] += found
        task[t.READ_DISTINCT] += fresh


@register_jitable
def _buffer_near(task, address):
    """A buffer that has bytes in the sector at an address. One is there: accesses were checked."""
    for number in range(task[t.BUFFER_COUNT]):
        place = task[t.BUFFERS] + number * t.BUFFER_WORDS * 8
        buffer = as_i64_pointer(place)
        if buffer[t.READERS] and buffer[t.LOW] < address + 32 and address < buffer[t.HIGH]:
            return place
    return task[t.BUFFERS]
