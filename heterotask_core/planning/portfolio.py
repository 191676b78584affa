"""The default planner: the best of many list schedules, then local search within the budget."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from heterotask_core.errors import InfeasiblePlanError, MissingExtraError
from heterotask_core.planning.base import Budget, Progress
from heterotask_core.planning.blocking import plans_blocking
from heterotask_core.planning.bounds import bounds
from heterotask_core.planning.core import Arrays, Placed, arrays
from heterotask_core.planning.cpsat import cp_model, fits, solve
from heterotask_core.planning.heft_oct import heft_oct_rule
from heterotask_core.planning.listing import Rule, cpop_rule, finish, heft_rule, peft_rule, place
from heterotask_core.planning.lookahead import lookahead_rule
from heterotask_core.planning.memory import limited, tight, warm_up_walk
from heterotask_core.planning.memory_search import refine
from heterotask_core.planning.neighbourhood import Neighbourhoods
from heterotask_core.planning.peft_area import peft_area_rules
from heterotask_core.planning.peft_data import peft_data_rules
from heterotask_core.planning.peft_link import peft_link_rule
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.restricted import restricted_passes
from heterotask_core.planning.room import restrict_to_room
from heterotask_core.planning.sampling import sampled_passes
from heterotask_core.planning.schedule import Schedule
from heterotask_core.planning.search import improve, warm_up

FITTED = 3
"""List schedules that are fitted into memories of ample capacity beside what the search found; all into tight ones."""
MANY = 50_000
"""Tasks × devices up to which look-ahead is tried too."""
MANY_SETS = 300_000
"""Tasks × devices up to which restricted device sets are."""
SAMPLED, MOST_SAMPLED = 0.15, 400
"""Share of the budget for drawn list schedules, and most of them."""
BOUND, BOUND_FROM_S = 0.15, 1.0
"""Share of a time budget for the lower bound that needs time, and the smallest time budget that has one."""
SOLVED, SOLVED_FROM = 30, 1_000
"""Most tasks of a problem that is solved by CP-SAT, and fewest evaluations of a budget for which it is."""
MOST_WINDOWED = 1_000
"""Most tasks of a problem whose windows CP-SAT plans anew."""
SEARCHED = 0.3
"""Share of a time budget that is searched before CP-SAT solves."""
EVALUATIONS_A_STEP = 500
"""Evaluations in the place of one step of CP-SAT's."""


