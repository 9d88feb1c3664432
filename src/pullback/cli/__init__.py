"""The command `pullback`: look at the kernels, check them, time them."""

from __future__ import annotations

import sys

_NEEDS = ("typer", "rich", "click")


def main() -> None:
    """Entry point. A user's mistake is one sentence and exit code 2, never a traceback."""
    try:
        from pullback.cli.app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _NEEDS:
            raise
        sys.exit(f"pullback: the command line needs {error.name}: pip install 'pullback[cli]'")
    sys.exit(run())
