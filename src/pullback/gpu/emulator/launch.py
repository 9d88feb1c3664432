"""The host's side: memory in, counts out, faults raised."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pullback.gpu.emulator import table as t
from pullback.gpu.emulator.decode import DOUBLES, PREDICATES, WORDS, Code
from pullback.gpu.emulator.machine import launch as native_launch

_UNRESERVED = 0x4000  # MAP_NORESERVE: a name that Python has on some versions only
LIMIT = 1 << 31  # instructions of a warp in one launch


class KernelFault(RuntimeError):
    """Compiled code did what no GPU would do right: out of bounds, misaligned, a race."""


@dataclass(frozen=True, slots=True)
class Span:
    """Memory that a launch may touch: `itemsize` is the least that is stored there at once."""

    address: int
    nbytes: int
    itemsize: int
    writable: bool = True


@dataclass(slots=True)
class Counts:
    """What launches did. Sectors are of 32 bytes: `sectors` as warps ask for them, `distinct` each
    once in a launch, which is what comes from DRAM if a launch finds nothing in the cache and loses
    nothing from it. Instructions are counted by threads that execute them."""

    launches: int = 0
    programs: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    read_sectors: int = 0
    written_sectors: int = 0
    read_distinct: int = 0
    written_distinct: int = 0
    instructions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(t.KINDS, 0))

    @property
    def dram_bytes(self) -> int:
        return 32 * (self.read_distinct + self.written_distinct)

    @property
    def sector_bytes(self) -> int:
        return 32 * (self.read_sectors + self.written_sectors)

    def add(self, other: Counts) -> None:
        for name in self.__slots__:
            if name == "instructions":
                for kind, count in other.instructions.items():
                    self.instructions[kind] += count
            else:
                setattr(self, name, getattr(self, name) + getattr(other, name))


_WORDS_OF = {
    "read_bytes": t.READ_BYTES,
    "written_bytes": t.WRITTEN_BYTES,
    "read_sectors": t.READ_SECTORS,
    "written_sectors": t.WRITTEN_SECTORS,
    "read_distinct": t.READ_DISTINCT,
    "written_distinct": t.WRITTEN_DISTINCT,
}


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Spans that overlap, as one: tensors that are updated in place."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda s: s.address):
        if not span.nbytes:
            continue
        last = found[-1] if found else None
        if last and span.address < last.address + last.nbytes:
            end = max(last.address + last.nbytes, span.address + span.nbytes)
            found[-1] = Span(
                last.address,
                end - last.address,
                min(last.itemsize, span.itemsize),
                last.writable or span.writable,
            )
        else:
            found.append(span)
    return found


class _Marks:
    """Zeros that take memory only where they are touched."""

    def __init__(self, nbytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _UNRESERVED
        self.array = np.frombuffer(mmap.mmap(-1, max(nbytes, 1), flags=flags), np.uint8)
        self.address = int(self.array.ctypes.data)


def execute(
    code: Code, grid: int, parameters: Any, spans: Sequence[Span], shared: int, limit: int = LIMIT
) -> Counts:
    """Run a launch; `parameters` are eight bytes each, in order."""
    machine = _Machine(code, grid, np.ascontiguousarray(parameters, np.uint64), shared, limit)
    machine.give(_merged(spans))
    return machine.run()


class _Machine:
    def __init__(self, code: Code, grid: int, parameters: Any, shared: int, limit: int) -> None:
        self.code, self.task = code, np.zeros(t.TASK_WORDS, np.int64)
        self.kept: list[Any] = [parameters]
        warps = code.kernel.threads // t.LANES
        task, rows = self.task, code.rows
        task[t.CODE], task[t.LENGTH] = code.table.ctypes.data, len(code.table)
        task[t.GRID], task[t.WARPS], task[t.LIMIT] = grid, warps, limit
        task[t.PARAMETERS] = parameters.ctypes.data
        task[t.PREDICATE_ROWS], task[t.WORD_ROWS], task[t.DOUBLE_ROWS] = (max(n, 1) for n in rows)
        self.predicates = self._take((warps, max(rows[PREDICATES], 1)), np.int64, t.PREDICATES)
        self.words = self._take((warps, max(rows[WORDS], 1), t.LANES), np.uint32, t.WORDS)
        self.doubles = self._take((warps, max(rows[DOUBLES], 1), t.LANES), np.uint64, t.DOUBLES)
        self._fill(grid, warps)
        task[t.CTA_ROW] = code.special["%ctaid.x"]
        task[t.SHARED_BYTES], task[t.SHARED_SHIFT] = shared, code.shared_shift
        self._take((shared + 16,), np.uint8, t.SHARED_AT)
        self._take(((shared >> code.shared_shift) + 1,), np.int64, t.SHARED_READERS)
        self._take(((shared >> code.shared_shift) + 1,), np.int64, t.SHARED_WRITERS)
        self.counts = self._take((len(t.KINDS),), np.int64, t.COUNTS)
        self._take((warps, t.STATE_WORDS), np.int64, t.STATES)
        self._take((4 * t.LANES,), np.int64, t.TEMPORARY)
        copies = warps * t.MOST_COPIES * t.COPY_WORDS
        self._take((copies if self._copies() else 1,), np.int64, t.QUEUE)

    def _copies(self) -> bool:
        return bool((self.code.table[:, t.UNIT] == t.ASYNC).any())

    def _take(self, shape: tuple[int, ...], dtype: Any, word: int) -> Any:
        array = np.zeros(shape, dtype)
        self.kept.append(array)
        self.task[word] = array.ctypes.data
        return array

    def _fill(self, grid: int, warps: int) -> None:
        special = self.code.special
        threads = np.arange(warps * t.LANES, dtype=np.uint32).reshape(warps, t.LANES)
        self.words[:, special["%tid.x"]] = threads
        self.words[:, special["%laneid"]] = threads % t.LANES
        self.words[:, special["%warpid"]] = threads // t.LANES
        self.words[:, special["%nctaid.x"]] = grid
        self.words[:, special["%ntid.x"]] = warps * t.LANES
        files = {PREDICATES: self.predicates, WORDS: self.words, DOUBLES: self.doubles}
        for file, row, bits in self.code.constants:
            files[file][:, row] = bits

    def give(self, spans: Sequence[Span]) -> None:
        stacks = self._stacks()
        count = len(spans) + len(stacks)
        buffers = self._take((max(count, 1), t.BUFFER_WORDS), np.int64, t.BUFFERS)
        for buffer, stack in zip(buffers[len(spans) :], stacks, strict=False):
            low = stack.ctypes.data
            buffer[t.LOW], buffer[t.HIGH], buffer[t.WRITABLE] = low, low + stack.nbytes, 1
        for buffer, span in zip(buffers, spans, strict=False):
            shift = span.itemsize.bit_length() - 1
            marks = [_Marks(8 * ((span.nbytes >> shift) + 1)) for _ in range(2)]
            sectors = _Marks((span.nbytes >> 5) + 2)
            self.kept += [*marks, sectors]
            buffer[t.LOW], buffer[t.HIGH] = span.address, span.address + span.nbytes
            buffer[t.WRITABLE], buffer[t.SHIFT] = span.writable, shift
            buffer[t.READERS], buffer[t.WRITERS] = (mark.address for mark in marks)
            buffer[t.SECTORS] = sectors.address
        self.task[t.BUFFER_COUNT] = count
        self.task[t.LAST_BUFFER] = self.task[t.BUFFERS]

    def _stacks(self) -> list[Any]:
        """The memory of single threads, if there is any."""
        nbytes = -(-self.code.kernel.local[1] // 16) * 16
        if not nbytes:
            return []
        threads = self.code.kernel.threads
        stack = np.zeros(threads * nbytes + 16, np.uint8)
        self.kept.append(stack)
        low = -(-stack.ctypes.data // 16) * 16
        places = low + nbytes * np.arange(threads, dtype=np.uint64)
        self.doubles[:, self.code.local_row] = places.reshape(-1, t.LANES)
        return [stack]

    def run(self) -> Counts:
        call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(native_launch())
        if call(self.task.ctypes.data):
            raise KernelFault(self._sentence())
        counted = {name: int(self.task[word]) for name, word in _WORDS_OF.items()}
        kinds = dict(zip(t.KINDS, map(int, self.counts), strict=True))
        return Counts(1, int(self.task[t.GRID]), **counted, instructions=kinds)

    def _sentence(self) -> str:
        task = self.task
        statement = self.code.kernel.statements[int(task[t.FAULT_PC])]
        said = t.FAULTS[int(task[t.FAULT])]
        thread = int(task[t.FAULT_WARP]) * t.LANES + int(task[t.FAULT_LANE])
        return (
            f"{self.code.kernel.name} {said}: {statement.line}, `{statement.text}`, program "
            f"{int(task[t.FAULT_CTA])}, thread {thread}, address {self._place()}"
        )

    def _place(self) -> str:
        """An address as an offset from the nearest buffer."""
        address, nbytes = int(self.task[t.FAULT_ADDRESS]), int(self.task[t.FAULT_BYTES])
        buffers = self.kept_buffers()
        if int(self.task[t.FAULT]) in (t.SHARED_OUTSIDE, t.SHARED_READ_RACE, t.SHARED_WRITE_RACE):
            return f"{address} of shared memory, {nbytes} bytes"
        if not buffers:
            return f"{address}, {nbytes} bytes"
        low, high = min(
            buffers, key=lambda b: 0 if b[0] <= address < b[1] else min(abs(address - e) for e in b)
        )
        return f"{address - low} from a buffer of {high - low} bytes, {nbytes} bytes"

    def kept_buffers(self) -> list[tuple[int, int]]:
        count = int(self.task[t.BUFFER_COUNT])
        (buffers,) = (a for a in self.kept if _is_at(a, int(self.task[t.BUFFERS])))
        return [(int(b[t.LOW]), int(b[t.HIGH])) for b in buffers[:count]]


def _is_at(array: Any, address: int) -> bool:
    return isinstance(array, np.ndarray) and int(array.ctypes.data) == address
