"""Gantt chart as SVG: a row a lane, planned over measured, with its own background, at any number of ops.

Bars at least ``_bin_px`` wide are drawn one by one. Narrower ones are summed up in columns of that width: a column
has the colour of the kernel that fills most of it, and its height is the share of the column that is busy. So the
size of the file is bounded by lanes and width, not by ops.
"""

from __future__ import annotations

import math
from html import escape

import numpy as np
import numpy.typing as npt
import polars as pl

from heterotask_core.program.model import LaneKind, Program
from heterotask_core.report.breakdown import CriticalPath

WIDTH_PX, LEFT_PX, RIGHT_PX, TOP_PX = 1200, 190, 20, 64
BAR_PX, ROW_PX = 12, 34
MANY_LANES = 40
"""From this number of lanes on, rows are half as high."""
BARS = 16_000
"""About how many bars a chart has at most: under a megabyte, which is what a Prefect artifact may have."""
HOVER_OPS = 2_000
"""Up to this number of ops every bar says what it is when pointed at."""
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#76b7b2", "#9c755f", "#edc948", "#ff9da7", "#8c8c8c")
OTHER, INK, GRID = "#bab0ac", "#222222", "#dddddd"

_Bars = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.int64]]
"""Left, width, height in pixels and colour number of each bar."""


def gantt_svg(program: Program, trace: pl.DataFrame, *, title: str, path: CriticalPath | None = None) -> str:
    """Return the chart of one repeat (schema ``tables.TRACE``), with the critical path underlined if given."""
    lanes = [
        name
        for name, kind in zip(program.lane_names, program.lane_kinds, strict=True)
        if kind != LaneKind.CAPACITY and (trace["lane"] == name).any()
    ]
    kernels = sorted({k for k in trace["kernel"].to_list() if k is not None})
    number = {k: i for i, k in enumerate(kernels)}
    span_s = max(float(trace["finish_s"].max() or 0), float(trace["planned_finish_s"].max() or 0), 1e-9)  # type: ignore[arg-type]
    scale = (WIDTH_PX - LEFT_PX - RIGHT_PX) / span_s
    shrink = 0.5 if len(lanes) >= MANY_LANES else 1.0
    row_px, bar_px = ROW_PX * shrink, BAR_PX * shrink
    legend = _legend(kernels)
    height = TOP_PX + row_px * len(lanes) + 16 + 22 * len(legend)
    origin = escape(str(trace["origin"][0]) if len(trace) else "nothing")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH_PX}" height="{height:.0f}" font-family="sans-serif" '
        f'font-size="{12 if shrink == 1.0 else 8}"><rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="10" y="20" font-size="15" fill="{INK}">{escape(title)}: planned (upper, pale) and {origin} (lower), '
        f"{_seconds(span_s)}, {len(trace)} ops</text>",
        *_axis(span_s, scale, TOP_PX + row_px * len(lanes)),
    ]
    bin_px = _bin_px(len(lanes))
    hover = len(trace) <= HOVER_OPS
    underlined = set() if path is None else {step.op for step in path.steps}
    by_lane = {str(key[0]): table for key, table in trace.group_by("lane", maintain_order=True)}
    for row, lane in enumerate(lanes):
        y = TOP_PX + row * row_px
        parts.append(f'<text x="10" y="{y + 1.4 * bar_px:.1f}" fill="{INK}">{escape(lane)}</text>')
        mine = by_lane[lane]
        colour = np.array([number.get(k, -1) for k in mine["kernel"].to_list()], np.int64)
        for start, finish, top, opacity in (
            ("planned_start_s", "planned_finish_s", y, 0.45),
            ("start_s", "finish_s", y + 1.1 * bar_px, 1.0),
        ):
            a, b = mine[start].to_numpy() * scale, mine[finish].to_numpy() * scale
            if hover:
                parts += _hovering(mine, a, b, colour, top=top, bar_px=bar_px, opacity=opacity, scale=scale)
            else:
                parts += _paths(_bars(a, b, colour, bin_px), top=top, bar_px=bar_px, opacity=opacity)
        on_path = mine.filter(pl.col("op").is_in(list(underlined)))
        for a_s, b_s in on_path.select("start_s", "finish_s").iter_rows():
            parts.append(
                f'<rect x="{LEFT_PX + a_s * scale:.1f}" y="{y + 2.15 * bar_px:.1f}" '
                f'width="{max((b_s - a_s) * scale, 0.5):.1f}" height="{0.2 * bar_px:.1f}" fill="#d00000"/>'
            )
    for line, entries in enumerate(legend):
        y = TOP_PX + row_px * len(lanes) + 16 + 22 * line
        for x, kernel in entries:
            fill = COLOURS[number[kernel] % len(COLOURS)] if kernel in number else OTHER
            parts.append(f'<rect x="{x}" y="{y:.0f}" width="12" height="12" fill="{fill}"/>')
            parts.append(f'<text x="{x + 16}" y="{y + 10:.0f}" font-size="12" fill="{INK}">{escape(kernel)}</text>')
    parts.append("</svg>")
    return "\n".join(parts)


