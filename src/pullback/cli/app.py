"""The commands and their help. Each imports what it needs when it runs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable

import typer

from pullback.cli import (
    bench,
    catalog,
    demo,
    doctor,
    fuzz,
    gpu,
    gpu_check,
    race,
    report,
    show,
    verify,
    warm,
)

app = typer.Typer(
    name="pullback",
    help=(
        "Forward and backward kernels for scans, segments, embeddings and simplex maps.\n\n"
        "Begin with [bold]pullback demo[/bold]; [bold]pullback list[/bold] shows what there is."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 a check failed, 2 a mistake in the call, 130 interrupted.",
)

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "list": catalog.list_,
    "show": show.show,
    "verify": verify.verify,
    "fuzz": fuzz.fuzz,
    "bench": bench.bench,
    "race": race.race,
    "report": report.report,
    "warm": warm.warm,
    "doctor": doctor.doctor,
    "catalog": catalog.catalog,
    "gpu-report": gpu.gpu_report,
    "gpu-counts": gpu.gpu_counts,
    "gpu-check": gpu_check.gpu_check,
}


def _help(command: Callable[..., None]) -> str:
    """A docstring with its paragraphs filled to whatever width there is; examples stay lines."""
    parts = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(p if p.startswith("[dim]") else " ".join(p.split()) for p in parts)


for _name, _command in COMMANDS.items():
    app.command(_name, help=_help(_command))(_command)


def _version(wanted: bool) -> None:
    if wanted:
        import pullback

        typer.echo(f"pullback {pullback.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    return


def _unread() -> int:
    """The reader has gone (`pullback list | head`): nothing is left to say."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def run() -> int:
    """Run the command line; what to exit with."""
    from pullback.cli.screen import Mistake, plain, tell
    from pullback.contract.errors import PullbackError

    try:
        app(prog_name="pullback")
    except SystemExit as done:
        if isinstance(done.__context__, BrokenPipeError):
            return _unread()
        return done.code if isinstance(done.code, int) else 1
    except BrokenPipeError:
        return _unread()
    except (Mistake, PullbackError, OSError) as error:
        tell(f"[red]pullback:[/red] {plain(error)}")
        return 2
    except KeyboardInterrupt:
        tell("interrupted")
        return 130
    return 0
