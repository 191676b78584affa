"""Lower bounds of the makespan: no plan can be shorter."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack

from heterotask_core.planning.core import edges
from heterotask_core.planning.problem import Problem

LARGEST_PROGRAM = 200_000
"""Most (class, device) pairs for which the linear program is solved."""


def lower_bound(problem: Problem) -> float:
    """Return the largest of the lower bounds, in seconds."""
    return max(bounds(problem).values(), default=0.0)


def bounds(problem: Problem) -> dict[str, float]:
    """Return lower bounds in seconds by name: the critical path of smallest costs, the area."""
    if not problem.n_tasks:
        return {}
    least = problem.cost_s.min(axis=1)[problem.task_class]
    pointer, target, _, _ = edges(problem)
    earliest = np.zeros(problem.n_tasks)
    for t in range(problem.n_tasks):
        successors = target[pointer[t] : pointer[t + 1]]
        earliest[successors] = np.maximum(earliest[successors], earliest[t] + least[t])
    return {"critical path": float((earliest + least).max()), "area": _area_s(problem)}


def _area_s(problem: Problem) -> float:
    """Work over capacity: spread fractions of each task class over the devices so that no lane is busy longer.

    The area bound as a linear program over (class, device) pairs; beyond ``LARGEST_PROGRAM`` of them each
    class takes its cheapest lane time, shared by all lanes, which is weaker.
    """
    classes, counts = np.unique(problem.task_class, return_counts=True)
    cost = problem.cost_s[classes]
    lanes = np.unique(problem.device_lanes)
    rows, devices = np.nonzero(np.isfinite(cost))
    n = len(rows)
    if n > LARGEST_PROGRAM:
        width = np.diff(problem.device_lane_ptr)
        return float((counts * (cost * width).min(axis=1)).sum() / len(lanes))
    holds = np.zeros((len(lanes), problem.n_devices))
    owner = np.repeat(np.arange(problem.n_devices), np.diff(problem.device_lane_ptr))
    holds[np.searchsorted(lanes, problem.device_lanes), owner] = 1.0
    # Variables: tasks of a class on a device, and last the makespan.
    load: Any = hstack([csr_array(holds[:, devices] * cost[rows, devices]), csr_array(-np.ones((len(lanes), 1)))])
    equal: Any = csr_array((np.ones(n), (rows, np.arange(n))), shape=(len(classes), n + 1))
    objective = np.append(np.zeros(n), 1.0)
    found = linprog(objective, A_ub=load, b_ub=np.zeros(len(lanes)), A_eq=equal, b_eq=counts, method="highs")
    # The solver's tolerance must not lift the bound above a makespan that meets it.
    return 0.0 if found.fun is None else float(found.fun) * (1 - 1e-7)
