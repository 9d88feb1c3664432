"""Write docs/specialisations.md from the comments `Gain (what): row ratio` of the source.

python tools/specialisations.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "specialisations.md"
GAIN = re.compile(r"Gain \(([^)]+)\): ([^\n]+?) (\d+\.\d\d)\.$", re.MULTILINE)
HEAD = """# Specialisations

Every path that could be left out, and what it buys: the benchmark row that gains most, and how
many times as long that row takes without the path. `Gain (what): row ratio` stands beside the code;
this page is made from those lines by `python tools/specialisations.py`. A path that buys less than
1.15 on every row goes.

| path | file | row | ratio |
|---|---|---|---|
"""


def gains() -> Iterator[tuple[str, str, str, str]]:
    for path in sorted((ROOT / "src" / "pullback").rglob("*.py")):
        for what, row, ratio in GAIN.findall(path.read_text().replace('."""', ".")):
            yield what, path.relative_to(ROOT / "src" / "pullback").as_posix(), row, ratio


def page() -> str:
    return HEAD + "".join(f"| {a} | `{b}` | {c} | {d} |\n" for a, b, c, d in gains())


if __name__ == "__main__":
    PAGE.write_text(page())
