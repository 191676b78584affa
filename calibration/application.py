"""Calibrate a workflow: plans as ``heterotask plan`` makes them, measurements through a session of the runtime."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

import polars as pl

from calibration.journal import recorded_incumbent
from calibration.load import other_load, usage
from calibration.loop import CalibrationResult, calibrate
from heterotask_core.emulation import is_emulated, origin_of
from heterotask_core.profiling.costs import Overheads
from heterotask_core.profiling.emulated import EmulationSpec
from heterotask_core.profiling.measure import Profile
from heterotask_core.program.model import Program
from heterotask_core.runtime.job import RunResult
from heterotask_core.runtime.session import Session
from heterotask_core.stages import DEFAULT_PLANNER, Workflow, incumbent_overheads, plan_stage, profile_stage
from heterotask_core.store import Store
from heterotask_core.trace import trace_table

log = logging.getLogger(__name__)


class MachineEvaluator(AbstractContextManager["MachineEvaluator"]):
    """Plans a workflow with given overheads and measures programs on its devices; closes its session at the end.

    Plans are those of ``heterotask plan`` with the same overheads and its default budget, so that what is accepted is
    what is run from then on. Nothing disturbs the logical time of emulated devices. The session has room for all
    programs planned before the first measurement, and for ``largest``.
    """

    def __init__(
        self,
        workflow: Workflow,
        profiled: Profile,
        store: Store,
        work_dir: Path,
        *,
        planner: str,
        largest: Iterable[Program] = (),
    ) -> None:
        self.workflow, self.profiled, self.store, self.work_dir, self.planner = (
            workflow,
            profiled,
            store,
            work_dir,
            planner,
        )
        self.name = f"{workflow.key}-{profiled.fingerprint}-{planner}"
        self.disturbance = ""
        self.device_kinds: Mapping[str, str] = {d.name: d.variant_kind for d in workflow.platform.devices}
        self.link_kinds: Mapping[tuple[str, str], str] = {
            (x.source, x.target): str(x.kind) for x in workflow.platform.links
        }
        self._emulated = is_emulated(d.kind for d in workflow.platform.devices)
        self._session: Session | None = None
        self._planned = list(largest)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            self._session.close()

    def plan(self, overheads: Overheads) -> tuple[Program, float]:
        """Return the program planned with ``overheads`` and its predicted makespan in seconds."""
        plan = plan_stage(self.workflow, self.profiled, self.store, planner=self.planner, overheads=overheads)
        if self._session is None:
            self._planned.append(plan.program)
        return plan.program, plan.predicted_s

    def measure(self, program: Program, repeats: int) -> tuple[Sequence[float], pl.DataFrame]:
        """Run ``program`` once more than ``repeats`` and discard the first run."""
        self.work_dir.mkdir(parents=True, exist_ok=True)
        before = usage()
        result = self._run(program, repeats)
        self.disturbance = "" if self._emulated else other_load(before, usage())
        origin = origin_of(program.device_kinds)
        trace = pl.concat(
            trace_table(program, result.start_s[r], result.finish_s[r], origin=origin, repeat=r) for r in range(repeats)
        )
        return result.makespan_s, trace

    def _run(self, program: Program, repeats: int) -> RunResult:
        times = EmulationSpec.of(self.workflow.platform).times(program, runs=repeats) if self._emulated else None
        if self._session is None:
            # A session that is too small starts its ranks anew.
            self._session = Session(self.workflow.platform, largest=self._planned)
            self._planned.clear()
        return self._session.run(
            program, output_dir=self.work_dir, repeats=repeats, warm_up=not self._emulated, emulation=times
        )


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
    journal = journal_folder(workflow, store)
    resume = resume and journal.exists()
    # Killed between the new record and the end of the journal, the record's incumbent is the outcome already.
    start = recorded_incumbent(journal) if resume else None
    with MachineEvaluator(workflow, profiled, store, journal / "work", planner=planner) as evaluator:
        result = calibrate(
            evaluator,
            record_dir=journal,
            seed=seed,
            max_evaluations=evaluations,
            resume=resume,
            incumbent=incumbent_overheads(workflow, store) if start is None else start,
            progress=progress,
        )
    with store.new_record("calibrations", workflow.key, status=result.status, application=workflow.app.name) as record:
        (record / "incumbent.json").write_text(json.dumps(asdict(result.overheads), default=dict, indent=1))
        (record / "result.txt").write_text(result.text + "\n")
        shutil.copytree(journal, record / "journal", ignore=shutil.ignore_patterns("work"))
    shutil.rmtree(journal)
    return result


def journal_folder(workflow: Workflow, store: Store) -> Path:
    """Return where an unfinished calibration of the workflow lies: beside its record, so that it outlives a kill."""
    folder = store.folder("calibrations", workflow.key)
    return folder.with_name(f".{folder.name}.journal")
