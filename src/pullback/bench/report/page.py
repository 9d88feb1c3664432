"""One self-contained page: charts, and tables that sort and filter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from math import isfinite
from string import Template
from typing import Any

from pullback.bench.report.charts import charts
from pullback.bench.report.summary import Behind, Standing, behind, standings, wrong
from pullback.bench.results import INTO, OURS, Results, RowResult


@dataclass(frozen=True)
class Cell:
    """What is shown, what it sorts by, how it is marked, and where it leads."""

    text: str
    value: float | None = None
    mark: str = ""
    link: str = ""


Row = tuple[str, Sequence[Cell]]  # the family it belongs to, for the filter


def _cell(cell: Cell) -> str:
    number = cell.value is not None
    classes = " ".join(filter(None, ("n" if number else "", cell.mark)))
    value = f' data-v="{cell.value:.6g}"' if number and isfinite(cell.value or 0) else ""
    named = f' class="{classes}"' if classes else ""
    text = escape(cell.text)
    shown = f'<a href="#{cell.link}">{text}</a>' if cell.link else text
    return f"<td{named}{value}>{shown}</td>"


def _place(table: str, *words: str) -> str:
    """The id of a row, by what its first cells say."""
    return "-".join((table, *(re.sub(r"[^\w]+", "-", word) for word in words)))


_LINKED = ("speed", "accuracy")  # tables whose rows others lead to


def _table(name: str, title: str, text: str, columns: Sequence[str], rows: list[Row]) -> str:
    """A section with a table; columns that begin with ">" are numbers."""
    families = dict.fromkeys(family for family, _ in rows if family)
    options = "".join(f"<option>{escape(family)}</option>" for family in families)
    chooser = (
        f'<select aria-label="Family"><option value="">all families</option>{options}</select>'
        if len(families) > 1
        else ""
    )
    heads = "".join(
        f'<th scope="col"{" class=n" if c.startswith(">") else ""}>'
        f'<button type="button">{escape(c.lstrip(">"))}</button></th>'
        for c in columns
    )
    body = "".join(
        f'<tr data-family="{escape(family)}"{_id(name, cells)}>{"".join(map(_cell, cells))}</tr>'
        for family, cells in rows
    )
    return (
        f'<section class="table" id="{name}"><h2>{escape(title)}</h2><p>{escape(text)}</p>'
        f'<div class="tools"><input type="search" placeholder="Filter: words, all must fit" '
        f'aria-label="Filter {escape(title)}">{chooser}<span class="count" role="status"></span>'
        f'</div><div class="scroll" tabindex="0"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></section>"
    )


def _id(table: str, cells: Sequence[Cell]) -> str:
    return f' id="{_place(table, *(c.text for c in cells[:4]))}"' if table in _LINKED else ""


def _chart(name: str, title: str, text: str, *places: str) -> str:
    slots = "".join(f'<div class="chart" id="{place}"></div>' for place in places)
    inner = f'<div class="pair">{slots}</div>' if len(places) > 1 else slots
    return f'<section id="{name}"><h2>{escape(title)}</h2><p>{escape(text)}</p>{inner}</section>'


def _number(value: float, pattern: str, bad_below: float | None = None) -> Cell:
    if not isfinite(value):
        return Cell("-", None)
    mark = "bad" if bad_below is not None and value < bad_below else ""
    return Cell(pattern.format(value), value, mark)


def _peer(row: RowResult, peer: str) -> Cell:
    if peer in row.verdicts:
        return Cell(row.verdicts[peer], None, "warn")
    return _number(row.speedup(peer), "{:.2f}x", 1.0)


def _standing(one: Standing) -> Row:
    return "", [
        Cell(one.peer),
        _number(one.rows, "{:.0f}"),
        _number(one.median, "{:.1f}x", 1.0),
        _number(one.worst, "{:.2f}x", 1.0),
        _number(one.best, "{:.0f}x"),
        Cell(str(one.behind), float(one.behind), "bad" if one.behind else "good", "behind"),
        Cell(str(one.wrong), float(one.wrong), "warn" if one.wrong else "", "wrong"),
    ]


def _behind(one: Behind) -> Row:
    row = one.row
    place = _place("speed", *row.key)
    return row.family, [
        Cell(row.op, None, "", place),
        *(Cell(text) for text in row.key[1:]),
        Cell(one.peer),
        _number(one.times, "{:.2f}x", 1.0),
        _number(one.ours * 1e3, "{:.4g}"),
        _number(one.theirs * 1e3, "{:.4g}"),
    ]


def _opening(results: Results) -> Iterable[str]:
    """What a visitor wants to know first: how fast, where not, and who is wrong."""
    rows = [_standing(one) for one in standings(results)]
    columns = ["peer", ">rows", ">median", ">worst", ">best", ">rows behind", ">wrong results"]
    text = "How many times faster pullback is, over all rows that both answer rightly."
    yield _table("standing", "Against each peer", text, columns, rows)
    columns = ["op", "direction", "size", "dtype", "peer", ">times faster", ">ms", ">ms, peer"]
    text = "Rows where a peer is faster. The op leads to the row."
    yield _table("behind", "Rows behind", text, columns, [_behind(one) for one in behind(results)])
    places = [(e, _place(t, *words)) for t, words, e in wrong(results)]
    found: list[Row] = [
        (e.family, [Cell(e.op, None, "", place), *(Cell(text) for text in e.words)])
        for e, place in places
    ]
    text = "Results that differ from the definition by more than ours may. The op leads to the row."
    columns = ["op", "direction", "input", "dtype", "peer", "what"]
    yield _table("wrong", "Wrong results of peers", text, columns, found)


def _speed(results: Results) -> str:
    peers = results.peers()
    rows: list[Row] = []
    for row in results.rows:
        wrong = row.verdicts.get(OURS)
        ours = row.timings.get(OURS)
        spread = (ours.high - ours.low) / 2 / ours.median if ours else float("nan")
        cells = [
            *(Cell(text) for text in (row.op, row.direction, row.workload, row.dtype)),
            Cell(wrong, None, "bad") if wrong else _number(row.time(OURS) * 1e3, "{:.4g}"),
            _number(spread * 100, "{:.0f}"),
            _number(row.time(INTO) * 1e3, "{:.4g}"),
            _number(row.gbps, "{:.1f}"),
            _number(row.of_copy * 100, "{:.0f}"),
            *(_peer(row, peer) for peer in peers),
        ]
        rows.append((row.family, cells))
    columns = ["op", "direction", "size", "dtype", ">ms", ">± %", ">ms into out", ">GB/s"]
    columns += [">% of copy", *(f">{peer}" for peer in peers)]
    text = (
        "Medians. A peer's column says how many times faster pullback is; both allocate their "
        "results, but for peers ending in “out”, which are held against “into out”. A wrong result "
        "has no speed."
    )
    return _table("speed", "Every row", text, columns, rows)


def _figures(results: Results) -> str:
    marks = {True: ("reached", "good"), False: ("missed", "bad"), None: ("not run", "warn")}
    rows: list[Row] = []
    for figure in results.figures:
        said, mark = marks[figure.met]
        measured = figure.measured if figure.measured is not None else float("nan")
        wanted = Cell(f"{figure.sense} {figure.bound:.3g} {figure.unit}", figure.bound)
        text = f"{figure.text} ({figure.where})" if figure.where else figure.text
        cells = [Cell(figure.family), Cell(text, None, "wrap"), wanted]
        rows.append((figure.family, [*cells, _number(measured, "{:.3g}"), Cell(said, None, mark)]))
    columns = ["family", "figure", ">wanted", ">measured", "verdict"]
    return _table("figures", "Figures", "What was set out to be reached.", columns, rows)


def _accuracy(results: Results) -> str:
    names = list(dict.fromkeys(n for e in results.accuracy for n in (*e.errors, *e.verdicts)))
    rows: list[Row] = []
    for entry in results.accuracy:
        cells = [Cell(t) for t in (entry.op, entry.direction, entry.nature, entry.dtype)]
        for name in names:
            if name in entry.errors:
                worst, mean = entry.errors[name]
                cells.append(Cell(f"{worst:.3g} ({mean:.2g})", worst))
            else:
                cells.append(Cell(entry.verdicts.get(name, ""), None, "warn"))
        rows.append((entry.family, cells))
    text = "Error in ulp against the high-precision definition: worst, and mean in brackets."
    columns = ["op", "direction", "input", "dtype", *(f">{name}" for name in names)]
    return _table("accuracy", "Accuracy", text, columns, rows)


def _contracts() -> str:
    from pullback.bench.inventory import entries

    rows: list[Row] = [
        (
            entry.family,
            [
                Cell(text)
                for text in (
                    entry.op, entry.record.direction, f"{entry.record.name}Plan",
                    " ".join(entry.dtypes), " ".join(entry.indices), " ".join(entry.backends),
                    entry.accumulators, entry.reproducibility,
                )
            ],
        )
        for entry in entries()
    ]  # fmt: skip
    columns = ["op", "direction", "plan", "dtypes", "ids", "backends", "summed in", "bits survive"]
    return _table("contracts", "Contracts", "What each kernel promises.", columns, rows)


def _resources(results: Results) -> Iterable[str]:
    if results.scaling:
        rows: list[Row] = [
            (
                e.family,
                [
                    *(Cell(t) for t in (e.op, e.direction, e.workload)),
                    _number(e.one * 1e3, "{:.4g}"),
                    _number(e.all * 1e3, "{:.4g}"),
                    _number(e.one / e.all, "{:.2f}x", 1.0),
                    Cell("yes", None, "good") if e.same_bits else Cell("no", None, "bad"),
                ],
            )
            for e in results.scaling
        ]
        columns = ["op", "direction", "size", ">ms, one", ">ms, all", ">speed-up", "same bits"]
        yield _table("threads", "Threads", "One thread beside all of them.", columns, rows)
    if results.memory:
        names = dict.fromkeys(n for e in results.memory for n in (*e.peaks, *e.verdicts))
        memory: list[Row] = [
            (
                e.family,
                [
                    Cell(e.op),
                    Cell(e.workload),
                    *(
                        Cell(e.verdicts[n], None, "warn")
                        if n in e.verdicts
                        else _number(e.peaks.get(n, float("nan")) / 1e6, "{:.1f}")
                        for n in names
                    ),
                ],
            )
            for e in results.memory
        ]
        columns = ["op", "size", *(f">{name}, MB" for name in names)]
        text = "Peak of a forward and a backward beyond the inputs."
        yield _table("memory", "Memory", text, columns, memory)
    if results.overhead:
        small: list[Row] = [
            ("", [Cell(e.what), _number(e.seconds * 1e6, "{:.4g}"),
                  _number((e.at_most or float("nan")) * 1e6, "{:.4g}")])
            for e in results.overhead
        ]  # fmt: skip
        columns = ["what", ">µs", ">at most, µs"]
        yield _table("overhead", "Overhead", "Small costs every user pays.", columns, small)


def _cards(results: Results) -> str:
    met = [figure.met for figure in results.figures]
    peers = set(results.peers())
    ratios = [r.speedup(p) for r in results.rows for p in r.timings if p in peers]
    ratios = sorted(ratio for ratio in ratios if isfinite(ratio))
    copies = sorted(r.of_copy for r in results.rows if isfinite(r.of_copy) and r.nbytes > 2**25)
    wrong = sum(v.startswith("wrong") for e in results.accuracy for v in e.verdicts.values())
    cards = [
        (f"{met.count(True)} / {len(met)}", "figures reached"),
        (f"{ratios[len(ratios) // 2]:.1f}x" if ratios else "-", "median speed-up over a peer"),
        (f"{ratios[0]:.2f}x" if ratios else "-", "worst speed-up over a peer"),
        (f"{copies[len(copies) // 2]:.0%}" if copies else "-", "of copy speed, large rows, median"),
        (str(wrong), "wrong results of peers"),
    ]
    return "".join(f'<div class="card"><b>{escape(b)}</b><span>{s}</span></div>' for b, s in cards)


def _subtitle(machine: dict[str, Any]) -> str:
    versions = machine.get("versions", {})
    named = ", ".join(
        f"{name} {versions[name]}" for name in ("torch", "jax", "entmax") if name in versions
    )
    return escape(
        f"{machine['cpu']}, {machine['threads']} threads of {machine['cores']} cores, "
        f"{machine['system']}; pullback {versions.get('pullback', '')} at {machine['commit']}, "
        f"{machine['when'][:10]}; beside {named or 'no peers'}."
    )


def page(results: Results) -> str:
    """The whole page as text."""
    import vl_convert

    drawn = charts(results)
    sections = [
        *_opening(results),
        _chart(
            "roof", "Roofline", "Every row: speed into given outputs against the bytes it moves. "
            "The dashed line is a plain copy of as many bytes; dotted lines are the sizes of "
            "caches.", "roofline",
        ),
        _chart(
            "peers", "Against the peers", "Main size of each op, f32, both allocating; ∇ is the "
            "backward. Click a name in the legend to see one peer alone.", "speedups",
        ),
        _chart(
            "sizes", "From a kilobyte up", "Speed-up over peers at every size, f32, of the op "
            "that is chosen.", "small",
        ),
        _chart(
            "growth", "Growth", "Cost per element at n, 4n and 16n, relative to n: 1 is linear.",
            "axis", "batch",
        ),
        _figures(results), _speed(results), _accuracy(results), _contracts(), *_resources(results),
    ]  # fmt: skip
    links = {
        "standing": "Peers", "behind": "Behind", "wrong": "Wrong", "roof": "Roofline",
        "peers": "Ops", "sizes": "Sizes", "growth": "Growth", "figures": "Figures",
        "speed": "Rows", "accuracy": "Accuracy", "contracts": "Contracts", "threads": "Threads",
        "memory": "Memory", "overhead": "Overhead",
    }  # fmt: skip
    there = "\n".join(sections)
    here = files("pullback.bench.report")
    return Template(here.joinpath("page.html").read_text()).substitute(
        style=here.joinpath("page.css").read_text(),
        script=here.joinpath("page.js").read_text(),
        library=_inline(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")),
        charts=_inline(json.dumps(drawn)),
        subtitle=_subtitle(results.machine),
        links="".join(
            f'<a href="#{name}">{text}</a>'
            for name, text in links.items()
            if f'id="{name}"' in there
        ),
        cards=_cards(results),
        sections=there,
    )


def _inline(text: str) -> str:
    """Text that may stand within a script element."""
    return text.replace("</script", "<\\/script")
