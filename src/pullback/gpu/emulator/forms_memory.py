"""How memory, control and what warps do together are decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pullback.gpu.emulator import table as t
from pullback.gpu.emulator.decode import (
    PREDICATES,
    TYPES,
    WORDS,
    Decoder,
    decodes,
    file_of,
    members,
)

_SPACES = ("param", "shared", "shared::cta", "global", "local")
_PLACES = {"shared": t.SHARED, "global": t.GLOBAL, "local": t.LOCAL}
_ATOMS = {
    "add": t.ADD, "min": t.MIN, "max": t.MAX, "and": t.AND, "or": t.OR, "xor": t.XOR,
    "exch": t.EXCH, "cas": t.CAS,
}  # fmt: skip
_SHUFFLES = {"up": t.UP, "down": t.DOWN, "bfly": t.BFLY, "idx": t.IDX}
_VOTES = {"any": t.ANY, "all": t.ALL, "uni": t.UNI, "ballot": t.BALLOT}


def _kind(row: Any, name: str) -> None:
    row[t.KIND] = t.KINDS.index(name)


def _space(words: Sequence[str]) -> str:
    found = [word for word in words if word in _SPACES]
    return found[0].removesuffix("::cta") if found else "local"


def _memory(d: Decoder, words: Sequence[str], address: str, row: Any) -> tuple[str, int]:
    """Space and type; the row says where."""
    space, element = _space(words), TYPES[words[-1]]
    shared = space == "shared"
    row[t.OP], row[t.TYPE] = _PLACES[space], element
    if space == "local" and not d.kernel.local[1]:
        raise ValueError("an address of unknown space")
    row[t.A], row[t.FLAGS] = d.address(address, shared)
    if shared:
        d.narrowest = min(d.narrowest, t.BYTES[element].bit_length() - 1)
    return space, element


@decodes("ld")
def load(d: Decoder, words: Sequence[str], operands: Sequence[str], row: Any) -> None:
    registers = members(operands[0])
    row[t.COUNT] = len(registers)
    if _space(words) == "param":
        names = [name for _, name in d.kernel.parameters]
        row[t.UNIT], row[t.TYPE] = t.PARAM, TYPES[words[-1]]
        row[t.A] = names.index(operands[1].strip("[] "))
    else:
        row[t.UNIT] = t.LOAD
        space, _ = _memory(d, words, operands[1], row)
        _kind(row, f"load_{space}")
    files = [WORDS if name == "_" else d.register(name)[0] for name in registers]
    row[t.FROM] = files[0]
    row[t.V : t.V + len(registers)] = [
        d.into(name, file) for name, file in zip(registers, files, strict=True)
    ]


@decodes("st")
def store(d: Decoder, words: Sequence[str], operands: Sequence[str], row: Any) -> None:
    row[t.UNIT] = t.STORE
    space, element = _memory(d, words, operands[0], row)
    registers = members(operands[1])
    row[t.COUNT], row[t.FROM] = len(registers), file_of(element)
    row[t.V : t.V + len(registers)] = [d.value(name, element) for name in registers]
    _kind(row, f"store_{space}")


@decodes("atom", "red")
def atomic(d: Decoder, words: Sequence[str], operands: Sequence[str], row: Any) -> None:
    row[t.UNIT] = t.ATOM
    returns = d.name == "atom"
    address, *values = operands[1:] if returns else operands
    _, element = _memory(d, words, address, row)
    (row[t.COUNT],) = (_ATOMS[word] for word in words if word in _ATOMS)
    row[t.FROM] = file_of(element)
    row[t.DST] = d.into(operands[0] if returns else "_", file_of(element))
    row[t.B] = d.value(values[0], element)
    row[t.C] = d.value(values[1], element) if len(values) > 1 else row[t.B]
    _kind(row, "atomic")


@decodes("cp")
def copy(d: Decoder, words: Sequence[str], operands: Sequence[str], row: Any) -> None:
    """cp.async: what was asked for arrives when it is waited for."""
    if words[0] != "async" or "bulk" in words:
        raise ValueError("a copy of another kind")
    row[t.UNIT] = t.ASYNC
    if "commit_group" in words:
        row[t.OP] = t.COMMIT
    elif "wait_group" in words or "wait_all" in words:
        row[t.OP] = t.WAIT
        row[t.COUNT] = int(operands[0], 0) if operands else 0
    else:
        row[t.OP], row[t.TYPE] = t.COPY, int(operands[2], 0)
        row[t.A], row[t.FLAGS] = d.address(operands[0], True)
        row[t.B], row[t.FROM] = d.address(operands[1], False)
        row[t.C] = d.value(operands[3] if len(operands) > 3 else operands[2], t.U32)
        d.narrowest = min(d.narrowest, 2)
        _kind(row, "load_global")


@decodes("shfl")
def shuffle(d: Decoder, words: Sequence[str], operands: Sequence[str], row: Any) -> None:
    row[t.UNIT], row[t.OP] = t.SHUFFLE, _SHUFFLES[words[1]]
    into, _, found = operands[0].partition("|")
    row[t.DST], row[t.V] = d.into(into, WORDS), d.into(found or "_", PREDICATES)
    row[t.A], row[t.B], row[t.C] = (d.value(text, t.U32) for text in operands[1:4])
    _kind(row, "shuffle")


@decodes("redux")
def redux(d: Decoder, words: Sequence[str], operands: Sequence[str], row: Any) -> None:
    _, operation, *modifiers, kind = words
    if modifiers not in ([], ["NaN"]):
        raise ValueError(f"modifiers {modifiers}")
    row[t.UNIT], row[t.TYPE] = t.REDUX, TYPES[kind]
    row[t.OP] = _ATOMS[operation]
    row[t.FLAGS] = bool(modifiers)
    row[t.DST], row[t.A] = d.into(operands[0], WORDS), d.value(operands[1], TYPES[kind])
    _kind(row, "shuffle")


@decodes("vote")
def vote(d: Decoder, words: Sequence[str], operands: Sequence[str], row: Any) -> None:
    row[t.UNIT], row[t.OP] = t.VOTE, _VOTES[words[1]]
    row[t.DST] = d.into(operands[0], WORDS if words[1] == "ballot" else PREDICATES)
    row[t.A] = d.value(operands[1].removeprefix("!"), t.PRED)
    row[t.FLAGS] = operands[1].startswith("!")
    _kind(row, "shuffle")


@decodes("ldmatrix", "stmatrix")
def matrix(d: Decoder, words: Sequence[str], operands: Sequence[str], row: Any) -> None:
    loads = d.name == "ldmatrix"
    if "m8n8" not in words or words[-1] != "b16":
        raise ValueError("another shape of matrix")
    registers = members(operands[0 if loads else 1])
    row[t.UNIT], row[t.OP], row[t.COUNT] = t.MATRIX, loads, len(registers)
    row[t.A], row[t.C] = d.address(operands[1 if loads else 0], True)
    row[t.FLAGS] = t.TRANSPOSED if "trans" in words else 0
    rows = [d.into(name, WORDS) if loads else d.value(name, t.U32) for name in registers]
    row[t.V : t.V + len(rows)] = rows
    d.narrowest = min(d.narrowest, 1)
    _kind(row, "load_shared" if loads else "store_shared")


@decodes("bar", "barrier")
def barrier(d: Decoder, words: Sequence[str], operands: Sequence[str], row: Any) -> None:
    if words[0] == "warp":  # lanes of a warp run in lock step
        row[t.UNIT] = t.NOTHING
        return
    if words[0] not in ("sync", "cta") or int(operands[0], 0) != 0:
        raise ValueError("a barrier of some threads")
    if len(operands) > 1 and int(operands[1], 0) != d.kernel.threads:
        raise ValueError("a barrier of some threads")
    row[t.UNIT] = t.BARRIER
    _kind(row, "barrier")


@decodes("bra")
def branch(d: Decoder, words: Sequence[str], operands: Sequence[str], row: Any) -> None:
    row[t.UNIT], row[t.A] = t.BRANCH, d.label(operands[0])
    _kind(row, "branch")


@decodes("ret", "exit")
def leave(d: Decoder, words: Sequence[str], operands: Sequence[str], row: Any) -> None:
    row[t.UNIT] = t.EXIT
    _kind(row, "branch")


@decodes("trap")
def trap(d: Decoder, words: Sequence[str], operands: Sequence[str], row: Any) -> None:
    row[t.UNIT] = t.TRAP


@decodes("membar", "fence", "prefetch", "griddepcontrol", "nanosleep", "discard")
def nothing(d: Decoder, words: Sequence[str], operands: Sequence[str], row: Any) -> None:
    row[t.UNIT] = t.NOTHING