def _bin_px(n_lanes: int) -> float:
    """Width of a column: so many fit into a row that all rows stay within ``BARS``."""
    return max(1.0, 2 * n_lanes * (WIDTH_PX - LEFT_PX - RIGHT_PX) / BARS)


def _bars(
    a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], colour: npt.NDArray[np.int64], bin_px: float
) -> _Bars:
    """Bars of intervals [a, b) in pixels: wide ones as they are, narrow ones summed up in columns."""
    width = b - a
    wide = width >= bin_px
    narrow = ~wide & (width >= 0)
    n_bins = int((WIDTH_PX - LEFT_PX) / bin_px) + 1
    n_colours = int(colour.max(initial=-1)) + 2
    column = np.clip(((a + b) / 2 / bin_px).astype(np.int64), 0, n_bins - 1)
    filled = np.zeros((n_bins, n_colours))
    np.add.at(filled, (column[narrow], colour[narrow] + 1), np.maximum(width[narrow], 1e-9) / bin_px)
    # In quarters, so that neighbours merge.
    busy = filled.sum(axis=1)
    share = np.where(busy > 0, np.clip(np.round(4 * busy) / 4, 0.25, 1.0), 0.0)
    main = filled.argmax(axis=1) - 1
    first = np.flatnonzero(np.diff(share, prepend=-1.0).astype(bool) | np.diff(main, prepend=-2).astype(bool))
    length = np.diff(first, append=n_bins)
    kept = share[first] > 0
    return (
        np.concatenate([a[wide], first[kept] * bin_px]),
        np.concatenate([width[wide], length[kept] * bin_px]),
        np.concatenate([np.ones(int(wide.sum())), share[first][kept]]),
        np.concatenate([colour[wide], main[first][kept]]),
    )


def _paths(bars: _Bars, *, top: float, bar_px: float, opacity: float) -> list[str]:
    """One path a colour."""
    left, width, share, colour = bars
    parts = []
    for c in np.unique(colour).tolist():
        mine = colour == c
        steps = "".join(
            f"M{LEFT_PX + x:.1f} {top + bar_px * (1 - h):.1f}h{max(w, 0.3):.1f}v{bar_px * h:.1f}h-{max(w, 0.3):.1f}z"
            for x, w, h in zip(left[mine].tolist(), width[mine].tolist(), share[mine].tolist(), strict=True)
        )
        fill = OTHER if c < 0 else COLOURS[c % len(COLOURS)]
        parts.append(f'<path d="{steps}" fill="{fill}" fill-opacity="{opacity}"/>')
    return parts


def _hovering(
    table: pl.DataFrame,
    a: npt.NDArray[np.float64],
    b: npt.NDArray[np.float64],
    colour: npt.NDArray[np.int64],
    *,
    top: float,
    bar_px: float,
    opacity: float,
    scale: float,
) -> list[str]:
    """One bar an op that says what it is."""
    parts = []
    names = table.select(pl.coalesce("task", "data", "kind")).to_series().to_list()
    for x, end, c, name in zip(a.tolist(), b.tolist(), colour.tolist(), names, strict=True):
        fill = OTHER if c < 0 else COLOURS[c % len(COLOURS)]
        parts.append(
            f'<rect x="{LEFT_PX + x:.2f}" y="{top:.1f}" width="{max(end - x, 0.3):.2f}" height="{bar_px:.1f}" '
            f'fill="{fill}" fill-opacity="{opacity}"><title>{escape(name)} {_seconds((end - x) / scale)}</title></rect>'
        )
    return parts


def _axis(span_s: float, scale: float, bottom: float) -> list[str]:
    """Grid lines at round times, at most ten."""
    step_s = 10.0 ** math.floor(math.log10(span_s / 4))
    step_s *= next(m for m in (1, 2, 5, 10) if span_s / (step_s * m) <= 10)
    parts = []
    for k in range(int(span_s / step_s) + 1):
        x = LEFT_PX + k * step_s * scale
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP_PX - 8}" x2="{x:.1f}" y2="{bottom:.0f}" stroke="{GRID}"/>'
            f'<text x="{x:.1f}" y="{TOP_PX - 14}" font-size="10" text-anchor="middle" fill="{INK}">'
            f"{_seconds(k * step_s)}</text>"
        )
    return parts


def _legend(kernels: list[str]) -> list[list[tuple[int, str]]]:
    """Lines of (x, name)."""
    lines: list[list[tuple[int, str]]] = [[]]
    x = LEFT_PX
    for kernel in [*kernels, "copy or transfer"]:
        needs = 30 + 7 * len(kernel)
        if lines[-1] and x + needs > WIDTH_PX:
            lines.append([])
            x = LEFT_PX
        lines[-1].append((x, kernel))
        x += needs
    return lines


def _seconds(value_s: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if abs(value_s) * factor >= 1.0 or unit == "µs":
            return f"{value_s * factor:.4g} {unit}"
    raise AssertionError
