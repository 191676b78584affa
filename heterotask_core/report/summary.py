"""What a trace says in numbers: makespan, utilisation, bytes moved, where the time went, what went otherwise."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from heterotask_core.program.model import Program
from heterotask_core.report.breakdown import (
    CriticalPath,
    critical_path,
    decompose,
    deviations,
    makespan_of,
    times_of,
)


@dataclass(frozen=True)
class Summary:
    """Numbers of one repeat; shares are fractions of the makespan."""

    origin: str
    window_s: float
    utilisation: dict[str, float]
    link_bytes: dict[str, int]
    link_busy_s: dict[str, float]
    """Link → seconds in which anything moved on it."""
    decomposition_s: dict[str, dict[str, float]]
    """Device → compute, transfer wait, overhead, idle (see :func:`~heterotask_core.report.breakdown.decompose`)."""
    path: CriticalPath
    deviating_classes: list[dict[str, object]]
    deviating_ops: list[dict[str, object]]

    def as_json(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        return asdict(self)


def summarise(program: Program, trace: pl.DataFrame) -> Summary:
    """Summarise the trace of one repeat (schema ``tables.TRACE``)."""
    start_s, finish_s = times_of(program, trace)
    origin = str(trace["origin"][0]) if len(trace) else "measured"
    window_s = makespan_of(program, finish_s)
    capacity = origin != "measured"
    parts = decompose(program, start_s, finish_s, capacity=capacity)
    busy = {device: p["compute_s"] / window_s if window_s > 0 else 0.0 for device, p in parts.items()}
    moved = trace.filter((pl.col("kind") != "kernel") & (pl.col("source") != pl.col("target")))
    sizes, busy_s = {}, {}
    for (source, target), table in moved.sort("source", "target").group_by("source", "target", maintain_order=True):
        sizes[f"{source} → {target}"] = int(table["size_bytes"].sum())
        busy_s[f"{source} → {target}"] = _covered(table)
    classes, ops = deviations(trace)
    path = critical_path(program, start_s, finish_s, capacity=capacity)
    return Summary(origin, window_s, busy, sizes, busy_s, parts, path, classes, ops)


def _covered(table: pl.DataFrame) -> float:
    """Length of the union of the intervals of a table's ops."""
    covered = until = 0.0
    for start_s, finish_s in table.sort("start_s").select("start_s", "finish_s").iter_rows():
        covered += max(0.0, finish_s - max(start_s, until))
        until = max(until, finish_s)
    return covered
