"""Draw docs/_static/layers.svg from the imports of the packages: who imports whom.

python tools/layers.py
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "pullback"
PICTURE = ROOT / "docs" / "_static" / "layers.svg"
# From the lowest layer up; tests/test_layers.py holds the direction of imports.
PACKAGES = (
    *("contract", "internals", "tensor", "cpu", "gpu", "plan", "ops", "frontends", "distributed"),
    *("torch", "compat", "patch", "verify", "fuzz", "bench", "aot", "cli"),
)
# Parts of a family that are loaded by name from the packages they belong to.
ELSEWHERE = {"accuracy.py": "verify", "bench.py": "bench"}
CELL, LEFT, TOP = 26, 96, 84


def imports() -> set[tuple[str, str]]:
    """Pairs (importer, imported)."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        package = ELSEWHERE.get(path.name, package) if package == "ops" else package
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pullback."):
                found.add((package, str(node.module).split(".")[1]))
    return {(a, b) for a, b in found if a in PACKAGES and b in PACKAGES and a != b}


def picture() -> str:
    found, rows = imports(), tuple(reversed(PACKAGES))
    width, height = LEFT + CELL * len(rows) + 40, TOP + CELL * len(rows) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        "<title>Which package imports which: a row imports the columns that are filled</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, row in enumerate(rows):
        y = TOP + CELL * number
        parts.append(f'<text x="{LEFT - 8}" y="{y + 17}" text-anchor="end">{row}</text>')
        x = LEFT + CELL * number
        parts.append(f'<text transform="translate({x + 17} {TOP - 8}) rotate(-45)">{row}</text>')
        for place, column in enumerate(rows):
            fill = "#1f5fa8" if (row, column) in found else "#f1f3f5"
            fill = "#c6ccd2" if row == column else fill
            parts.append(
                f'<rect x="{LEFT + CELL * place + 2}" y="{y + 2}" width="{CELL - 4}" '
                f'height="{CELL - 4}" fill="{fill}"/>'
            )
    note = "A row imports the columns that are filled. Left of the diagonal: an import upwards."
    parts.append(f'<text x="{LEFT - 88}" y="{height - 12}">{note}</text></svg>')
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture())
