"""The PTX emulator itself: single instructions against NumPy, and the faults it has to see."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from pullback.gpu.emulator.isa import decoded
from pullback.gpu.emulator.launch import Counts, KernelFault, Span, execute
from pullback.gpu.emulator.ptx import UnknownPtx

THREADS = 64
_FRAME = """
.visible .entry probe(
	.param .u64 .ptr .global .align 1 probe_param_0,
	.param .u64 .ptr .global .align 1 probe_param_1,
	.param .u64 .ptr .global .align 1 probe_param_2
)
.reqntid 64
{
	.reg .pred 	%p<9>;
	.reg .b16 	%rs<9>;
	.reg .b32 	%r<30>;
	.reg .b64 	%rd<20>;
	mov.u32 	%r0, %tid.x;
	ld.param.b64 	%rd0, [probe_param_0];
	ld.param.b64 	%rd1, [probe_param_1];
	ld.param.b64 	%rd2, [probe_param_2];
	mad.wide.u32 	%rd3, %r0, 4, %rd0;
	mad.wide.u32 	%rd4, %r0, 4, %rd1;
	shl.b32 	%r3, %r0, 2;
	setp.lt.u32 	%p1, %r0, 7;
	ld.global.b32 	%r1, [%rd3];
	// begin inline asm
	BODY
	// end inline asm
	st.global.b32 	[%rd4], %r2;
	ret;

}
"""
X = np.random.default_rng(0).integers(0, 2**32, THREADS, dtype=np.uint32)
SIGNED = X.view(np.int32)
HALVES = X.view(np.int16)
TID = np.arange(THREADS)


def _run(body: str, grid: int = 1, limit: int = 1 << 16) -> tuple[Any, Counts]:
    x, y, counter = X.copy(), np.zeros(THREADS, np.uint32), np.zeros(1, np.uint32)
    code = decoded(_FRAME.replace("BODY", body))
    arrays = (x, y, counter)
    spans = [Span(a.ctypes.data, a.nbytes, 4, a is not x) for a in arrays]
    addresses = [a.ctypes.data for a in arrays]
    counts = execute(code, grid, addresses, spans, 4 * THREADS, limit)
    return y, counts


def _f64(value: float) -> str:
    return "0d" + struct.pack(">d", value).hex().upper()


INSTRUCTIONS = {
    "prmt.b32 %r2, %r1, 0, 0x0123;": X.byteswap(),
    "bfe.u32 %r2, %r1, 4, 8;": X >> 4 & 255,
    "bfe.s32 %r2, %r1, 4, 8;": SIGNED << 20 >> 24,
    "bfi.b32 %r2, %r1, 0, 8, 4;": (X & 15) << 8,
    "popc.b32 %r2, %r1;": np.bitwise_count(X),
    "clz.b32 %r2, %r1;": [32 - int(x).bit_length() for x in X],
    "brev.b32 %r2, %r1;": [int(f"{x:032b}"[::-1], 2) for x in X],
    "shl.b32 %r2, %r1, 33;": X * 0,
    "shr.s32 %r2, %r1, 40;": SIGNED >> 31,
    "shr.u32 %r2, %r1, 31;": X >> 31,
    "div.s32 %r2, %r1, -1;": -SIGNED,
    "rem.u32 %r2, %r1, 1000;": X % 1000,
    "mul.hi.u32 %r2, %r1, %r1;": X.astype(np.uint64) ** 2 >> 32,
    "min.s32 %r2, %r1, 0;": np.minimum(SIGNED, 0),
    "max.u32 %r2, %r1, 0x80000000;": np.maximum(X, 1 << 31),
    "add.s16x2 %r2, %r1, %r1;": (2 * HALVES).view(np.uint32),
    "min.s16x2 %r2, %r1, 0;": np.minimum(HALVES, 0).view(np.uint32),
    "max.u16x2 %r2, %r1, 0x00070007;": np.maximum(HALVES.view(np.uint16), 7).view(np.uint32),
    "shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;": X[TID ^ 1],
    "shfl.sync.up.b32 %r2, %r1, 3, 0, -1;": X[np.where(TID % 32 < 3, TID, TID - 3)],
    "shfl.sync.idx.b32 %r2, %r1, 5, 31, -1;": X[TID // 32 * 32 + 5],
    "redux.sync.add.s32 %r2, %r1, -1;": np.repeat(X.reshape(2, 32).sum(1, dtype=np.uint32), 32),
    "vote.sync.ballot.b32 %r2, %p1, -1;": np.where(TID < 32, 127, 0),
    "selp.b32 %r2, %r1, 3, %p1;": np.where(TID < 7, X, 3),
    "mov.pred %p2, -1; selp.b32 %r2, %r1, 3, %p2;": X,
    "@!%p1 mov.b32 %r2, 4; @%p1 mov.b32 %r2, %r1;": np.where(TID < 7, X, 4),
    "@%p1 bra $A; mov.b32 %r2, 5; bra.uni $B; $A: mov.b32 %r2, 9; $B:": np.where(TID < 7, 9, 5),
    # What some lanes do stands behind the barrier, and jumps back before it.
    "mov.b32 %r2, 5; @%p1 bra $A; $B: bar.sync 0; bra.uni $C; $A: mov.b32 %r2, 9; bra.uni $B;"
    "$C: add.s32 %r2, %r2, 0;": np.where(TID < 7, 9, 5),
    "mov.b32 {%rs1, %rs2}, %r1; mov.b32 %r2, {%rs2, %rs1};": X >> 16 | X << 16,
    "st.shared.b32 [%r3], %r1; bar.sync 0; xor.b32 %r4, %r3, 252; ld.shared.b32 %r2, [%r4];": X[
        TID ^ 63
    ],
    "cp.async.ca.shared.global [%r3], [%rd3], 4; cp.async.commit_group;"
    "cp.async.wait_group 0; ld.shared.b32 %r2, [%r3];": X,
    # Who does not wait sees what was there.
    "cp.async.ca.shared.global [%r3], [%rd3], 4; cp.async.commit_group;ld.shared.b32 %r2, [%r3];": X
    * 0,
    # 1 + 2^-11 + 2^-40 lies above the middle of two halves; f32 in between would land on it.
    f"mov.b64 %rd9, {_f64(1 + 2**-11 + 2**-40)}; cvt.rn.f16.f64 %rs1, %rd9;"
    "cvt.u32.u16 %r2, %rs1;": np.full(THREADS, np.float16(1 + 2**-10).view(np.uint16)),
    # Of a wide register, what the type has room for.
    "mov.b64 %rd9, {%r1, %r0}; cvt.s64.s32 %rd10, %rd9; mov.b64 {%r4, %r2}, %rd10;": SIGNED >> 31,
    "mov.b64 %rd9, {%r1, %r0}; cvt.u64.u32 %rd10, %rd9; mov.b64 {%r2, %r4}, %rd10;": X,
    "cvt.rn.f32.u32 %r2, %r1;": X.astype(np.float32).view(np.uint32),
    "cvt.rzi.s32.f32 %r2, 0fC0200000;": np.full(THREADS, -2),
    "max.f32 %r2, 0f7FC00000, 0f40000000;": np.full(THREADS, 0x40000000),
    "max.NaN.f32 %r4, 0f7FC00000, 0f40000000; setp.nan.f32 %p2, %r4, %r4;"
    "selp.b32 %r2, 1, 0, %p2;": np.ones(THREADS),
    "{ .reg .b32 tmp; mov.b64 %rd9, {%r1, %r0}; mov.b64 {tmp, %r2}, %rd9; }": TID,
}


@pytest.mark.parametrize("body", INSTRUCTIONS)
def test_instruction(body: str) -> None:
    found, _ = _run(body)
    wanted = np.asarray(INSTRUCTIONS[body]).astype(np.int64).astype(np.uint32)
    assert (found == wanted).all()


def test_atomic_additions_return_what_was_there() -> None:
    found, counts = _run("atom.global.add.u32 %r2, [%rd2], 2;")
    assert sorted(found) == list(range(0, 2 * THREADS, 2))
    assert counts.instructions["atomic"] == THREADS


FAULTS = {
    "ld.global.b32 %r2, [%rd3+2];": "not a multiple",
    "ld.global.b32 %r2, [%rd3+4];": "reads outside .* 256 from a buffer of 256 bytes",
    "st.global.b32 [%rd4+4], %r1;": "writes outside",
    "st.global.b32 [%rd3], %r0;": "only to be read",
    "ld.shared.b32 %r2, [%r3+4];": "shared memory outside",
    "st.shared.b32 [%r3], %r1; xor.b32 %r4, %r3, 252; ld.shared.b32 %r2, [%r4];": "shared mem",
    "mov.u32 %r4, %ctaid.x; st.global.b32 [%rd2], %r4;": "another warp or program",
    "st.global.b32 [%rd2], %r1;": "another warp or program",
    "@%p1 bra $B; bar.sync 0; bra.uni $C; $B: bar.sync 0; $C:": "not all threads of a warp reach",
    "@%p1 bra $B; shfl.sync.idx.b32 %r2, %r1, 0, 31, -1; $B:": "thread that is elsewhere",
    "$A: bra.uni $A;": "longer than its limit",
    "trap;": "traps",
}


@pytest.mark.parametrize("body", FAULTS)
def test_fault(body: str) -> None:
    with pytest.raises(KernelFault, match=FAULTS[body]):
        _run(body, grid=2)


def test_an_unknown_instruction_is_named() -> None:
    with pytest.raises(UnknownPtx, match=r"`wgmma\.fence\.sync\.aligned`"):
        _run("wgmma.fence.sync.aligned;")


def test_sectors_are_counted_once_for_each_warp_and_launch() -> None:
    _, counts = _run("ld.global.b32 %r2, [%rd3];")  # a second time
    assert counts.read_bytes == 2 * 4 * THREADS
    assert counts.written_bytes == 4 * THREADS
    assert 16 <= counts.read_sectors <= 20  # eight or nine lines of 32 bytes, twice
    assert counts.read_distinct * 2 - 2 <= counts.read_sectors <= counts.read_distinct * 2 + 2
    assert counts.dram_bytes >= 512
