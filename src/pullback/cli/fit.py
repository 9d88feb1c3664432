"""Tables where they fit; where they do not, the same rows as lines, so that no word is cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

# Words that may be broken over lines still want this many letters to a line.
_COMFORT = 16


def width_of(table: Table) -> int:
    """The least width at which a table reads well: no word is cut, no cell is a narrow ribbon."""
    return sum(_width(column) + 3 for column in table.columns) + 1


def _width(column: Column) -> int:
    lines = [Text.from_markup(str(cell)).plain for cell in (column.header, *column.cells)]
    natural = max(cell_len(line) for line in lines)
    if column.no_wrap:
        return natural
    longest = max((cell_len(word) for line in lines for word in line.split()), default=0)
    return max(longest, min(natural, _COMFORT))


def put(out: Console, table: Table) -> None:
    """Print a table in the form that suits the width there is."""
    if width_of(table) > out.width:
        _as_lines(out, table)
        return
    for column in table.columns:
        column.min_width = _width(column)
    out.print(table)


def _as_lines(out: Console, table: Table) -> None:
    if table.title:
        out.print(f"[italic]{table.title}[/italic]")
    for head, rest in _rows(table):
        out.print(f"[bold]{head}[/bold]")
        if rest:
            out.print(Padding(rest, (0, 0, 0, 2)))
    if table.caption:
        out.print(f"[dim]{table.caption}[/dim]")


def _rows(table: Table) -> Iterator[tuple[str, str]]:
    """What a row is about, and the rest of it with names: all before the first number, or, where
    there are no numbers, the first cell."""
    words = len(list(takewhile(lambda column: column.justify != "right", table.columns)))
    about = words if words < len(table.columns) else 1
    names = [str(column.header) for column in table.columns]
    for row in zip(*(column.cells for column in table.columns), strict=True):
        cells = [str(cell) for cell in row]
        named = zip(names[about:], cells[about:], strict=True)
        said = [f"[dim]{name}[/dim] {cell}".strip() for name, cell in named if cell]
        # One thing said of each row needs no name.
        rest = cells[-1] if len(cells) == about + 1 else ", ".join(said)
        yield " ".join(cell for cell in cells[:about] if cell), rest
