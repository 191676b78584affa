"""Copies, lanes and bytes while :mod:`~heterotask_core.planning.memory_walk` goes over the tasks (Numba).

A memory with a capacity is a row of segments by offset, each held by a version or free since a time. Inside, arrays
are bare pointers (:mod:`~heterotask_core.planning.raw`) and all indices int64, so that nothing is compiled twice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterotask_core.planning.core import MAX_HOPS
from heterotask_core.planning.problem import F64, I32, I64, Problem
from heterotask_core.planning.raw import inner, opener

FINE, NO_ROOM, NO_ROUTE, NO_HOST, OVERFLOW = 0, 1, 2, 3, 4
FREE = -1
FIRST_ROOM = 64
"""Busy intervals a lane and segments a memory at first; a walk that needs more is repeated with four times as many."""


class Walk(NamedTuple):
    """What the walk reads of a problem; limits of −1 bytes mean none.

    ``reader_ptr`` and ``readers`` are a CSR over versions of the tasks that read each, in program order;
    ``waiting`` (T,) is the number of inputs that a task makes others wait for and of tasks it follows, and
    ``follower_ptr`` and ``followers`` are the tasks that follow each. Tables are flat.
    """

    contention: bool
    n_tasks: int
    n_versions: int
    n_memories: int
    n_devices: int
    n_lanes: int
    device_memory: I64
    device_lane_ptr: I64
    device_lanes: I64
    source_ptr: I64
    source_links: I64
    link_source: I64
    link_target: I64
    latency_s: F64
    bandwidth: F64
    link_lane_ptr: I64
    link_lanes: I64
    capacity: I64
    unit: I64
    size: F64
    home_ptr: I64
    home_memories: I64
    final_memory: I64
    input_ptr: I64
    input_versions: I64
    output_ptr: I64
    output_versions: I64
    takes_over: I64
    after_ptr: I64
    after_tasks: I64
    waiting: I64
    reader_ptr: I64
    readers: I64
    follower_ptr: I64
    followers: I64
    task_class: I64
    scratch: I64


class State(NamedTuple):
    """Copies by (version, memory), times held by lane, segments by memory, and what was decided.

    There is one more version than the problem has: the scratch of the task at hand. ``lock`` is the stamp of the
    attempt for which a version must stay; ``given_up`` the versions whose copy an update may take over though others
    read them. Rows are buffers: memory, from, offset, version, bytes, until. Lane ``l`` is busy in ``lane_length[l]``
    intervals from index ``l * room`` on; segments likewise.
    """

    room: int
    most_moves: int
    most_rows: int
    there_s: F64
    busy_s: F64
    alloc_s: F64
    offset: I64
    holders: I64
    done: I64
    rest: I64
    lock: I64
    given_up: I64
    reader_position: I64
    reader_memory: I64
    lane_start: F64
    lane_finish: F64
    lane_length: I64
    seg_begin: I64
    seg_owner: I64
    seg_since: F64
    seg_n: I64
    keys: F64
    """(room,) how far each segment's owner is from being read."""
    label_s: F64
    """(hops + 1, M) of :func:`route`: arrivals; via likewise the links."""
    via: I64
    reach_s: F64
    """(M,) earliest arrivals of :func:`route`."""
    path: I64
    """(hops,) links of the last route, last hop first."""
    heap: I64
    waiting: I64
    order: I64
    start_s: F64
    finish_s: F64
    used: I64
    """(moves, rows)."""
    move_start: F64
    move_finish: F64
    move_version: I64
    move_link: I64
    row_memory: I64
    row_version: I64
    row_offset: I64
    row_size: I64
    row_alloc: F64
    row_free: F64
    result: F64
    """(makespan, bytes moved)."""
    fault: I64
    """(fault, task, memory, version, bytes needed)."""


open_walk, open_state = opener(Walk), opener(State)


