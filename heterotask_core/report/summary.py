"""What a trace says in a few numbers: makespan, utilisation, bytes moved, and where each device's time went."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from heterotask_core.program.model import Program


@dataclass(frozen=True)
class Summary:
    """Numbers of one repeat; shares are fractions of the makespan."""

    window_s: float
    utilisation: dict[str, float]
    link_bytes: dict[str, int]
    decomposition_s: dict[str, dict[str, float]]
    """Device → compute; overhead (ready, not started, lane free); wait (for data of others or nothing to do)."""

    def as_json(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        return asdict(self)


def summarise(program: Program, trace: pl.DataFrame) -> Summary:
    """Summarise the trace of one repeat (schema ``tables.TRACE``)."""
    kernels = trace.filter(pl.col("kind") == "kernel")
    window = float(kernels["finish_s"].max() or 0.0) - float(kernels["start_s"].min() or 0.0)  # type: ignore[arg-type]
    busy, parts = {}, {}
    for device in program.device_names:
        mine = kernels.filter(pl.col("device") == device)
        compute = float((mine["finish_s"] - mine["start_s"]).sum())
        overhead = float((mine["start_s"] - mine["ready_s"]).clip(0.0).sum())
        busy[device] = compute / window if window > 0 else 0.0
        parts[device] = {"compute_s": compute, "overhead_s": overhead, "wait_s": max(0.0, window - compute - overhead)}
    moved = trace.filter((pl.col("kind") != "kernel") & (pl.col("source") != pl.col("target")))
    links = {
        f"{source} → {target}": int(size)
        for source, target, size in moved.group_by("source", "target", maintain_order=True)
        .agg(pl.col("size_bytes").sum())
        .sort("source", "target")
        .iter_rows()
    }
    return Summary(window, busy, links, parts)
