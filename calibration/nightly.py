"""The scheduled calibration: is the plan in use still as fast as accepted, and if not, what changed?

Inside the band it takes a few runs; outside, what drifted is said and the calibration begins anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from pydantic import BaseModel, ValidationError

from calibration.application import MachineEvaluator, calibrate_workflow, journal_folder, log
from calibration.bench import program_key
from calibration.drift import RUNS_OUTSIDE, Band, Drift, check_drift, class_durations, drifted_classes
from calibration.loop import CalibrationResult
from heterotask_core.errors import StoreError
from heterotask_core.profiling.costs import Overheads
from heterotask_core.program.io import load_program
from heterotask_core.stages import DEFAULT_PLANNER, Workflow, incumbent_overheads, plan_stage, profile_stage
from heterotask_core.store import Store
from heterotask_core.tables import TRACE, read_table

STILL = "still calibrated"


@dataclass(frozen=True)
class Accepted:
    """What the last calibration accepted; ``classes`` maps op classes to seconds, one a run."""

    overheads: Overheads
    program: str
    band: Band
    classes: Mapping[str, Sequence[float]]


class _Record(BaseModel):
    """What of ``result.json`` is read."""

    band: Band | None = None
    program: str | None = None
    classes: dict[str, list[float]] = {}


def accepted(workflow: Workflow, store: Store) -> Accepted | None:
    """Return what the last calibration of the workflow accepted, or None if there is nothing to compare with.

    Raises :class:`~heterotask_core.errors.StoreError` for a damaged record.
    """
    folder = store.find("calibrations", workflow.key)
    if folder is None:
        return None
    path = folder / "journal" / "result.json"
    try:
        found = _Record.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise StoreError(f"{path} is damaged ({reason}); delete {folder} and calibrate again") from error
    if found.band is None or found.program is None:
        return None
    return Accepted(incumbent_overheads(workflow, store), found.program, found.band, found.classes)


def judge(known: Accepted, makespans_s: Sequence[float], trace: pl.DataFrame | None) -> Drift:
    """Compare runs of the accepted program with it; of a drift the text names the op classes that changed."""
    drift = check_drift(known.band, makespans_s)
    if not drift.drifted or trace is None:
        return drift
    latest = {name: runs[-RUNS_OUTSIDE:] for name, runs in class_durations(trace).items()}
    changed = drifted_classes(known.classes, latest)
    what = ", ".join(f"{name} {change:+.1%}" for name, change in list(changed.items())[:5])
    return replace(drift, text=f"{drift.text}: {what or 'no single kind of op stands out'}")


def drift_of_runs(workflow: Workflow, store: Store) -> Drift | None:
    """Judge the latest runs in the store, since the last calibration, of the accepted program; None without one."""
    known = accepted(workflow, store)
    if known is None:
        return None
    since = store.manifest("calibrations", workflow.key)["finished"]
    makespans_s: list[float] = []
    traces: list[pl.DataFrame] = []
    keys: dict[str, str] = {}
    for run in store.list("runs"):
        manifest = store.manifest("runs", run)
        folder = store.find("runs", run)
        plan = str(manifest["facts"].get("plan"))
        if not plan.startswith(workflow.key) or manifest["started"] <= since or folder is None:
            continue
        if plan not in keys:
            keys[plan] = _key_of(store, plan)
        if keys[plan] == known.program:
            facts = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
            makespans_s += facts["makespan_s"]
            traces.append(_trace(folder, len(traces)))
    trace = pl.concat(traces[-RUNS_OUTSIDE:]) if traces else None
    return judge(known, makespans_s, trace)


def nightly(
    workflow: Workflow,
    store: Store,
    *,
    evaluations: int = 12,
    seed: int = 0,
    resume: bool = True,
    planner: str = DEFAULT_PLANNER,
    profile_budget_s: float = 20.0,
    progress: Callable[[str], None] = log.info,
) -> CalibrationResult:
    """Run the accepted program a few times; calibrate only if it drifted, was never accepted, or is another now.

    An unfinished calibration is gone on with. Raises what :func:`calibrate_workflow` raises.
    """
    why = ""
    known = accepted(workflow, store)
    if journal_folder(workflow, store).exists() and resume:
        progress("goes on with an unfinished calibration")
    elif known is None:
        progress("there is no accepted plan to compare with")
    else:
        profiled = profile_stage(workflow, store, budget_s=profile_budget_s)
        plan = plan_stage(workflow, profiled, store, planner=planner, overheads=known.overheads)
        if program_key(plan.program) != known.program:
            why = "the profile has changed since the last calibration, and the plan with it"
        else:
            work_dir = journal_folder(workflow, store).with_suffix(".check")
            with MachineEvaluator(workflow, profiled, store, work_dir, planner=planner) as evaluator:
                makespans_s, trace = evaluator.measure(plan.program, RUNS_OUTSIDE)
            drift = judge(known, makespans_s, trace)
            note = f"; disturbed: {evaluator.disturbance}" if evaluator.disturbance else ""
            if not drift.drifted:
                return CalibrationResult(
                    STILL,
                    drift.text + note,
                    known.overheads,
                    0,
                    0,
                    predicted_s=plan.predicted_s,
                    measured_s=float(np.median(makespans_s)),
                    band=known.band,
                    program=known.program,
                    classes=known.classes,
                    runs=1,
                )
            why = drift.text + note
        progress(why)
    result = calibrate_workflow(
        workflow,
        store,
        evaluations=evaluations,
        seed=seed,
        resume=resume,
        planner=planner,
        profile_budget_s=profile_budget_s,
        progress=progress,
    )
    return replace(result, text=f"{why}; {result.text}") if why else result


def _key_of(store: Store, plan: str) -> str:
    folder = store.find("plans", plan)
    return "" if folder is None else program_key(load_program(folder))


def _trace(folder: Path, number: int) -> pl.DataFrame:
    table = read_table(folder / "trace.parquet", TRACE, remedy=f"delete {folder}")
    # Runs of several records count on, so that no two share a number.
    return table.with_columns((pl.col("repeat") + 1000 * number).cast(pl.Int32))
