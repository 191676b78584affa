"""Lower bounds of the makespan: no plan can be shorter."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numba as nb
import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack

from heterotask_core.planning.bound_phases import Windows, windows
from heterotask_core.planning.bound_program import combined_s
from heterotask_core.planning.core import edges
from heterotask_core.planning.once import once
from heterotask_core.planning.problem import F64, I32, I64, Problem

LARGEST_PROGRAM = 200_000
"""Most (class, device) pairs for which the linear program is solved."""


def lower_bound(problem: Problem) -> float:
    """Return the largest lower bound known of a problem, in seconds."""
    return max(bounds(problem).values(), default=0.0)


def bounds(problem: Problem, *, combined_s_limit: float = 0.0) -> dict[str, float]:
    """Return lower bounds in seconds by name; as problems never change, what was found is kept as long as they live.

    ``critical path`` of smallest costs; ``area``: work over capacity; ``mixed``: the area program where a class whose
    tasks all lie on one path must also fit, with what lies between them, into the makespan (Agullo, Beaumont,
    Eyraud-Dubois & Kumar, IPDPS 2016, have it for Cholesky's POTRF); ``phases``: paths of smallest costs and of the
    work that lies between two tasks (:mod:`.bound_phases`; small problems); ``combined``: who runs what, what moves,
    and when, as one mixed-integer program that may take ``combined_s_limit`` seconds (:mod:`.bound_program`; smaller
    ones, and none for 0).
    """
    # What took its time is kept with the rest.
    found, apart = _quick(problem)
    if apart is not None and combined_s_limit > 0:
        value = combined_s(problem, apart, limit_s=combined_s_limit)
        if value > found.get("combined", 0.0):
            found["combined"] = value
    return dict(found)


@once()
def _quick(problem: Problem) -> tuple[dict[str, float], Windows | None]:
    """Return the bounds that need no time limit, and the windows of the tasks."""
    if not problem.n_tasks:
        return {}, None
    least = problem.cost_s.min(axis=1)[problem.task_class]
    pointer, target, _, _ = edges(problem)
    head, tail = _paths(pointer, target, least)
    area_s, price = _area(problem)
    chains = _chains(pointer, target, least, problem.task_class, head, tail)
    mixed_s = _area_s(problem, chains)[0] if chains else area_s
    found = {"critical path": float((head + least).max()), "area": area_s, "mixed": mixed_s}
    apart = None if price is None else windows(problem, price)
    if apart is not None:
        found["phases"] = apart.bound_s
    return found, apart


def area_prices(problem: Problem) -> F64 | None:
    """Return what a second of each device is worth, (D,): the area program's dual values; None if it was too large."""
    return _area(problem)[1] if problem.n_tasks else None


@once("task_class", "cost_s", "device_lane_ptr", "device_lanes")
def _area(problem: Problem) -> tuple[float, F64 | None]:
    return _area_s(problem, {})


@nb.njit(cache=True)
def _paths(pointer, target, least):  # type: ignore[no-untyped-def]
    """Return the longest path of smallest costs before and after every task, without its own."""
    n = len(least)
    head, tail = np.zeros(n), np.zeros(n)
    for t in range(n):
        for k in range(pointer[t], pointer[t + 1]):
            head[target[k]] = max(head[target[k]], head[t] + least[t])
    for t in range(n - 1, -1, -1):
        for k in range(pointer[t], pointer[t + 1]):
            tail[t] = max(tail[t], least[target[k]] + tail[target[k]])
    return head, tail


@nb.njit(cache=True)
def _between(pointer, target, least, first, last):  # type: ignore[no-untyped-def]
    """Return the longest path strictly between two tasks, −1 if none leads from the one to the other."""
    far = np.full(last - first + 1, -1.0)
    far[0] = 0.0
    for t in range(first, last):
        if far[t - first] < 0.0:
            continue
        here = far[t - first] + (least[t] if t > first else 0.0)
        for k in range(pointer[t], pointer[t + 1]):
            if target[k] <= last:
                far[target[k] - first] = max(far[target[k] - first], here)
    return far[last - first]


def _chains(pointer: I64, target: I32, least: F64, task_class: I32, head: F64, tail: F64) -> dict[int, float]:
    """Return, for each class whose tasks all lie on one path, the seconds of the rest of that path."""
    found = {}
    for c in np.unique(task_class).tolist():
        tasks = np.flatnonzero(task_class == c)
        rest = float(head[tasks[0]] + tail[tasks[-1]])
        for one, other in pairwise(tasks.tolist()):
            gap = _between(pointer, target, least, one, other)
            if gap < 0:
                break
            rest += gap
        else:
            if len(tasks) > 1:
                found[c] = rest
    return found


def _area_s(problem: Problem, chains: dict[int, float]) -> tuple[float, F64 | None]:
    """Work over capacity: spread fractions of each task class over the devices so that no lane is busy longer.

    A linear program over (class, device) pairs; beyond ``LARGEST_PROGRAM`` of them each class takes its cheapest lane
    time, shared by all lanes, which is weaker. ``chains``: classes that must fit after one another beside so many
    seconds. Returns it with the price (D,) of each device, the sum of its lanes' dual values, which sum to 1; None
    without a program.
    """
    classes, counts = np.unique(problem.task_class, return_counts=True)
    cost = problem.cost_s[classes]
    lanes = np.unique(problem.device_lanes)
    rows, devices = np.nonzero(np.isfinite(cost))
    n = len(rows)
    if n > LARGEST_PROGRAM:
        width = np.diff(problem.device_lane_ptr)
        return float((counts * (cost * width).min(axis=1)).sum() / len(lanes)), None
    holds = np.zeros((len(lanes), problem.n_devices))
    owner = np.repeat(np.arange(problem.n_devices), np.diff(problem.device_lane_ptr))
    holds[np.searchsorted(lanes, problem.device_lanes), owner] = 1.0
    # Variables: tasks of a class on a device, and last the makespan. Rows: lanes, then chains.
    rest = np.array(list(chains.values()))
    serial = classes[rows][None, :] == np.array(list(chains), np.int64).reshape(-1, 1)
    use = np.vstack([holds[:, devices], serial]) * cost[rows, devices]
    load: Any = hstack([csr_array(use), csr_array(-np.ones((len(use), 1)))])
    most = np.concatenate([np.zeros(len(lanes)), -rest])
    equal: Any = csr_array((np.ones(n), (rows, np.arange(n))), shape=(len(classes), n + 1))
    objective = np.append(np.zeros(n), 1.0)
    found = linprog(objective, A_ub=load, b_ub=most, A_eq=equal, b_eq=counts, method="highs")
    if found.fun is None:
        return 0.0, None
    dual = np.maximum(-found.ineqlin.marginals[: len(lanes)], 0.0)
    # The solver's tolerance must not lift the bound above a makespan that meets it.
    return float(found.fun) * (1 - 1e-7), holds.T @ (dual / dual.sum()) if dual.sum() > 0 else None
