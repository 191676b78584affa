"""Evaluating a candidate: placing the tasks of an order on their device groups, from the first change on (Numba).

The state of the current plan is kept at some positions of its order (*marks*). A candidate that differs from position
``p`` on starts from the last mark before ``p``, and ends as soon as a task cannot end the plan within the limit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterotask_core.planning.lanes import gap, hold, keep_gaps
from heterotask_core.planning.placing import (
    Workspace,
    add_copy,
    carry_out,
    copy_time,
    deliver,
    direct_route,
    plan_from,
    reset,
    route,
)
from heterotask_core.planning.problem import F64, I32, I64
from heterotask_core.planning.raw import inner, opener
from heterotask_core.planning.view import Arrays

OVERFLOW = -1.0
"""Instead of a makespan: the workspace was too small."""


class Marks(NamedTuple):
    """Kept states, two slots a mark: the current plan's and the candidate's.

    Mark ``k`` lies before position k × spacing. Each slot has room for all lanes and versions of the workspace;
    the copies are kept once, as a later mark's pool begins with an earlier one's.
    """

    n_marks: int
    spacing: int
    n_lanes: int
    n_versions: int
    room: int
    most_copies: int
    slot: I64
    """(n_marks,) which slot holds the current plan's state."""
    lane_length: I64
    busy_start: F64
    busy_finish: F64
    copy_head: I32
    used: I64
    makespan_s: F64
    pool_next: I32
    pool_memory: I32
    pool_s: F64
    """(most_copies,) the current plan's copies."""


