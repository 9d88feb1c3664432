"""Statements to a table of numbers: one row for an instruction, registers as rows of three files.

Registers of 8 to 32 bits are rows of 32 words, those of 64 bits rows of 32 double words, predicates
one word of 32 bits each. Immediate values are rows too, filled once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pullback.gpu.emulator import table as t
from pullback.gpu.emulator.ptx import Kernel, Statement, UnknownPtx

TYPES = {
    "b8": t.U8, "u8": t.U8, "s8": t.S8, "b16": t.U16, "u16": t.U16, "s16": t.S16,
    "b32": t.U32, "u32": t.U32, "s32": t.S32, "b64": t.U64, "u64": t.U64, "s64": t.S64,
    "f16": t.F16, "bf16": t.BF16, "f32": t.F32, "f64": t.F64, "pred": t.PRED,
}  # fmt: skip
_PREFIX = re.compile(r"(%[a-zA-Z]+)\d+$")
_ADDRESS = re.compile(r"^\[\s*([%$\w]+)\s*(?:\+\s*(-?\w+))?\s*\]$")
PREDICATES, WORDS, DOUBLES = range(3)  # the files
_CTA = "%ctaid.x"
_FIXED = {"%tid.y": 0, "%tid.z": 0, "%ctaid.y": 0, "%ctaid.z": 0, "%nctaid.y": 1, "%nctaid.z": 1}
_VARYING = (_CTA, "%tid.x", "%nctaid.x", "%laneid", "%warpid", "%ntid.x")


def file_of(kind: int) -> int:
    if kind == t.PRED:
        return PREDICATES
    return DOUBLES if t.BYTES[kind] == 8 else WORDS


@dataclass(slots=True)
class Code:
    """A kernel, decoded. `constants` are (file, row, bits); `special` rows by register."""

    kernel: Kernel
    table: Any
    rows: list[int]  # of each file
    constants: list[tuple[int, int, int]]
    special: dict[str, int]
    shared_shift: int
    local_row: int


@dataclass(slots=True)
class Decoder:
    kernel: Kernel
    rows: list[int] = field(default_factory=lambda: [0, 0, 0])
    known: dict[str, tuple[int, int]] = field(default_factory=dict)
    immediate: dict[tuple[int, int], int] = field(default_factory=dict)
    special: dict[str, int] = field(default_factory=dict)
    name: str = ""  # of the instruction being decoded
    narrowest: int = 3  # log2 of the smallest access to shared memory

    def code(self) -> Code:
        for name in _VARYING:
            self.special[name] = self._new(WORDS)
        table = np.zeros((len(self.kernel.statements), t.COLUMNS), np.int32)
        for row, statement in zip(table, self.kernel.statements, strict=True):
            try:
                self._decode(statement, row)
            except (KeyError, IndexError, ValueError) as error:
                raise UnknownPtx(f"{self.kernel.name}: `{statement.text}` ({error!r})") from None
        local = self.local_row() if self.kernel.local[1] else -1
        constants = [(file, row, bits) for (file, bits), row in self.immediate.items()]
        return Code(self.kernel, table, self.rows, constants, self.special, self.narrowest, local)

    def _decode(self, statement: Statement, row: Any) -> None:
        self.name, *rest = statement.opcode
        row[t.GUARD] = -1
        if statement.guard:
            row[t.GUARD] = self.register(statement.guard)[1]
            row[t.FLIP] = -1 if statement.negated else 0
        row[t.KIND] = t.KINDS.index("other")
        _DECODERS[self.name](self, rest, statement.operands, row)

    # --- operands -------------------------------------------------------------------------------

    def _new(self, file: int) -> int:
        self.rows[file] += 1
        return self.rows[file] - 1

    def register(self, name: str) -> tuple[int, int]:
        """File and row."""
        if name not in self.known:
            prefix = _PREFIX.match(name)
            kind = self.kernel.registers.get(name) or self.kernel.registers[prefix[1]]  # type: ignore[index]
            file = file_of(TYPES[kind])
            self.known[name] = file, self._new(file)
        return self.known[name]

    def is_wide(self, text: str) -> bool:
        """Whether an operand is a register of 64 bits."""
        named = text.startswith("%") and text not in self.special and text not in _FIXED
        return named and self.register(text)[0] == DOUBLES

    def into(self, name: str, file: int) -> int:
        """The row of a result, or of one nobody reads."""
        if name == "_":
            return self._new(file)
        found, row = self.register(name)
        if found != file:
            raise ValueError(f"{name} is a register of another width")
        return row

    def value(self, text: str, kind: int, file: int | None = None) -> int:
        """The row of an operand of a type."""
        file = file_of(kind) if file is None else file
        if text in self.special:
            return self.special[text]
        if text in _FIXED:
            return self.constant(file, _FIXED[text])
        if text.startswith("%") or text in self.kernel.registers:
            return self.into(text, file)
        if text in ("global_smem", self.kernel.local[0]):
            return self.constant(file, 0)
        if text[:2] in ("0f", "0F", "0d", "0D"):
            return self.constant(file, int(text[2:], 16))
        number = int(text.rstrip("U"), 0)
        return self.constant(file, (number and t.FULL) if file == PREDICATES else number)

    def local_row(self) -> int:
        """Where the stack of each thread begins."""
        name = self.kernel.local[0]
        if name not in self.known:
            self.known[name] = DOUBLES, self._new(DOUBLES)
        return self.known[name][1]

    def constant(self, file: int, bits: int) -> int:
        bits &= (1 << 64) - 1 if file == DOUBLES else t.FULL
        if (file, bits) not in self.immediate:
            self.immediate[file, bits] = self._new(file)
        return self.immediate[file, bits]

    def address(self, text: str, shared: bool) -> tuple[int, int]:
        """Row of the base and bytes beyond it."""
        found = _ADDRESS.match(text)
        if found is None:
            raise ValueError(f"address {text}")
        base, offset = found[1], int(found[2] or "0", 0)
        return self.value(base, t.U32 if shared else t.U64), offset

    def label(self, name: str) -> int:
        return self.kernel.labels[name]


def members(text: str) -> list[str]:
    """The registers of a vector `{a, b}`, or the one there is."""
    return [part.strip() for part in text.strip("{} ").split(",")]


Decode = Callable[[Decoder, Sequence[str], Sequence[str], Any], None]
_DECODERS: dict[str, Decode] = {}


def decodes(*names: str) -> Callable[[Decode], Decode]:
    def register(function: Decode) -> Decode:
        _DECODERS.update(dict.fromkeys(names, function))
        return function

    return register
