"""Earliest starts and latest ends that no plan can beat, from paths and from the work between two tasks."""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from heterotask_core.planning.core import edges
from heterotask_core.planning.problem import F64, Problem

LARGEST = 2_000
"""Most tasks for which the work between any two of them is summed (time grows with the cube of it)."""
_SAFE = 1.0 - 1e-5
"""Sums in single precision are off by up to one in a million."""


class Windows(NamedTuple):
    """Seconds (T,): before ``head_s`` a task cannot start, and ``tail_s`` at least passes after its end."""

    head_s: F64
    least_s: F64
    """The task's smallest cost."""
    tail_s: F64

    @property
    def bound_s(self) -> float:
        """The makespan that the longest of them implies."""
        return float((self.head_s + self.least_s + self.tail_s).max(initial=0.0))


@nb.njit(cache=True)
def _descendants(pointer, target):  # type: ignore[no-untyped-def]
    n = len(pointer) - 1
    found = np.zeros((n, n), np.bool_)
    for t in range(n - 1, -1, -1):
        for k in range(pointer[t], pointer[t + 1]):
            found[t] |= found[target[k]]
            found[t, target[k]] = True
    return found


@nb.njit(cache=True)
def _sweep(follows, between, work, least):  # type: ignore[no-untyped-def]
    n = len(work)
    head, tail = np.zeros(n), np.zeros(n)
    for t in range(n):
        total = 0.0
        for u in range(t):
            if follows[u, t]:
                total += work[u]
                head[t] = max(head[t], head[u] + least[u] + between[u, t])
        head[t] = max(head[t], total)
    for t in range(n - 1, -1, -1):
        total = 0.0
        for u in range(t + 1, n):
            if follows[t, u]:
                total += work[u]
                tail[t] = max(tail[t], between[t, u] + least[u] + tail[u])
        tail[t] = max(tail[t], total)
    return head, tail


def windows(problem: Problem, price: F64) -> Windows | None:
    """Return the windows of all tasks, None for more than ``LARGEST``.

    ``price`` (D,): a share of the makespan for each device, the sum of its lanes' shares, which are not negative and
    sum to 1. Whatever runs within some seconds costs at most so many seconds times shares, hence a set of tasks that
    has to run between two moments separates them by at least the sum of each task's cheapest cost × price (the dual of
    the area program). Applied to all ancestors of a task, to what lies between two tasks, and to all descendants,
    together with the tasks' own smallest costs, along every path.
    """
    n = problem.n_tasks
    if n > LARGEST:
        return None
    least = problem.cost_s.min(axis=1)[problem.task_class]
    priced = np.where(np.isfinite(problem.cost_s), problem.cost_s, 0.0) * price
    work = np.where(np.isfinite(problem.cost_s), priced, np.inf).min(axis=1)[problem.task_class] * _SAFE
    pointer, target, _, _ = edges(problem)
    follows = _descendants(pointer, target)
    single: npt.NDArray[np.float32] = follows.astype(np.float32)
    between = (single * work.astype(np.float32)) @ single
    head, tail = _sweep(follows, between * np.float32(_SAFE), work, least)
    return Windows(head, least, tail)
