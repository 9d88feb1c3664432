"""The charts, by Vega-Altair: one description each, drawn by the page or into a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from textwrap import wrap
from typing import Any

import altair as alt

from pullback.bench.results import COPY, INTO, Results, RowResult

Spec = dict[str, Any]


def _name(row: RowResult) -> str:
    return row.op if row.direction == "forward" else f"{row.op} ∇"


def _large(results: Results) -> list[RowResult]:
    """One row per op, direction: the first of its f32 rows, which is the family's main size."""
    first: dict[tuple[str, str], RowResult] = {}
    for row in results.rows:
        if row.dtype == "f32" and "small" not in row.tags and INTO in row.timings:
            first.setdefault((row.op, row.direction), row)
    return [row for row in first.values() if row.direction in ("forward", "backward")]


def _spec(chart: Any, description: str, height: int) -> Spec:
    made = chart.properties(
        width="container",
        height=height,
        description=description,
    )
    spec: Spec = made.to_dict()
    spec.pop("config", None)  # the page sets colours, for light and for dark
    return spec


def _tight(name: str, data: Sequence[Mapping[str, Any]]) -> alt.Scale:
    """A logarithmic scale around the data, not around the powers of ten it lies between."""
    values = [float(point[name]) for point in data] or [1.0]
    low, high = min(values), max(values)
    return alt.Scale(type="log", domain=[0.8 * low, 1.25 * high], nice=False)


def roofline(results: Results) -> Spec:
    """Speed against the bytes moved, with the copy of the same bytes as the roof."""
    rows = [r for r in results.rows if INTO in r.timings and COPY in r.timings]
    points = [
        {
            "bytes": r.nbytes,
            "GB/s": round(r.gbps, 3),
            "family": r.family,
            "row": r.title,
            "of copy": round(r.of_copy, 3),
        }
        for r in rows
    ]
    roof = [{"bytes": r.nbytes, "GB/s": r.nbytes / r.time(COPY) / 1e9} for r in rows]
    x = alt.X("bytes:Q", scale=alt.Scale(type="log"), title="bytes read and written").axis(
        format="~s"
    )
    y = alt.Y("GB/s:Q", scale=_tight("GB/s", [*points, *roof]), title="GB/s")
    tip = ["row:N", "GB/s:Q", alt.Tooltip("of copy:Q", format=".0%")]
    marks = alt.Chart(alt.Data(values=points)).mark_point(filled=True, size=55, opacity=0.8)
    dots = marks.encode(
        x=x, y=y, tooltip=tip, color=alt.Color("family:N", legend=alt.Legend(orient="top"))
    )
    line = (
        alt.Chart(alt.Data(values=roof))
        .transform_bin("bin", "log", bin=alt.Bin(maxbins=24))
        .transform_aggregate(bytes="median(bytes)", speed="median(GB/s)", groupby=["bin"])
        .transform_calculate(label="'copy'")
        .mark_line(strokeDash=[5, 4], strokeWidth=2, color="#d62728")
        .encode(x="bytes:Q", y=alt.Y("speed:Q", title="GB/s"), tooltip=alt.value("plain copy"))
    )
    for point in roof:
        point["log"] = _log(point["bytes"])
    chart = line + dots + _said(results, roof)
    return _spec(chart, "GB/s of every row against bytes; the dashed line is a copy.", 420)


def _said(results: Results, roof: list[dict[str, float]]) -> Any:
    """What the lines are: the copy, and how much the caches hold."""
    top = max(point["GB/s"] for point in roof)
    largest = max(roof, key=lambda point: point["bytes"])
    words = [{**largest, "text": "plain copy"}]
    caches = [
        {"bytes": size, "GB/s": top, "text": f"{name}, {size >> 10} KiB"}
        for name, size in results.machine.get("caches", {}).items()
        if size >= min(point["bytes"] for point in roof)
    ]
    copy = alt.Chart(alt.Data(values=words)).mark_text(align="right", dy=-10, color="#d62728")
    place = {"x": alt.X("bytes:Q"), "y": alt.Y("GB/s:Q"), "text": "text:N"}
    if not caches:
        return copy.encode(**place)
    base = alt.Chart(alt.Data(values=caches))
    rules = base.mark_rule(strokeDash=[2, 3], opacity=0.6).encode(x="bytes:Q")
    names = base.mark_text(align="left", dx=4, color="#888").encode(**place)
    return rules + names + copy.encode(**place)


