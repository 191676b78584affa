"""Calibrate a workflow on the real machine: plans through the planner, measurements through MPI."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import polars as pl

from calibration.loop import CalibrationResult, calibrate
from heterotask_core.planning.base import Budget
from heterotask_core.profiling.costs import Overheads
from heterotask_core.profiling.measure import Profile
from heterotask_core.program.model import Program
from heterotask_core.runtime.job import execute
from heterotask_core.stages import DEFAULT_PLANNER, Workflow, incumbent_overheads, plan_stage, profile_stage
from heterotask_core.store import Store
from heterotask_core.trace import trace_table

LOOP_EVALUATIONS = 40
"""Planner evaluations inside the loop: one number for all overheads, so equal estimates give equal plans."""

log = logging.getLogger(__name__)


class MachineEvaluator:
    """Plans a workflow with given overheads and measures programs on this machine."""

    disturbance = ""

    def __init__(self, workflow: Workflow, profiled: Profile, store: Store, work_dir: Path, *, planner: str) -> None:
        self.workflow, self.profiled, self.store, self.work_dir, self.planner = (
            workflow,
            profiled,
            store,
            work_dir,
            planner,
        )
        self.name = f"{workflow.key}-{profiled.fingerprint}-{planner}"
        self.device_kinds: Mapping[str, str] = {d.name: d.variant_kind for d in workflow.platform.devices}
        self.link_kinds: Mapping[tuple[str, str], str] = {
            (x.source, x.target): str(x.kind) for x in workflow.platform.links
        }

    def plan(self, overheads: Overheads) -> tuple[Program, float]:
        """Return the program planned with ``overheads`` and its predicted makespan in seconds."""
        budget = Budget(evaluations=LOOP_EVALUATIONS)
        plan = plan_stage(
            self.workflow, self.profiled, self.store, planner=self.planner, budget=budget, overheads=overheads
        )
        return plan.program, plan.predicted_s

    def measure(self, program: Program, repeats: int) -> tuple[Sequence[float], pl.DataFrame]:
        """Run ``program`` once more than ``repeats`` in one job and discard the first run."""
        self.work_dir.mkdir(parents=True, exist_ok=True)
        result = execute(program, self.workflow.platform, output_dir=self.work_dir, repeats=repeats + 1)
        trace = pl.concat(
            trace_table(program, result.start_s[r], result.finish_s[r], origin="measured", repeat=r - 1)
            for r in range(1, repeats + 1)
        )
        return result.makespan_s[1:], trace


def calibrate_workflow(
    workflow: Workflow,
    store: Store,
    *,
    evaluations: int = 12,
    seed: int = 0,
    resume: bool = False,
    planner: str = DEFAULT_PLANNER,
    profile_budget_s: float = 20.0,
    progress: Callable[[str], None] = log.info,
) -> CalibrationResult:
    """Calibrate a workflow from its stored incumbent and keep the outcome as the new incumbent.

    ``resume`` goes on with an unfinished calibration if there is one; without it an unfinished one is an error.

    Raises :class:`~heterotask_core.errors.CalibrationError` when measuring fails three times in a row; the
    incumbent stays as it was.
    """
    profiled = profile_stage(workflow, store, budget_s=profile_budget_s)
    folder = store.folder("calibrations", workflow.key)
    # The journal must outlive a killed process, so it lies beside the record and not in a temporary folder.
    journal = folder.with_name(f".{folder.name}.journal")
    evaluator = MachineEvaluator(workflow, profiled, store, journal / "work", planner=planner)
    result = calibrate(
        evaluator,
        record_dir=journal,
        seed=seed,
        max_evaluations=evaluations,
        resume=resume and journal.exists(),
        incumbent=incumbent_overheads(workflow, store),
        progress=progress,
    )
    with store.new_record("calibrations", workflow.key, status=result.status, application=workflow.app.name) as record:
        (record / "incumbent.json").write_text(json.dumps(asdict(result.overheads), default=dict, indent=1))
        (record / "result.txt").write_text(result.text + "\n")
        shutil.copytree(journal, record / "journal", ignore=shutil.ignore_patterns("work"))
    shutil.rmtree(journal)
    return result