def marks(a: Arrays, w: Workspace, n_marks: int) -> Marks:
    """Return empty marks that fit a workspace."""
    spacing = max(1, -(-a.n_tasks // n_marks))
    slots = 2 * n_marks
    copies = len(w.copy_s)
    return Marks(
        n_marks,
        spacing,
        a.n_lanes,
        a.n_versions,
        w.room,
        copies,
        np.zeros(n_marks, np.int64),
        np.zeros(slots * a.n_lanes, np.int64),
        np.empty(slots * a.n_lanes * w.room),
        np.empty(slots * a.n_lanes * w.room),
        np.empty(slots * a.n_versions, np.int32),
        np.zeros(slots * 2, np.int64),
        np.zeros(slots),
        np.empty(copies, np.int32),
        np.empty(copies, np.int32),
        np.empty(copies),
    )


raw_marks = opener(Marks)
"""For compiled code: addresses of :class:`Marks` → the same with pointers in the place of arrays."""


@inner
def _save(k, w, mark, makespan):  # type: ignore[no-untyped-def]
    """Keep the workspace's state in the candidate's slot of a mark."""
    s = 2 * mark + 1 - k.slot[mark]
    for lane in range(k.n_lanes):
        n = w.lane_length[lane]
        k.lane_length[s * k.n_lanes + lane] = n
        at = (s * k.n_lanes + lane) * k.room
        for i in range(n):
            k.busy_start[at + i] = w.busy_start[lane * w.room + i]
            k.busy_finish[at + i] = w.busy_finish[lane * w.room + i]
    for v in range(k.n_versions):
        k.copy_head[s * k.n_versions + v] = w.copy_head[v]
    k.used[2 * s] = w.used[0]
    k.used[2 * s + 1] = w.used[1]
    k.makespan_s[s] = makespan


@inner
def _restore(k, w, mark):  # type: ignore[no-untyped-def]
    """Bring the workspace to the current plan's state at a mark; return the makespan so far."""
    s = 2 * mark + k.slot[mark]
    for lane in range(k.n_lanes):
        n = k.lane_length[s * k.n_lanes + lane]
        w.lane_length[lane] = n
        w.changes[lane] += 1
        at = (s * k.n_lanes + lane) * k.room
        for i in range(n):
            w.busy_start[lane * w.room + i] = k.busy_start[at + i]
            w.busy_finish[lane * w.room + i] = k.busy_finish[at + i]
        keep_gaps(w, np.int64(lane), np.int64(0), n)
    for v in range(k.n_versions):
        w.copy_head[v] = k.copy_head[s * k.n_versions + v]
    w.used[0] = k.used[2 * s]
    w.used[1] = k.used[2 * s + 1]
    for i in range(w.used[0]):
        w.copy_next[i] = k.pool_next[i]
        w.copy_memory[i] = k.pool_memory[i]
        w.copy_s[i] = k.pool_s[i]
    return k.makespan_s[s]


@inner
def keep(k, w, first_mark):  # type: ignore[no-untyped-def]
    """Make the candidate that was evaluated from ``first_mark`` on the current plan."""
    since = 0
    if first_mark > 0:
        since = k.used[2 * (2 * first_mark + k.slot[first_mark])]
    for mark in range(first_mark + 1 if first_mark > 0 else 1, k.n_marks):
        k.slot[mark] = 1 - k.slot[mark]
    for i in range(since, w.used[0]):
        k.pool_next[i] = w.copy_next[i]
        k.pool_memory[i] = w.copy_memory[i]
        k.pool_s[i] = w.copy_s[i]


@inner
def evaluate(a, w, s, k, order, pos, group, device, start_s, finish_s, kept_finish_s, tail, limit, first_mark, direct):  # type: ignore[no-untyped-def]
    """Place ``order`` from a mark on; return the makespan, infinite if over ``limit``, OVERFLOW without room.

    ``finish_s`` is written; what ended before the mark is read from ``kept_finish_s``. Marks are kept on the way.
    """
    makespan = 0.0
    first = first_mark * k.spacing
    if first_mark == 0:
        reset(a, w)
    else:
        makespan = _restore(k, w, first_mark)
    mark = first_mark
    for i in range(first, a.n_tasks):
        if i == (mark + 1) * k.spacing:
            mark += 1
            _save(k, w, mark, makespan)
        t = order[i]
        g = group[t]
        memory = np.int64(s.group_memory[g])
        cost = s.cost_s[a.task_class[t] * s.n_groups + g]
        since = 0.0
        for j in range(a.after_ptr[t], a.after_ptr[t + 1]):
            q = a.after_tasks[j]
            since = max(since, finish_s[q] if pos[q] >= first else kept_finish_s[q])
        for j in range(a.input_ptr[t], a.input_ptr[t + 1]):
            v = np.int64(a.input_versions[j])
            there = copy_time(w, v, memory)
            if there == np.inf:
                plan_from(w, np.int64(0))
                if direct:
                    there = direct_route(a, w, v, memory)
                else:
                    there = route(a, w, v, memory, np.inf)
                if there == np.inf:
                    return there
                if not carry_out(a, w, np.int64(0), w.used[2]):
                    return OVERFLOW
            since = max(since, there)
        if since + cost + tail[t] > limit:
            return np.inf
        best, p = np.inf, -1
        for j in range(s.group_ptr[g], s.group_ptr[g + 1]):
            q = s.group_devices[j]
            start = gap(w, a.device_lanes, a.device_lane_ptr[q], a.device_lane_ptr[q + 1], since, cost)
            if start < best:
                best, p = start, q
                if start == since:
                    break
        finish = best + cost
        if finish + tail[t] > limit:
            return np.inf
        for j in range(a.device_lane_ptr[p], a.device_lane_ptr[p + 1]):
            lane = a.device_lanes[j]
            if not hold(w, lane, a.least_hold_s[lane], best, finish):
                return OVERFLOW
        for j in range(a.output_ptr[t], a.output_ptr[t + 1]):
            add_copy(w, np.int64(a.output_versions[j]), memory, finish)
        device[t] = p
        start_s[t] = best
        finish_s[t] = finish
        makespan = max(makespan, finish)
    last = deliver(a, w)
    if last < 0.0:
        return OVERFLOW
    makespan = max(makespan, last)
    return makespan if makespan <= limit else np.inf


@inner(forceinline=True)
def tail_of(a, s, group, tail, t):  # type: ignore[no-untyped-def]
    """Return the least time from the end of a task to the end of the plan, given the groups of all that follow."""
    longest = 0.0
    memory = s.group_memory[group[t]] * a.n_memories
    for e in range(s.out_ptr[t], s.out_ptr[t + 1]):
        j = s.out_target[e]
        if j < a.n_tasks:
            value = tail[j] + s.cost_s[a.task_class[j] * s.n_groups + group[j]]
            to = s.group_memory[group[j]]
        else:
            value = 0.0
            to = j - a.n_tasks
        if s.out_bytes[e] >= 0.0:
            value += a.least_latency_s[memory + to] + s.out_bytes[e] * a.least_seconds_per_byte[memory + to]
        longest = max(longest, value)
    # A hair below, so that rounding never ends a plan that just meets the limit.
    return longest * (1.0 - 1e-12)