def _log(value: float) -> float:
    from math import log10

    return round(log10(max(value, 1.0)), 3)


def speedups(results: Results, peers: list[str] | None = None) -> Spec:
    """How many times faster than each peer, main sizes, f32."""
    wanted = peers or [p for p in results.peers() if not p.endswith(" out")]
    bars = [
        {
            "op": _name(row),
            "peer": peer,
            "times": round(row.speedup(peer), 3),
            "row": row.title,
            "start": 1,
        }
        for row in _large(results)
        for peer in wanted
        if peer in row.timings and isfinite(row.speedup(peer))
    ]
    order = [_name(row) for row in _large(results)]
    chosen = alt.selection_point(fields=["peer"], bind="legend")
    base = alt.Chart(alt.Data(values=bars)).encode(
        y=alt.Y("op:N", sort=order, title=None).axis(labelLimit=170),
        x=alt.X(
            "times:Q",
            scale=_tight("times", [*bars, {"times": 1}]),
            title="times faster than (log scale)",
        ).axis(format="~r"),
        yOffset=alt.YOffset("peer:N", sort=wanted),
        color=alt.Color("peer:N", sort=wanted, legend=alt.Legend(orient="top")),
        opacity=alt.condition(chosen, alt.value(0.95), alt.value(0.12)),
        tooltip=["row:N", "peer:N", alt.Tooltip("times:Q", format=".2f")],
    )
    marks = base.mark_bar(height=alt.RelativeBandSize(band=0.9)).encode(x2="start:Q")
    rule = alt.Chart(alt.Data(values=[{"one": 1}])).mark_rule(strokeWidth=1.5).encode(x="one:Q")
    chart = (marks + rule).add_params(chosen)
    tall = 40 + 8 * max(len(bars), len(order))
    return _spec(chart, "Speed-up over each peer, one group of bars per op.", tall)


def _one_at_a_time(name: str, ops: list[str], first: str) -> Any:
    """Which op a chart shows: a choice beside it."""
    chosen = first if first in ops else ops[0]
    return alt.param(name=name, value=chosen, bind=alt.binding_select(options=ops, name="op "))


def small(results: Results) -> Spec:
    """Speed-up over the peers from a kilobyte up, one op at a time."""
    lines = [
        {
            "op": r.op,
            "direction": r.direction,
            "peer": peer,
            "bytes": r.nbytes,
            "times": round(r.speedup(peer), 3),
            "row": r.title,
        }
        for r in results.rows
        if r.dtype == "f32" and r.direction in ("forward", "backward")
        for peer in r.timings
        if peer in results.peers() and isfinite(r.speedup(peer))
    ]
    names = dict.fromkeys(str(line["op"]) for line in lines)
    sizes = {op: len({line["bytes"] for line in lines if line["op"] == op}) for op in names}
    ops = [op for op in names if sizes[op] > 1]
    chosen = _one_at_a_time("sizes_op", ops, max(ops, key=lambda op: sizes[op]))
    chart = (
        alt.Chart(alt.Data(values=lines))
        .transform_filter("datum.op == sizes_op")
        .mark_line(point=True)
        .encode(
            x=alt.X("bytes:Q", scale=alt.Scale(type="log"), title="bytes read and written").axis(
                format="~s"
            ),
            y=alt.Y("times:Q", scale=alt.Scale(type="log"), title="times faster than the peer"),
            color=alt.Color("peer:N", legend=alt.Legend(orient="top")),
            strokeDash=alt.StrokeDash("direction:N", legend=alt.Legend(orient="top")),
            tooltip=["row:N", "peer:N", alt.Tooltip("times:Q", format=".2f")],
        )
        .add_params(chosen)
    )
    rule = alt.Chart(alt.Data(values=[{"one": 1}])).mark_rule(strokeDash=[4, 3]).encode(y="one:Q")
    return _spec(chart + rule, "Speed-up over peers against size, of one op.", 340)


