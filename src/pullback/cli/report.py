"""`report`: the results as one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pullback.bench.results import Results


def report(
    results: Annotated[Path, typer.Argument(help="What `pullback bench --save` wrote.")] = Path(
        "benchmarks/results.json"
    ),
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("report.html"),
    pictures: Annotated[
        Path | None, typer.Option(help="Also write the README's pictures into this folder.")
    ] = None,
) -> None:
    """Write one self-contained HTML page: roofline, speed-ups, growth, accuracy, contracts.

    [dim]pullback bench --save results.json && pullback report results.json
    pullback report --out report.html --pictures benchmarks[/dim]
    """
    from pullback.cli.bench import load
    from pullback.cli.screen import make_room, tell

    make_room(out)
    write(load(results), out, pictures)
    tell(f"{out}: {out.stat().st_size / 1e6:.1f} MB, opens from disk")


def write(results: Results, out: Path, pictures: Path | None) -> None:
    from pullback.cli.screen import Mistake

    try:
        from pullback.bench.report.charts import PICTURES, caption, charts, picture
        from pullback.bench.report.page import page
    except ModuleNotFoundError as error:
        raise Mistake(f"the report needs {error.name}: pip install 'pullback[bench]'") from None
    out.write_text(page(results))
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
        drawn = charts(results)
        for name, (width, title) in PICTURES.items():
            if name in drawn:
                drawing = picture(drawn[name], width, title, caption(results, name))
                (pictures / f"{name}.svg").write_text(drawing)
