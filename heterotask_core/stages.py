"""The stages that users run: profile, plan, execute; what the command, the flows and the calibration share.

Every stage reads and writes records of the store, so stages can run in different processes. Nothing here
prints; progress goes to callbacks.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pydantic import BaseModel

from heterotask_core.app import Application, CheckResult
from heterotask_core.emulation import MOST_LAG, is_emulated, least_dilation, origin_of
from heterotask_core.errors import CalibrationError, ExecutionError, PlatformError, ProgramError, StoreError
from heterotask_core.graph import TaskGraph
from heterotask_core.planning.base import Budget, Progress
from heterotask_core.planning.from_graph import build_problem, check_runnable
from heterotask_core.planning.registry import planner as find_planner
from heterotask_core.platform.model import Platform
from heterotask_core.profiling.costs import CostModel, Overheads
from heterotask_core.profiling.emulated import EmulationSpec, emulated_profile
from heterotask_core.profiling.measure import KERNEL_LIMIT_S, Profile, profile
from heterotask_core.program.io import load_program, save_program
from heterotask_core.program.lower import lower
from heterotask_core.program.model import OpKind, Program
from heterotask_core.program.verify import verify
from heterotask_core.report.gantt import gantt_svg
from heterotask_core.report.perfetto import perfetto_json
from heterotask_core.report.summary import Summary, summarise
from heterotask_core.runtime.job import RunResult, execute
from heterotask_core.runtime.partial import PARTIAL_FILE
from heterotask_core.simulate import simulate
from heterotask_core.store import Store
from heterotask_core.tables import write_table
from heterotask_core.trace import trace_table

_log = logging.getLogger(__name__)

PACKAGE_VERSION = version("heterotask")
"""Another version may plan otherwise: plans of this one are not taken for its own."""
DEFAULT_PLANNER = "portfolio"
DEFAULT_EVALUATIONS = 300


@dataclass(frozen=True)
class Workflow:
    """An application with its parameters on a platform: what the stages are about."""

    app: Application
    params: BaseModel
    graph: TaskGraph
    platform: Platform

    @staticmethod
    def of(app: Application, params: BaseModel, platform: Platform) -> Workflow:
        """Build the graph; raises :class:`~heterotask_core.errors.ApplicationError` for unusable input."""
        return Workflow(app, params, app.build(params), platform)

    @property
    def key(self) -> str:
        """A name for folders: application, graph and platform; it says so when the devices are emulated."""
        mark = "emulated-" if is_emulated(d.kind for d in self.platform.devices) else ""
        return f"{mark}{self.app.name}-{self.graph.fingerprint()[:8]}-{self.platform.fingerprint()[:8]}"


@dataclass(frozen=True)
class Plan:
    """A verified program, the folder it is kept in, and whether it came from the store."""

    program: Program
    folder: Path
    reused: bool
    predicted_s: float
    lower_bound_s: float


@dataclass(frozen=True)
class Run:
    """An executed plan: times, trace and the files that a person opens."""

    folder: Path
    result: RunResult
    trace: pl.DataFrame
    summary: Summary


def profile_stage(
    workflow: Workflow,
    store: Store,
    *,
    budget_s: float = 20.0,
    kernel_limit_s: float = KERNEL_LIMIT_S,
    again: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """Measure what the store lacks or holds stale (``again``: all), and return the whole profile of the workflow.

    Emulated devices get times of this host divided by the speed-ups that the platform file gives. Raises
    :class:`~heterotask_core.errors.InfeasiblePlanError` before it measures when no device can run some task.
    """
    graph, platform = workflow.graph, workflow.platform
    check_runnable(graph, platform)
    measure = emulated_profile if is_emulated(d.kind for d in platform.devices) else profile
    return measure(
        graph, platform, store, budget_s=budget_s, kernel_limit_s=kernel_limit_s, again=again, progress=progress
    )


def plan_stage(
    workflow: Workflow,
    profiled: Profile,
    store: Store,
    *,
    planner: str = DEFAULT_PLANNER,
    budget: Budget | None = None,
    overheads: Overheads | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Return the plan for these costs and overheads, from the store if it was made before.

    Without ``overheads`` those of the last calibration count, if there was one.
    The key covers graph, platform, profile, planner, budget, overheads and the version of this package. Raises
    :class:`~heterotask_core.errors.InfeasiblePlanError` or
    :class:`~heterotask_core.errors.ProgramError`.
    """
    budget = budget or Budget(evaluations=DEFAULT_EVALUATIONS)
    overheads = overheads or incumbent_overheads(workflow, store)
    inputs = [workflow.key, profiled.fingerprint, planner, asdict(budget), asdict(overheads), PACKAGE_VERSION]
    text = json.dumps(inputs, sort_keys=True, default=str)
    key = f"{workflow.key}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    found = store.find("plans", key)
    if found is not None and budget.time_s is None:
        program = load_program(found)
        verify(program)
        return Plan(program, found, True, simulate(program).makespan_s, float(program.meta["lower_bound_s"]))
    problem = build_problem(workflow.graph, workflow.platform, CostModel.from_profile(profiled), overheads=overheads)
    schedule = find_planner(planner).plan(problem, budget=budget, progress=progress)
    program = lower(workflow.graph, workflow.platform, problem, schedule)
    program.meta.update(
        planner=schedule.planner,
        seed=schedule.seed,
        evaluations=schedule.evaluations,
        lower_bound_s=schedule.lower_bound_s,
        profile=profiled.fingerprint,
    )
    verify(program)
    with store.new_record("plans", key, planner=planner, profile=profiled.fingerprint) as folder:
        save_program(program, folder)
    return Plan(program, store.folder("plans", key), False, simulate(program).makespan_s, schedule.lower_bound_s)