class PortfolioPlanner:
    """All list schedules; the best of them are searched on.

    A time budget counts from the call, list schedules and planned memory included, compilation not: compiled
    code is loaded (or made, once a machine) before the clock starts.
    """

    name = "portfolio"

    def __init__(self, *, exact: bool = True) -> None:
        self.exact = exact
        """Whether CP-SAT solves small problems and windows of larger ones where OR-tools is installed."""

    @plans_blocking
    def plan(
        self,
        problem: Problem,
        *,
        budget: Budget,
        warm_start: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Schedule:
        """Return the best schedule found; evaluations count the search, not the list schedules."""
        problem = restrict_to_room(problem)
        searching = budget.time_s != 0 and (budget.time_s is not None or budget.evaluations is not None)
        if searching:
            tiny = warm_up()
            list_passes(tiny, arrays(tiny))
            if limited(problem):
                warm_up_walk(tiny)
        exact = self.exact and searching and _solvable(problem, budget)
        windows = Neighbourhoods(problem) if self.exact and searching and _windowed(problem, budget) else None
        began = time.monotonic()
        view = arrays(problem)
        passes = list_passes(problem, view, warm_start)
        passes.sort(key=lambda p: p.makespan_s)
        if progress is not None:
            progress(0, float(passes[0].makespan_s))
        most = len(passes) if tight(problem) else FITTED if limited(problem) else 1
        candidates, count = passes[:most], 0
        deadline, under_limits = None, False
        interrupts: list[bool] = []
        if searching:
            if budget.time_s is not None:
                if budget.time_s >= BOUND_FROM_S and not exact:
                    bounds(problem, combined_s_limit=BOUND * budget.time_s)
                # Finishing the plan takes time too: as long as it takes for one of them.
                before = time.monotonic()
                _shortest(problem, candidates[:1], self.name, budget.seed, 0)
                finishing_s = (time.monotonic() - before) * 2
                deadline = began + budget.time_s - finishing_s
            under_limits = tight(problem)
            first, until = budget, deadline
            if under_limits:
                # Half of the search is for what memory makes of the plans.
                until = None if deadline is None else (began + deadline) / 2
                first = replace(budget, evaluations=None if budget.evaluations is None else budget.evaluations // 2)
            if exact and deadline is not None:
                until = began + SEARCHED * (deadline - began)
            drawn, count, ended = _sampled(
                problem, view, float(passes[0].makespan_s), budget=first, deadline_s=until, progress=progress
            )
            passes = sorted([*drawn, *passes], key=lambda p: p.makespan_s)
            if ended:
                left = None if first.evaluations is None else first.evaluations - count
                found, more = improve(
                    problem,
                    view,
                    passes,
                    budget=replace(first, evaluations=left),
                    deadline_s=until,
                    progress=_after(count, float(passes[0].makespan_s), progress),
                    interrupted=lambda: interrupts.append(True),
                    windows=windows,
                )
                count += more
            else:
                found = passes[0]
                interrupts.append(True)
            candidates = [found, *candidates] if limited(problem) else [found]
        schedule = _shortest(problem, candidates, self.name, budget.seed, count, deadline, interrupts)
        if schedule is None:
            schedule = _shortest(problem, passes, self.name, budget.seed, count, deadline, interrupts)
        if schedule is None:
            # Nothing fits: say why, for the shortest.
            return finish(problem, passes[0], planner=self.name, seed=budget.seed, evaluations=count)
        if searching and under_limits and not interrupts:
            rest = None if budget.evaluations is None else budget.evaluations - count
            schedule, more = refine(
                problem, [schedule], evaluations=rest, deadline_s=deadline, seed=budget.seed, progress=progress
            )
            schedule = replace(schedule, evaluations=count + more)
        if exact and not interrupts:
            schedule = _solved(problem, schedule, budget=budget, deadline_s=deadline)
        return schedule


def _after(count: int, best_s: float, progress: Progress | None) -> Progress | None:
    """Return ``progress`` for a search after ``count`` evaluations, which hears of what is shorter than ``best_s``."""
    if progress is None:
        return None
    tell = progress

    def heard(more: int, makespan_s: float) -> None:
        if makespan_s < best_s:
            tell(count + more, makespan_s)

    return heard


def _sampled(
    problem: Problem,
    view: Arrays,
    best_s: float,
    *,
    budget: Budget,
    deadline_s: float | None,
    progress: Progress | None,
) -> tuple[list[Placed], int, bool]:
    """Draw list schedules within their share of the budget."""
    most = MOST_SAMPLED
    if budget.evaluations is not None:
        most = min(most, int(SAMPLED * budget.evaluations))
    began = time.monotonic()

    def go_on() -> bool:
        return deadline_s is None or time.monotonic() < began + SAMPLED * (deadline_s - began)

    return sampled_passes(problem, view, most=most, seed=budget.seed, go_on=go_on, best_s=best_s, progress=progress)


def _solvable(problem: Problem, budget: Budget) -> bool:
    """Return whether CP-SAT is there and worth its while; OR-tools is loaded then."""
    if problem.n_tasks > SOLVED or tight(problem) or (budget.evaluations or SOLVED_FROM) < SOLVED_FROM:
        return False
    return fits(problem) and _solver()


def _windowed(problem: Problem, budget: Budget) -> bool:
    """Return whether windows of the problem are worth CP-SAT's while; OR-tools is loaded then.

    Where transfers hold lanes the models are too slow, and their answers too rarely better.
    """
    if problem.contention or tight(problem) or not SOLVED < problem.n_tasks <= MOST_WINDOWED:
        return False
    if (budget.evaluations or SOLVED_FROM) < SOLVED_FROM or (budget.time_s or BOUND_FROM_S) < BOUND_FROM_S:
        return False
    return _solver()


def _solver() -> bool:
    try:
        cp_model()
    except MissingExtraError:
        return False
    return True


def _solved(problem: Problem, schedule: Schedule, *, budget: Budget, deadline_s: float | None) -> Schedule:
    """Return the plan that CP-SAT finds from ``schedule`` on in what is left of the budget, with what it proves."""
    left_s = None if deadline_s is None else deadline_s - time.monotonic()
    if left_s is not None and left_s <= 0.0:
        return schedule
    steps = None if budget.evaluations is None else max(1, budget.evaluations // EVALUATIONS_A_STEP)
    found, bound_s = solve(problem, schedule, budget=Budget(steps, left_s, budget.seed))
    best = found if found is not None and found.makespan_s < schedule.makespan_s else schedule
    return replace(best, lower_bound_s=min(max(bound_s, schedule.lower_bound_s), best.makespan_s))


def list_passes(problem: Problem, view: Arrays, warm_start: Schedule | None = None) -> list[Placed]:
    """Return the passes of all list schedulers that can be placed, the warm start's order and devices first.

    Raises :class:`InfeasiblePlanError` if there are none.
    """
    rules = [make(problem) for make in (peft_rule, heft_rule, heft_oct_rule, cpop_rule, peft_link_rule)]
    rules += peft_data_rules(problem)
    if problem.n_tasks * problem.n_devices <= MANY_SETS:
        rules += peft_area_rules(problem)
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
    size = problem.n_tasks * problem.n_devices
    try:
        if size <= MANY_SETS or not passes:
            passes += [placed for placed, _, _ in restricted_passes(problem)]
        if size <= MANY or not passes:
            passes.append(place(problem, view, lookahead_rule(problem, view)))
    except InfeasiblePlanError as error:
        failure = failure or error
    if not passes and failure is not None:
        raise failure
    return passes


def _shortest(
    problem: Problem,
    passes: list[Placed],
    name: str,
    seed: int,
    count: int,
    deadline_s: float | None = None,
    interrupts: list[bool] | None = None,
) -> Schedule | None:
    """Return the shortest complete schedule of the passes, None if none fits into the memories.

    At the deadline, or when interrupted (Ctrl-C), which is noted in ``interrupts``, those that follow the first one
    that fits are left out.
    """
    fitted: list[Schedule] = []
    stopped = False
    for placed in passes:
        if fitted and (stopped or (deadline_s is not None and time.monotonic() >= deadline_s)):
            break
        for _ in range(2):
            try:
                fitted.append(finish(problem, placed, planner=name, seed=seed, evaluations=count))
            except InfeasiblePlanError:
                pass
            except KeyboardInterrupt:
                stopped = True
                if interrupts is not None:
                    interrupts.append(True)
                if not fitted:
                    # There is nothing to return yet: this one has to be completed.
                    continue
            break
    return min(fitted, key=lambda s: (s.makespan_s, s.moved_bytes(problem)), default=None)


PORTFOLIO = PortfolioPlanner()
