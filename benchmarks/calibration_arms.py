"""Ways to spend the same number of measurements: each returns the key of the program that it would run from now on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from calibration.bench import Bench, Evaluator
from calibration.journal import Journal
from calibration.loop import explore, regress
from calibration.search import LOG_RANGE, Space
from heterotask_core.profiling.costs import Overheads
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
