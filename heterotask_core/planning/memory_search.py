"""Local search under memory limits: order, devices and eviction of a schedule, scored by the memory walk.

Late acceptance hill climbing (Burke & Bykov, EJOR 2017): a change is kept if it is no worse than the current plan
or than the one some evaluations ago. Equal makespans are told apart by the bytes moved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from heterotask_core.planning.base import Progress
from heterotask_core.planning.memory import WRITE_BACKS, durations, fields_of
from heterotask_core.planning.memory_walk import Walked, Walker
from heterotask_core.planning.problem import I64, Problem
from heterotask_core.planning.schedule import Schedule

HISTORY = 40
ORDER_SHARE, ITEM_SHARE = 0.45, 0.2
"""Shares of moves that give a task another place in the order, and all writers of an item another device; the rest
give one task another device."""
NEAR = 30.0
"""Positions within which a task moves, mostly."""


def refine(
    problem: Problem,
    starts: Sequence[Schedule],
    *,
    evaluations: int | None,
    deadline_s: float | None,
    seed: int,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Schedule, int]:
    """Return the best schedule with planned memory found from ``starts`` (all fitted), and the evaluations used.

    It ends after ``evaluations`` walks or at ``deadline_s`` of ``clock``; an interrupt (Ctrl-C) ends it too.
    """
    best = min(starts, key=lambda s: (s.makespan_s, s.moved_bytes(problem)))
    if not problem.n_tasks or (evaluations is None and deadline_s is None):
        return best, 0
    rng = np.random.default_rng(seed)
    walker = Walker(problem)
    choices = [np.flatnonzero(np.isfinite(row)) for row in problem.cost_s]
    writers = _writers(problem)
    device, cost = best.task_device.astype(np.int64), durations(problem, best)
    key = np.empty(problem.n_tasks)
    key[np.lexsort((np.arange(problem.n_tasks), best.task_start_s))] = np.arange(problem.n_tasks, dtype=np.float64)
    weight = float(WRITE_BACKS[0])
    current = (best.makespan_s, best.moved_bytes(problem))
    history = [current] * HISTORY
    found: tuple[Walked, I64] | None = None
    least, count, before = current, 0, 0.0
    try:
        while evaluations is None or count < evaluations:
            # A walk of a large problem takes long: none begins that would not end in time.
            now = clock() if deadline_s is not None else 0.0
            walk_s, before = now - before, now
            if deadline_s is not None and now + (walk_s if count else 0.0) >= deadline_s:
                break
            task = int(rng.integers(problem.n_tasks))
            draw = rng.random()
            old_key, old_weight, changed = key[task], weight, [task]
            old_device, old_cost = device[changed].copy(), cost[changed].copy()
            if rng.random() < 0.02:
                weight = float(rng.choice(WRITE_BACKS))
            if draw < ORDER_SHARE:
                scale = NEAR if rng.random() < 0.8 else float(problem.n_tasks)
                key[task] += rng.uniform(-scale, scale)
            else:
                target = int(rng.choice(choices[problem.task_class[task]]))
                if draw < ORDER_SHARE + ITEM_SHARE:
                    changed = writers[task]
                    old_device, old_cost = device[changed].copy(), cost[changed].copy()
                for t in changed:
                    seconds = problem.cost_s[problem.task_class[t], target]
                    if np.isfinite(seconds):
                        device[t], cost[t] = target, seconds
            fault, *value = walker.walk(key, device, cost, weight)
            slot = count % HISTORY
            count += 1
            score = (value[0], value[1])
            if not fault and (score <= current or score <= history[slot]):
                current = score
            else:
                key[task], weight = old_key, old_weight
                device[changed], cost[changed] = old_device, old_cost
            history[slot] = current
            if not fault and score < least:
                least, found = score, (walker.walked(), device.copy())
                if progress is not None:
                    progress(count, score[0])
    except KeyboardInterrupt:
        pass
    if found is not None:
        walked, chosen = found
        variant = problem.cost_variant[problem.task_class, chosen].astype(np.int32)
        best = replace(best, task_device=chosen.astype(np.int32), task_variant=variant, **fields_of(walked))
    return best, count


def _writers(problem: Problem) -> list[list[int]]:
    """Return, for every task, all tasks that write what it writes first (itself at least)."""
    by_item: dict[int, list[int]] = {}
    first = [-1] * problem.n_tasks
    for t in range(problem.n_tasks):
        for v in problem.output_versions[problem.output_ptr[t] : problem.output_ptr[t + 1]].tolist():
            item = int(problem.version_data[v])
            by_item.setdefault(item, []).append(t)
            if first[t] < 0:
                first[t] = item
    return [by_item[item] if item >= 0 else [t] for t, item in enumerate(first)]
