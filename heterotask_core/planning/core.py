"""The list-scheduling core: places tasks one by one, and their transfers with them (Numba).

Insertion-based: a task or a transfer takes the earliest gap common to all the lanes that it holds. Transfers
follow the earliest of all loop-free routes of at most four hops. As an earlier start never arrives later, that
route is found hop by hop (a label a memory and number of hops), not by enumeration.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numba as nb
import numpy as np

from heterotask_core.planning.problem import F64, I32, I64, Problem

MAX_HOPS = 4


class Arrays(NamedTuple):
    """What the core reads of a problem (see :class:`Problem`), with successors and links sorted by source."""

    contention: bool
    cost_s: F64
    task_class: I32
    device_memory: I32
    device_lane_ptr: I64
    device_lanes: I32
    n_lanes: int
    source_ptr: I64
    source_links: I32
    link_source: I32
    link_target: I32
    latency_s: F64
    bandwidth: F64
    link_lane_ptr: I64
    link_lanes: I32
    least_latency_s: F64
    least_seconds_per_byte: F64
    version_size: F64
    home_ptr: I64
    home_memories: I32
    final_memory: I32
    input_ptr: I64
    input_versions: I32
    output_ptr: I64
    output_versions: I32
    edge_ptr: I64
    edge_target: I32
    n_predecessors: I32
    after_ptr: I64
    after_tasks: I32


class Placed(NamedTuple):
    """The result of one pass. ``failed`` is a task that no device can take, n_tasks for a final copy, or −1."""

    failed: int
    makespan_s: float
    device: I32
    start_s: F64
    finish_s: F64
    transfer_version: I32
    transfer_link: I32
    transfer_start_s: F64
    transfer_finish_s: F64


def edges(problem: Problem) -> tuple[I64, I32, I32, I64]:
    """Return successor pairs without doubles: pointer, target, and the flat (edge of each input; −1 for home)."""
    n = problem.n_tasks
    target = np.repeat(np.arange(n), np.diff(problem.input_ptr))
    source = problem.version_producer[problem.input_versions].astype(np.int64)
    known = source >= 0
    after_target = np.repeat(np.arange(n), np.diff(problem.after_ptr))
    keys = np.concatenate([source[known] * n + target[known], problem.after_tasks.astype(np.int64) * n + after_target])
    unique, inverse = np.unique(keys, return_inverse=True)
    pointer = np.searchsorted(unique, np.arange(n + 1) * n)
    edge_of_input = np.full(len(source), -1, np.int64)
    edge_of_input[known] = inverse[: int(known.sum())]
    return (
        pointer.astype(np.int64),
        (unique % max(n, 1)).astype(np.int32),
        np.bincount(unique % max(n, 1), minlength=n).astype(np.int32),
        edge_of_input,
    )


def arrays(problem: Problem) -> Arrays:
    """Return the core's view of ``problem``."""
    m = problem.n_memories
    order = np.argsort(problem.link_source, kind="stable").astype(np.int32)
    inverse_bandwidth = 1.0 / problem.link_bandwidth_bytes_per_s
    least = []
    for value in (problem.link_latency_s, inverse_bandwidth):
        table = np.full((m, m), np.inf)
        np.fill_diagonal(table, 0.0)
        np.minimum.at(table, (problem.link_source, problem.link_target), value)
        for k in range(m):
            table = np.minimum(table, table[:, k, None] + table[None, k, :])
        # A hair below, so that rounding never prunes the best route.
        least.append(table * (1.0 - 1e-9))
    edge_ptr, edge_target, n_predecessors, _ = edges(problem)
    return Arrays(
        problem.contention,
        problem.cost_s,
        problem.task_class,
        problem.device_memory,
        problem.device_lane_ptr,
        problem.device_lanes,
        len(problem.lane_names),
        np.searchsorted(problem.link_source[order], np.arange(m + 1)).astype(np.int64),
        order,
        problem.link_source,
        problem.link_target,
        problem.link_latency_s,
        problem.link_bandwidth_bytes_per_s,
        problem.link_lane_ptr,
        problem.link_lanes,
        least[0],
        least[1],
        problem.version_size_bytes.astype(np.float64),
        problem.home_ptr,
        problem.home_memories,
        problem.version_final_memory,
        problem.input_ptr,
        problem.input_versions,
        problem.output_ptr,
        problem.output_versions,
        edge_ptr,
        edge_target,
        n_predecessors,
        problem.after_ptr,
        problem.after_tasks,
    )


