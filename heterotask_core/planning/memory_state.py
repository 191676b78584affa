"""Copies, lanes and bytes while :mod:`~heterotask_core.planning.memory_walk` goes over the tasks (Numba).

A memory with a capacity is a row of segments by offset, each held by a version or free since a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np

from heterotask_core.planning.core import MAX_HOPS
from heterotask_core.planning.problem import F64, I32, I64, Problem

FINE, NO_ROOM, NO_ROUTE, NO_HOST = 0, 1, 2, 3
FREE = -1


class Walk(NamedTuple):
    """What the walk reads of a problem; limits of −1 bytes mean none. ``reader_ptr`` counts the readers of versions."""

    contention: bool
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
    capacity: I64
    unit: I64
    size: F64
    home_ptr: I64
    home_memories: I32
    final_memory: I32
    input_ptr: I64
    input_versions: I32
    output_ptr: I64
    output_versions: I32
    takes_over: I32
    after_ptr: I64
    after_tasks: I32
    producer: I32
    reader_ptr: I64
    task_class: I32
    scratch: I64


class State(NamedTuple):
    """Copies by (version, memory), times held by lane, segments by memory, and what was decided.

    There is one more version than the problem has: the scratch of the task at hand. ``lock`` is the stamp of the
    attempt for which a version must stay. Rows are buffers: memory, from, offset, version, bytes, until.
    """

    there_s: F64
    busy_s: F64
    alloc_s: F64
    offset: I64
    holders: I64
    done: I64
    rest: I64
    lock: I64
    reader_position: I64
    reader_memory: I32
    lane_start: list[F64]
    lane_finish: list[F64]
    lane_length: I64
    seg_begin: list[I64]
    seg_owner: list[I64]
    seg_since: list[F64]
    seg_n: I64
    moves: list[tuple[float, float, int, int]]
    rows: list[tuple[int, float, int, int, int, float]]


def walk_view(problem: Problem) -> Walk:
    """Return the walk's view of ``problem``."""
    m = problem.n_memories
    order = np.argsort(problem.link_source, kind="stable").astype(np.int32)
    readers = np.bincount(problem.input_versions, minlength=problem.n_versions)
    scratch = problem.class_scratch_bytes
    return Walk(
        problem.contention,
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
        problem.memory_capacity_bytes.astype(np.int64),
        problem.memory_alignment_bytes.astype(np.int64),
        problem.version_size_bytes.astype(np.float64),
        problem.home_ptr,
        problem.home_memories,
        problem.version_final_memory,
        problem.input_ptr,
        problem.input_versions,
        problem.output_ptr,
        problem.output_versions,
        problem.output_takes_over,
        problem.after_ptr,
        problem.after_tasks,
        problem.version_producer,
        np.concatenate([[0], np.cumsum(readers)]).astype(np.int64),
        problem.task_class,
        np.zeros((len(problem.class_names), problem.n_devices), np.int64) if scratch is None else scratch,
    )


# Lists are made in functions of their own: in a function with a list comprehension Numba 0.68 loses what is stored
# into an array that is a field of a named tuple.
@nb.njit(cache=True)
def _times(n):  # type: ignore[no-untyped-def]
    return [np.zeros(16) for _ in range(n)]


@nb.njit(cache=True)
def _indices(n, value):  # type: ignore[no-untyped-def]
    return [np.full(16, value) for _ in range(n)]


@nb.njit(cache=True)
def _no_moves():  # type: ignore[no-untyped-def]
    return [(0.0, 0.0, np.int64(0), np.int64(0)) for _ in range(0)]


@nb.njit(cache=True)
def _no_rows():  # type: ignore[no-untyped-def]
    return [(np.int64(0), 0.0, np.int64(0), np.int64(0), np.int64(0), 0.0) for _ in range(0)]


@nb.njit(cache=True)
def _no_links():  # type: ignore[no-untyped-def]
    return [np.int64(0) for _ in range(0)]