def incumbent_overheads(workflow: Workflow, store: Store) -> Overheads:
    """Return the overheads that the last calibration kept; none if there was no calibration."""
    folder = store.find("calibrations", workflow.key)
    if folder is None:
        return Overheads()
    path = folder / "incumbent.json"
    try:
        return Overheads(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"{path} is damaged ({error}); delete {folder} and calibrate again") from error
    except CalibrationError as error:
        raise CalibrationError(f"{path}: {error}; correct it, or delete {folder} and calibrate again") from None


def load_plan(folder: Path, workflow: Workflow) -> Plan:
    """Read a plan; raises :class:`~heterotask_core.errors.ProgramError` if it is another graph's or platform's."""
    program = load_program(folder)
    for what, planned, present in (
        ("graph", program.graph_fingerprint, workflow.graph.fingerprint()),
        ("platform", program.platform_fingerprint, workflow.platform.fingerprint()),
    ):
        if planned != present:
            raise ProgramError(
                f"plan {folder} was made for another {what} (fingerprint {planned}, here {present}); "
                f"run `heterotask plan {workflow.app.name}` with the same options again"
            )
    verify(program)
    return Plan(program, folder, True, simulate(program).makespan_s, float(program.meta["lower_bound_s"]))


def execute_stage(
    workflow: Workflow,
    plan: Plan,
    store: Store,
    *,
    repeats: int = 1,
    progress: Callable[[int, int], None] | None = None,
    verify: float = 0.0,
    pace: bool = False,
    dilate: float | None = None,
) -> Run:
    """Execute a plan under MPI and keep results, trace, Gantt chart and Perfetto file in a new run record.

    The share ``verify`` of the tasks is computed again with the reference variant and compared. With ``pace`` emulated
    devices wait for the host's clock, ``dilate`` seconds of it for a logical one (default: see
    :func:`~heterotask_core.emulation.least_dilation`).
    A failed run stays in the store, marked as failed, with what it had written and the trace of what was done.
    Raises :class:`~heterotask_core.errors.ExecutionError`, or :class:`~heterotask_core.errors.StoreError` when the
    disk is full.
    """
    key = store.unique_key("runs", workflow.key)
    origin = origin_of(plan.program.device_kinds)
    times, dilation = None, 0.0
    if origin == "emulated":
        spec = EmulationSpec.of(workflow.platform)
        times = spec.times(plan.program, runs=repeats)
        if pace:
            work_s, cores = spec.work_s(plan.program, workflow.platform), len(os.sched_getaffinity(0))
            dilation = dilate or least_dilation(plan.program, work_s, cores)
    elif pace:
        raise PlatformError("only emulated devices are paced; name a platform file of such with --devices")
    with store.new_record("runs", key, plan=plan.folder.name, application=workflow.app.name) as folder:
        try:
            result = execute(
                plan.program,
                workflow.platform,
                output_dir=folder,
                repeats=repeats,
                progress=progress,
                emulation=times,
                dilate=dilation,
                verify=verify,
            )
        except ExecutionError:
            _keep_partial_trace(plan.program, folder, origin)
            raise
        trace = pl.concat(
            trace_table(plan.program, result.start_s[r], result.finish_s[r], origin=origin, repeat=r)
            for r in range(repeats)
        )
        write_table(trace, folder / "trace.parquet")
        last = trace.filter(pl.col("repeat") == repeats - 1)
        title = f"{workflow.app.name} on {len(workflow.platform.devices)} devices"
        summary = summarise(plan.program, last)
        (folder / "gantt.svg").write_text(gantt_svg(plan.program, last, title=title, path=summary.path))
        (folder / "trace.perfetto.json").write_text(perfetto_json(plan.program, last))
        facts = run_facts(plan, result, summary)
        if dilation:
            facts["pace"] = {"dilate": dilation, "lag": list(result.lag), "in_time": max(result.lag) <= MOST_LAG}
        (folder / "summary.json").write_text(json.dumps(facts, indent=1))
    return Run(store.folder("runs", key), result, trace, summary)


