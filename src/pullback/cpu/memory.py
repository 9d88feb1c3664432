"""Raw memory to vectors and back: the only place where kernels meet a dtype.

A pointer's Numba type is its storage type; `STORAGE` says what kernels compute in. f16 lives in
int16 and bf16 in uint16, so the type alone tells them apart. Here p is a pointer, i an element
index and step the distance between lanes in elements, known only at run time: 1 and -1 are
contiguous accesses, anything else goes lane by lane. Nothing assumes alignment but `streaming`.

    load   get(p, i, step, n)               p[i], p[i+step], ... as Vec(compute, n)
           get_first(p, i, step, count, fill)   the first `count` (at most n), the rest from `fill`
           read(p, i)                       one scalar
           get_wide  get_first_wide  read_wide  the same in the wide type
    store  put(p, i, step, v, streaming)    rounds once; streaming: non-temporal 16-byte pieces if
                                            step is +-1 (the block must be 16-byte aligned)
           put_first(p, i, step, count, v)  only the first `count` lanes
           write(p, i, s)                   one scalar
           compress_store(p, i, v, mask)    the selected lanes side by side; returns how many
    typed  filled(p, x, n)  scalar(p, x)  filled_wide  scalar_wide   x in p's compute or wide type
    plain  advance(p, k)  address(p)  is_aligned(p, i, bytes)  fence()
           prefetch(p, i)  prefetch_early(p, i)  ask for its line, to the first cache or the second
           to_next_line(p, i)               elements before the next cache line begins
           on_stack(p, n)                   room for n elements of p's kind
           as_f32_pointer(address)  and f64 i32 i64 i16 u16 u8
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from llvmlite import ir
from numba import types

from pullback.cpu import float16
from pullback.cpu.emit import (
    I64,
    LLVM_ELEMENT,
    Lane,
    Scalar,
    Vec,
    at_most,
    constant,
    lanes_below,
    op,
    shaped,
    splatted,
)
from pullback.cpu.pieces import first_loaded, first_stored_either_way
from pullback.cpu.transfer import (
    asked_for,
    block_at,
    by_step,
    compressed,
    gathered,
    lane_bytes,
    lowest,
    masked_load,
    scattered,
    stored,
    turned,
)


def _as_is(_builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    return value


@dataclass(frozen=True)
class Storage:
    """What kernels compute in, and the way there and back (for scalars and vectors alike)."""

    compute: types.Type
    wide: types.Type
    decode: Callable[[ir.IRBuilder, ir.Value], ir.Value] = _as_is
    encode: Callable[[ir.IRBuilder, ir.Value], ir.Value] = _as_is


STORAGE = {
    types.int16: Storage(types.float32, types.float32, float16.f16_decoded, float16.f16_encoded),
    types.uint16: Storage(types.float32, types.float32, float16.bf16_decoded, float16.bf16_encoded),
    types.float32: Storage(types.float32, types.float64),
    types.float64: Storage(types.float64, types.float64),
    types.int32: Storage(types.int32, types.int64),
    types.int64: Storage(types.int64, types.int64),
}


def _compute(p: types.CPointer) -> types.Type:
    return STORAGE[p.dtype].compute


def _wide(p: types.CPointer) -> types.Type:
    return STORAGE[p.dtype].wide


def decoded(b: ir.IRBuilder, p: types.CPointer, raw: ir.Value, target: types.Type) -> ir.Value:
    value = STORAGE[p.dtype].decode(b, raw)
    kind = shaped(LLVM_ELEMENT[target], value.type)
    if value.type == kind:
        return value
    return (b.sext if isinstance(target, types.Integer) else b.fpext)(value, kind)


def encoded(b: ir.IRBuilder, p: types.CPointer, value: ir.Value, source: types.Type) -> ir.Value:
    compute = _compute(p)
    if source != compute:
        narrow = b.trunc if isinstance(compute, types.Integer) else b.fptrunc
        value = narrow(value, shaped(LLVM_ELEMENT[compute], value.type))
    return STORAGE[p.dtype].encode(b, value)


def _storable(p: types.CPointer, source: types.Type) -> bool:
    """Values of the compute or wide type: anything else would be rounded twice."""
    return source in (_compute(p), _wide(p))


# --- loads --------------------------------------------------------------------------------------

Pointer: TypeAlias = types.CPointer
Index: TypeAlias = types.Integer


def _index(t: types.Type) -> types.Type:
    """Literals stay literals, so that emitters see constants."""
    return t if isinstance(t, types.IntegerLiteral) else types.int64


def _get(target: Callable) -> Callable:
    def get(p: Pointer, i: Index, step: Index, n: Lane):
        if p.dtype not in STORAGE:
            return None
        size, dtype = n.literal_value, target(p)
        kind = ir.VectorType(LLVM_ELEMENT[p.dtype], size)

        def emit(b, p_, i_, step_, _n):
            def block(at):
                return b.load(block_at(b, p_, at, kind), align=lane_bytes(kind))

            raw = by_step(
                b,
                step_,
                lambda: block(i_),
                lambda: turned(b, block(lowest(b, i_, size))),
                lambda: gathered(b, p_, i_, step_, I64(size), kind),
            )
            return decoded(b, p, raw, dtype)

        return Vec(dtype, size)(p, types.int64, _index(step), n), emit

    return op(get)


def _get_first(target: Callable) -> Callable:
    def get_first(p: Pointer, i: Index, step: Index, count: Index, fill: Vec):
        if p.dtype not in STORAGE or fill.dtype != target(p):
            return None
        kind = ir.VectorType(LLVM_ELEMENT[p.dtype], fill.n)

        def emit(b, p_, i_, step_, count_, fill_):
            mask = lanes_below(b, count_, fill.n)
            narrow = lane_bytes(kind) == 2  # no machine below AVX-512 masks such lanes

            def apart():
                return gathered(b, p_, i_, step_, at_most(b, count_, fill.n), kind)

            def ahead():
                if narrow:
                    return first_loaded(b, p_, i_, at_most(b, count_, fill.n), constant(kind, 0))
                return masked_load(b, p_, i_, mask, kind)

            def back():
                at = lowest(b, i_, fill.n)
                return turned(b, masked_load(b, p_, at, turned(b, mask), kind))

            raw = by_step(b, step_, ahead, apart if narrow else back, apart)
            return b.select(mask, decoded(b, p, raw, fill.dtype), fill_)

        return fill(p, types.int64, _index(step), types.int64, fill), emit

    return op(get_first)


def _read(target: Callable) -> Callable:
    def read(p: Pointer, i: Index):
        if p.dtype not in STORAGE:
            return None
        dtype = target(p)
        sig = dtype(p, types.int64)
        return sig, lambda b, p_, i_: decoded(b, p, b.load(b.gep(p_, [i_])), dtype)

    return op(read)


get, get_wide = _get(_compute), _get(_wide)
get_first, get_first_wide = _get_first(_compute), _get_first(_wide)
read, read_wide = _read(_compute), _read(_wide)


# --- stores -------------------------------------------------------------------------------------


@op
def put(p: Pointer, i: Index, step: Index, v: Vec, streaming: types.Boolean):
    """v to p[i], p[i+step], ...; streaming asks for non-temporal stores."""
    if not _storable(p, v.dtype):
        return None

    def emit(b, p_, i_, step_, v_, streaming_):
        raw = encoded(b, p, v_, v.dtype)
        by_step(
            b,
            step_,
            lambda: stored(b, p_, i_, raw, streaming_),
            lambda: stored(b, p_, lowest(b, i_, v.n), turned(b, raw), streaming_),
            lambda: scattered(b, p_, i_, step_, I64(v.n), raw),
        )

    return types.void(p, types.int64, _index(step), v, types.boolean), emit


@op
def put_first(p: Pointer, i: Index, step: Index, count: Index, v: Vec):
    """The first `count` lanes of v to p[i], p[i+step], ..."""
    if not _storable(p, v.dtype):
        return None

    def emit(b, p_, i_, step_, count_, v_):
        raw, count = encoded(b, p, v_, v.dtype), at_most(b, count_, v.n)
        by_step(
            b,
            step_,
            lambda: first_stored_either_way(b, p_, i_, count, raw),
            lambda: first_stored_either_way(b, p_, i_, count, raw, back=True),
            lambda: scattered(b, p_, i_, step_, count, raw),
        )

    return types.void(p, types.int64, _index(step), types.int64, v), emit


@op
def write(p: Pointer, i: Index, s: Scalar):
    """The scalar s, of p's compute or wide type, to p[i]."""
    s = types.unliteral(s)
    if not _storable(p, s):
        return None
    sig = types.void(p, types.int64, s)
    return sig, lambda b, p_, i_, s_: b.store(encoded(b, p, s_, s), b.gep(p_, [i_]))


