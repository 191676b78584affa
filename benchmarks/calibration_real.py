"""The arms under MPI: on emulated devices in logical time with a drawn truth, or on this machine's own devices."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
from calibration_arms import ARMS, Bed
from calibration_machine import canny, costs, platform
from calibration_report import report

from calibration.application import MachineEvaluator
from calibration.bench import Evaluator
from calibration.loop import calibrate
from calibration.prior import FAMILIES, Prior
from calibration.virtual import VirtualEvaluator
from heterotask_core.apps import find_application, parse_params
from heterotask_core.planning.registry import planner
from heterotask_core.platform.cluster import find_platform
from heterotask_core.profiling.costs import Overheads
from heterotask_core.program.model import Program
from heterotask_core.runtime.job import execute
from heterotask_core.stages import Workflow, profile_stage
from heterotask_core.store import Store
from heterotask_core.trace import trace_table

FINAL_RUNS = 5
TILE = 64
"""Emulated ranks compute the real result, which need not be large."""


class EmulatedEvaluator(VirtualEvaluator):
    """The virtual machine's truth and noise, carried out by emulated ranks."""

    def measure(self, program: Program, repeats: int) -> tuple[Sequence[float], pl.DataFrame]:
        """Run the program under MPI with the true times of its ops."""
        times = self.times(program, repeats)
        with TemporaryDirectory() as folder:
            result = execute(program, self._platform, output_dir=Path(folder), repeats=repeats, emulation=times)
        return result.makespan_s, pl.concat(
            trace_table(program, result.start_s[r], result.finish_s[r], origin="emulated", repeat=r)
            for r in range(repeats)
        )


def run(args: argparse.Namespace) -> None:
    """Run ``--backend emulated`` or ``machine`` and print."""
    evaluations = args.evaluations or 6
    if args.backend == "machine":
        _machine(args, evaluations)
        return
    prior = Prior.read(args.prior)
    rows = []
    for draw in range(args.first, args.first + (args.draws or 2)):
        for family in (f for f in FAMILIES if f in args.families.split(",")):
            rng = np.random.default_rng([args.seed, draw, FAMILIES.index(family)])
            machine = prior.draw_machine(rng)
            # Two GPUs a node: a rank is a process.
            made = platform(machine, nodes=args.nodes, gpus=min(args.gpus, 2), cpus=1, here=True)
            truth = prior.draw_truth(family, made, rng)
            graph = canny(min(args.tiles, 4), TILE)
            table = costs(graph, made, machine, seed=int(rng.integers(1 << 31)))
            options: dict[str, Any] = {"planner": planner("portfolio"), "truth": truth, "evaluations": 200}
            evaluator = EmulatedEvaluator(graph, made, table, seed=draw, **options)
            judge = VirtualEvaluator(graph, made, table, seed=draw + 1, **options)
            row = {"draw": draw, "family": family, "devices": "emulated"}
            rows.append(row | _arms(evaluator, draw, evaluations, judge))
            print(f"draw {draw}, {family}: {rows[-1]['status']}", flush=True)
    print("emulated: logical times, no measurements of a machine")
    print(report(rows))


def _machine(args: argparse.Namespace, evaluations: int) -> None:
    print(f"load average before: {os.getloadavg()[0]:.2f} on {len(os.sched_getaffinity(0))} cores")
    with TemporaryDirectory() as folder:
        app = find_application("canny")
        params = parse_params(app, [f"size={args.tiles * 256}", "tile=256"])
        workflow = Workflow.of(app, params, find_platform(args.devices))
        store = Store(Path(folder) / "store")
        profiled = profile_stage(workflow, store, budget_s=10.0)
        with MachineEvaluator(workflow, profiled, store, Path(folder) / "work", planner="portfolio") as evaluator:
            row = _arms(evaluator, args.seed, evaluations, None)
    print(f"load average after: {os.getloadavg()[0]:.2f}; {row['disturbed']} of {row['runs']} measurements disturbed")
    if row["evidence"]:
        print(f"the last one: {row['evidence']}")
    for name, makespan_s in row["makespan_s"].items():
        print(f"{name:18} {1e3 * makespan_s:10.3f} ms (median of {FINAL_RUNS} runs in turn)")
    print(f"calibration: {row['status']}; prediction error {row['makespan_before']:.1%} → {row['makespan_after']:.1%}")
    print({name: round(seconds, 3) for name, seconds in row["spent"].items()})


def _arms(evaluator: Evaluator, seed: int, evaluations: int, judge: VirtualEvaluator | None) -> dict[str, Any]:
    """Return a row; ``judge`` knows the truth, and runs nothing."""
    plans = {"uncalibrated": evaluator.plan(Overheads())}
    for name, arm in ARMS.items():
        with Bed(evaluator, seed=seed, evaluations=evaluations) as bed:
            plans[name] = (bed.bench.program(arm(bed)), 0.0)
    with TemporaryDirectory() as folder:
        result = calibrate(
            evaluator, record_dir=Path(folder), seed=seed, max_evaluations=evaluations, progress=lambda _: None
        )
    plans["regression + BO"] = evaluator.plan(result.found or Overheads())
    plans["accepted"] = evaluator.plan(result.overheads)
    if judge is not None:
        plans["oracle"] = judge.oracle()
    makespans: dict[str, list[float]] = {name: [] for name in plans}
    for _ in range(FINAL_RUNS):
        for name, (program, _) in plans.items():
            makespans[name] += (judge or evaluator).measure(program, 1)[0]
    makespan_s = {name: float(np.median(runs)) for name, runs in makespans.items()}
    return {
        "makespan_s": makespan_s,
        "true_s": {name: judge.expected_s(p) for name, (p, _) in plans.items()} if judge else makespan_s,
        "half": {},
        "seconds": {},
        "spent": dict(result.seconds),
        "status": result.status,
        "evaluations": result.evaluations,
        "runs": result.runs,
        "disturbed": len(result.disturbed),
        "evidence": result.disturbed[-1] if result.disturbed else "",
        "makespan_before": abs(plans["uncalibrated"][1] / makespan_s["uncalibrated"] - 1.0),
        "makespan_after": abs((result.predicted_s or plans["accepted"][1]) / makespan_s["accepted"] - 1.0),
        "op_before": float("nan"),
        "op_after": float("nan"),
    }
