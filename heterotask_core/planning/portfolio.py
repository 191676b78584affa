"""The default planner: the best of many list schedules, then local search within the budget."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning.base import Budget, Progress
from heterotask_core.planning.core import Arrays, Placed, arrays
from heterotask_core.planning.heft_oct import heft_oct_rule
from heterotask_core.planning.listing import Rule, cpop_rule, finish, heft_rule, peft_rule, place
from heterotask_core.planning.lookahead import lookahead_rule
from heterotask_core.planning.memory import limited, tight
from heterotask_core.planning.memory_search import refine
from heterotask_core.planning.peft_link import peft_link_rule
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.restricted import restricted_passes
from heterotask_core.planning.schedule import Schedule
from heterotask_core.planning.search import improve, warm_up

FITTED = 3
"""List schedules that are fitted into memories of ample capacity beside what the search found; all into tight ones."""
MANY = 50_000
"""Tasks × devices up to which restricted device sets and look-ahead are tried too."""


class PortfolioPlanner:
    """All list schedules; the best of them are searched on.

    A time budget counts from the call, list schedules and planned memory included, compilation not: compiled
    code is loaded (or made, once a machine) before the clock starts.
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
        """Return the best schedule found; evaluations count the search, not the list schedules."""
        searching = budget.time_s != 0 and (budget.time_s is not None or budget.evaluations is not None)
        if searching:
            tiny = warm_up()
            list_passes(tiny, arrays(tiny))
        began = time.monotonic()
        view = arrays(problem)
        passes = list_passes(problem, view, warm_start)
        passes.sort(key=lambda p: p.makespan_s)
        if progress is not None:
            progress(0, float(passes[0].makespan_s))
        most = len(passes) if tight(problem) else FITTED if limited(problem) else 1
        candidates, count = passes[:most], 0
        deadline, under_limits = None, False
        if searching:
            if budget.time_s is not None:
                # Finishing the plan takes time too: as long as it takes for one of them.
                before = time.monotonic()
                _shortest(problem, candidates[:1], self.name, budget.seed, 0)
                finishing_s = (time.monotonic() - before) * (len(candidates) + 1)
                deadline = began + budget.time_s - finishing_s
            under_limits = tight(problem)
            first, until = budget, deadline
            if under_limits:
                # Half of the search is for what memory makes of the plans.
                until = None if deadline is None else (began + deadline) / 2
                first = replace(budget, evaluations=None if budget.evaluations is None else budget.evaluations // 2)
            found, count = improve(problem, view, passes, budget=first, deadline_s=until, progress=progress)
            candidates = [found, *candidates] if limited(problem) else [found]
        schedule = _shortest(problem, candidates, self.name, budget.seed, count)
        if schedule is None:
            schedule = _shortest(problem, passes, self.name, budget.seed, count)
        if schedule is None:
            # Nothing fits: say why, for the shortest.
            return finish(problem, passes[0], planner=self.name, seed=budget.seed, evaluations=count)
        if searching and under_limits:
            rest = None if budget.evaluations is None else budget.evaluations - count
            schedule, more = refine(
                problem, [schedule], evaluations=rest, deadline_s=deadline, seed=budget.seed, progress=progress
            )
            schedule = replace(schedule, evaluations=count + more)
        return schedule


def list_passes(problem: Problem, view: Arrays, warm_start: Schedule | None = None) -> list[Placed]:
    """Return the passes of all list schedulers that can be placed, the warm start's order and devices first.

    Raises :class:`InfeasiblePlanError` if there are none.
    """
    rules = [make(problem) for make in (peft_rule, heft_rule, heft_oct_rule, cpop_rule, peft_link_rule)]
    if warm_start is not None:
        none = np.zeros((problem.n_tasks, 0))
        rules.insert(0, Rule(-warm_start.task_start_s, none, warm_start.task_device))
    passes: list[Placed] = []
    failure: InfeasiblePlanError | None = None
    for rule in rules:
        try:
            passes.append(place(problem, view, rule))
        except InfeasiblePlanError as error:
            failure = failure or error
    if problem.n_tasks * problem.n_devices <= MANY or not passes:
        try:
            passes += [placed for placed, _, _ in restricted_passes(problem)]
            passes.append(place(problem, view, lookahead_rule(problem, view)))
        except InfeasiblePlanError as error:
            failure = failure or error
    if not passes and failure is not None:
        raise failure
    return passes


def _shortest(problem: Problem, passes: list[Placed], name: str, seed: int, count: int) -> Schedule | None:
    """Return the shortest complete schedule of the passes, None if none fits into the memories."""
    fitted: list[Schedule] = []
    for placed in passes:
        try:
            fitted.append(finish(problem, placed, planner=name, seed=seed, evaluations=count))
        except InfeasiblePlanError:
            continue
    return min(fitted, key=lambda s: (s.makespan_s, s.moved_bytes(problem)), default=None)


PORTFOLIO = PortfolioPlanner()