@nb.njit(cache=True)
def _gap(lane_start, lane_finish, lane_length, lanes, first, last, ready, duration, held):  # type: ignore[no-untyped-def]
    """Return the earliest start from ``ready`` on that is free on all lanes; ``held`` are tentative holds."""
    t = ready
    if duration <= 0.0:
        return t
    moved = True
    while moved:
        moved = False
        for k in range(first, last):
            lane = lanes[k]
            starts, finishes, n = lane_start[lane], lane_finish[lane], lane_length[lane]
            low = np.searchsorted(finishes[:n], t, side="right")
            while low < n and starts[low] < t + duration:
                t = finishes[low]
                moved = True
                low += 1
            for h in held:
                if h[0] == lane and h[1] < t + duration and h[2] > t:
                    t = h[2]
                    moved = True
    return t


@nb.njit(cache=True)
def _hold(lane_start, lane_finish, lane_length, lane, start, finish):  # type: ignore[no-untyped-def]
    """Reserve an interval of a lane; intervals that touch become one."""
    if finish <= start:
        return
    n = lane_length[lane]
    starts, finishes = lane_start[lane], lane_finish[lane]
    at = np.searchsorted(starts[:n], start, side="right")
    if at > 0 and finishes[at - 1] == start:
        finishes[at - 1] = finish
        if at < n and starts[at] == finish:
            finishes[at - 1] = finishes[at]
            for i in range(at, n - 1):
                starts[i], finishes[i] = starts[i + 1], finishes[i + 1]
            lane_length[lane] = n - 1
        return
    if at < n and starts[at] == finish:
        starts[at] = start
        return
    if n == len(starts):
        lane_start[lane] = np.concatenate((starts, np.empty(n + 8)))
        lane_finish[lane] = np.concatenate((finishes, np.empty(n + 8)))
        starts, finishes = lane_start[lane], lane_finish[lane]
    for i in range(n, at, -1):
        starts[i], finishes[i] = starts[i - 1], finishes[i - 1]
    starts[at], finishes[at] = start, finish
    lane_length[lane] = n + 1


@nb.njit(cache=True)
def _route(a, there, size, memory, lane_start, lane_finish, lane_length, held):  # type: ignore[no-untyped-def]
    """Return (arrival, hops as (link, start, finish), last hop first) of the earliest route to ``memory``."""
    n = len(there)
    label = np.full((MAX_HOPS + 1, n), np.inf)
    begin = np.zeros((MAX_HOPS + 1, n))
    via = np.full((MAX_HOPS + 1, n), -1)
    origin = np.full((MAX_HOPS + 1, n), n)
    best = there.copy()
    label[0] = there
    origin[0] = np.arange(n)
    for h in range(1, MAX_HOPS + 1):
        extended = False
        for m in range(n):
            since = label[h - 1, m]
            floor = a.least_latency_s[m, memory] + size * a.least_seconds_per_byte[m, memory]
            if not since + floor < best[memory]:
                continue
            for k in range(a.source_ptr[m], a.source_ptr[m + 1]):
                link = a.source_links[k]
                to = a.link_target[link]
                duration = a.latency_s[link] + size / a.bandwidth[link]
                start = since
                if a.contention:
                    first, last = a.link_lane_ptr[link], a.link_lane_ptr[link + 1]
                    start = _gap(lane_start, lane_finish, lane_length, a.link_lanes, first, last, since, duration, held)
                arrival = start + duration
                tie = arrival == label[h, to] and origin[h - 1, m] < origin[h, to]
                if arrival < best[to] or tie:
                    label[h, to], begin[h, to], via[h, to] = arrival, start, link
                    origin[h, to] = origin[h - 1, m]
                    best[to] = arrival
                    extended = True
        if not extended:
            break
    hops = [(np.int64(0), 0.0, 0.0) for _ in range(0)]
    if best[memory] < np.inf and best[memory] < there[memory]:
        h = 0
        while label[h, memory] != best[memory]:
            h += 1
        m = memory
        while h > 0:
            link = via[h, m]
            hops.append((np.int64(link), begin[h, m], label[h, m]))
            m = a.link_source[link]
            h -= 1
    return best[memory], hops