@op
def compress_store(p: Pointer, i: Index, v: Vec, mask: Vec):
    """The selected lanes of v side by side from p[i] on; returns how many."""
    if not _storable(p, v.dtype):
        return None

    def emit(b, p_, i_, v_, mask_):
        return compressed(b, p_, i_, encoded(b, p, v_, v.dtype), mask_)

    return types.int64(p, types.int64, v, mask), emit


# --- typed constants ----------------------------------------------------------------------------


def _filled(target: Callable) -> Callable:
    def filled(p: Pointer, x: Scalar, n: Lane):
        sig = Vec(target(p), n.literal_value)(p, target(p), n)
        return sig, lambda b, _p, x_, _n: splatted(b, x_, n.literal_value)

    return op(filled)


def _scalar(target: Callable) -> Callable:
    def scalar(p: Pointer, x: Scalar):
        return target(p)(p, target(p)), lambda b, _p, x_: x_

    return op(scalar)


filled, filled_wide = _filled(_compute), _filled(_wide)
scalar, scalar_wide = _scalar(_compute), _scalar(_wide)


# --- plain pointers -----------------------------------------------------------------------------


@op
def advance(p: Pointer, k: Index):
    return p(p, types.int64), lambda b, p_, k_: b.gep(p_, [k_])


@op
def address(p: Pointer):
    return types.int64(p), lambda b, p_: b.ptrtoint(p_, I64)