@nb.njit(cache=True)
def new_state(w):  # type: ignore[no-untyped-def]
    """Return the state before the first task: no copy anywhere, every memory one free segment."""
    n, m = len(w.size), len(w.capacity)
    s = State(
        np.full((n + 1, m), np.inf),
        np.zeros((n + 1, m)),
        np.zeros((n + 1, m)),
        np.zeros((n + 1, m), np.int64),
        np.zeros(n + 1, np.int64),
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        np.full(n + 1, -1),
        np.empty(len(w.input_versions), np.int64),
        np.empty(len(w.input_versions), np.int32),
        _times(w.n_lanes),
        _times(w.n_lanes),
        np.zeros(w.n_lanes, np.int64),
        _indices(m, 0),
        _indices(m, FREE),
        _times(m),
        np.ones(m, np.int64),
        _no_moves(),
        _no_rows(),
    )
    for v in range(n):
        s.rest[v] = w.reader_ptr[v + 1] - w.reader_ptr[v] + (w.final_memory[v] >= 0)
    return s


@nb.njit(cache=True)
def earliest(s, lanes, first, last, ready, duration):  # type: ignore[no-untyped-def]
    """Return the earliest start from ``ready`` on that is free on all lanes."""
    t = ready
    moved = duration > 0.0
    while moved:
        moved = False
        for k in range(first, last):
            lane = lanes[k]
            starts, finishes, n = s.lane_start[lane], s.lane_finish[lane], s.lane_length[lane]
            i = np.searchsorted(finishes[:n], t, side="right")
            while i < n and starts[i] < t + duration:
                t = finishes[i]
                moved = True
                i += 1
    return t


@nb.njit(cache=True)
def hold(s, lanes, first, last, start, finish):  # type: ignore[no-untyped-def]
    """Reserve an interval of every lane; intervals that touch become one."""
    if finish <= start:
        return
    for k in range(first, last):
        lane = lanes[k]
        starts, finishes, n = s.lane_start[lane], s.lane_finish[lane], s.lane_length[lane]
        i = np.searchsorted(starts[:n], start, side="right")
        if i > 0 and finishes[i - 1] == start:
            finishes[i - 1] = finish
            continue
        if i < n and starts[i] == finish:
            starts[i] = start
            continue
        if n == len(starts):
            s.lane_start[lane] = np.concatenate((starts, np.zeros(n)))
            s.lane_finish[lane] = np.concatenate((finishes, np.zeros(n)))
            starts, finishes = s.lane_start[lane], s.lane_finish[lane]
        for j in range(n, i, -1):
            starts[j], finishes[j] = starts[j - 1], finishes[j - 1]
        starts[i], finishes[i] = start, finish
        s.lane_length[lane] = n + 1


