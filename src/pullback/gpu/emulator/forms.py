"""How arithmetic, comparisons, moves and conversions are decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pullback.gpu.emulator import table as t
from pullback.gpu.emulator.decode import (
    DOUBLES,
    PREDICATES,
    TYPES,
    WORDS,
    Decoder,
    decodes,
    file_of,
    members,
)

_FLOATS = {
    "add": t.ADD, "sub": t.SUB, "mul": t.MUL, "div": t.DIV, "fma": t.FMA, "mad": t.FMA,
    "min": t.MIN, "max": t.MAX, "neg": t.NEG, "abs": t.ABS, "sqrt": t.SQRT, "rcp": t.RCP,
    "rsqrt": t.RSQRT, "ex2": t.EX2, "lg2": t.LG2, "copysign": t.COPYSIGN, "tanh": t.TANH,
    "sin": t.SIN, "cos": t.COS,
}  # fmt: skip
_INTEGERS = {
    "add": t.ADD, "sub": t.SUB, "mul": t.MUL, "mad": t.FMA, "div": t.DIV, "rem": t.REM,
    "min": t.MIN, "max": t.MAX, "neg": t.NEG, "abs": t.ABS, "and": t.AND, "or": t.OR,
    "xor": t.XOR, "not": t.NOT, "shl": t.SHL, "shr": t.SHR, "popc": t.POPC, "clz": t.CLZ,
    "brev": t.BREV, "bfe": t.BFE, "bfi": t.BFI, "prmt": t.PRMT, "lop3": t.LOP3,
}  # fmt: skip
_SPECIAL = (t.DIV, t.SQRT, t.RCP, t.RSQRT, t.EX2, t.LG2, t.TANH, t.SIN, t.COS)
_KNOWN = {
    "rn", "ftz", "approx", "full", "NaN", "f32", "lo", "wide", "hi", "uni", "sat",
}  # fmt: skip
_FLOAT_UNITS = {"f32": t.FLOAT32, "f64": t.FLOAT64, "f32x2": t.FLOAT32X2}
_COMPARISONS = {
    "eq": t.EQ, "ne": t.NE, "lt": t.LT, "le": t.LE, "gt": t.GT, "ge": t.GE, "equ": t.EQU,
    "neu": t.NEU, "ltu": t.LTU, "leu": t.LEU, "gtu": t.GTU, "geu": t.GEU, "num": t.NUM,
    "nan": t.NAN, "lo": t.LT, "ls": t.LE, "hi": t.GT, "hs": t.GE,
}  # fmt: skip
_COMBINED = {"and": t.AND, "or": t.OR, "xor": t.XOR}
_ROUNDINGS = {
    "rni": t.TO_EVEN, "rzi": t.TO_ZERO, "rmi": t.TO_MINUS, "rpi": t.TO_PLUS, "rn": t.AS_IS,
}  # fmt: skip


def _kind(row: Any, name: str) -> None:
    row[t.KIND] = t.KINDS.index(name)


@decodes(*_FLOATS.keys() | _INTEGERS.keys())
def arithmetic(d: Decoder, words: Sequence[str], operands: Sequence[str], row: Any) -> None:
    name, kind = d.name, words[-1]
    unknown = [w for w in words[:-1] if w not in _KNOWN and w not in TYPES]
    if unknown:
        raise ValueError(f"unknown modifiers {unknown}")
    if kind == "pred":
        row[t.UNIT], row[t.OP] = t.PREDICATE, _INTEGERS[name]
        for column, text in zip((t.DST, t.A, t.B), operands, strict=False):
            row[column] = d.value(text, t.PRED)
        _kind(row, "other")
    elif kind in _FLOAT_UNITS or kind in ("f16", "bf16"):
        _float(d, name, kind, words, operands, row)
    elif "wide" in words:
        _wide(d, name, kind, operands, row)
    else:
        _integer(d, name, kind, words, operands, row)


def _float(
    d: Decoder, name: str, kind: str, words: Sequence[str], operands: Sequence[str], row: Any
) -> None:
    op = _FLOATS[name]
    mixed = kind in ("f16", "bf16") and "f32" in words
    half = kind in ("f16", "bf16") and not mixed
    row[t.UNIT] = t.HALF if half else t.FLOAT32 if mixed else _FLOAT_UNITS[kind]
    element = TYPES["f64" if kind == "f32x2" else "f32" if mixed else kind]
    row[t.TYPE] = element
    row[t.FLAGS] = (t.FTZ if "ftz" in words else 0) | (t.MIXED if mixed else 0)
    if "sat" in words:
        raise ValueError("saturated floats")
    if op in (t.MIN, t.MAX):
        if "NaN" in words:
            op = {t.MIN: t.MIN_NAN, t.MAX: t.MAX_NAN}[op]
        elif len(operands) == 4:
            op = {t.MIN: t.MIN3, t.MAX: t.MAX3}[op]
        if "NaN" in words and len(operands) == 4:
            raise ValueError("three operands with NaN")
    if kind == "f64" and "approx" in words:
        op = {t.RCP: t.ROUGH_RCP, t.RSQRT: t.ROUGH_RSQRT}[op]
    row[t.OP] = op
    row[t.DST] = d.into(operands[0], file_of(element))
    for column, text in zip((t.A, t.B, t.C), operands[1:], strict=False):
        row[column] = d.value(text, element)  # halves are words, as f32 is
    row[t.FROM] = TYPES[kind] if mixed else element
    _kind(
        row, "f64" if kind == "f64" else "f16" if half else "special" if op in _SPECIAL else "f32"
    )


def _wide(d: Decoder, name: str, kind: str, operands: Sequence[str], row: Any) -> None:
    narrow = TYPES[kind]
    if narrow not in (t.U32, t.S32):
        raise ValueError(f"wide {kind}")
    row[t.UNIT], row[t.OP], row[t.TYPE] = t.WIDE, _INTEGERS[name], narrow
    row[t.DST] = d.into(operands[0], DOUBLES)
    row[t.A], row[t.B] = d.value(operands[1], narrow), d.value(operands[2], narrow)
    row[t.C] = d.value(operands[3], t.U64) if name == "mad" else d.constant(DOUBLES, 0)
    _kind(row, "integer")


def _integer(
    d: Decoder, name: str, kind: str, words: Sequence[str], operands: Sequence[str], row: Any
) -> None:
    paired = kind.endswith("16x2")
    element, op = TYPES[kind.removesuffix("x2") if paired else kind], _INTEGERS[name]
    if paired and op not in (t.ADD, t.MIN, t.MAX):
        raise ValueError("not of pairs of integers")
    row[t.FLAGS] = t.PAIRED if paired else 0
    if name == "mul" and "hi" in words:
        op = t.MULHI
    elif "hi" in words:
        raise ValueError("the high part of a sum")
    long = file_of(element) == DOUBLES
    row[t.UNIT], row[t.OP], row[t.TYPE] = t.INT64 if long else t.INT32, op, element
    # Counts of bits and shifts are words, whatever they belong to.
    result = WORDS if op in (t.POPC, t.CLZ) else file_of(element)
    row[t.DST] = d.into(operands[0], result)
    for number, (column, text) in enumerate(zip((t.A, t.B, t.C), operands[1:], strict=False)):
        counted = (op in (t.SHL, t.SHR, t.BFE) and number > 0) or (op == t.BFI and number > 1)
        row[column] = d.value(text, t.U32 if counted else element)
    for number, text in enumerate(operands[4:]):
        row[t.V + number] = int(text, 0) if op == t.LOP3 else d.value(text, t.U32)
    if op == t.PRMT and len(words) > 1:
        raise ValueError("a mode of prmt")
    _kind(row, "integer")


@decodes("setp")
def compare(d: Decoder, words: Sequence[str], operands: Sequence[str], row: Any) -> None:
    comparison, *rest, kind = words
    paired = kind.endswith("x2")
    element = TYPES[kind.removesuffix("x2")]
    row[t.UNIT], row[t.OP], row[t.TYPE] = t.SETP, _COMPARISONS[comparison], element
    combined = [_COMBINED[word] for word in rest if word != "ftz"]
    row[t.FLAGS] = (t.FTZ if "ftz" in rest else 0) | (t.PAIRED if paired else 0)
    first, _, second = operands[0].partition("|")
    row[t.DST] = d.into(first, PREDICATES)
    row[t.V] = d.into(second or "_", PREDICATES)
    row[t.A], row[t.B] = (d.value(text, element) for text in operands[1:3])
    row[t.FROM] = combined[0] if combined else -1
    if combined:
        row[t.C] = d.value(operands[3].removeprefix("!"), t.PRED)
        row[t.COUNT] = operands[3].startswith("!")
    _kind(row, "f64" if kind == "f64" else "compare")


@decodes("selp")
def choose(d: Decoder, words: Sequence[str], operands: Sequence[str], row: Any) -> None:
    element = TYPES[words[-1]]
    row[t.UNIT], row[t.TYPE] = t.SELP, element
    row[t.DST] = d.into(operands[0], file_of(element))
    row[t.A], row[t.B] = (d.value(text, element) for text in operands[1:3])
    row[t.C] = d.value(operands[3], t.PRED)
    _kind(row, "move")


@decodes("mov", "cvta")
def move(d: Decoder, words: Sequence[str], operands: Sequence[str], row: Any) -> None:
    element = TYPES[words[-1]]
    _kind(row, "move")
    into, source = operands
    if element == t.PRED:
        row[t.UNIT], row[t.OP] = t.PREDICATE, t.OR
        row[t.DST], row[t.A] = d.into(into, PREDICATES), d.value(source, t.PRED)
        row[t.B] = row[t.A]
        return
    if into.startswith("{") or source.startswith("{"):
        row[t.UNIT] = t.UNPACK if into.startswith("{") else t.PACK
        parts = members(into if into.startswith("{") else source)
        part = {2: {4: t.U16, 8: t.U32}[t.BYTES[element]]}[len(parts)]
        row[t.COUNT], row[t.TYPE], row[t.FROM] = 2, element, part
        if row[t.UNIT] == t.UNPACK:
            row[t.A] = d.value(source, element)
            row[t.V : t.V + 2] = [d.into(p, WORDS) for p in parts]
        else:
            row[t.DST] = d.into(into, file_of(element))
            row[t.V : t.V + 2] = [d.value(p, part) for p in parts]
        return
    if d.name == "cvta" and "local" in words:  # from an offset to an address
        row[t.UNIT], row[t.OP], row[t.TYPE] = t.INT64, t.ADD, element
        row[t.DST], row[t.A] = d.into(into, DOUBLES), d.value(source, element)
        row[t.B] = d.local_row()
        return
    row[t.UNIT], row[t.TYPE] = t.MOV, element
    row[t.DST], row[t.A] = d.into(into, file_of(element)), d.value(source, element)


@decodes("cvt")
def convert(d: Decoder, words: Sequence[str], operands: Sequence[str], row: Any) -> None:
    *modifiers, to, source = words
    paired = to in ("f16x2", "bf16x2")
    into, element = TYPES[to.removesuffix("x2")], TYPES[source]
    modes = [_ROUNDINGS[word] for word in modifiers if word not in ("ftz", "sat")]
    row[t.UNIT], row[t.OP] = t.CVT, modes[0] if modes else t.AS_IS
    row[t.TYPE], row[t.FROM] = into, element
    row[t.FLAGS] = (t.FTZ if "ftz" in modifiers else 0) | (t.PAIRED if paired else 0)
    if "sat" in modifiers:
        raise ValueError("saturated conversion")
    # A register may be wider than the type: its low bits count.
    row[t.DST] = d.into(operands[0], file_of(into))
    low = file_of(element) == WORDS and element < t.F16 and into < t.F16 and d.is_wide(operands[1])
    if low:
        row[t.FLAGS] |= t.NARROWED
    row[t.A] = d.value(operands[1], element, DOUBLES if low else None)
    row[t.B] = d.value(operands[2], element) if paired else 0
    _kind(row, "f64" if t.F64 in (into, element) else "convert")
