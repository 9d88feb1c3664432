"""Faults of lerp and of the linear recurrence."""

from mutants import Fuzz, Mutant, Suite, laws

LERP, RECURRENCE = "ops/lerp", "ops/recurrence"

MUTANTS = (
    Mutant(
        "lerp: not exact at weight 1",
        f"{LERP}/cpu_elementwise.py",
        "    near = select(absolute(w) < 0.5, fma(w, b - a, a), fma(-rest, b - a, b))",
        "    near = fma(w, b - a, a)",
        "wrong rounding: the far end is not b itself",
        (laws("lerp"), Fuzz("lerp")),
    ),
    Mutant(
        "lerp: bf16 gaps overflow",
        f"{LERP}/cpu_elementwise.py",
        "    return _guarded if p.dtype in (types.float64, types.uint16) else _as_is",
        "    return _guarded if p.dtype == types.float64 else _as_is",
        "infinity between two large finite numbers",
        (Suite("test_hashes.py", "lerp and bf16 and not backward"), Fuzz("lerp")),
    ),
    Mutant(
        "lerp: rows of whole pieces have one too many",
        f"{LERP}/cpu_elementwise.py",
        "    pieces = (n + PIECE - 1) // PIECE",
        "    pieces = n // PIECE + 1",
        "off by one where a row is a multiple of 8192 elements",
        (Suite("test_mixed_layouts.py", "whole_pieces"),),
    ),
    Mutant(
        "lerp: the head of a row runs past its end",
        f"{LERP}/cpu_elementwise.py",
        "            head = min(to_next_line(out, start[number] + k), end - k)",
        "            head = to_next_line(out, start[number] + k)",
        "limit too large: a few elements behind a short row are written",
        (laws("lerp"), Fuzz("lerp")),
    ),
    Mutant(
        "lerp: larger strides are taken for 1",
        f"{LERP}/cpu_elementwise.py",
        "    unit = min(by) == 1 and max(by) == 1",
        "    unit = min(by) == 1",
        "stride of some tensors ignored",
        (Suite("test_mixed_layouts.py", "another_layout and lerp"),),
    ),
    Mutant(
        "lerp: half a bf16 gap counted whole",
        f"{LERP}/cpu_elementwise.py",
        "    return g * (b * half - a * half) * like(a, 2.0)",
        "    return g * (b - a)",
        "overflow in the gradient of a bf16 weight",
        (Suite("test_hashes.py", "lerp_backward and bf16"), Fuzz("lerp_backward")),
    ),
    Mutant(
        "lerp backward: an axis of one keeps its stride",
        f"{LERP}/cpu.py",
        "    strides = tuple(0 if n == 1 else s for n, s in zip(view.shape, view.strides, strict=True))",
        "    strides = tuple(view.strides)",
        "broadcast operands are read outside their memory",
        (laws("lerp_backward"), Fuzz("lerp_backward")),
    ),
    Mutant(
        "lerp: the shares of a constant weight are exchanged",
        f"{LERP}/cpu.py",
        "    return bits_of(param), bits_of(1.0 - param)",
        "    return bits_of(1.0 - param), bits_of(param)",
        "w and 1 - w change places",
        (laws("lerp"),),
    ),
    Mutant(
        "linear scan: every block begins anew",
        f"{RECURRENCE}/cpu.py",
        "        return h, like(h, 0.0)",
        "        return h, like(h, 1.0)",
        "dropped carry from block to block",
        (laws("linear_scan"),),
    ),
    Mutant(
        "scans: the direction of the first tensor is taken for that of all",
        "cpu/scan_program.py",
        "for s in loops.steps[: len(views)]}",
        "for s in loops.steps[:1]}",
        "tensors of another stride are read and written as if they had the same",
        (Suite("test_mixed_layouts.py", "linear_scan_backward"),),
    ),
    Mutant(
        "linear scan backward: direction",
        f"{RECURRENCE}/cpu.py",
        "(dh, a, h, da, db), against=True, edges=edges)",
        "(dh, a, h, da, db), edges=edges)",
        "the adjoint walks the way of the forward",
        (laws("linear_scan_backward"), Suite("test_laws.py", "adjoint and linear_scan")),
    ),
    Mutant(
        "linear scan backward: the first element has a predecessor",
        f"{RECURRENCE}/cpu.py",
        "    left = about[3] - 1 - numbers +",
        "    left = about[3] - numbers +",
        "off by one: da of the scan's first element is not 0",
        (laws("linear_scan_backward"), Fuzz("linear_scan_backward")),
    ),
)
