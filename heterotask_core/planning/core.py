"""The list-scheduling core: places tasks one by one, and their transfers with them (Numba).

Insertion-based: a task or a transfer takes the earliest gap common to all the lanes that it holds. Transfers
follow the earliest of all loop-free routes of at most four hops. As an earlier start never arrives later, that
route is found hop by hop (a label a memory and number of hops), not by enumeration. Inputs are looked at once a
memory, not once a device, and gaps shorter than anything that a lane ever carries are closed; neither changes a
result.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np

from heterotask_core.planning.lanes import gap
from heterotask_core.planning.placing import (
    Workspace,
    carry_out,
    deliver,
    gap_around,
    inputs_arrive,
    least_arrivals,
    occupy,
    plan_from,
    raw_view,
    raw_workspace,
    reset,
    workspace,
)
from heterotask_core.planning.problem import F64, I32
from heterotask_core.planning.raw import addresses, inner
from heterotask_core.planning.view import MAX_HOPS, Arrays, arrays, edges

__all__ = ["MAX_HOPS", "Arrays", "Placed", "arrays", "decode", "edges"]

OVERFLOW = -2
"""Instead of a failed task: the workspace was too small."""


class Placed(NamedTuple):
    """The result of one pass. ``failed`` is a task that no device can take, n_tasks for a final copy, or −1.

    ``order`` holds the tasks as they were placed: placing them in this order on these devices gives the same again.
    """

    failed: int
    makespan_s: float
    device: I32
    start_s: F64
    finish_s: F64
    transfer_version: I32
    transfer_link: I32
    transfer_start_s: F64
    transfer_finish_s: F64
    order: I32


@inner(forceinline=True)
def _sooner(priority, a, b):  # type: ignore[no-untyped-def]
    return priority[a] > priority[b] or (priority[a] == priority[b] and a < b)


@inner
def push(heap, n, priority, task):  # type: ignore[no-untyped-def]
    """Add a task to a heap of ``n`` tasks, highest priority (then lowest index) on top."""
    at = n
    while at > 0:
        up = (at - 1) >> 1
        if not _sooner(priority, task, heap[up]):
            break
        heap[at] = heap[up]
        at = up
    heap[at] = task


@inner
def pop(heap, n, priority):  # type: ignore[no-untyped-def]
    """Take the top off a heap of ``n`` tasks."""
    top, task = heap[0], heap[n - 1]
    n -= 1
    at = 0
    while True:
        down = 2 * at + 1
        if down >= n:
            break
        if down + 1 < n and _sooner(priority, heap[down + 1], heap[down]):
            down += 1
        if not _sooner(priority, heap[down], task):
            break
        heap[at] = heap[down]
        at = down
    heap[at] = task
    return top


@inner(forceinline=True)
def _least_ends(a, w, task, after, bias, columns, column):  # type: ignore[no-untyped-def]
    """Set ``least_s`` to a lower bound of finish + bias in each memory."""
    least_arrivals(a, w, task, after)
    costs = a.task_class[task] * a.n_devices
    for memory in range(a.n_memories):
        since, least = w.least_s[memory] * (1.0 - 1e-12), np.inf
        if since < np.inf:
            for i in range(a.memory_ptr[memory], a.memory_ptr[memory + 1]):
                p = a.memory_devices[i]
                cost = a.cost_s[costs + p]
                extra = bias[task, column[p]] if columns > 0 else 0.0
                if since + cost + extra < least:
                    start = gap(w, a.device_lanes, a.device_lane_ptr[p], a.device_lane_ptr[p + 1], since, cost)
                    least = min(least, start + cost + extra)
        w.least_s[memory] = least


@inner(forceinline=True)
def _take_likeliest(a, w, best):  # type: ignore[no-untyped-def]
    """Return the memory of the smallest ``least_s`` that is not above ``best``, and forget it; −1 for none."""
    smallest, likeliest = np.inf, -1
    for memory in range(a.n_memories):
        if w.least_s[memory] < smallest:
            smallest, likeliest = w.least_s[memory], memory
    if likeliest < 0 or smallest > best:
        return -1
    w.least_s[likeliest] = np.inf
    return likeliest


@nb.njit(cache=True)
def _pass(view, work, priority, bias, column, beta, forced, device, start_s, finish_s, order):  # type: ignore[no-untyped-def]
    """One list-scheduling pass; return (failed, makespan)."""
    a, w = raw_view(view), raw_workspace(work)
    n = a.n_tasks
    columns = bias.shape[1]
    reset(a, w)
    n_ready, placed, makespan = np.int64(0), 0, 0.0
    for t in range(n):
        w.waiting[t] = a.n_predecessors[t]
        if w.waiting[t] == 0:
            push(w.heap, n_ready, priority, t)
            n_ready += 1
    while n_ready > 0:
        t = pop(w.heap, n_ready, priority)
        n_ready -= 1
        after = 0.0
        for k in range(a.after_ptr[t], a.after_ptr[t + 1]):
            after = max(after, finish_s[a.after_tasks[k]])
        best, best_start, best_finish, best_device = np.inf, 0.0, 0.0, np.int64(-1)
        # The planned moves of the best device lie at [0, kept), those being tried behind them.
        kept = np.int64(0)
        if forced[t] < 0:
            _least_ends(a, w, t, after, bias, columns, column)
        # The likeliest memory first: most others then cannot end sooner.
        memory = np.int64(a.device_memory[forced[t]]) if forced[t] >= 0 else _take_likeliest(a, w, best)
        while memory >= 0:
            since, limit, moving = -1.0, np.inf, 0.0
            plan_from(w, kept)
            chosen = False
            if best < np.inf:
                # After this, no device of the memory is worth it; a hair later, so that rounding hides no tie.
                limit = -np.inf
                for i in range(a.memory_ptr[memory], a.memory_ptr[memory + 1]):
                    p = a.memory_devices[i]
                    extra = bias[t, column[p]] if columns > 0 else 0.0
                    limit = max(limit, best * (1.0 + 1e-12) - a.cost_s[a.task_class[t] * a.n_devices + p] - extra)
            for i in range(a.memory_ptr[memory], a.memory_ptr[memory + 1]):
                p = np.int64(a.memory_devices[i])
                cost = a.cost_s[a.task_class[t] * a.n_devices + p]
                if not cost < np.inf or (forced[t] >= 0 and forced[t] != p):
                    continue
                if since < 0.0:
                    since = inputs_arrive(a, w, t, memory, after, limit)
                    if since == np.inf:
                        break
                    for h in range(kept, w.used[2]):
                        moving += beta * (w.plan_finish[h] - w.plan_start[h])
                extra = moving + (bias[t, column[p]] if columns > 0 else 0.0)
                # No gap can make up for this.
                if since + cost + extra > best:
                    continue
                first, last = a.device_lane_ptr[p], a.device_lane_ptr[p + 1]
                if a.contention and a.mixed_lanes:
                    start = gap_around(a, w, a.device_lanes, first, last, since, cost)
                else:
                    start = gap(w, a.device_lanes, first, last, since, cost)
                value = start + cost + extra
                if value < best or (value == best and p < best_device):
                    best, best_start, best_finish, best_device = value, start, start + cost, p
                    chosen = True
            if chosen:
                moves = w.used[2] - kept
                for i in range(moves):
                    w.plan_version[i] = w.plan_version[kept + i]
                    w.plan_link[i] = w.plan_link[kept + i]
                    w.plan_start[i] = w.plan_start[kept + i]
                    w.plan_finish[i] = w.plan_finish[kept + i]
                kept = moves
            memory = -1 if forced[t] >= 0 else _take_likeliest(a, w, best)
        if best_device < 0:
            return t, makespan
        if not carry_out(a, w, np.int64(0), kept) or not occupy(a, w, t, best_device, best_start, best_finish):
            return OVERFLOW, makespan
        device[t], start_s[t], finish_s[t] = best_device, best_start, best_finish
        order[placed] = t
        placed += 1
        makespan = max(makespan, best_finish)
        for k in range(a.edge_ptr[t], a.edge_ptr[t + 1]):
            successor = np.int64(a.edge_target[k])
            w.waiting[successor] -= 1
            if w.waiting[successor] == 0:
                push(w.heap, n_ready, priority, successor)
                n_ready += 1
    last = deliver(a, w)
    if last == np.inf:
        return n, makespan
    if last < 0.0:
        return OVERFLOW, makespan
    return -1, max(makespan, last)


def decode(a: Arrays, priority: F64, bias: F64, forced: I32, beta: float = 0.0) -> Placed:
    """Place all tasks: the ready one of highest priority (then lowest index) where finish + bias is smallest.

    ``beta`` times the seconds that a task's inputs spend on links count as bias too.
    ``priority`` (T,), ``bias`` (T, D), or (T, classes) for :attr:`Arrays.memory_class`, or (T, 0) for none;
    ``forced`` (T,) int32: the only device allowed, or −1 for any.
    """
    n, devices = a.n_tasks, a.n_devices
    column = np.arange(devices, dtype=np.int32) if bias.shape[1] == devices else a.memory_class
    w, view = workspace(a), addresses(a)
    while True:
        device, start_s, finish_s = np.full(n, -1, np.int32), np.zeros(n), np.zeros(n)
        order = np.zeros(n, np.int32)
        failed, makespan = _pass(
            view, addresses(w), priority, bias, column, float(beta), forced, device, start_s, finish_s, order
        )
        if failed != OVERFLOW:
            break
        w = workspace(a, room=4 * w.room, moves=2 * w.max_moves)
    return Placed(failed, makespan, device, start_s, finish_s, *moves_of(w), order)


def moves_of(w: Workspace) -> tuple[I32, I32, F64, F64]:
    """Return (version, link, start, finish) of the moves in a workspace, sorted by start."""
    n = int(w.used[1])
    version, link, start, finish = w.move_version[:n], w.move_link[:n], w.move_start[:n], w.move_finish[:n]
    order = np.lexsort((link, version, finish, start))
    return version[order], link[order], start[order], finish[order]