@nb.njit(cache=True)
def decode(a, priority, bias, forced):  # type: ignore[no-untyped-def]
    """Place all tasks: the ready one of highest priority (then lowest index) where finish + bias is smallest.

    ``priority`` (T,), ``bias`` (T, D), ``forced`` (T,) int32: the only device allowed, or −1 for any.
    """
    n, n_devices, n_memories = len(a.task_class), len(a.device_memory), len(a.source_ptr) - 1
    lane_start = [np.empty(8) for _ in range(a.n_lanes)]
    lane_finish = [np.empty(8) for _ in range(a.n_lanes)]
    lane_length = np.zeros(a.n_lanes, np.int64)
    there = np.full((len(a.version_size), n_memories), np.inf)
    for v in range(len(a.version_size)):
        for k in range(a.home_ptr[v], a.home_ptr[v + 1]):
            there[v, a.home_memories[k]] = 0.0
    device = np.full(n, -1, np.int32)
    start_s, finish_s = np.zeros(n), np.zeros(n)
    moves = [(0.0, 0.0, np.int64(0), np.int64(0)) for _ in range(0)]
    waiting = a.n_predecessors.copy()
    ready = [(-priority[t], t) for t in range(n) if waiting[t] == 0]
    heapq.heapify(ready)
    makespan, failed = 0.0, -1
    while len(ready) > 0:
        _, t = heapq.heappop(ready)
        after = 0.0
        for k in range(a.after_ptr[t], a.after_ptr[t + 1]):
            after = max(after, finish_s[a.after_tasks[k]])
        best, best_start, best_finish, best_device = np.inf, 0.0, 0.0, -1
        best_plan = [(np.int64(0), np.int64(0), 0.0, 0.0) for _ in range(0)]
        for p in range(n_devices):
            cost = a.cost_s[a.task_class[t], p]
            if not cost < np.inf or (forced[t] >= 0 and forced[t] != p):
                continue
            memory = a.device_memory[p]
            since = after
            held = [(np.int64(0), 0.0, 0.0) for _ in range(0)]
            plan = [(np.int64(0), np.int64(0), 0.0, 0.0) for _ in range(0)]
            for k in range(a.input_ptr[t], a.input_ptr[t + 1]):
                v = a.input_versions[k]
                if there[v, memory] < np.inf:
                    since = max(since, there[v, memory])
                    continue
                arrival, hops = _route(
                    a, there[v], a.version_size[v], memory, lane_start, lane_finish, lane_length, held
                )
                since = max(since, arrival)
                for hop in hops[::-1]:
                    plan.append((np.int64(v), hop[0], hop[1], hop[2]))
                    if a.contention:
                        for i in range(a.link_lane_ptr[hop[0]], a.link_lane_ptr[hop[0] + 1]):
                            held.append((np.int64(a.link_lanes[i]), hop[1], hop[2]))
                if since == np.inf:
                    break
            if since == np.inf:
                continue
            first, last = a.device_lane_ptr[p], a.device_lane_ptr[p + 1]
            start = _gap(lane_start, lane_finish, lane_length, a.device_lanes, first, last, since, cost, held)
            if start + cost + bias[t, p] < best:
                best = start + cost + bias[t, p]
                best_start, best_finish, best_device, best_plan = start, start + cost, p, plan
        if best_device < 0:
            failed = t
            break
        for move in best_plan:
            link, begin, end = move[1], move[2], move[3]
            moves.append((begin, end, move[0], link))
            there[move[0], a.link_target[link]] = min(there[move[0], a.link_target[link]], end)
            if a.contention:
                for i in range(a.link_lane_ptr[link], a.link_lane_ptr[link + 1]):
                    _hold(lane_start, lane_finish, lane_length, a.link_lanes[i], begin, end)
        for i in range(a.device_lane_ptr[best_device], a.device_lane_ptr[best_device + 1]):
            _hold(lane_start, lane_finish, lane_length, a.device_lanes[i], best_start, best_finish)
        device[t], start_s[t], finish_s[t] = best_device, best_start, best_finish
        makespan = max(makespan, best_finish)
        for k in range(a.output_ptr[t], a.output_ptr[t + 1]):
            there[a.output_versions[k], a.device_memory[best_device]] = best_finish
        for k in range(a.edge_ptr[t], a.edge_ptr[t + 1]):
            successor = a.edge_target[k]
            waiting[successor] -= 1
            if waiting[successor] == 0:
                heapq.heappush(ready, (-priority[successor], np.int64(successor)))  # type: ignore[misc]
    if failed < 0:
        none = [(np.int64(0), 0.0, 0.0) for _ in range(0)]
        for v in range(len(a.version_size)):
            memory = a.final_memory[v]
            if memory < 0:
                continue
            if there[v, memory] == np.inf:
                arrival, hops = _route(
                    a, there[v], a.version_size[v], memory, lane_start, lane_finish, lane_length, none
                )
                if arrival == np.inf:
                    failed = n
                for hop in hops[::-1]:
                    moves.append((hop[1], hop[2], np.int64(v), hop[0]))
                    there[v, a.link_target[hop[0]]] = hop[2]
                    if a.contention:
                        for i in range(a.link_lane_ptr[hop[0]], a.link_lane_ptr[hop[0] + 1]):
                            _hold(lane_start, lane_finish, lane_length, a.link_lanes[i], hop[1], hop[2])
            makespan = max(makespan, there[v, memory])
    moves.sort()
    transfer_start, transfer_finish = np.empty(len(moves)), np.empty(len(moves))
    transfer_version, transfer_link = np.empty(len(moves), np.int32), np.empty(len(moves), np.int32)
    for i in range(len(moves)):
        transfer_start[i], transfer_finish[i], transfer_version[i], transfer_link[i] = moves[i]
    return (
        failed, makespan, device, start_s, finish_s,
        transfer_version, transfer_link, transfer_start, transfer_finish,
    )  # fmt: skip
