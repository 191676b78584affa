"""The default planner: the best list schedule, then a seeded local search over priorities and device choices."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning.base import Budget, Progress
from heterotask_core.planning.bounds import lower_bound_s
from heterotask_core.planning.listing import Analysis, Placer, list_schedule, to_schedule
from heterotask_core.planning.problem import F64, I32, Problem
from heterotask_core.planning.schedule import Schedule

PRIORITY_SPREAD = 0.1
"""Relative size of a change of one task's priority."""


class Portfolio:
    """List schedules of several priorities × device rules, then hill climbing on the best.

    Every list schedule and every neighbour is one evaluation. The same evaluations and seed give the same plan.
    """

    name = "portfolio"

    def plan(
        self,
        problem: Problem,
        *,
        budget: Budget,
        warm_start: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Schedule:
        """Return the best schedule found; Ctrl-C returns the best so far.

        Raises :class:`~heterotask_core.errors.InfeasiblePlanError`.
        """
        deadline = math.inf if budget.time_s is None else time.monotonic() + budget.time_s
        limit = budget.evaluations if budget.evaluations is not None else (0 if budget.time_s is None else 10**9)
        search = _Search(problem, np.random.default_rng(budget.seed))
        search.start(warm_start)
        bound = lower_bound_s(problem)
        try:
            while search.evaluations < limit and time.monotonic() < deadline:
                if search.best_s <= bound * (1 + 1e-9):
                    break
                search.step()
                if progress is not None:
                    progress(search.evaluations, search.best_s)
        except KeyboardInterrupt:
            pass
        return to_schedule(
            search.best, planner=self.name, seed=budget.seed, evaluations=search.evaluations, lower_bound_s=bound
        )


class _Search:
    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self.problem, self.rng, self.evaluations = problem, rng, 0
        self.analysis = Analysis(problem)
        self.table = self.analysis.oct()
        self.best_s = math.inf
        self.best: Placer
        self.rank: F64
        self.forced: I32
        """(T,) device each task is held to, −1 for free."""
        self.score: Callable[[int, int, float], float]

    def start(self, warm_start: Schedule | None) -> None:
        """Evaluate the list schedules, and the warm start's placement in its order of starts."""
        free = np.full(self.problem.n_tasks, -1, np.int32)
        eft: Callable[[int, int, float], float] = lambda _t, _d, finish: finish  # noqa: E731
        oct_: Callable[[int, int, float], float] = lambda t, d, finish: finish + float(self.table[t, d])  # noqa: E731
        for rank in (self.analysis.rank_oct(self.table), self.analysis.rank_u()):
            for score in (oct_, eft):
                self.evaluate(rank, free, score)
        if warm_start is not None:
            order = np.argsort(np.argsort(warm_start.task_start_s, kind="stable"), kind="stable")
            self.evaluate(-order.astype(np.float64), warm_start.task_device.astype(np.int32), eft)

    def step(self) -> None:
        """Try one neighbour: other priorities, one task elsewhere, or one task free again."""
        rank, forced = self.rank.copy(), self.forced.copy()
        n = self.problem.n_tasks
        for t in self.rng.integers(n, size=int(self.rng.integers(1, 4))):
            if self.rng.random() < 0.5:
                spread = PRIORITY_SPREAD * (float(np.ptp(rank)) or 1.0)
                rank[t] += spread * float(self.rng.standard_normal())
            else:
                feasible = np.flatnonzero(np.isfinite(self.analysis.w[t]))
                forced[t] = -1 if self.rng.random() < 0.25 else int(self.rng.choice(feasible))
        self.evaluate(rank, forced, self.score)

    def evaluate(self, rank: F64, forced: I32, score: Callable[[int, int, float], float]) -> None:
        self.evaluations += 1

        def held(t: int, d: int, finish: float) -> float:
            return score(t, d, finish) if forced[t] in (-1, d) else math.inf

        try:
            placer = list_schedule(self.analysis, rank, held)
        except InfeasiblePlanError:
            if math.isinf(self.best_s):
                raise
            return
        length = max(placer.finish.tolist(), default=0.0)
        if length < self.best_s:
            self.best_s, self.best, self.rank, self.forced, self.score = length, placer, rank, forced, score
