"""Our side of the comparison: profile and plan once, then run the plan as often as asked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from calibration.application import calibrate_workflow
from heterotask_core.apps import find_application
from heterotask_core.planning.base import Budget
from heterotask_core.platform.cluster import find_platform
from heterotask_core.report.text import facts_text
from heterotask_core.stages import DEFAULT_EVALUATIONS, Plan, Workflow, execute_stage, plan_stage, profile_stage
from heterotask_core.store import Store


@dataclass
class Ours:
    """An application with its parameters, planned for a device set."""

    workflow: Workflow
    store: Store
    plan: Plan
    fastest: dict[str, str]
    """Kernel → the OpenCL variant that the profile says is the fastest."""
    last_run: Path | None = None

    @staticmethod
    def prepare(
        application: str, params: dict[str, Any], devices: str, folder: Path, *, nodes: int, calibrate: int
    ) -> Ours:
        """Profile, calibrate with at most ``calibrate`` measured programs (0: not at all), and plan."""
        app = find_application(application)
        workflow = Workflow.of(app, app.Params(**params), find_platform(devices, nodes=nodes))
        store = Store(folder)
        if calibrate:
            calibrate_workflow(workflow, store, evaluations=calibrate)
        profiled = profile_stage(workflow, store)
        plan = plan_stage(workflow, profiled, store, budget=Budget(evaluations=DEFAULT_EVALUATIONS))
        return Ours(workflow, store, plan, _fastest(profiled.timings))

    def node_of_tasks(self) -> list[int]:
        """Return the node (its index) on which the plan runs each task."""
        platform, program = self.workflow.platform, self.plan.program
        names = [node.name for node in platform.nodes]
        node = {device.name: names.index(device.node) for device in platform.devices}
        return [node[program.device_names[device]] for device in program.task_device.tolist()]

    def run(self, *, repeats: int) -> dict[str, Any]:
        """Run the plan in a new MPI job; return ``makespan_s`` of each repeat, ``completion_s`` of the job.

        ``kernels_s``: of each repeat, kernel → seconds of all its tasks.
        """
        run = execute_stage(self.workflow, self.plan, self.store, repeats=repeats)
        self.last_run = run.folder
        spent = run.trace.filter(pl.col("kind") == "kernel").with_columns(s=pl.col("finish_s") - pl.col("start_s"))
        sums = spent.group_by("repeat", "kernel").agg(pl.col("s").sum()).sort("kernel")
        kernels: list[dict[str, float]] = [{} for _ in range(repeats)]
        for row in sums.iter_rows(named=True):
            kernels[row["repeat"]][row["kernel"]] = row["s"]
        return {
            "makespan_s": list(run.result.makespan_s),
            "completion_s": run.result.completion_s,
            "kernels_s": kernels,
        }

    def check(self) -> bool:
        """Return whether the last run's results pass the application's check."""
        assert self.last_run is not None
        return self.workflow.app.check(self.workflow.params, self.last_run).passed

    def report(self) -> str:
        """Return what ``heterotask report`` prints about the last run: where the time went."""
        assert self.last_run is not None
        return facts_text(json.loads((self.last_run / "summary.json").read_text()))


def _fastest(timings: pl.DataFrame) -> dict[str, str]:
    """Sum the medians of a variant over its kernel's classes; the smallest sum wins."""
    sums = (
        timings.filter(pl.col("device_kind") == "opencl")
        .group_by("kernel", "variant")
        .agg(pl.col("median_s").sum())
        .sort("median_s", "variant")
    )
    found: dict[str, str] = {}
    for row in sums.iter_rows(named=True):
        found.setdefault(row["kernel"], row["variant"])
    return found
