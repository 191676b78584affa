"""Ways to spend the same number of measurements, and what comes of each on one machine, drawn or real."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl

from calibration.bench import REPEATS, Bench, Evaluator, program_key
from calibration.journal import Journal
from calibration.loop import CalibrationResult, calibrate, explore, regress
from calibration.retime import retimed
from calibration.search import LOG_RANGE, Space
from calibration.virtual import VirtualEvaluator
from heterotask_core.graph import TaskGraph
from heterotask_core.planning.core import arrays
from heterotask_core.planning.from_graph import build_problem
from heterotask_core.planning.listing import finish
from heterotask_core.planning.portfolio import list_passes
from heterotask_core.platform.model import Platform
from heterotask_core.profiling.costs import CostModel, Overheads
from heterotask_core.program.lower import lower
from heterotask_core.program.model import Program

Log = list[tuple[Program, float]]
"""Programs measured and their mean log makespan, in order."""


class Watched:
    """An evaluator that notes what is measured in searches (not in acceptance, where a run is one repeat)."""

    disturbance = ""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self.name = evaluator.name
        self.device_kinds, self.link_kinds = evaluator.device_kinds, evaluator.link_kinds
        self.log: Log = []

    def plan(self, overheads: Overheads) -> tuple[Program, float]:
        """Plan."""
        return self._evaluator.plan(overheads)

    def measure(self, program: Program, repeats: int) -> tuple[Sequence[float], pl.DataFrame]:
        """Measure and note."""
        makespans, trace = self._evaluator.measure(program, repeats)
        self.disturbance = self._evaluator.disturbance
        if repeats > 1:
            self.log.append((program, float(np.mean(np.log(makespans)))))
        return makespans, trace


class Bed(AbstractContextManager["Bed"]):
    """A bench on a folder that goes away."""

    def __init__(self, evaluator: Evaluator, *, seed: int, evaluations: int) -> None:
        self._folder = TemporaryDirectory()
        self.path = Path(self._folder.name)
        self.watched = Watched(evaluator)
        self.seed, self.evaluations = seed, evaluations
        self.bench = Bench(self.watched, Journal(self.path, settings={}, resume=False))
        kinds = self.watched.device_kinds.values(), self.watched.link_kinds.values()
        self.space = Space.of(*(tuple(k) for k in kinds))

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


def random_overheads(bed: Bed) -> str:
    """Plan with overheads drawn evenly around none; the one measured best."""
    bench, rng = bed.bench, np.random.default_rng([bed.seed, 7])
    bench.measure(bench.plan(Overheads()))
    for _ in range(4 * bed.evaluations):
        if bench.evaluations >= bed.evaluations:
            break
        point = [float(v) for v in rng.uniform(-LOG_RANGE, LOG_RANGE, len(bed.space.names))]
        bench.measure(bench.plan(bed.space.apply(Overheads(), point)))
    return bench.best()


def regression(bed: Bed) -> str:
    """Estimate and plan again until nothing changes; what is left of the measurements repeats the best, for traces."""
    bench = bed.bench
    bench.measure(bench.plan(Overheads()))
    regress(bench, rounds=3)
    while bench.evaluations < bed.evaluations - 1:
        bench.repeat(bench.best())
    if bench.evaluations < bed.evaluations:
        regress(bench, rounds=1)
    return bench.best()


def search_only(bed: Bed) -> str:
    """The Bayesian search around no overheads."""
    bench = bed.bench
    bench.measure(bench.plan(Overheads()))
    ranked = explore(
        bench, bed.space, Overheads(), seed=bed.seed, max_evaluations=bed.evaluations, progress=lambda _: None
    )
    return ranked[0] if ranked else bench.best()


ARMS: dict[str, Callable[[Bed], str]] = {
    "random overheads": random_overheads,
    "regression": regression,
    "BO only": search_only,
}


def evaluations_to_half(log: Log, true_s: Callable[[Program], float], *, start_s: float, oracle_s: float) -> float:
    """Return after how many evaluations the program measured best has at most half of the first one's regret.

    Infinite if never; 0 where the first one has no regret above a thousandth.
    """
    if start_s <= 1.001 * oracle_s:
        return 0.0
    best = math.inf
    chosen_s = start_s
    for n, (program, value) in enumerate(log, start=1):
        if value < best:
            best, chosen_s = value, true_s(program)
        if chosen_s - oracle_s <= (start_s - oracle_s) / 2:
            return float(n)
    return math.inf


def list_plans(graph: TaskGraph, platform: Platform, costs: CostModel, *, count: int) -> list[Program]:
    """Return the different programs of the ``count`` shortest list schedules."""
    problem = build_problem(graph, platform, costs)
    passes = sorted(list_passes(problem, arrays(problem)), key=lambda p: p.makespan_s)[:count]
    programs = [lower(graph, platform, problem, finish(problem, p, planner="list")) for p in passes]
    return list({program_key(p): p for p in programs}.values())


def compare_arms(
    fresh: Callable[[], Evaluator],
    again: Evaluator,
    judge: VirtualEvaluator | None,
    lists: Sequence[Program],
    *,
    seed: int,
    evaluations: int,
    final_runs: int,
    in_turn: bool = False,
) -> dict[str, Any]:
    """Run every arm with ``evaluations`` measurements and return a row of JSON values.

    ``fresh()`` is the machine as each arm meets it, ``again`` the one (or its like with other noise) on which the final
    programs run ``final_runs`` times each, one after the other or (``in_turn``: time passes on a real machine) a run
    each in turn; ``lists`` are the list schedules' programs. ``judge`` knows the truth;
    without it there is no oracle, and what is measured is taken for true.
    """
    began_s = time.perf_counter()
    first, predicted_s = again.plan(Overheads())
    finals: dict[str, Program] = {"uncalibrated": first}
    oracle_s = first_s = math.nan
    if judge is not None:
        finals["oracle"], oracle_s = judge.oracle()
        first_s = judge.expected_s(first)
    seconds: dict[str, float] = {}
    half: dict[str, float] = {}

    def noted(name: str, log: Log, since_s: float) -> None:
        seconds[name] = time.perf_counter() - since_s
        if judge is not None:
            half[name] = evaluations_to_half(log, judge.expected_s, start_s=first_s, oracle_s=oracle_s)

    arm_s = time.perf_counter()
    watched = Watched(fresh())
    finals["list plans"] = min(lists, key=lambda p: float(np.mean(np.log(watched.measure(p, REPEATS)[0]))))
    noted("list plans", watched.log, arm_s)
    for name, arm in ARMS.items():
        arm_s = time.perf_counter()
        with Bed(fresh(), seed=seed, evaluations=evaluations) as bed:
            finals[name] = bed.bench.program(arm(bed))
            noted(name, bed.watched.log, arm_s)
    arm_s = time.perf_counter()
    watched = Watched(fresh())
    with TemporaryDirectory() as folder:
        result = calibrate(
            watched, record_dir=Path(folder), seed=seed, max_evaluations=evaluations, progress=lambda _: None
        )
    noted("regression + BO", watched.log, arm_s)
    finals["regression + BO"] = again.plan(result.found or Overheads())[0]
    finals["accepted"] = again.plan(result.overheads)[0]
    makespan_s = measured_s(again, finals, runs=final_runs, in_turn=in_turn)
    row = {
        "makespan_s": makespan_s,
        "true_s": {name: judge.expected_s(program) for name, program in finals.items()} if judge else makespan_s,
        "half": half,
        "seconds": seconds | {"all": time.perf_counter() - began_s},
        "spent": dict(result.seconds),
        "status": result.status,
        "evaluations": result.evaluations,
        "runs": result.runs,
        "disturbed": list(result.disturbed),
        "makespan_before": abs(predicted_s / makespan_s["uncalibrated"] - 1.0),
        "makespan_after": abs((result.predicted_s or predicted_s) / makespan_s["accepted"] - 1.0),
    }
    return row | (op_errors(judge, result, finals["accepted"]) if judge else {})


def measured_s(machine: Evaluator, finals: Mapping[str, Program], *, runs: int, in_turn: bool) -> dict[str, float]:
    """Return the median makespan in seconds of each program; equal programs share their runs."""
    programs = {program_key(program): program for program in finals.values()}
    found: dict[str, list[float]] = {key: [] for key in programs}
    for _ in range(runs if in_turn else 1):
        for key, program in programs.items():
            found[key] += machine.measure(program, 1 if in_turn else runs)[0]
    return {name: float(np.median(found[program_key(program)])) for name, program in finals.items()}


def op_errors(judge: VirtualEvaluator, result: CalibrationResult, kept: Program) -> dict[str, float]:
    """Return the median relative error of the kernels' predicted times, without and with what was estimated."""
    kinds = {"device_kinds": judge.device_kinds, "link_kinds": judge.link_kinds}
    true_s = judge.expected_ops_s(kept)
    kernels = kept.op_task >= 0
    after = result.estimate.overheads if result.estimate else Overheads()
    found = {}
    for name, overheads in (("op_before", Overheads()), ("op_after", after)):
        seconds = retimed(kept, result.overheads, overheads, **kinds)
        found[name] = float(np.median(np.abs(seconds[kernels] / true_s[kernels] - 1.0)))
    return found
