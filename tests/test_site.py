"""The documentation: its Python runs, its tables are true, its pages work in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

import torch

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GUIDES = [DOCS / "index.md", *sorted((DOCS / "guide").glob("*.md"))]
MOVING = sorted(page for page in (DOCS / "moving").glob("*.md") if page.stem != "index")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def run_blocks(page: Path) -> tuple[int, dict[str, Any]]:
    """All Python of a page, one block after the other, and the names it leaves."""
    text, names = page.read_text(), dict[str, Any]()
    blocks = [*re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
    for block in blocks:
        before = "\n" * text[: block.start(1)].count("\n")  # so that errors point to the line
        exec(compile(before + block[1], str(page), "exec"), names)
    return len(blocks), names


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_the_guide_runs_as_it_stands(page: Path) -> None:
    count, names = run_blocks(page)
    assert count or page.parent.name + page.stem == "guideindex"
    if page.name == "index.md" and count:
        assert torch.isnan(names["before"]).tolist() == [True, True, False, False]
        assert names["after"].tolist() == pytest.approx([0, 0, 1.26894, 0.73106], abs=1e-4)


def arrays(result: Any) -> list[np.ndarray[Any, Any]]:
    """A result or a tuple of results, as arrays of numbers."""
    parts = result if isinstance(result, tuple) else (result,)
    return [np.asarray(part) for part in parts]


@pytest.mark.parametrize("page", MOVING, ids=lambda page: page.stem)
def test_both_sides_of_the_tables_agree(page: Path) -> None:
    """A row that says it differs does."""
    import pullback
    import pullback.torch.nn

    before = dict(sys.modules)
    try:
        _, names = run_blocks(page)
        names["pullback"] = pullback
        rows = re.findall(r"^\| `([^|]*)` \| `([^|]*)` \| (.*?) ?\|$", page.read_text(), re.M)
        assert len(rows) >= 10
        assert len(rows) == len(re.findall(r"^\| `", page.read_text(), re.M))
        for then, now, note in rows:
            theirs, ours = arrays(eval(then, names)), arrays(eval(now, names))
            same = len(theirs) == len(ours) and all(
                t.shape == o.shape and np.allclose(t, o, 1e-4, 1e-5)
                for t, o in zip(theirs, ours, strict=True)
            )
            assert same != note.startswith("differs"), (then, now, theirs, ours)
    finally:
        for name in sys.modules.keys() - before.keys():
            if name.startswith("torch_scatter"):  # so that no other test finds it
                del sys.modules[name]


def test_the_site_is_whole_and_works_in_a_browser(tmp_path: Path) -> None:
    """One test: a build writes pages beside the sources, which two at a time must not do."""
    pytest.importorskip("pydata_sphinx_theme")
    site = build(tmp_path)
    pages_need_nothing_from_elsewhere(site)
    the_api_pages_name_everything_public(site)
    if CHROMIUM is not None:
        pages_fit_a_desktop_and_a_phone(site, tmp_path)


def build(out: Path) -> Path:
    """The whole site but for the results of the gallery, built as `make docs` does."""
    command = [
        sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(out / "trees"),
        "-D", "plot_gallery=0", str(DOCS), str(out / "html"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out / "html"


def pages(site: Path) -> list[Path]:
    return [page for page in sorted(site.rglob("*.html")) if "_static" not in page.parts]


def pages_need_nothing_from_elsewhere(site: Path) -> None:
    """Scripts, styles, fonts and pictures lie beside the pages; links lead somewhere."""
    found = pages(site)
    assert len(found) > 40
    ids = {page: set(re.findall(r'\bid="([^"]+)"', page.read_text())) for page in found}
    lost = []
    for page in found:
        text = page.read_text()
        loads = re.findall(r"<(?:script|link|img|source)\b[^>]*?\b(?:src|href)=\"([^\"]+)", text)
        assert [url for url in loads if re.match(r"(https?:)?//", url)] == [], page
        for link in [*loads, *re.findall(r'<a\b[^>]*?\bhref="([^"]+)"', text)]:
            path, _, anchor = unescape(link).partition("#")
            if re.match(r"\w+:", path):
                continue
            target = (page.parent / path.partition("?")[0]).resolve() if path else page
            if not target.exists() or (anchor and target in ids and anchor not in ids[target]):
                lost.append(f"{page.relative_to(site)}: {link}")
    assert lost == []
    styles = "".join(path.read_text() for path in (site / "_static").rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\s]*", styles) == []


def the_api_pages_name_everything_public(site: Path) -> None:
    import pullback

    text = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    kinds = {name for name in pullback.__all__ if name.endswith("Kind") or name == "SegmentIndex"}
    shown = set(re.findall(r'id="pullback\.(\w+)"', text))
    assert set(pullback.__all__) - shown - kinds == set()


# Opens every page in a frame, as wide as a desktop and as a phone, and notes what it saw there.
DRIVER = """<!doctype html><title>driver</title><body><script>
const seen = [];
const open = (url, width) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:900px;border:0`;
  frame.onload = () => setTimeout(() => {
    const page = frame.contentDocument.documentElement;
    const inside = frame.contentWindow.performance.getEntriesByType("resource");
    const article = frame.contentDocument.querySelector("article");
    seen.push({
      url, width, wide: page.scrollWidth - page.clientWidth,
      words: article ? article.innerText.length : -1,
      elsewhere: inside.map((e) => e.name).filter((name) => !name.startsWith(location.origin)),
      broken: [...frame.contentDocument.images].filter((i) => !i.naturalWidth).map((i) => i.src),
    });
    frame.remove();
    done();
  }, 50);
  frame.src = url;
  document.body.append(frame);
});
(async () => {
  for (const url of PAGES) for (const width of [1280, 390]) await open(url, width);
  const note = document.createElement("pre");
  note.id = "seen";
  note.textContent = JSON.stringify(seen);
  document.body.append(note);
})();
</script>"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def pages_fit_a_desktop_and_a_phone(site: Path, folder: Path) -> None:
    names = [str(page.relative_to(site)) for page in pages(site)]
    (site / "driver.html").write_text(DRIVER.replace("PAGES", json.dumps(names)))
    flags = (
        "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update",
        "--disable-dev-shm-usage", "--virtual-time-budget=200000", "--enable-logging=stderr",
        f"--user-data-dir={folder / 'profile'}", "--dump-dom",
    )  # fmt: skip
    with served(site) as address:
        done = subprocess.run(
            [str(CHROMIUM), *flags, f"{address}/driver.html"],
            capture_output=True, text=True, timeout=180, check=True,
        )  # fmt: skip
    note = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert note, done.stderr[-2000:]
    seen = json.loads(unescape(note.group(1)))
    assert len(seen) == 2 * len(names)
    assert [one for one in seen if one["wide"] > 0] == []
    assert [one for one in seen if one["elsewhere"] or one["broken"]] == []
    assert [one["url"] for one in seen if 0 <= one["words"] < 40] == []
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert [line for line in said if '"[PST]: ' not in line] == []  # the theme tells its mode
