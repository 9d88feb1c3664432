"""What the commands share: the terminal, progress, and how mistakes are told."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from pullback.cli.fit import put, width_of

# What a command that was interrupted exits with, after showing what it had done.
INTERRUPTED = 130


class Mistake(Exception):
    """Something the user can put right; the message says how."""


def console() -> Console:
    return Console(highlight=False)


def tell(message: str) -> None:
    """A word beside the result: on the error stream, so that pipes stay clean."""
    Console(stderr=True, highlight=False).print(message, soft_wrap=True)


def make_room(path: Path) -> None:
    """See to it that a file can be written, before the work that is to go there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise Mistake(f"{path} is not a file that can be written")


def plain(value: object) -> str:
    """Text as it is: brackets in it are no markup."""
    return escape(str(value))


def paragraphs(out: Console, text: str) -> None:
    """Text filled to the width there is, whatever the width it was written for."""
    for paragraph in text.split("\n\n") if text else ():
        out.print(" ".join(paragraph.split()), markup=False)


def table(title: str, *columns: str, caption: str = "") -> Table:
    """A plain table; columns that begin with ">" are numbers."""
    made = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for column in columns:
        right = column.startswith(">")
        made.add_column(column.lstrip(">"), justify="right" if right else "left", no_wrap=right)
    return made


def show(*tables: Table) -> None:
    """Print tables as wide as the screen lets them; on a pipe there is no width to respect."""
    screen = console()
    for one in tables:
        if not screen.is_terminal:
            screen.width = max(160, width_of(one))
        put(screen, one)


def progress() -> Progress:
    """A bar with what is being done and how long it will take; silent when nobody watches."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def as_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, default=str) + "\n")


def one_of(what: str, value: str, known: Iterable[str]) -> str:
    """`value` if it is known; else a mistake that offers the nearest names."""
    from difflib import get_close_matches

    names = list(known)
    if value in names:
        return value
    near = get_close_matches(value, names, 3, 0.5)
    offer = f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(names)}"
    raise Mistake(f"no {what} is called {value!r}{offer}")
