"""Charts and tables of artifacts, made of plain data; nothing here knows Prefect."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl

MAX_ROWS = 500
"""Tables with more rows make the pages slow."""
_WIDTH, _HEIGHT, _MARGIN = 900, 320, 60


def data_uri(svg: bytes) -> str:
    """Return an SVG as base64 data URI, which is the only way into a page of Prefect."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def timing_rows(trace: pl.DataFrame, *, limit: int = MAX_ROWS) -> list[dict[str, Any]]:
    """Return the ops that deviate most from the plan, the worst first, in milliseconds (medians over the repeats).

    ``trace``: schema ``tables.TRACE``. Values that a page cannot show (infinite, not a number) are None.
    """
    table = (
        trace.group_by("op", maintain_order=True)
        .agg(
            pl.coalesce("task", "data", "kind").first().alias("what"),
            pl.coalesce(pl.col("kernel"), pl.concat_str(["source", pl.lit(" → "), "target"])).first().alias("of"),
            pl.col("variant").first(),
            pl.col("device").first(),
            (1e3 * (pl.col("planned_finish_s") - pl.col("planned_start_s"))).first().alias("planned_ms"),
            (1e3 * (pl.col("finish_s") - pl.col("start_s"))).median().alias("measured_ms"),
        )
        .with_columns((pl.col("measured_ms") - pl.col("planned_ms")).alias("beyond_ms"))
        .with_columns((pl.col("measured_ms") / pl.col("planned_ms")).alias("ratio"))
        .sort(pl.col("beyond_ms").abs().fill_nan(None), descending=True, nulls_last=True, maintain_order=True)
        .head(limit)
    )
    times = [pl.col(name) for name in ("planned_ms", "measured_ms", "beyond_ms", "ratio")]
    finite = [pl.when(column.is_finite()).then(column.round(4)).alias(column.meta.output_name()) for column in times]
    return table.with_columns(finite).to_dicts()


def measured_medians(journal: Path) -> list[tuple[str, float]]:
    """Return (program, median makespan in seconds) of every measurement of a calibration, in order.

    ``journal``: its ``journal.jsonl``; without the file there was no measurement.
    """
    if not journal.exists():
        return []
    steps = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    return [(s["key"], float(median(s["makespans_s"]))) for s in steps if s["step"] == "run" and "makespans_s" in s]


def curve_svg(makespans_s: Sequence[float], *, title: str) -> str:
    """Return the measurements of a calibration in order, and the shortest so far, as a chart of fixed size."""
    best = [min(makespans_s[: i + 1]) for i in range(len(makespans_s))]
    low, high = min(makespans_s), max(makespans_s)
    span = (high - low) or high or 1.0
    step = (_WIDTH - 2 * _MARGIN) / max(1, len(makespans_s) - 1)

    def at(i: int, value: float) -> tuple[float, float]:
        return _MARGIN + i * step, _HEIGHT - _MARGIN - (value - low) / span * (_HEIGHT - 2 * _MARGIN)

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(i, v) for i, v in enumerate(best)))
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#4e79a7"><title>{i + 1}: {1e3 * v:.4g} ms</title></circle>'
        for i, v in enumerate(makespans_s)
        for x, y in [at(i, v)]
    )
    labels = "".join(
        f'<text x="8" y="{at(0, value)[1] + 4:.1f}" fill="#222222">{1e3 * value:.4g} ms</text>'
        for value in dict.fromkeys((low, high))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="#ffffff"/>'
        f'<text x="10" y="20" font-size="14" fill="#222222">{escape(title)}</text>{labels}'
        f'<polyline points="{line}" fill="none" stroke="#e15759" stroke-width="2"/>{dots}'
        f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 15}" text-anchor="middle" fill="#222222">'
        f"{len(makespans_s)} measurements in order; line: the shortest so far</text></svg>"
    )
