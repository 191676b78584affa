"""HEFT with look-ahead (Bittencourt, Sakellariou & Madeira, PDP 2010).

Tasks are taken in HEFT's order. A task goes where its successors can end earliest: for every device it is placed
tentatively, then its successors, in HEFT's order, where each ends earliest; the device with the smallest latest end
wins (tie: earlier own end, then lowest index). The task itself is placed with all its transfers; for its successors,
transfers take what the cheapest route takes alone, and inputs that nobody has made yet do not count.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from heterotask_core.planning.core import Placed, arrays
from heterotask_core.planning.lanes import gap
from heterotask_core.planning.listing import ListPlanner, Rule, cheapest_routes, heft_rule, place
from heterotask_core.planning.placing import (
    carry_out,
    copy_time,
    gap_around,
    inputs_arrive,
    occupy,
    plan_from,
    raw_view,
    raw_workspace,
    reset,
    workspace,
)
from heterotask_core.planning.problem import I32, Problem
from heterotask_core.planning.raw import addresses, inner
from heterotask_core.planning.view import Arrays


@inner(forceinline=True)
def _source_s(a, w, regime, latency_s, per_byte_s, version, memory):  # type: ignore[no-untyped-def]
    """When a version could be in a memory if its links were free; −1 if nobody has made it yet."""
    c = w.copy_head[version]
    if c < 0:
        return -1.0
    best = np.inf
    r, size = regime[version], a.version_size[version]
    while c >= 0:
        m = w.copy_memory[c]
        best = min(best, w.copy_s[c] + (latency_s[r, m, memory] + size * per_byte_s[r, m, memory]))
        c = w.copy_next[c]
    return best


@nb.njit(cache=True)
def _pass(  # type: ignore[no-untyped-def]
    view, work, order, children_ptr, children, regime, latency_s, per_byte_s, share, producer, start_s, finish_s, device
):
    a, w = raw_view(view), raw_workspace(work)
    n_devices = a.n_devices
    reset(a, w)
    longest = 1
    for k in range(a.n_tasks):
        longest = max(longest, children_ptr[k + 1] - children_ptr[k])
    held_device, held_start, held_finish = np.empty(longest, np.int64), np.empty(longest), np.empty(longest)
    arrival = np.empty(a.n_memories)
    for at in range(len(order)):
        t = np.int64(order[at])
        after = 0.0
        for k in range(a.after_ptr[t], a.after_ptr[t + 1]):
            after = max(after, finish_s[a.after_tasks[k]])
        best, best_finish, best_device = np.inf, np.inf, -1
        for p in range(n_devices):
            cost = a.cost_s[a.task_class[t] * n_devices + p]
            if not cost < np.inf:
                continue
            memory = np.int64(a.device_memory[p])
            plan_from(w, np.int64(0))
            since = inputs_arrive(a, w, t, memory, after, np.inf)
            if since == np.inf:
                continue
            begin = gap_around(a, w, a.device_lanes, a.device_lane_ptr[p], a.device_lane_ptr[p + 1], since, cost)
            end = begin + cost
            held_device[0], latest, n_held = p, end, 0
            for k in range(children_ptr[t], children_ptr[t + 1]):
                j = children[k]
                ready = end
                for i in range(a.after_ptr[j], a.after_ptr[j + 1]):
                    if device[a.after_tasks[i]] >= 0:
                        ready = max(ready, finish_s[a.after_tasks[i]])
                for m in range(a.n_memories):
                    arrival[m] = ready
                    for i in range(a.input_ptr[j], a.input_ptr[j + 1]):
                        v = np.int64(a.input_versions[i])
                        if producer[v] == t:
                            r = regime[v]
                            there = end + (latency_s[r, memory, m] + a.version_size[v] * per_byte_s[r, memory, m])
                        else:
                            there = copy_time(w, v, m)
                            if there == np.inf:
                                there = _source_s(a, w, regime, latency_s, per_byte_s, v, m)
                        arrival[m] = max(arrival[m], there)
                child_finish, child_start, child_device = np.inf, 0.0, -1
                for q in range(n_devices):
                    length = a.cost_s[a.task_class[j] * n_devices + q]
                    if not arrival[a.device_memory[q]] + length < child_finish:
                        continue
                    s = arrival[a.device_memory[q]]
                    moved = True
                    while moved:
                        s = gap(w, a.device_lanes, a.device_lane_ptr[q], a.device_lane_ptr[q + 1], s, length)
                        moved = False
                        for h in range(n_held):
                            if share[held_device[h], q] and s < held_finish[h] and held_start[h] < s + length:
                                s = held_finish[h]
                                moved = True
                    if s + length < child_finish:
                        child_finish, child_start, child_device = s + length, s, q
                latest = max(latest, child_finish)
                if child_device >= 0:
                    held_device[n_held], held_start[n_held], held_finish[n_held] = (
                        child_device,
                        child_start,
                        child_finish,
                    )
                    n_held += 1
            if latest < best or (latest == best and end < best_finish) or best_device < 0:
                best, best_finish, best_device = latest, end, p
        if best_device < 0:
            return t
        plan_from(w, np.int64(0))
        cost = a.cost_s[a.task_class[t] * n_devices + best_device]
        since = inputs_arrive(a, w, t, np.int64(a.device_memory[best_device]), after, np.inf)
        first, last = a.device_lane_ptr[best_device], a.device_lane_ptr[best_device + 1]
        begin = gap_around(a, w, a.device_lanes, first, last, since, cost)
        if not carry_out(a, w, np.int64(0), w.used[2]) or not occupy(a, w, t, best_device, begin, begin + cost):
            return -2
        device[t], start_s[t], finish_s[t] = best_device, begin, begin + cost
    return -1


def lookahead_rule(problem: Problem, view: Arrays) -> Rule:
    """Return HEFT's priorities and the device that look-ahead chooses for every task, as forced devices."""
    heft = heft_rule(problem)
    order = place(problem, view, heft).order
    n = problem.n_tasks
    pointer, target = view.edge_ptr, view.edge_target
    position = np.empty(n, np.int64)
    position[order] = np.arange(n)
    owner = np.repeat(np.arange(n), np.diff(pointer))
    children = target[np.lexsort((position[target], owner))]
    routes = cheapest_routes(problem)
    sizes = problem.version_size_bytes.astype(np.float64)
    regime = routes.regime[np.searchsorted(routes.sizes, sizes)] if len(sizes) else np.zeros(0, np.int64)
    holds = np.zeros((problem.n_devices, len(problem.lane_names)), np.bool_)
    holds[np.repeat(np.arange(problem.n_devices), np.diff(problem.device_lane_ptr)), problem.device_lanes] = True
    share = (holds[:, None, :] & holds[None, :, :]).any(axis=2)
    work = workspace(view)
    while True:
        device = np.full(n, -1, np.int32)
        start_s, finish_s = np.zeros(n), np.zeros(n)
        failed = _pass(
            addresses(view), addresses(work), order, pointer, children, regime, routes.latency_s,
            routes.seconds_per_byte, share, problem.version_producer, start_s, finish_s, device,
        )  # fmt: skip
        if failed != -2:
            break
        work = workspace(view, room=4 * work.room, moves=2 * work.max_moves)
    # A task that found no device stops the pass; the rest then goes where it ends earliest.
    forced: I32 = device
    return Rule(heft.priority, heft.bias, forced)


def _passes(problem: Problem) -> list[Placed]:
    view = arrays(problem)
    return [place(problem, view, lookahead_rule(problem, view))]


LOOKAHEAD = ListPlanner("lookahead", _passes)
