"""PEFT on devices that cost what the area program's prices say.

A greedy list schedule lets whatever ends a task soonest have it, and keeps fast devices from the tasks that need them
most. The dual values of the area program (:mod:`.bounds`) price a second of each device; a task on a device where
cost × price is above its cheapest pays the difference, some times over, in the choice of its device.
"""

from __future__ import annotations

import numpy as np

from heterotask_core.planning.bounds import area_prices
from heterotask_core.planning.core import Placed, arrays
from heterotask_core.planning.listing import ListPlanner, Rule, heft_rule, peft_rule, place, wide
from heterotask_core.planning.problem import F64, Problem

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


def _passes(problem: Problem) -> list[Placed]:
    """Return a pass for each rule; without prices, PEFT's."""
    view = arrays(problem)
    return [place(problem, view, rule) for rule in peft_area_rules(problem) or [peft_rule(problem)]]


PEFT_AREA = ListPlanner("peft-area", _passes)
