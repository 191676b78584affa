"""The loop of the local search: change the plan, evaluate, keep or undo (Numba).

A plan is an order of the tasks (compatible with their precedence) and a device group for each. Acceptance is a
threshold drawn before the evaluation, current − temperature × ln(u), which is simulated annealing and lets the
evaluation end as soon as the threshold is out of reach.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np

from heterotask_core.planning.placing import raw_view, raw_workspace
from heterotask_core.planning.problem import F64, I32, U64
from heterotask_core.planning.raw import inner, opener
from heterotask_core.planning.search_evaluate import OVERFLOW, evaluate, keep, raw_marks, tail_of
from heterotask_core.planning.search_space import raw_space

MAX_GROUP = 6
"""Most tasks that move together as neighbours: data-heavy neighbours only pay when they move as one."""
NEAR = 20
"""Positions within which half of the order changes and all swaps stay."""
ONE, CONNECTED, ITEM, SHIFT, SWAP = range(5)
SHARES = np.cumsum([3.0, 2.0, 2.0, 3.0, 1.0]) / 11.0
"""Cumulated shares of the moves: one task to another group, connected tasks, the writers of a data item, another
position in the order, two tasks exchange their groups."""


class Plan(NamedTuple):
    """The current plan and scratch arrays of the loop; all (T,) unless said otherwise."""

    order: I32
    pos: I32
    group: I32
    device: I32
    start_s: F64
    finish_s: F64
    kept_finish_s: F64
    tail_s: F64
    old_tail_s: F64
    changed: I32
    old_group: I32
    best_order: I32
    best_group: I32
    score: F64
    """(current, best) makespan."""
    rng: U64
    """(1,) state of the generator."""


_raw_plan = opener(Plan)


def plan(order: I32, group: I32, seed: int) -> Plan:
    """Return a plan to start from. It has to be evaluated by a loop of no evaluations first."""
    n = len(order)
    pos = np.empty(n, np.int32)
    pos[order] = np.arange(n, dtype=np.int32)
    i32, f64 = np.int32, np.float64
    # Never 0, and different from seed to seed in all bits.
    state = (seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) % 2**64 or 1
    return Plan(
        order.copy(),
        pos,
        group.copy(),
        np.zeros(n, i32),
        np.zeros(n, f64),
        np.zeros(n, f64),
        np.zeros(n, f64),
        np.zeros(n, f64),
        np.zeros(n, f64),
        np.zeros(n + 1, i32),
        np.zeros(n + 1, i32),
        order.copy(),
        group.copy(),
        np.full(2, np.inf),
        np.array([state], np.uint64),
    )


@inner(forceinline=True)
def _uniform(rng):  # type: ignore[no-untyped-def]
    """Draw from [0, 1): xorshift64* (Vigna, ACM TOMS 2016)."""
    x = rng[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    rng[0] = x
    return np.float64((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@inner(forceinline=True)
def _below(rng, n):  # type: ignore[no-untyped-def]
    return np.int64(_uniform(rng) * n)


@inner(forceinline=True)
def _draw_group(s, rng, task_class):  # type: ignore[no-untyped-def]
    u = _uniform(rng)
    g = 0
    while g < s.n_groups - 1 and s.choice[task_class * s.n_groups + g] <= u:
        g += 1
    return g


@inner(forceinline=True)
def _shift(p, i, j):  # type: ignore[no-untyped-def]
    """Move the task at position ``i`` to position ``j``."""
    t = p.order[i]
    step = 1 if j > i else -1
    while i != j:
        moved = p.order[i + step]
        p.order[i] = moved
        p.pos[moved] = i
        i += step
    p.order[j] = t
    p.pos[t] = j


@inner(forceinline=True)
def _regroup(a, s, p, n, task, g):  # type: ignore[no-untyped-def]
    """Note the task as the ``n``-th changed one and give it a group, if it can run there and is not there yet."""
    if p.group[task] == g or not s.cost_s[a.task_class[task] * s.n_groups + g] < np.inf:
        return n
    p.changed[n] = task
    p.old_group[n] = p.group[task]
    p.group[task] = g
    return n + 1


@inner
def _connected(a, s, p, task, g):  # type: ignore[no-untyped-def]
    """Give up to MAX_GROUP tasks that hang together a group; return how many changed."""
    size = 2 + _below(p.rng, MAX_GROUP - 1)
    n = _regroup(a, s, p, np.int64(0), task, g)
    x = task
    for _ in range(3 * size):
        degree = s.near_ptr[x + 1] - s.near_ptr[x]
        if n == size or degree == 0:
            break
        n = _regroup(a, s, p, n, np.int64(s.near_tasks[s.near_ptr[x] + _below(p.rng, degree)]), g)
        if n > 0:
            x = np.int64(p.changed[_below(p.rng, n)])
    return n


@inner
def _item(a, s, p, task, g):  # type: ignore[no-untyped-def]
    """Give the writers of the task's data item, or a run of them, a group; return how many changed."""
    item = s.task_item[task]
    if item < 0:
        return 0
    first, last = s.item_ptr[item], s.item_ptr[item + 1]
    if _uniform(p.rng) < 0.5:
        i, j = first + _below(p.rng, last - first), first + _below(p.rng, last - first)
        first, last = min(i, j), max(i, j) + 1
    n = np.int64(0)
    for k in range(first, last):
        n = _regroup(a, s, p, n, np.int64(s.item_tasks[k]), g)
    return n


