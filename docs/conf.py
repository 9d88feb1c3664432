"""How `make docs` builds the site. The API pages are written from the registry of ops."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pullback
from pullback.bench.report.summary import standings
from pullback.bench.results import Results

HERE = Path(__file__).parent
API = HERE / "api"

project = "pullback"
author = "The pullback authors"
copyright = author
release = version = pullback.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery"]
nitpicky = False
default_role = "code"  # docstrings write `x` as Markdown does
autodoc_typehints = "none"
autodoc_inherit_docstrings = False
autodoc_default_options = {"members": True}
napoleon_google_docstring = False
napoleon_use_rtype = False
templates_path: list[str] = []

_results = Results.from_json((HERE.parent / "benchmarks" / "results.json").read_text())
_standing = {one.peer: one for one in standings(_results)}

myst_enable_extensions = ["substitution", "deflist", "colon_fence"]
myst_heading_anchors = 3
myst_substitutions = {
    "torch_times": f"{_standing['torch'].median:.1f}",
    "torch_rows": str(_standing["torch"].rows),
    "jax_times": f"{_standing['jax'].median:.1f}",
    "entmax_times": f"{_standing['entmax'].median:.0f}",
    "numbagg_times": f"{_standing['numbagg'].median:.0f}",
    "cpu": str(_results.machine["cpu"]),
    "threads": str(_results.machine["threads"]),
}

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "examples",
    "filename_pattern": "/plot_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
    "min_reported_time": 3600,
}

html_theme = "pydata_sphinx_theme"
html_title = "pullback"
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_sidebars = {"index": [], "museum/index": []}
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "header_links_before_dropdown": 6,
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "search_as_you_type": False,
}

# Families that are one subject to a reader, in the order they are shown; others follow by name.
_SHOWN = (
    "scan",
    "recurrence",
    "segment",
    "segment_softmax",
    "segment_statistics",
    "segment_gather",
)
_MODULES = {
    "distributed": "pullback.distributed",
    "patch": "pullback.patch",
    "nn": "pullback.torch.nn",
    "torch_scatter": "pullback.compat.torch_scatter",
    "entmax_package": "pullback.compat.entmax",
}


def _directive(kind: str, name: str, *options: str) -> str:
    lines = [f".. {kind}:: {name}", *(f"   :{option}:" for option in options)]
    return "\n".join(["```{eval-rst}", *lines, "```", ""])


def _page(name: str, title: str, *parts: str) -> None:
    text = "\n".join([f"# {title}", "", *parts])
    path = API / f"{name}.md"
    if not path.exists() or path.read_text() != text:  # so that a second build reads less
        path.write_text(text)


def _write_family(family: str) -> None:
    module = import_module(f"pullback.ops.{family}")
    names = [name for name in module.__all__ if callable(getattr(pullback, name))]
    functions = [name for name in names if not isinstance(getattr(pullback, name), type)]
    parts = [_directive("autofunction", f"pullback.{name}") for name in functions]
    _page(family, family.replace("_", " ").capitalize(), str(module.__doc__), "", *parts)


def write_api(_: Any) -> None:
    """A page for each family, one for plans, one for the vocabulary, one for each module."""
    API.mkdir(exist_ok=True)
    families = [*_SHOWN, *(name for name in pullback._FAMILIES if name not in _SHOWN)]
    for family in families:
        _write_family(family)
    plans = list(import_module("pullback.plans").__all__)
    _page(
        "plans",
        "pullback.plans",
        *(_directive("autoclass", f"pullback.{name}", "no-members") for name in plans),
    )
    others = [name for name in pullback._VOCABULARY if isinstance(getattr(pullback, name), type)]
    settings = [name for name in pullback._VOCABULARY if name not in others]
    _page(
        "vocabulary",
        "Kinds, errors, settings",
        *(_directive("autofunction", f"pullback.{name}") for name in settings),
        *(_directive("autoclass", f"pullback.{name}", "no-undoc-members") for name in others),
    )
    for name, module in _MODULES.items():
        _page(name, module, _directive("automodule", module, "members", "no-imported-members"))
    pages = [*families, "plans", "vocabulary", *_MODULES]
    for stale in set(API.glob("*.md")) - {API / f"{name}.md" for name in [*pages, "index"]}:
        stale.unlink()
    _page(
        "index",
        "API reference",
        "Written from the docstrings, which are made from the contracts of the ops. Every function",
        "takes NumPy arrays, torch tensors and JAX arrays and returns the same kind.",
        "",
        "\n".join(["```{toctree}", ":maxdepth: 1", "", *pages, "```", ""]),
    )


def _escape_bars(_app: Any, _what: str, _name: str, _thing: Any, _: Any, lines: list[str]) -> None:
    """|w| is an absolute value, not a substitution."""
    lines[:] = [line if ">>>" in line else line.replace("|", "\\|") for line in lines]


def _link_pages(_app: Any, page: str, source: list[str]) -> None:
    """Files beside README.md, as pages link to them in the repository, have a page of their own.
    Pages that no list names, new ones for example, go to the end of the last list."""
    if page == "about":
        guide = (HERE / "guide" / "index.md").read_text()
        known = set(re.findall(r"^\.\./([\w-]+)$", guide, re.MULTILINE))
        known |= set(re.findall(r"^([\w-]+)$", source[0], re.MULTILINE)) | {"about", "index"}
        others = sorted({path.stem for path in HERE.glob("*.md")} - known)
        source[0] = source[0].replace("@others", "\n".join(others))
    for name in ("SECURITY", "CHANGELOG", "CONTRIBUTING"):
        source[0] = source[0].replace(f"](../{name}.md)", f"]({name.lower()}.md)")


def setup(app: Any) -> None:
    app.connect("builder-inited", write_api)
    app.connect("autodoc-process-docstring", _escape_bars)
    app.connect("source-read", _link_pages)
