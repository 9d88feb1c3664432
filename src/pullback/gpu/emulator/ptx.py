"""PTX text to statements: what the compiler emits for one kernel, with the line of its source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_ENTRY = re.compile(r"\.entry\s+(\w+)\s*\(")
_PARAMETER = re.compile(r"\.param\s+\.(\w+)\b[^,\n)]*?\b(\w+)\s*(?=,|\n|\))")
_THREADS = re.compile(r"\.reqntid\s+(\d+)")
_REGISTERS = re.compile(r"^\.reg\s+\.(\w+)\s+(%?[\w$]+)(?:<(\d+)>)?$")
_LOCATION = re.compile(r"^\.loc\s+(\d+)\s+(\d+)")
_LOCAL = re.compile(r"^\.local\s+\.align\s+\d+\s+\.b8\s+([\w$]+)\[(\d+)\]$")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_LABEL = re.compile(r"^([$\w]+):\s*")
_STATEMENT = re.compile(r"^(?:@(!?)(%?[\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.DOTALL)
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s{\[][^,{\[]*")


@dataclass(frozen=True, slots=True)
class Statement:
    """One instruction: `@guard opcode operands`."""

    opcode: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str | None
    negated: bool
    line: str  # of the Triton source
    text: str


@dataclass(slots=True)
class Kernel:
    """The body of an entry function. `registers` are types by name or by prefix (`%r<10>`)."""

    name: str
    threads: int
    parameters: tuple[tuple[str, str], ...]  # type and name
    registers: dict[str, str] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    local: tuple[str, int] = "", 0  # the stack of a thread: its name and bytes


class UnknownPtx(NotImplementedError):
    """The emulator does not know an instruction or a form of it."""


def parse(text: str) -> Kernel:
    """The one kernel of a PTX module."""
    entry = _ENTRY.search(text)
    if entry is None:
        raise UnknownPtx("a PTX module without .entry")
    opening = text.index("\n{", entry.end())
    head, body = text[entry.end() : opening], text[opening + 2 : text.index("\n}", opening)]
    threads = _THREADS.search(head)
    if threads is None:
        raise UnknownPtx("a kernel without .reqntid")
    kernel = Kernel(entry[1], int(threads[1]), tuple(_PARAMETER.findall(head)))
    files = {number: path.rpartition("/")[2] for number, path in _FILE.findall(text)}
    for chunk, line in _chunks(body, files):
        _add(kernel, chunk, line)
    return kernel


def _chunks(body: str, files: dict[str, str]) -> Iterator[tuple[str, str]]:
    """What stands between semicolons, and where in the source it comes from."""
    text, place = "", ""
    for raw in body.splitlines():
        line = raw.split("//")[0].strip()
        location = _LOCATION.match(line)
        if location:
            place = f"{files.get(location[1], '?')}:{location[2]}"
            continue
        *whole, rest = f"{text} {line}".split(";")
        for chunk in whole:
            yield chunk.strip(), place
        text = rest
    if text.strip(" \t\n}"):
        yield text.strip(), place


def _add(kernel: Kernel, chunk: str, line: str) -> None:
    while True:
        chunk = chunk.lstrip("} \t")
        if chunk.startswith("{"):  # a scope with registers of its own
            chunk = chunk[1:].strip()
        label = _LABEL.match(chunk)
        if label is None:
            break
        kernel.labels[label[1]] = len(kernel.statements)
        chunk = chunk[label.end() :]
    if not chunk or chunk.startswith((".pragma", ".file", ".section")):
        return
    local = _LOCAL.match(chunk)
    if local:
        kernel.local = local[1], int(local[2])
        return
    registers = _REGISTERS.match(chunk)
    if registers:
        kernel.registers[registers[2]] = registers[1]
        return
    found = _STATEMENT.match(chunk)
    if found is None:
        raise UnknownPtx(f"{kernel.name}: {chunk!r}")
    negated, guard, opcode, rest = found.groups()
    operands = tuple(part.strip() for part in _OPERAND.findall(rest))
    words = tuple(opcode.split("."))
    kernel.statements.append(
        Statement(words, operands, guard, bool(negated), line, " ".join(chunk.split()))
    )
