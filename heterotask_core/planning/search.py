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
    no_bias = np.zeros((problem.n_tasks, problem.n_devices))
    best, current = placed, float(placed.makespan_s)
    history = np.full(HISTORY, current)
    count = 0
    try:
        while problem.n_tasks and (budget.evaluations is None or count < budget.evaluations):
            if deadline_s is not None and clock() >= deadline_s:
                break
            task = int(rng.integers(problem.n_tasks))
            old = forced[task], priority[task]
            if rng.random() < 0.6:
                forced[task] = rng.choice(choices[problem.task_class[task]])
            else:
                other = priority[rng.integers(problem.n_tasks)]
                priority[task] = np.nextafter(other, np.inf if rng.random() < 0.5 else -np.inf)
            tried = Placed(*decode(view, priority, no_bias, forced))
            slot = count % HISTORY
            count += 1
            if tried.failed < 0 and (tried.makespan_s <= current or tried.makespan_s <= history[slot]):
                current = float(tried.makespan_s)
            else:
                forced[task], priority[task] = old
            history[slot] = current
            if tried.failed < 0 and tried.makespan_s < best.makespan_s:
                best = tried
                if progress is not None:
                    progress(count, float(best.makespan_s))
    except KeyboardInterrupt:
        pass
    return best, count
