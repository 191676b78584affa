"""Gantt chart as SVG: a row a lane, planned over measured, with its own background."""

from __future__ import annotations

from html import escape

import polars as pl

from heterotask_core.program.model import LaneKind, Program

WIDTH_PX, LEFT_PX, ROW_PX, TOP_PX = 1200, 190, 34, 46
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#76b7b2", "#9c755f", "#edc948", "#ff9da7", "#8c8c8c")


def gantt_svg(program: Program, trace: pl.DataFrame, *, title: str) -> str:
    """Return the chart of one repeat (schema ``tables.TRACE``).

    Ops of a kernel closer than half a pixel are drawn as one bar, so the size of the file does not grow with theirs.
    """
    lanes = [
        name
        for name, kind in zip(program.lane_names, program.lane_kinds, strict=True)
        if kind != LaneKind.CAPACITY and (trace["lane"] == name).any()
    ]
    kernels = sorted({k for k in trace["kernel"].to_list() if k is not None})
    colour = {k: COLOURS[i % len(COLOURS)] for i, k in enumerate(kernels)}
    span = max(float(trace["finish_s"].max() or 0), float(trace["planned_finish_s"].max() or 0), 1e-9)  # type: ignore[arg-type]
    scale = (WIDTH_PX - LEFT_PX - 20) / span
    height = TOP_PX + ROW_PX * len(lanes) + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH_PX}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="10" y="20" font-size="15" fill="#222222">{escape(title)}: planned (upper) and '
        f"{escape(str(trace['origin'][0]) if len(trace) else 'nothing')} (lower), {span * 1e3:.1f} ms</text>",
    ]
    for row, lane in enumerate(lanes):
        y = TOP_PX + row * ROW_PX
        parts.append(f'<text x="10" y="{y + 18}" fill="#222222">{escape(lane)}</text>')
        mine = trace.filter(pl.col("lane") == lane)
        for start, finish, top, opacity in (
            ("planned_start_s", "planned_finish_s", y, 0.45),
            ("start_s", "finish_s", y + 14, 1.0),
        ):
            for kernel, a, b in _merge(mine, start, finish, 0.5 / scale):
                fill = colour.get(kernel, "#bab0ac")
                width = max((b - a) * scale, 0.3)
                parts.append(
                    f'<rect x="{LEFT_PX + a * scale:.2f}" y="{top}" width="{width:.2f}" height="12" fill="{fill}" '
                    f'fill-opacity="{opacity}"><title>{escape(kernel)} {(b - a) * 1e3:.3f} ms</title></rect>'
                )
    x = LEFT_PX
    for kernel in kernels:
        parts.append(f'<rect x="{x}" y="{height - 28}" width="12" height="12" fill="{colour[kernel]}"/>')
        parts.append(f'<text x="{x + 16}" y="{height - 18}" fill="#222222">{escape(kernel)}</text>')
        x += 30 + 7 * len(kernel)
    parts.append("</svg>")
    return "\n".join(parts)


def _merge(trace: pl.DataFrame, start: str, finish: str, gap_s: float) -> list[tuple[str, float, float]]:
    bars: list[tuple[str, float, float]] = []
    for kernel, a, b in trace.sort(start).select("kernel", start, finish).iter_rows():
        name = kernel or "copy"
        if bars and bars[-1][0] == name and a - bars[-1][2] < gap_s and b - a < 2 * gap_s:
            bars[-1] = (name, bars[-1][1], max(b, bars[-1][2]))
        else:
            bars.append((name, a, b))
    return bars
