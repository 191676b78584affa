"""PEFT on devices that cost what the area program's prices say.

A greedy list schedule lets whatever ends a task soonest have it, and keeps fast devices from the tasks that need them
most. The dual values of the area program (:mod:`.bounds`) price a second of each device; a task on a device where
cost × price is above its cheapest pays the difference, some times over, in the choice of its device.
"""

from __future__ import annotations

import numpy as np

from heterotask_core.planning.base import Budget, Progress
from heterotask_core.planning.bounds import area_prices
from heterotask_core.planning.core import Placed, arrays
from heterotask_core.planning.listing import Rule, finish_shortest, heft_rule, peft_rule, place, wide
from heterotask_core.planning.problem import F64, Problem
from heterotask_core.planning.room import with_room
from heterotask_core.planning.schedule import Schedule

WEIGHTS = (1.0, 3.0, 10.0)
"""How many times the difference is paid."""


def overpaid_s(problem: Problem) -> F64 | None:
    """Return by how much each class's cost × price is above its cheapest, (C, D) seconds; None without prices.

    0 where a device cannot run the class, which it may not anyway.
    """
    price = area_prices(problem)
    if price is None:
        return None
    can = np.isfinite(problem.cost_s)
    priced = np.where(can, problem.cost_s, 0.0) * price
    least = np.where(can, priced, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    return np.where(can, priced - np.where(np.isfinite(least), least, 0.0), 0.0)


def peft_area_rules(problem: Problem) -> list[Rule]:
    """Return the rules: each weight with PEFT's and with HEFT's order; none without prices."""
    over = overpaid_s(problem)
    if over is None:
        return []
    peft, heft = peft_rule(problem), heft_rule(problem)
    table, extra = wide(problem, peft.bias), over[problem.task_class]
    return [
        Rule(priority, np.ascontiguousarray(table + weight * extra), peft.forced)
        for weight in WEIGHTS
        for priority in (peft.priority, heft.priority)
    ]


class PeftAreaPlanner:
    """The shortest of the passes; it ignores budget and warm start. Without prices, it is PEFT."""

    name = "peft-area"

    def plan(
        self,
        problem: Problem,
        *,
        budget: Budget,
        warm_start: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Schedule:
        """Return the best list schedule."""
        problem = with_room(problem)
        view = arrays(problem)
        passes: list[Placed] = [place(problem, view, r) for r in peft_area_rules(problem) or [peft_rule(problem)]]
        schedule = finish_shortest(problem, passes, planner=self.name, seed=budget.seed)
        if progress is not None:
            progress(0, schedule.makespan_s)
        return schedule


PEFT_AREA = PeftAreaPlanner()