def growth(results: Results, along: str) -> Spec:
    """Cost per element relative to the smallest size, a line of dots for each op: 1 is linear."""
    dots = [
        {
            "op": entry.op if entry.direction == "forward" else f"{entry.op} ∇",
            "extent": extent,
            "relative": round(cost / entry.costs[0], 3),
            "ns": round(cost, 4),
        }
        for entry in results.growth
        if entry.along == along
        for extent, cost in zip(entry.extents, entry.costs, strict=True)
    ]
    order = list(dict.fromkeys(dot["op"] for dot in dots))
    chart = (
        alt.Chart(alt.Data(values=dots))
        .mark_point(filled=True, size=60, opacity=0.85)
        .encode(
            y=alt.Y("op:N", sort=order, title=None).axis(labelLimit=170, grid=True),
            x=alt.X("relative:Q", scale=alt.Scale(zero=True), title="cost per element, first = 1"),
            color=alt.Color(
                "extent:O", title=f"extent of the {along}", legend=alt.Legend(orient="top")
            ),
            tooltip=["op:N", "extent:Q", "ns:Q", "relative:Q"],
        )
    )
    rule = alt.Chart(alt.Data(values=[{"one": 1}])).mark_rule(strokeDash=[4, 3]).encode(x="one:Q")
    tall = 40 + 16 * max(len(order), 1)
    return _spec(chart + rule, f"Cost per element while the {along} grows; 1 is linear.", tall)


def charts(results: Results) -> dict[str, Spec]:
    """All charts that have data, by the id of their place in the page."""
    made: dict[str, Spec] = {}
    if results.rows:
        made.update(roofline=roofline(results), speedups=speedups(results), small=small(results))
    if results.growth:
        made.update(axis=growth(results, "axis"), batch=growth(results, "batch"))
    return made


PICTURES = {
    "speedups": (860, "Times faster than each peer"),
    "roofline": (860, "Bytes per second of every row, beside a plain copy"),
}


def caption(results: Results, name: str) -> list[str]:
    """What a picture shows, in words: machine, dtype, sizes."""
    machine = results.machine
    versions = machine.get("versions", {})
    named = [n for n in ("torch", "jax", "numpy", "entmax", "scipy", "numbagg") if n in versions]
    where = f"{machine['cpu']}, {machine['threads']} threads of {machine['cores']} cores"
    beside = ", ".join(f"{name} {versions[name]}" for name in named)
    if name == "roofline":
        dtypes = ", ".join(dict.fromkeys(row.dtype for row in results.rows))
        sizes = [row.nbytes / 1e6 for row in results.rows]
        reach = f"{min(sizes):.2g} to {max(sizes):.0f} MB read and written"
        return [f"{where}; {dtypes}; {reach}", f"pullback at {machine['commit']}"]
    families: dict[str, list[str]] = {}
    for row in _large(results):
        families.setdefault(row.workload, []).append(row.family)
    listed = "; ".join(f"{', '.join(dict.fromkeys(f))}: {size}" for size, f in families.items())
    first = f"{where}; float32, both allocate; ∇ is the backward; {beside}"
    return [first, *wrap(listed, 120)]


def picture(spec: Spec, width: int, title: str, subtitle: list[str]) -> str:
    """A chart as an SVG picture of fixed width, on white, with its caption."""
    import vl_convert

    head = {"text": title, "subtitle": subtitle, "anchor": "start", "offset": 12}
    fixed = {**spec, "title": head, "width": width, "background": "white", "padding": 12}
    svg: str = vl_convert.vegalite_to_svg(fixed, config={"font": "sans-serif"})
    return svg
