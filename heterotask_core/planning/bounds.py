"""Lower bounds of the makespan: no plan can be shorter."""

from __future__ import annotations

import numpy as np

from heterotask_core.planning.core import edges
from heterotask_core.planning.problem import Problem


def lower_bound(problem: Problem) -> float:
    """Return the larger of the critical path of smallest costs and the area bound, in seconds.

    Area: every task holds its device's lanes; its cheapest cost × lanes, shared by all device lanes.
    """
    if not problem.n_tasks:
        return 0.0
    least = problem.cost_s.min(axis=1)[problem.task_class]
    pointer, target, _, _ = edges(problem)
    earliest = np.zeros(problem.n_tasks)
    for t in range(problem.n_tasks):
        successors = target[pointer[t] : pointer[t + 1]]
        earliest[successors] = np.maximum(earliest[successors], earliest[t] + least[t])
    width = np.diff(problem.device_lane_ptr)
    area = (problem.cost_s * width).min(axis=1)[problem.task_class].sum() / len(np.unique(problem.device_lanes))
    return float(max((earliest + least).max(), area))
