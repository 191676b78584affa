"""The default planner: the best of several list schedules, then local search within the budget."""

from __future__ import annotations

import time

import numpy as np

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning.base import Budget, Progress
from heterotask_core.planning.core import arrays
from heterotask_core.planning.listing import Rule, cpop_rule, finish, heft_rule, peft_rule, place
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.schedule import Schedule
from heterotask_core.planning.search import improve


class PortfolioPlanner:
    """PEFT, HEFT, CPOP and HEFT's order with PEFT's devices; the best of them is searched on."""

    name = "portfolio"

    def plan(
        self,
        problem: Problem,
        *,
        budget: Budget,
        warm_start: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Schedule:
        """Return the best schedule found; evaluations count the search, not the list schedules."""
        deadline = None if budget.time_s is None else time.monotonic() + budget.time_s
        view = arrays(problem)
        peft, heft = peft_rule(problem), heft_rule(problem)
        rules = [peft, heft, cpop_rule(problem), Rule(heft.priority, peft.bias, heft.forced)]
        if warm_start is not None:
            rules.append(Rule(-warm_start.task_start_s, np.zeros_like(heft.bias), warm_start.task_device))
        passes = [(place(problem, view, rule), rule) for rule in rules]
        placed, rule = min(passes, key=lambda x: x[0].makespan_s)
        if progress is not None:
            progress(0, float(placed.makespan_s))
        found, count = improve(problem, view, rule, placed, budget=budget, deadline_s=deadline, progress=progress)
        # Memory may turn the order around, or make a plan impossible: then the list schedules are tried with it too.
        limited = bool((problem.memory_capacity_bytes >= 0).any())
        fitted: list[Schedule] = []
        failure: InfeasiblePlanError | None = None
        for candidate in [found, *(p for p, _ in passes if limited)]:
            try:
                fitted.append(finish(problem, candidate, planner=self.name, seed=budget.seed, evaluations=count))
            except InfeasiblePlanError as error:
                failure = failure or error
        if not fitted and failure is not None:
            raise failure
        return min(fitted, key=lambda s: s.makespan_s)


PORTFOLIO = PortfolioPlanner()