def walk_view(problem: Problem) -> Walk:
    """Return the walk's view of ``problem``."""
    m, n = problem.n_memories, problem.n_tasks
    order = np.argsort(problem.link_source, kind="stable")
    counts = np.bincount(problem.input_versions, minlength=problem.n_versions)
    input_task = np.repeat(np.arange(n), np.diff(problem.input_ptr))
    after_task = np.repeat(np.arange(n), np.diff(problem.after_ptr))
    waiting = np.diff(problem.after_ptr)
    waiting = waiting + np.bincount(input_task[problem.version_producer[problem.input_versions] >= 0], minlength=n)
    followers = np.bincount(problem.after_tasks, minlength=n)
    scratch = problem.class_scratch_bytes
    if scratch is None:
        scratch = np.zeros((len(problem.class_names), problem.n_devices), np.int64)

    def whole(values: I32 | I64) -> I64:
        return np.ascontiguousarray(values, np.int64)

    return Walk(
        problem.contention,
        n,
        problem.n_versions,
        m,
        problem.n_devices,
        len(problem.lane_names),
        whole(problem.device_memory),
        whole(problem.device_lane_ptr),
        whole(problem.device_lanes),
        whole(np.searchsorted(problem.link_source[order], np.arange(m + 1))),
        whole(order),
        whole(problem.link_source),
        whole(problem.link_target),
        problem.link_latency_s,
        problem.link_bandwidth_bytes_per_s,
        whole(problem.link_lane_ptr),
        whole(problem.link_lanes),
        whole(problem.memory_capacity_bytes),
        whole(problem.memory_alignment_bytes),
        problem.version_size_bytes.astype(np.float64),
        whole(problem.home_ptr),
        whole(problem.home_memories),
        whole(problem.version_final_memory),
        whole(problem.input_ptr),
        whole(problem.input_versions),
        whole(problem.output_ptr),
        whole(problem.output_versions),
        whole(problem.output_takes_over),
        whole(problem.after_ptr),
        whole(problem.after_tasks),
        whole(waiting),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        whole(input_task[np.argsort(problem.input_versions, kind="stable")]),
        np.concatenate([[0], np.cumsum(followers)]).astype(np.int64),
        whole(after_task[np.argsort(problem.after_tasks, kind="stable")]),
        whole(problem.task_class),
        whole(scratch),
    )


def state(w: Walk, room: int = FIRST_ROOM) -> State:
    """Return room for the state of a walk: ``room`` intervals a lane and segments a memory, moves in proportion."""
    n, m = w.n_versions, w.n_memories
    moves = (len(w.input_versions) + n + 16) * room // FIRST_ROOM
    rows = moves + len(w.output_versions) + len(w.home_memories) + w.n_tasks
    f64, i64 = np.float64, np.int64
    labels = (MAX_HOPS + 1) * m
    return State(
        room,
        moves,
        rows,
        np.empty((n + 1) * m, f64),
        np.empty((n + 1) * m, f64),
        np.empty((n + 1) * m, f64),
        np.empty((n + 1) * m, i64),
        np.empty(n + 1, i64),
        np.empty(n, i64),
        np.empty(n, i64),
        np.empty(n + 1, i64),
        np.empty(n + 1, i64),
        np.empty(len(w.input_versions), i64),
        np.empty(len(w.input_versions), i64),
        np.empty(w.n_lanes * room, f64),
        np.empty(w.n_lanes * room, f64),
        np.empty(w.n_lanes, i64),
        np.empty(m * room, i64),
        np.empty(m * room, i64),
        np.empty(m * room, f64),
        np.empty(m, i64),
        np.empty(room, f64),
        np.empty(labels, f64),
        np.empty(labels, i64),
        np.empty(m, f64),
        np.empty(MAX_HOPS, i64),
        np.empty(w.n_tasks, i64),
        np.empty(w.n_tasks, i64),
        np.empty(w.n_tasks, i64),
        np.empty(w.n_tasks, f64),
        np.empty(w.n_tasks, f64),
        np.zeros(2, i64),
        np.empty(moves, f64),
        np.empty(moves, f64),
        np.empty(moves, i64),
        np.empty(moves, i64),
        np.empty(rows, i64),
        np.empty(rows, i64),
        np.empty(rows, i64),
        np.empty(rows, i64),
        np.empty(rows, f64),
        np.empty(rows, f64),
        np.zeros(2, f64),
        np.zeros(5, i64),
    )


