"""The charts, by Vega-Altair: one description each, drawn by the page or into a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
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
    return _spec(line + dots, "GB/s of every row against bytes; the dashed line is a copy.", 380)


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


def small(results: Results) -> Spec:
    """Speed-up over PyTorch from a kilobyte up."""
    peer = "torch"
    lines = [
        {"op": _name(r), "bytes": r.nbytes, "times": round(r.speedup(peer), 3), "row": r.title}
        for r in results.rows
        if peer in r.timings and r.dtype == "f32" and isfinite(r.speedup(peer))
        and r.direction in ("forward", "backward")
    ]  # fmt: skip
    ops = list(dict.fromkeys(line["op"] for line in lines))
    chosen = alt.selection_point(
        fields=["op"],
        bind=alt.binding_select(options=[None, *ops], labels=["all", *map(str, ops)], name="op "),
    )
    chart = (
        alt.Chart(alt.Data(values=lines))
        .mark_line(point=True)
        .encode(
            x=alt.X("bytes:Q", scale=alt.Scale(type="log")).axis(format="~s"),
            y=alt.Y("times:Q", scale=alt.Scale(type="log"), title="times faster than PyTorch"),
            color=alt.Color("op:N", legend=None),
            opacity=alt.condition(chosen, alt.value(0.9), alt.value(0.06)),
            tooltip=["row:N", alt.Tooltip("times:Q", format=".2f")],
        )
        .add_params(chosen)
    )
    rule = alt.Chart(alt.Data(values=[{"one": 1}])).mark_rule(strokeDash=[4, 3]).encode(y="one:Q")
    return _spec(chart + rule, "Speed-up over PyTorch against size, one line per op.", 340)


def growth(results: Results, along: str) -> Spec:
    """Cost per element relative to the smallest size: flat is linear."""
    lines = [
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
    chart = (
        alt.Chart(alt.Data(values=lines))
        .mark_line(point=True, opacity=0.75)
        .encode(
            x=alt.X("extent:O", title=f"extent of the {along}").axis(labelAngle=0),
            y=alt.Y("relative:Q", scale=alt.Scale(zero=True), title="cost per element, n = 1"),
            color=alt.Color("op:N", legend=None),
            tooltip=["op:N", "extent:Q", "ns:Q"],
        )
    )
    return _spec(chart, f"Cost per element while the {along} grows; flat means linear.", 260)


def charts(results: Results) -> dict[str, Spec]:
    """All charts that have data, by the id of their place in the page."""
    made: dict[str, Spec] = {}
    if results.rows:
        made.update(roofline=roofline(results), speedups=speedups(results), small=small(results))
    if results.growth:
        made.update(axis=growth(results, "axis"), batch=growth(results, "batch"))
    return made


PICTURES = {"speedups": 860, "roofline": 860}


def picture(spec: Spec, width: int) -> str:
    """A chart as an SVG picture of fixed width, on white."""
    import vl_convert

    fixed = {**spec, "width": width, "background": "white", "padding": 12}
    svg: str = vl_convert.vegalite_to_svg(fixed, config={"font": "sans-serif"})
    return svg
