"""The words that decoder, machine and host share: columns of the instruction table, operations,
types, words of a launch, faults, kinds of instructions."""

from __future__ import annotations

from typing import Final

LANES: Final = 32
FULL: Final = (1 << LANES) - 1

# --- columns of an instruction ------------------------------------------------------------------

UNIT: Final = 0
OP: Final = 1
DST: Final = 2
A: Final = 3
B: Final = 4
C: Final = 5
GUARD: Final = 6  # row of a predicate, or -1
FLIP: Final = 7  # FULL where the guard is negated
KIND: Final = 8
TYPE: Final = 9
FROM: Final = 10  # the type of what is read, where it is another one
FLAGS: Final = 11
COUNT: Final = 12  # of V
V: Final = 13  # rows of a vector
COLUMNS: Final = V + 8

# --- units --------------------------------------------------------------------------------------

(
    FLOAT32, FLOAT64, FLOAT32X2, HALF, INT32, INT64, WIDE, SETP, SELP, MOV, UNPACK, PACK, CVT,
    PREDICATE, PARAM, LOAD, STORE, ATOM, ASYNC, SHUFFLE, REDUX, VOTE, MATRIX, BARRIER, BRANCH, EXIT,
    NOTHING, TRAP,
) = range(28)  # fmt: skip

# --- operations ---------------------------------------------------------------------------------

(
    ADD, SUB, MUL, DIV, FMA, MIN, MAX, MIN_NAN, MAX_NAN, NEG, ABS, SQRT, RCP, RSQRT, EX2, LG2,
    COPYSIGN, TANH, SIN, COS, ROUGH_RCP, ROUGH_RSQRT, MIN3, MAX3,
) = range(24)  # fmt: skip
(
    AND, OR, XOR, NOT, SHL, SHR, REM, MULHI, POPC, CLZ, BREV, BFE, BFI, PRMT, EXCH, CAS, SHF_L,
    SHF_R, LOP3, INC,
) = range(32, 52)  # fmt: skip
EQ, NE, LT, LE, GT, GE, EQU, NEU, LTU, LEU, GTU, GEU, NUM, NAN = range(14)
UP, DOWN, BFLY, IDX = range(4)
ANY, ALL, UNI, BALLOT = range(4)
TO_EVEN, TO_ZERO, TO_MINUS, TO_PLUS, AS_IS = range(5)  # roundings of cvt
SHARED, GLOBAL, LOCAL = range(3)
COPY, COMMIT, WAIT = range(3)

# --- types --------------------------------------------------------------------------------------

U8, S8, U16, S16, U32, S32, U64, S64, F16, BF16, F32, F64, PRED = range(13)
BYTES: Final = (1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 0)
SIGNED: Final = (S8, S16, S32, S64)

# --- flags --------------------------------------------------------------------------------------

FTZ: Final = 1  # subnormals are zero
MIXED: Final = 2  # first factors are halves
SATURATED: Final = 4
PAIRED: Final = 8  # two halves in one register
TRANSPOSED: Final = 16
TAKES_SIZE: Final = 32  # cp.async with a size that zeros are filled up from
RETURNS: Final = 64  # atom, not red
NARROWED: Final = 128  # the low word of a register of 64 bits

# --- kinds that are counted ---------------------------------------------------------------------

KINDS: Final = (
    "f64", "f32", "f16", "special", "integer", "compare", "convert", "move", "branch", "shuffle",
    "barrier", "load_global", "store_global", "load_shared", "store_shared", "load_local",
    "store_local", "atomic", "other",
)  # fmt: skip

# --- words of a launch --------------------------------------------------------------------------

(
    CODE, LENGTH, GRID, WARPS, PREDICATES, PREDICATE_ROWS, WORDS, WORD_ROWS, DOUBLES, DOUBLE_ROWS,
    CTA_ROW, SHARED_AT, SHARED_BYTES, SHARED_SHIFT, SHARED_READERS, SHARED_WRITERS, BUFFERS,
    BUFFER_COUNT, LAST_BUFFER, PARAMETERS, COUNTS, STATES, LIMIT, EXECUTED, EPOCH, CTA_EPOCH, WARP,
    TEMPORARY, QUEUE, QUEUE_SIZE, FIRST,
    FAULT, FAULT_PC, FAULT_CTA, FAULT_WARP, FAULT_LANE, FAULT_ADDRESS, FAULT_BYTES, FAULT_OTHER,
    READ_BYTES, WRITTEN_BYTES, READ_SECTORS, WRITTEN_SECTORS, READ_DISTINCT, WRITTEN_DISTINCT,
    TASK_WORDS,
) = range(46)  # fmt: skip

# Of a buffer: bounds, whether it may be written, log2 of an element's bytes, one word for each
# element's readers and writer, one byte for each sector; none for the memory of single threads.
LOW, HIGH, WRITABLE, SHIFT, READERS, WRITERS, SECTORS, BUFFER_WORDS = range(8)

# Of a warp: lanes that wait for the others, lanes that have not ended, whether all wait; then a
# place per lane.
PARKED, ALIVE, STATUS, OPEN_COPIES, COMMITTED, PLACES = range(6)
STATE_WORDS: Final = PLACES + LANES
READY, WAITING, ENDED = range(3)
# Of a copy under way: to, from, bytes, bytes that are read, group.
TO, SOURCE, SIZE, READ, GROUP, COPY_WORDS = range(6)
MOST_COPIES: Final = 4096  # of a warp at a time

# --- faults -------------------------------------------------------------------------------------

FAULTS: Final = (
    "",
    "reads outside of the memory it was given",
    "writes outside of the memory it was given",
    "writes to memory that is only to be read",
    "accesses an address that is not a multiple of the access",
    "accesses shared memory outside of its allocation",
    "reads shared memory that another warp writes with no barrier between",
    "writes shared memory that another warp reads or writes with no barrier between",
    "reads global memory that another warp or program writes in the same launch",
    "writes global memory that another warp or program reads or writes in the same launch",
    "waits at a barrier that not all threads of a warp reach",
    "shuffles a value of a thread that is elsewhere",
    "runs longer than its limit",
    "traps",
    "has too many asynchronous copies under way",
)
(
    _, READS_OUTSIDE, WRITES_OUTSIDE, READ_ONLY, MISALIGNED, SHARED_OUTSIDE, SHARED_READ_RACE,
    SHARED_WRITE_RACE, GLOBAL_READ_RACE, GLOBAL_WRITE_RACE, DIVERGENT_BARRIER, INACTIVE_LANE,
    ENDLESS, TRAPPED, TOO_MANY_COPIES,
) = range(len(FAULTS))  # fmt: skip
