"""Local search over (device, priority) of tasks, scored by the list-scheduling core.

Late acceptance hill climbing (Burke & Bykov, EJOR 2017): a change is kept if it is no worse than the current
plan or than the one some evaluations ago.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from heterotask_core.planning.base import Budget, Progress
from heterotask_core.planning.core import Arrays, Placed, decode
from heterotask_core.planning.listing import Rule
from heterotask_core.planning.problem import Problem

HISTORY = 30
SINGLE_SHARE, GROUP_SHARE = 0.35, 0.3
"""Shares of moves that give one task, or a connected group, another device; the rest change a priority."""
MAX_GROUP = 6
"""Most tasks that move together: data-heavy neighbours only pay when they move as one."""


def improve(
    problem: Problem,
    view: Arrays,
    rule: Rule,
    placed: Placed,
    *,
    budget: Budget,
    deadline_s: float | None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Placed, int]:
    """Return the best pass found and the number of evaluations; an interrupt (Ctrl-C) ends the search.

    It ends after ``budget.evaluations`` or at ``deadline_s`` of ``clock``; without either, at once.
    """
    if budget.evaluations is None and deadline_s is None:
        return placed, 0
    rng = np.random.default_rng(budget.seed)
    choices = [np.flatnonzero(np.isfinite(row)) for row in problem.cost_s]
    priority, forced = rule.priority.copy(), placed.device.copy()
    neighbours = _neighbours(problem)
    no_bias = np.zeros((problem.n_tasks, problem.n_devices))
    best, current = placed, float(placed.makespan_s)
    history = np.full(HISTORY, current)
    count = 0
    try:
        while problem.n_tasks and (budget.evaluations is None or count < budget.evaluations):
            if deadline_s is not None and clock() >= deadline_s:
                break
            task = int(rng.integers(problem.n_tasks))
            group = [task]
            draw = rng.random()
            if draw < SINGLE_SHARE + GROUP_SHARE:
                device = rng.choice(choices[problem.task_class[task]])
                if draw >= SINGLE_SHARE:
                    group = _connected(neighbours, task, int(rng.integers(2, MAX_GROUP + 1)), rng)
            old = [(t, forced[t], priority[t]) for t in group]
            if draw < SINGLE_SHARE + GROUP_SHARE:
                for t in group:
                    if np.isfinite(problem.cost_s[problem.task_class[t], device]):
                        forced[t] = device
            else:
                other = priority[rng.integers(problem.n_tasks)]
                priority[task] = np.nextafter(other, np.inf if rng.random() < 0.5 else -np.inf)
            tried = Placed(*decode(view, priority, no_bias, forced))
            slot = count % HISTORY
            count += 1
            if tried.failed < 0 and (tried.makespan_s <= current or tried.makespan_s <= history[slot]):
                current = float(tried.makespan_s)
            else:
                for t, device, rank in old:
                    forced[t], priority[t] = device, rank
            history[slot] = current
            if tried.failed < 0 and tried.makespan_s < best.makespan_s:
                best = tried
                if progress is not None:
                    progress(count, float(best.makespan_s))
    except KeyboardInterrupt:
        pass
    return best, count


def _neighbours(problem: Problem) -> list[list[int]]:
    """Return the producers and consumers of every task, without repetition, sorted."""
    found: list[set[int]] = [set() for _ in range(problem.n_tasks)]
    for t in range(problem.n_tasks):
        versions = problem.input_versions[problem.input_ptr[t] : problem.input_ptr[t + 1]]
        for producer in problem.version_producer[versions].tolist():
            if producer >= 0:
                found[t].add(producer)
                found[producer].add(t)
    return [sorted(tasks) for tasks in found]


def _connected(neighbours: list[list[int]], task: int, size: int, rng: np.random.Generator) -> list[int]:
    """Return up to ``size`` tasks that hang together, grown from ``task`` at random."""
    group, edge = [task], list(neighbours[task])
    while edge and len(group) < size:
        taken = edge.pop(int(rng.integers(len(edge))))
        if taken not in group:
            group.append(taken)
            edge += neighbours[taken]
    return group