@nb.njit(cache=True)
def room_of(w, v, memory):  # type: ignore[no-untyped-def]
    """Return the bytes of a buffer, rounded up to the memory's alignment."""
    unit = w.unit[memory]
    return -(-np.int64(w.size[v]) // unit) * unit


@nb.njit(cache=True)
def _next_read(w, s, v, memory):  # type: ignore[no-untyped-def]
    """Return the position of the next read here; n for the final copy, 2 n where none comes."""
    n = len(w.task_class)
    for k in range(w.reader_ptr[v] + s.done[v], w.reader_ptr[v + 1]):
        if s.reader_memory[k] == memory:
            return s.reader_position[k]
    return n if w.final_memory[v] == memory else 2 * n


@nb.njit(cache=True)
def route(w, s, v, target, since):  # type: ignore[no-untyped-def]
    """Return (arrival, links, last hop first) of the earliest route; it enters ``target`` from ``since`` on.

    A stop on the way needs no planned room where the memory is unlimited; others are no stops.
    """
    n = len(w.capacity)
    label = np.full((MAX_HOPS + 1, n), np.inf)
    via = np.full((MAX_HOPS + 1, n), -1)
    label[0] = s.there_s[v]
    best = s.there_s[v].copy()
    for h in range(1, MAX_HOPS + 1):
        extended = False
        for m in range(n):
            if not label[h - 1, m] < best[target] or m == target:
                continue
            for k in range(w.source_ptr[m], w.source_ptr[m + 1]):
                link = w.source_links[k]
                to = w.link_target[link]
                if to != target and w.capacity[to] >= 0:
                    continue
                duration = w.latency_s[link] + w.size[v] / w.bandwidth[link]
                start = max(label[h - 1, m], since) if to == target else label[h - 1, m]
                if start + duration >= best[to]:
                    continue
                if w.contention:
                    first, last = w.link_lane_ptr[link], w.link_lane_ptr[link + 1]
                    start = earliest(s, w.link_lanes, first, last, start, duration)
                if start + duration < best[to]:
                    label[h, to], via[h, to] = start + duration, link
                    best[to] = start + duration
                    extended = True
        if not extended:
            break
    links = _no_links()
    if best[target] < np.inf and via.max() >= 0 and best[target] < s.there_s[v, target]:
        h, m = 0, target
        while label[h, m] != best[target]:
            h += 1
        while h > 0:
            links.append(np.int64(via[h, m]))
            m = w.link_source[via[h, m]]
            h -= 1
    return best[target], links


@nb.njit(cache=True)
def drop(w, s, v, memory):  # type: ignore[no-untyped-def]
    """End a residency when its last use is over."""
    s.there_s[v, memory] = np.inf
    s.holders[v] -= 1
    if w.capacity[memory] < 0:
        return
    size, busy = np.int64(w.size[v]), s.busy_s[v, memory]
    s.rows.append((np.int64(memory), s.alloc_s[v, memory], s.offset[v, memory], np.int64(v), size, busy))
    if size > 0:
        i = np.searchsorted(s.seg_begin[memory][: s.seg_n[memory]], s.offset[v, memory])
        s.seg_owner[memory][i] = FREE
        s.seg_since[memory][i] = busy


@nb.njit(cache=True)
def _window(w, s, memory, room, keys):  # type: ignore[no-untyped-def]
    """Return (first segment, free from) of the run of segments to take: whose victims are read farthest from now.

    ``keys`` says how far a segment's owner is from being read: infinite where it is free, −1 where it stays.
    Among equal runs the one that is free earliest, then the lowest. (−1, 0) if there is none.
    """
    n = s.seg_n[memory]
    best, best_key, best_since = -1, -1.0, np.inf
    for i in range(n):
        low, since, j = np.inf, 0.0, i
        while j < n and keys[j] >= 0.0:
            low = min(low, keys[j])
            owner = s.seg_owner[memory][j]
            since = max(since, s.seg_since[memory][j] if owner == FREE else s.busy_s[owner, memory])
            end = s.seg_begin[memory][j + 1] if j + 1 < n else w.capacity[memory]
            if end - s.seg_begin[memory][i] >= room:
                if low > best_key or (low == best_key and since < best_since):
                    best, best_key, best_since = i, low, since
                break
            if low < best_key:
                break
            j += 1
    return best, best_since


@nb.njit(cache=True)
def _take(w, s, memory, i, room, owner):  # type: ignore[no-untyped-def]
    """Make bytes from segment ``i`` on one segment of ``owner``; what is left over of the last stays free."""
    n = s.seg_n[memory]
    begin, j = s.seg_begin[memory][i], i
    while (s.seg_begin[memory][j + 1] if j + 1 < n else w.capacity[memory]) < begin + room:
        j += 1
    end = s.seg_begin[memory][j + 1] if j + 1 < n else w.capacity[memory]
    left, left_since = end > begin + room, s.seg_since[memory][j]
    shift = (i + 1 + left) - (j + 1)
    if n + shift > len(s.seg_begin[memory]):
        s.seg_begin[memory] = np.concatenate((s.seg_begin[memory], np.zeros(n, np.int64)))
        s.seg_owner[memory] = np.concatenate((s.seg_owner[memory], np.zeros(n, np.int64)))
        s.seg_since[memory] = np.concatenate((s.seg_since[memory], np.zeros(n)))
    begins, owners, sinces = s.seg_begin[memory], s.seg_owner[memory], s.seg_since[memory]
    if shift > 0:
        for k in range(n - 1, j, -1):
            begins[k + shift], owners[k + shift], sinces[k + shift] = begins[k], owners[k], sinces[k]
    elif shift < 0:
        for k in range(j + 1, n):
            begins[k + shift], owners[k + shift], sinces[k + shift] = begins[k], owners[k], sinces[k]
    owners[i] = owner
    if left:
        begins[i + 1], owners[i + 1], sinces[i + 1] = begin + room, FREE, left_since
    s.seg_n[memory] = n + shift


@nb.njit(cache=True)
def evict(w, s, v, memory):  # type: ignore[no-untyped-def]
    """Drop a copy; the last one of a version that is still needed goes to the nearest unlimited memory first."""
    if s.holders[v] == 1 and s.rest[v] > 0:
        best, best_host = np.inf, -1
        for host in range(len(w.capacity)):
            if w.capacity[host] < 0:
                arrival, _ = route(w, s, v, host, 0.0)
                if arrival < best:
                    best, best_host = arrival, host
        if best_host < 0:
            return False
        _, links = route(w, s, v, best_host, 0.0)
        follow(w, s, v, links, 0.0)
    drop(w, s, v, memory)
    return True


@nb.njit(cache=True)
def follow(w, s, v, links, since):  # type: ignore[no-untyped-def]
    """Move a version along a route (last hop first), which it enters from ``since`` on in its last hop."""
    for i in range(len(links) - 1, -1, -1):
        link = links[i]
        source, target = w.link_source[link], w.link_target[link]
        duration = w.latency_s[link] + w.size[v] / w.bandwidth[link]
        start = max(s.there_s[v, source], since) if i == 0 else s.there_s[v, source]
        if w.contention:
            first, last = w.link_lane_ptr[link], w.link_lane_ptr[link + 1]
            start = earliest(s, w.link_lanes, first, last, start, duration)
            hold(s, w.link_lanes, first, last, start, start + duration)
        s.moves.append((start, start + duration, np.int64(v), np.int64(link)))
        s.busy_s[v, source] = max(s.busy_s[v, source], start + duration)
        if s.there_s[v, target] == np.inf:
            s.holders[v] += 1
        s.there_s[v, target] = start + duration
        s.busy_s[v, target] = start + duration
        s.alloc_s[v, target] = start


@nb.njit(cache=True)
def allocate(w, s, memory, room, owner, stamp, write_back):  # type: ignore[no-untyped-def]
    """Find room for ``owner``, evicting what is read farthest from now; return (fault, offset, free from).

    A victim that has to be written back first counts as read ``write_back`` positions earlier.
    """
    if w.capacity[memory] < 0 or room == 0:
        return FINE, np.int64(0), 0.0
    n = s.seg_n[memory]
    keys = np.empty(n)
    for i in range(n):
        keys[i] = np.inf if s.seg_owner[memory][i] == FREE else -1.0
    i, since = _window(w, s, memory, room, keys)
    if i < 0:
        for k in range(n):
            v = s.seg_owner[memory][k]
            if v != FREE and s.lock[v] != stamp:
                keys[k] = max(0.0, _next_read(w, s, v, memory) - (write_back if s.holders[v] == 1 else 0.0))
        i, since = _window(w, s, memory, room, keys)
        if i < 0:
            return NO_ROOM, np.int64(0), 0.0
        k = i
        begin, since = s.seg_begin[memory][i], 0.0
        while k < n and s.seg_begin[memory][k] < begin + room:
            v = s.seg_owner[memory][k]
            if v != FREE and not evict(w, s, v, memory):
                return NO_HOST, np.int64(0), 0.0
            since = max(since, s.seg_since[memory][k])
            k += 1
    _take(w, s, memory, i, room, owner)
    return FINE, s.seg_begin[memory][i], since


@nb.njit(cache=True)
def fetch(w, s, v, memory, stamp, write_back):  # type: ignore[no-untyped-def]
    """Bring a version into a memory; return a fault."""
    if s.there_s[v, memory] < np.inf:
        return FINE
    room = room_of(w, v, memory)
    fault, offset, since = allocate(w, s, memory, room, v, stamp, write_back)
    if fault != FINE:
        return fault
    arrival, links = route(w, s, v, memory, since)
    if arrival == np.inf:
        return NO_ROUTE
    s.offset[v, memory] = offset
    follow(w, s, v, links, since)
    return FINE
