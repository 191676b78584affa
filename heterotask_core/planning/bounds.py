"""Lower bounds of the makespan: no schedule of a problem can be shorter."""

from __future__ import annotations

import numpy as np

from heterotask_core.planning.problem import Problem


def lower_bound_s(problem: Problem) -> float:
    """Return the larger of the critical path and the area bound, in seconds."""
    return max(critical_path_s(problem), area_s(problem))


def critical_path_s(problem: Problem) -> float:
    """Longest chain of tasks with every task at its smallest cost and free communication."""
    fastest = problem.cost_s.min(axis=1)[problem.task_class]
    finish = np.zeros(problem.n_tasks)
    for t in range(problem.n_tasks):
        inputs = problem.input_versions[problem.input_ptr[t] : problem.input_ptr[t + 1]]
        producers = problem.version_producer[inputs]
        before = [
            *producers[producers >= 0].tolist(),
            *problem.after_tasks[problem.after_ptr[t] : problem.after_ptr[t + 1]].tolist(),
        ]
        finish[t] = fastest[t] + (finish[before].max() if before else 0.0)
    return float(finish.max(initial=0.0))


def area_s(problem: Problem) -> float:
    """Work over capacity: the linear program that spreads fractions of each class over the devices.

    Devices that hold several lanes are left out of the bound when any exists (they are not additive).
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    if len(problem.device_lanes) > problem.n_devices:
        return 0.0
    classes, counts = np.unique(problem.task_class, return_counts=True)
    if len(classes) == 0:
        return 0.0
    rows, columns = np.nonzero(np.isfinite(problem.cost_s[classes]))
    n = len(rows)
    objective = np.zeros(n + 1)
    objective[n] = 1.0
    equal = coo_array((np.ones(n), (rows, np.arange(n))), shape=(len(classes), n + 1))
    load = coo_array(
        (
            np.append(problem.cost_s[classes][rows, columns], -np.ones(problem.n_devices)),
            (np.append(columns, np.arange(problem.n_devices)), np.append(np.arange(n), np.full(problem.n_devices, n))),
        ),
        shape=(problem.n_devices, n + 1),
    )
    found = linprog(
        objective, A_ub=load, b_ub=np.zeros(problem.n_devices), A_eq=equal, b_eq=counts.astype(float), method="highs"
    )
    return float(found.fun) if found.success else 0.0