@inner
def _other_position(a, s, p, task):  # type: ignore[no-untyped-def]
    """Return another position that the task may take, or its own if there is none."""
    i = p.pos[task]
    low, high = 0, a.n_tasks - 1
    if _uniform(p.rng) < 0.5:
        low, high = max(low, i - NEAR), min(high, i + NEAR)
    for k in range(s.before_ptr[task], s.before_ptr[task + 1]):
        low = max(low, p.pos[s.before_tasks[k]] + 1)
    for k in range(s.out_ptr[task], s.out_ptr[task + 1]):
        if s.out_target[k] < a.n_tasks:
            high = min(high, p.pos[s.out_target[k]] - 1)
    if low >= high:
        return i
    j = low + _below(p.rng, high - low)
    return j + 1 if j >= i else j


@inner
def _swap(a, s, p, task):  # type: ignore[no-untyped-def]
    """Exchange the groups of the task and of another that is near in the order; return how many changed."""
    j = min(a.n_tasks - 1, max(0, p.pos[task] + _below(p.rng, 2 * NEAR + 1) - NEAR))
    other = np.int64(p.order[j])
    g, h = np.int64(p.group[task]), np.int64(p.group[other])
    if not s.cost_s[a.task_class[task] * s.n_groups + h] < np.inf:
        return 0
    n = _regroup(a, s, p, np.int64(0), other, g)
    return _regroup(a, s, p, n, task, h) if n == 1 else 0


@nb.njit(cache=True)
def search_loop(view, work, space, kept, plan, shares, evaluations, temperature, direct):  # type: ignore[no-untyped-def]
    """Run a number of evaluations at a temperature (seconds); return how many were made, −1 − that without room.

    With none, the plan is evaluated afresh: its marks, tails and score. ``direct``: single hops only.
    """
    a, w, s, k, p = raw_view(view), raw_workspace(work), raw_space(space), raw_marks(kept), _raw_plan(plan)
    n = a.n_tasks
    if evaluations == 0:
        for i in range(n - 1, -1, -1):
            p.tail_s[p.order[i]] = tail_of(a, s, p.group, p.tail_s, p.order[i])
        value = evaluate(
            a, w, s, k, p.order, p.pos, p.group, p.device, p.start_s, p.finish_s, p.kept_finish_s, p.tail_s,
            np.inf, np.int64(0), direct,
        )  # fmt: skip
        if value == OVERFLOW:
            return -1
        keep(k, w, np.int64(0))
        for t in range(n):
            p.kept_finish_s[t] = p.finish_s[t]
        p.score[0] = value
    for e in range(evaluations):
        # A move that changes nothing is drawn again, a few times.
        n_changed, from_, to = 0, -1, -1
        for _ in range(20):
            t = _below(p.rng, n)
            u = _uniform(p.rng)
            if u < shares[SHIFT] and u >= shares[ITEM]:
                from_ = p.pos[t]
                to = _other_position(a, s, p, t)
                if to != from_:
                    break
                from_, to = -1, -1
            elif u >= shares[SHIFT]:
                n_changed = _swap(a, s, p, t)
            else:
                g = _draw_group(s, p.rng, a.task_class[t])
                if u < shares[ONE]:
                    n_changed = _regroup(a, s, p, np.int64(0), t, g)
                elif u < shares[CONNECTED]:
                    n_changed = _connected(a, s, p, t, g)
                else:
                    n_changed = _item(a, s, p, t, g)
            if n_changed > 0:
                break
        first, last = n, -1
        if from_ >= 0:
            _shift(p, from_, to)
            first = min(from_, to)
        for i in range(n_changed):
            first = min(first, p.pos[p.changed[i]])
            last = max(last, p.pos[p.changed[i]])
        if first == n:
            continue
        mark = first // k.spacing
        begin = mark * k.spacing
        for i in range(last, begin - 1, -1):
            t = p.order[i]
            p.old_tail_s[t] = p.tail_s[t]
            p.tail_s[t] = tail_of(a, s, p.group, p.tail_s, t)
        limit = p.score[0] - temperature * np.log(1.0 - _uniform(p.rng))
        value = evaluate(
            a, w, s, k, p.order, p.pos, p.group, p.device, p.start_s, p.finish_s, p.kept_finish_s, p.tail_s,
            limit, mark, direct,
        )  # fmt: skip
        if value <= limit and value != OVERFLOW:
            keep(k, w, mark)
            for i in range(begin, n):
                p.kept_finish_s[p.order[i]] = p.finish_s[p.order[i]]
            if last >= 0:
                for i in range(begin - 1, -1, -1):
                    p.tail_s[p.order[i]] = tail_of(a, s, p.group, p.tail_s, p.order[i])
            p.score[0] = value
            if value < p.score[1]:
                p.score[1] = value
                for i in range(n):
                    p.best_order[i] = p.order[i]
                    p.best_group[i] = p.group[i]
            continue
        for i in range(begin, last + 1):
            p.tail_s[p.order[i]] = p.old_tail_s[p.order[i]]
        for i in range(n_changed - 1, -1, -1):
            p.group[p.changed[i]] = p.old_group[i]
        if from_ >= 0:
            _shift(p, to, from_)
        if value == OVERFLOW:
            return -1 - e
    return evaluations