@inner
def clear(w, s):  # type: ignore[no-untyped-def]
    """Bring the state to before the first task: no copy anywhere, every memory one free segment."""
    m = w.n_memories
    for i in range((w.n_versions + 1) * m):
        s.there_s[i] = np.inf
        s.busy_s[i] = 0.0
        s.alloc_s[i] = 0.0
        s.offset[i] = 0
    for v in range(w.n_versions + 1):
        s.holders[v] = 0
        s.lock[v] = -1
        s.given_up[v] = 0
    for v in range(w.n_versions):
        s.done[v] = 0
        s.rest[v] = w.reader_ptr[v + 1] - w.reader_ptr[v] + (w.final_memory[v] >= 0)
    for lane in range(w.n_lanes):
        s.lane_length[lane] = 0
    for i in range(m):
        s.seg_n[i] = 1
        s.seg_begin[i * s.room] = 0
        s.seg_owner[i * s.room] = FREE
        s.seg_since[i * s.room] = 0.0
    s.used[0] = 0
    s.used[1] = 0
    for i in range(5):
        s.fault[i] = 0


@inner
def _after(values, low, high, t):  # type: ignore[no-untyped-def]
    """Return the first index in [low, high) whose value is over ``t``, else ``high``."""
    while low < high:
        middle = (low + high) >> 1
        if values[middle] > t:
            high = middle
        else:
            low = middle + 1
    return low


@inner
def earliest(s, lanes, first, last, ready, duration):  # type: ignore[no-untyped-def]
    """Return the earliest start from ``ready`` on that is free on all lanes."""
    t = ready
    moved = duration > 0.0
    while moved:
        moved = False
        for k in range(first, last):
            begin = lanes[k] * s.room
            end = begin + s.lane_length[lanes[k]]
            i = _after(s.lane_finish, begin, end, t)
            while i < end and s.lane_start[i] < t + duration:
                t = s.lane_finish[i]
                moved = True
                i += 1
    return t


@inner
def hold(s, lanes, first, last, start, finish):  # type: ignore[no-untyped-def]
    """Reserve an interval of every lane; intervals that touch become one. False: no room."""
    if finish <= start:
        return True
    for k in range(first, last):
        lane = lanes[k]
        begin = lane * s.room
        end = begin + s.lane_length[lane]
        i = _after(s.lane_start, begin, end, start)
        if i > begin and s.lane_finish[i - 1] == start:
            s.lane_finish[i - 1] = finish
            continue
        if i < end and s.lane_start[i] == finish:
            s.lane_start[i] = start
            continue
        if end - begin == s.room:
            return False
        for j in range(end, i, -1):
            s.lane_start[j] = s.lane_start[j - 1]
            s.lane_finish[j] = s.lane_finish[j - 1]
        s.lane_start[i] = start
        s.lane_finish[i] = finish
        s.lane_length[lane] = end - begin + 1
    return True


