"""What groups receive, in Triton: the states of their rows, or one value."""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.tile import cells, multiple, place


@triton.jit
def write_groups(
    u, v, group, column, live, out, index, source, rows, grad,
    out_extents, out_strides, out_columns, out_steps, index_strides, index_steps,
    source_extents, source_strides, source_columns, source_steps,
    grad_extents, grad_strides, grad_columns, grad_steps,
    STATE: tl.constexpr, WINNERS: tl.constexpr,
):  # fmt: skip
    """Write the groups of a tile that `live` names. WINNERS: the state itself is the result, u in
    `out` and v in `index`. With `grad`, the row that holds an extremum receives the gradient of its
    group."""
    EXTREMUM: tl.constexpr = (STATE == "first") | (STATE == "last")
    if grad is not None:
        at = cells(group, column, grad_extents, grad_strides, grad_columns, grad_steps)
        g = tl.load(grad + at, mask=live, other=0.0)
        at = place(v, out_extents, out_strides) + place(column, out_columns, out_steps)[None, :]
        tl.store(out + at, g, mask=live)
    else:
        at = cells(group, column, out_extents, out_strides, out_columns, out_steps)
        if index is not None:
            at_index = cells(group, column, out_extents, index_strides, out_columns, index_steps)
        if WINNERS:
            tl.store(out + at, u, mask=live)
            tl.store(index + at_index, v, mask=live)
        elif EXTREMUM:
            row = v
            if rows is not None:
                row = tl.load(rows + v, mask=live, other=0)
            # The winner's own bits.
            bits = place(row, source_extents, source_strides)
            bits = bits + place(column, source_columns, source_steps)[None, :]
            tl.store(out + at, tl.load(source + bits, mask=live, other=0.0), mask=live)
            if index is not None:
                tl.store(index + at_index, row, mask=live)
        else:
            tl.store(out + at, u.to(out.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["count"])
def fill(out, gate, value: tl.float64, count, out_extents, out_strides, B: tl.constexpr):
    """One value everywhere: what groups without rows have."""
    count = multiple(count, out_extents)
    k = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = k < count
    if gate is not None:
        live = live & (tl.load(gate) == 0)
    block = tl.full([B], value, tl.float64).to(out.dtype.element_ty)
    tl.store(out + place(k, out_extents, out_strides), block, mask=live)