@op
def is_aligned(p: Pointer, i: Index, bytes: Index):
    """Whether element i lies at a multiple of `bytes`, a power of two."""

    def emit(b, p_, i_, bytes_):
        at = b.ptrtoint(b.gep(p_, [i_]), I64)
        return b.icmp_unsigned("==", b.and_(at, b.sub(bytes_, I64(1))), I64(0))

    return types.boolean(p, types.int64, types.int64), emit


@op
def to_next_line(p: Pointer, i: Index):
    """How many elements lie from i on before the next cache line begins."""

    def emit(b, p_, i_):
        at = b.ptrtoint(b.gep(p_, [i_]), I64)
        return b.udiv(b.and_(b.neg(at), I64(63)), I64(p.dtype.bitwidth // 8))

    return types.int64(p, types.int64), emit


@op
def on_stack(p: Pointer, n: Lane):
    """Room for n elements of p's kind on the stack, on a cache line of its own. Gone when the
    function that asked for it returns, inlined or not."""
    element = LLVM_ELEMENT[p.dtype]

    def emit(b, _p, _n):
        with b.goto_entry_block():
            memory = b.alloca(ir.ArrayType(element, n.literal_value))
            memory.align = 64
        return b.bitcast(memory, element.as_pointer())

    return p(p, n), emit


def elements_in(nbytes: int) -> Callable:
    """How many elements of p so many bytes hold, as a literal."""

    def elements(p: Pointer):
        n = nbytes * 8 // p.dtype.bitwidth
        return types.literal(n)(p), lambda b, _: I64(n)

    return op(elements)


line_elements = elements_in(64)


def _prefetch(early: bool) -> Callable:
    def prefetch(p: Pointer, i: Index):
        sig = types.void(p, types.int64)
        return sig, lambda b, p_, i_: asked_for(b, p_, i_, early=early)

    return op(prefetch)


prefetch, prefetch_early = _prefetch(False), _prefetch(True)


@op
def prefetch_written(p: Pointer, i: Index):
    return types.void(p, types.int64), lambda b, p_, i_: asked_for(b, p_, i_, written=True)


@op
def fence():
    """Order the streaming stores before whatever follows: once, at the end of a kernel."""
    return types.void(), lambda b: b.fence("seq_cst")


def _pointer_to(dtype: types.Type) -> Callable:
    def pointer(address: Index):
        element = LLVM_ELEMENT[dtype].as_pointer()
        sig = types.CPointer(dtype)(types.int64)
        return sig, lambda b, address_: b.inttoptr(address_, element)

    return op(pointer)


as_f32_pointer, as_f64_pointer = map(_pointer_to, (types.float32, types.float64))
as_i16_pointer, as_u16_pointer = map(_pointer_to, (types.int16, types.uint16))
as_i32_pointer, as_i64_pointer = map(_pointer_to, (types.int32, types.int64))
as_u8_pointer = _pointer_to(types.uint8)