@inner
def room_of(w, v, memory):  # type: ignore[no-untyped-def]
    """Return the bytes of a buffer, rounded up to the memory's alignment."""
    unit = w.unit[memory]
    return -(-np.int64(w.size[v]) // unit) * unit


@inner
def _next_read(w, s, v, memory):  # type: ignore[no-untyped-def]
    """Return the position of the next read here; n for the final copy, 2 n where none comes."""
    for k in range(w.reader_ptr[v] + s.done[v], w.reader_ptr[v + 1]):
        if s.reader_memory[k] == memory:
            return s.reader_position[k]
    return w.n_tasks if w.final_memory[v] == memory else 2 * w.n_tasks


@inner
def route(w, s, v, target, since):  # type: ignore[no-untyped-def]
    """Return the arrival of the earliest route, which enters ``target`` from ``since`` on, and its number of hops.

    Its links are left in ``path``. A stop on the way needs no planned room where the memory is unlimited; others
    are no stops.
    """
    n = w.n_memories
    for m in range(n):
        s.reach_s[m] = s.label_s[m] = s.there_s[v * n + m]
    for i in range(n, (MAX_HOPS + 1) * n):
        s.label_s[i] = np.inf
    for h in range(1, MAX_HOPS + 1):
        extended = False
        for m in range(n):
            there = s.label_s[(h - 1) * n + m]
            if not there < s.reach_s[target] or m == target:
                continue
            for k in range(w.source_ptr[m], w.source_ptr[m + 1]):
                link = w.source_links[k]
                to = w.link_target[link]
                if to != target and w.capacity[to] >= 0:
                    continue
                duration = w.latency_s[link] + w.size[v] / w.bandwidth[link]
                start = max(there, since) if to == target else there
                if start + duration >= s.reach_s[to]:
                    continue
                if w.contention:
                    start = earliest(s, w.link_lanes, w.link_lane_ptr[link], w.link_lane_ptr[link + 1], start, duration)
                if start + duration < s.reach_s[to]:
                    s.label_s[h * n + to] = start + duration
                    s.via[h * n + to] = link
                    s.reach_s[to] = start + duration
                    extended = True
        if not extended:
            break
    best, hops = s.reach_s[target], 0
    if best < s.there_s[v * n + target]:
        while s.label_s[hops * n + target] != best:
            hops += 1
        m = target
        for h in range(hops, 0, -1):
            link = s.via[h * n + m]
            s.path[hops - h] = link
            m = w.link_source[link]
    return best, hops


@inner
def segment(s, memory, offset):  # type: ignore[no-untyped-def]
    """Return the index of the segment that begins at ``offset``."""
    first = memory * s.room
    return _after(s.seg_begin, first, first + s.seg_n[memory], offset - 1)


@inner
def add_row(s, memory, alloc_s, offset, version, size, free_s):  # type: ignore[no-untyped-def]
    """Note a buffer. False: no room."""
    i = s.used[1]
    if i == s.most_rows:
        return False
    s.row_memory[i] = memory
    s.row_alloc[i] = alloc_s
    s.row_offset[i] = offset
    s.row_version[i] = version
    s.row_size[i] = size
    s.row_free[i] = free_s
    s.used[1] = i + 1
    return True


@inner
def drop(w, s, v, memory):  # type: ignore[no-untyped-def]
    """End a residency when its last use is over. False: no room to note it."""
    at = v * w.n_memories + memory
    s.there_s[at] = np.inf
    s.holders[v] -= 1
    if w.capacity[memory] < 0:
        return True
    if w.size[v] >= 1.0:
        i = segment(s, memory, s.offset[at])
        s.seg_owner[i] = FREE
        s.seg_since[i] = s.busy_s[at]
    return add_row(s, memory, s.alloc_s[at], s.offset[at], v, np.int64(w.size[v]), s.busy_s[at])


@inner
def _window(w, s, memory, room):  # type: ignore[no-untyped-def]
    """Return (first segment, free from) of the run of segments to take: whose victims are read farthest from now.

    ``keys`` says how far a segment's owner is from being read: infinite where it is free, −1 where it stays.
    Among equal runs the one that is free earliest, then the lowest. (−1, 0) if there is none.
    """
    n, first = s.seg_n[memory], memory * s.room
    best, best_key, best_since = -1, -1.0, np.inf
    for i in range(n):
        low, since, j = np.inf, 0.0, i
        while j < n and s.keys[j] >= 0.0:
            low = min(low, s.keys[j])
            owner = s.seg_owner[first + j]
            since = max(since, s.seg_since[first + j] if owner == FREE else s.busy_s[owner * w.n_memories + memory])
            end = s.seg_begin[first + j + 1] if j + 1 < n else w.capacity[memory]
            if end - s.seg_begin[first + i] >= room:
                if low > best_key or (low == best_key and since < best_since):
                    best, best_key, best_since = i, low, since
                break
            if low < best_key:
                break
            j += 1
    return best, best_since


@inner
def _take(w, s, memory, at, room, owner):  # type: ignore[no-untyped-def]
    """Make bytes from segment ``at`` on one segment of ``owner``; the rest of its last stays free. False: no room."""
    n, first = s.seg_n[memory], memory * s.room
    i, j = first + at, first + at
    last = first + n - 1
    begin = s.seg_begin[i]
    while (s.seg_begin[j + 1] if j < last else w.capacity[memory]) < begin + room:
        j += 1
    left = (s.seg_begin[j + 1] if j < last else w.capacity[memory]) > begin + room
    left_since = s.seg_since[j]
    shift = (i + 1 + left) - (j + 1)
    if n + shift > s.room:
        return False
    if shift > 0:
        for k in range(last, j, -1):
            s.seg_begin[k + 1] = s.seg_begin[k]
            s.seg_owner[k + 1] = s.seg_owner[k]
            s.seg_since[k + 1] = s.seg_since[k]
    elif shift < 0:
        for k in range(j + 1, last + 1):
            s.seg_begin[k + shift] = s.seg_begin[k]
            s.seg_owner[k + shift] = s.seg_owner[k]
            s.seg_since[k + shift] = s.seg_since[k]
    s.seg_owner[i] = owner
    if left:
        s.seg_begin[i + 1] = begin + room
        s.seg_owner[i + 1] = FREE
        s.seg_since[i + 1] = left_since
    s.seg_n[memory] = n + shift
    return True


@inner
def follow(w, s, v, hops, since):  # type: ignore[no-untyped-def]
    """Move a version along ``path``, which it enters from ``since`` on in its last hop. False: no room."""
    for i in range(hops - 1, -1, -1):
        link = s.path[i]
        source, target = v * w.n_memories + w.link_source[link], v * w.n_memories + w.link_target[link]
        duration = w.latency_s[link] + w.size[v] / w.bandwidth[link]
        start = max(s.there_s[source], since) if i == 0 else s.there_s[source]
        if w.contention:
            first, last = w.link_lane_ptr[link], w.link_lane_ptr[link + 1]
            start = earliest(s, w.link_lanes, first, last, start, duration)
            if not hold(s, w.link_lanes, first, last, start, start + duration):
                return False
        at = s.used[0]
        if at == s.most_moves:
            return False
        s.move_start[at] = start
        s.move_finish[at] = start + duration
        s.move_version[at] = v
        s.move_link[at] = link
        s.used[0] = at + 1
        s.busy_s[source] = max(s.busy_s[source], start + duration)
        if s.there_s[target] == np.inf:
            s.holders[v] += 1
        s.there_s[target] = start + duration
        s.busy_s[target] = start + duration
        s.alloc_s[target] = start
    return True


@inner
def write_back(w, s, v):  # type: ignore[no-untyped-def]
    """Write a version to the unlimited memory where it is soonest; return a fault."""
    best, best_host = np.inf, -1
    for host in range(w.n_memories):
        if w.capacity[host] < 0:
            arrival, _ = route(w, s, v, host, 0.0)
            if arrival < best:
                best, best_host = arrival, host
    if best_host < 0:
        return NO_HOST
    _, hops = route(w, s, v, best_host, 0.0)
    return FINE if follow(w, s, v, hops, 0.0) else OVERFLOW


@inner
def evict(w, s, v, memory):  # type: ignore[no-untyped-def]
    """Drop a copy, writing the last one of a version that is still needed to the host first; return a fault."""
    if s.holders[v] == 1 and s.rest[v] > 0:
        fault = write_back(w, s, v)
        if fault != FINE:
            return fault
    return FINE if drop(w, s, v, memory) else OVERFLOW


@inner
def allocate(w, s, memory, room, owner, stamp, early):  # type: ignore[no-untyped-def]
    """Find room for ``owner``, evicting what is read farthest from now; return (fault, offset, free from).

    A victim that has to be written back first counts as read ``early`` positions earlier.
    """
    if w.capacity[memory] < 0 or room == 0:
        return FINE, 0, 0.0
    n, first = s.seg_n[memory], memory * s.room
    for i in range(n):
        s.keys[i] = np.inf if s.seg_owner[first + i] == FREE else -1.0
    i, since = _window(w, s, memory, room)
    if i < 0:
        for k in range(n):
            v = s.seg_owner[first + k]
            if v != FREE and s.lock[v] != stamp:
                s.keys[k] = max(0.0, _next_read(w, s, v, memory) - (early if s.holders[v] == 1 else 0.0))
        i, since = _window(w, s, memory, room)
        if i < 0:
            return NO_ROOM, 0, 0.0
        k = first + i
        end, since = s.seg_begin[k] + room, 0.0
        while k < first + n and s.seg_begin[k] < end:
            v = s.seg_owner[k]
            if v != FREE:
                fault = evict(w, s, v, memory)
                if fault != FINE:
                    return fault, 0, 0.0
            since = max(since, s.seg_since[k])
            k += 1
    if not _take(w, s, memory, i, room, owner):
        return OVERFLOW, 0, 0.0
    return FINE, s.seg_begin[first + i], since


@inner
def fetch(w, s, v, memory, stamp, early):  # type: ignore[no-untyped-def]
    """Bring a version into a memory; return a fault."""
    at = v * w.n_memories + memory
    if s.there_s[at] < np.inf:
        return FINE
    fault, offset, since = allocate(w, s, memory, room_of(w, v, memory), v, stamp, early)
    if fault != FINE:
        return fault
    arrival, hops = route(w, s, v, memory, since)
    if arrival == np.inf:
        return NO_ROUTE
    s.offset[at] = offset
    return FINE if follow(w, s, v, hops, since) else OVERFLOW