def _keep_partial_trace(program: Program, folder: Path, origin: str) -> None:
    """Write ``trace.parquet`` of the ops that a failed run has completed, in place of their bare times."""
    partial = folder / PARTIAL_FILE
    if not partial.exists():
        return
    with np.load(partial, allow_pickle=False) as stored:
        start_s, finish_s = stored["start_s"], stored["finish_s"]
    tables = [
        trace_table(program, start_s[r], finish_s[r], origin=origin, repeat=r)
        for r in range(len(start_s))
        if np.isfinite(start_s[r, program.op_kind == OpKind.KERNEL]).any()
    ]
    if tables:
        done = pl.concat(tables).filter(pl.col("finish_s").is_finite())
        try:
            write_table(done, folder / "trace.parquet")
        except StoreError as error:
            _log.warning("the failed run's trace is lost: %s", error)
    partial.unlink()


def check_stage(workflow: Workflow, run: Run) -> CheckResult:
    """Check the results of a run against the application's reference."""
    return workflow.app.check(workflow.params, run.folder)


def run_facts(plan: Plan, result: RunResult, summary: Summary) -> dict[str, Any]:
    """Return what a run says about itself, as JSON values."""
    return {
        "origin": origin_of(plan.program.device_kinds),
        "predicted_makespan_s": plan.predicted_s,
        "lower_bound_s": plan.lower_bound_s,
        "makespan_s": list(result.makespan_s),
        "completion_s": result.completion_s,
        "clocks": {node: asdict(clock) for node, clock in result.clocks.items()},
        "planner": plan.program.meta["planner"],
        "arena_planned_bytes": dict(
            zip(plan.program.memory_names, (int(n) for n in plan.program.memory_size_bytes), strict=True)
        ),
        "arena_peak_bytes": result.arena_peak_bytes,
        **summary.as_json(),
    }
