"""The runs of an application over time: one row a run, oldest first. Knows the store only, not Prefect."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from heterotask_core.errors import StoreError
from heterotask_core.store import Store

COLUMNS = (
    "started",
    "workflow",
    "status",
    "planner",
    "plan",
    "planned_ms",
    "measured_ms",
    "bound_ms",
    "repeats",
    "in_use",
)


def run_history(store: Store, application: str) -> list[dict[str, Any]]:
    """Return the runs of ``application``, with the columns :data:`COLUMNS`; times in milliseconds, None if unknown.

    ``workflow`` is the part of a run's name that stands for graph and platform: only rows of the same workflow
    compare. ``in_use`` marks the plan that ran last there. Emulated runs say so in the workflow's name.
    Raises :class:`~heterotask_core.errors.StoreError` for a damaged record.
    """
    rows = []
    for key in store.list("runs"):
        manifest = store.manifest("runs", key)
        facts = manifest.get("facts", {})
        if facts.get("application") != application:
            continue
        told = _facts(store.folder("runs", key) / "summary.json") if manifest["status"] == "complete" else {}
        rows.append(
            {
                "started": str(manifest["started"])[:19],
                "workflow": key.rsplit("-", 2)[0],
                "status": manifest["status"],
                "planner": told.get("planner"),
                "plan": str(facts.get("plan", "")).rpartition("-")[2],
                "planned_ms": _ms(told.get("predicted_makespan_s")),
                "measured_ms": _ms(median(told["makespan_s"]) if told.get("makespan_s") else None),
                "bound_ms": _ms(told.get("lower_bound_s")),
                "repeats": len(told.get("makespan_s", [])),
                "in_use": "",
            }
        )
    latest = {row["workflow"]: row["plan"] for row in rows if row["status"] == "complete"}
    for row in rows:
        row["in_use"] = "yes" if latest.get(row["workflow"]) == row["plan"] else ""
    return rows


def history_text(application: str, rows: list[dict[str, Any]]) -> str:
    """Return the rows as columns for a terminal."""
    if not rows:
        return f"no run of {application} in the store; start one with `heterotask run {application}`"
    texts = [COLUMNS, *(tuple("" if row[c] is None else str(row[c]) for c in COLUMNS) for row in rows)]
    widths = [max(len(text[i]) for text in texts) for i in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(text, widths, strict=True)).rstrip() for text in texts)


def _facts(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} is damaged ({error}); delete {path.parent}") from error
    return found


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 4)
