"""The arms under MPI: on emulated devices in logical time with a drawn truth, or on this machine's own devices."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
from calibration_arms import compare_arms, list_plans
from calibration_machine import Setting, draw_case
from calibration_report import ORDER

from calibration.application import MachineEvaluator
from calibration.prior import Family
from calibration.virtual import VirtualEvaluator
from heterotask_core.apps import find_application, parse_params
from heterotask_core.platform.cluster import find_platform
from heterotask_core.profiling.costs import CostModel, Overheads
from heterotask_core.program.model import Program
from heterotask_core.runtime.session import Session
from heterotask_core.stages import Workflow, profile_stage
from heterotask_core.store import Store
from heterotask_core.trace import trace_table

FINAL_RUNS = 5
LEAST_ROOM_BYTES = 1 << 24
TILE = 256
"""Pixels of a tile's side on this machine."""


class EmulatedEvaluator:
    """The virtual machine's truth and noise, carried out by emulated ranks of a session."""

    disturbance = ""
    """Other load cannot change logical times."""

    def __init__(self, virtual: VirtualEvaluator, session: Session, output_dir: Path) -> None:
        self._virtual, self._session, self._output_dir = virtual, session, output_dir
        self.name = f"emulated {virtual.name}"
        self.device_kinds, self.link_kinds = virtual.device_kinds, virtual.link_kinds

    def plan(self, overheads: Overheads) -> tuple[Program, float]:
        """Plan as the virtual machine does."""
        return self._virtual.plan(overheads)

    def measure(self, program: Program, repeats: int) -> tuple[Sequence[float], pl.DataFrame]:
        """Run the program under MPI with the true times of its ops."""
        times = self._virtual.times(program, repeats)
        result = self._session.run(program, output_dir=self._output_dir, repeats=repeats, emulation=times)
        return result.makespan_s, pl.concat(
            trace_table(program, result.start_s[r], result.finish_s[r], origin="emulated", repeat=r)
            for r in range(repeats)
        )


def emulated_row(setting: Setting, draw: int, family: Family, devices: str) -> dict[str, Any]:
    """Run all arms on one drawn machine, which emulated ranks on this host are; return a row of JSON values."""
    case = draw_case(setting, draw, family, devices)
    # Room for any plan: a session that is too small starts its ranks anew, which takes seconds.
    room_bytes = max(LEAST_ROOM_BYTES, 2 * sum(item.size_bytes for item in case.graph.items))
    room = {memory.name: room_bytes for memory in case.platform.memories}
    with TemporaryDirectory() as folder, Session(case.platform, arena_bytes=room) as session:
        row = compare_arms(
            lambda: EmulatedEvaluator(case.virtual(), session, Path(folder)),
            EmulatedEvaluator(case.virtual(1), session, Path(folder)),
            case.virtual(1),
            list_plans(case.graph, case.platform, case.costs, count=setting.evaluations),
            seed=draw,
            evaluations=setting.evaluations,
            final_runs=FINAL_RUNS,
        )
    return {"draw": draw, "family": family, "devices": devices, "machine": vars(case.machine)} | row


def on_this_machine(devices: str, *, tiles: int, seed: int, evaluations: int) -> Iterator[str]:
    """Yield lines: all arms on Canny with this machine's own devices, and what else used the machine meanwhile."""
    yield f"load average before: {os.getloadavg()[0]:.2f} on {len(os.sched_getaffinity(0))} cores"
    with TemporaryDirectory() as folder:
        app = find_application("canny")
        workflow = Workflow.of(app, parse_params(app, [f"size={tiles * TILE}", f"tile={TILE}"]), find_platform(devices))
        store = Store(Path(folder) / "store")
        profiled = profile_stage(workflow, store, budget_s=10.0)
        yield from profiled.notes
        lists = list_plans(workflow.graph, workflow.platform, CostModel.from_profile(profiled), count=evaluations)
        work_dir = Path(folder) / "work"
        with MachineEvaluator(workflow, profiled, store, work_dir, planner="portfolio", largest=lists) as evaluator:
            row = compare_arms(
                lambda: evaluator,
                evaluator,
                None,
                lists,
                seed=seed,
                evaluations=evaluations,
                final_runs=FINAL_RUNS,
                in_turn=True,
            )
    found = row["disturbed"]
    yield f"load average after: {os.getloadavg()[0]:.2f}; {len(found)} of {row['runs']} measurements disturbed"
    if found:
        yield f"the last one: {found[-1]}"
    for name in (n for n in ORDER if n in row["makespan_s"]):
        yield (
            f"{name:18} {1e3 * row['makespan_s'][name]:10.3f} ms (median of {FINAL_RUNS} runs in turn)"
            + (f", {row['seconds'][name]:.1f} s" if name in row["seconds"] else "")
        )
    yield (
        f"calibration: {row['status']} after {row['evaluations']} evaluations; prediction error "
        f"{row['makespan_before']:.1%} → {row['makespan_after']:.1%}"
    )
    yield f"seconds: {', '.join(f'{what} {spent:.1f}' for what, spent in row['spent'].items())}"
