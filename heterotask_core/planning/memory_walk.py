"""The walk of :mod:`~heterotask_core.planning.memory` over tasks in order: copies, buffers, transfers (Numba).

It never goes back: bytes are handed out in walking order, and a buffer starts when the last one on its bytes has
ended. A memory with a capacity is a row of segments by offset, each held by a version or free since a time.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numba as nb
import numpy as np

from heterotask_core.planning.core import MAX_HOPS
from heterotask_core.planning.problem import F64, I32, I64, Problem

FINE, NO_ROOM, NO_ROUTE, NO_HOST = 0, 1, 2, 3
_FREE = -1


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


class Walked(NamedTuple):
    """The result: times, transfers, buffers; or a fault with task (n: the final copies, −1: the homes)."""

    fault: int
    fault_task: int
    fault_memory: int
    fault_version: int
    fault_bytes: int
    makespan_s: float
    moved_bytes: float
    start_s: F64
    finish_s: F64
    move_version: I32
    move_link: I32
    move_start_s: F64
    move_finish_s: F64
    row_memory: I32
    row_version: I32
    row_offset: I64
    row_size: I64
    row_alloc_s: F64
    row_free_s: F64


class _State(NamedTuple):
    """Copies (version, memory), lanes and segments while walking; lists hold an array a lane or a memory."""

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


@nb.njit(cache=True)
def walking_order(w, key):  # type: ignore[no-untyped-def]
    """Return the tasks by ``key`` (T,), then index, each after what it waits for."""
    n = len(key)
    waiting = np.zeros(n, np.int64)
    for t in range(n):
        for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
            waiting[t] += w.producer[w.input_versions[k]] >= 0
        waiting[t] += w.after_ptr[t + 1] - w.after_ptr[t]
    # Who waits for whom, as CSR: by version for data, by task for plain precedence.
    reader = np.empty(len(w.input_versions), np.int64)
    at = w.reader_ptr[:-1].copy()
    follower_ptr = np.zeros(n + 1, np.int64)
    for k in range(len(w.after_tasks)):
        follower_ptr[w.after_tasks[k] + 1] += 1
    follower_ptr = np.cumsum(follower_ptr)
    follower = np.empty(len(w.after_tasks), np.int64)
    place = follower_ptr[:-1].copy()
    for t in range(n):
        for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
            v = w.input_versions[k]
            reader[at[v]] = t
            at[v] += 1
        for k in range(w.after_ptr[t], w.after_ptr[t + 1]):
            follower[place[w.after_tasks[k]]] = t
            place[w.after_tasks[k]] += 1
    ready = [(key[t], t) for t in range(n) if waiting[t] == 0]
    heapq.heapify(ready)
    order = np.empty(n, np.int64)
    count = 0
    while len(ready) > 0:
        _, t = heapq.heappop(ready)
        order[count] = t
        count += 1
        for k in range(w.output_ptr[t], w.output_ptr[t + 1]):
            v = w.output_versions[k]
            for i in range(w.reader_ptr[v], w.reader_ptr[v + 1]):
                waiting[reader[i]] -= 1
                if waiting[reader[i]] == 0:
                    heapq.heappush(ready, (key[reader[i]], reader[i]))
        for i in range(follower_ptr[t], follower_ptr[t + 1]):
            waiting[follower[i]] -= 1
            if waiting[follower[i]] == 0:
                heapq.heappush(ready, (key[follower[i]], follower[i]))
    return order


@nb.njit(cache=True)
def _earliest(starts, finishes, length, lanes, first, last, ready, duration):  # type: ignore[no-untyped-def]
    """Return the earliest start from ``ready`` on that is free on all lanes."""
    t = ready
    moved = duration > 0.0
    while moved:
        moved = False
        for k in range(first, last):
            lane = lanes[k]
            n = length[lane]
            i = np.searchsorted(finishes[lane][:n], t, side="right")
            while i < n and starts[lane][i] < t + duration:
                t = finishes[lane][i]
                moved = True
                i += 1
    return t


@nb.njit(cache=True)
def _hold(starts, finishes, length, lanes, first, last, start, finish):  # type: ignore[no-untyped-def]
    """Reserve an interval of every lane; intervals that touch become one."""
    if finish <= start:
        return
    for k in range(first, last):
        lane = lanes[k]
        n = length[lane]
        i = np.searchsorted(starts[lane][:n], start, side="right")
        if i > 0 and finishes[lane][i - 1] == start:
            finishes[lane][i - 1] = finish
            continue
        if i < n and starts[lane][i] == finish:
            starts[lane][i] = start
            continue
        if n == len(starts[lane]):
            starts[lane] = np.concatenate((starts[lane], np.empty(n + 8)))
            finishes[lane] = np.concatenate((finishes[lane], np.empty(n + 8)))
        for j in range(n, i, -1):
            starts[lane][j], finishes[lane][j] = starts[lane][j - 1], finishes[lane][j - 1]
        starts[lane][i], finishes[lane][i] = start, finish
        length[lane] = n + 1


@nb.njit(cache=True)
def _room(w, v, memory):  # type: ignore[no-untyped-def]
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


# Lists are made in functions of their own: in a function with a list comprehension Numba 0.68 loses what is stored
# into an array that is a field of a named tuple.
@nb.njit(cache=True)
def _no_links():  # type: ignore[no-untyped-def]
    return [np.int64(0) for _ in range(0)]


@nb.njit(cache=True)
def _route(w, s, v, target, since, lane_start, lane_finish, lane_length):  # type: ignore[no-untyped-def]
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
                    start = _earliest(lane_start, lane_finish, lane_length, w.link_lanes, first, last, start, duration)
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
def _drop(w, s, v, memory, seg_begin, seg_owner, seg_since, seg_n, rows):  # type: ignore[no-untyped-def]
    """End a residency when its last use is over."""
    s.there_s[v, memory] = np.inf
    s.holders[v] -= 1
    if w.capacity[memory] < 0:
        return
    size, busy = np.int64(w.size[v]), s.busy_s[v, memory]
    rows.append((np.int64(memory), s.alloc_s[v, memory], s.offset[v, memory], np.int64(v), size, busy))
    if size > 0:
        i = np.searchsorted(seg_begin[memory][: seg_n[memory]], s.offset[v, memory])
        seg_owner[memory][i] = _FREE
        seg_since[memory][i] = busy


@nb.njit(cache=True)
def _window(w, s, memory, room, keys, seg_begin, seg_owner, seg_since, seg_n):  # type: ignore[no-untyped-def]
    """Return (first segment, free from) of the run of segments to take: whose victims are read farthest from now.

    ``keys`` says how far a segment's owner is from being read: infinite where it is free, −1 where it stays.
    Among equal runs the one that is free earliest, then the lowest. (−1, 0) if there is none.
    """
    n = seg_n[memory]
    best, best_key, best_since = -1, -1.0, np.inf
    for i in range(n):
        low, since, j = np.inf, 0.0, i
        while j < n and keys[j] >= 0.0:
            low = min(low, keys[j])
            owner = seg_owner[memory][j]
            since = max(since, seg_since[memory][j] if owner == _FREE else s.busy_s[owner, memory])
            end = seg_begin[memory][j + 1] if j + 1 < n else w.capacity[memory]
            if end - seg_begin[memory][i] >= room:
                if low > best_key or (low == best_key and since < best_since):
                    best, best_key, best_since = i, low, since
                break
            if low < best_key:
                break
            j += 1
    return best, best_since


@nb.njit(cache=True)
def _take(w, memory, i, room, owner, seg_begin, seg_owner, seg_since, seg_n):  # type: ignore[no-untyped-def]
    """Make bytes from segment ``i`` on one segment of ``owner``; what is left over of the last stays free."""
    n = seg_n[memory]
    begin, j = seg_begin[memory][i], i
    while (seg_begin[memory][j + 1] if j + 1 < n else w.capacity[memory]) < begin + room:
        j += 1
    end = seg_begin[memory][j + 1] if j + 1 < n else w.capacity[memory]
    left, left_since = end > begin + room, seg_since[memory][j]
    shift = (i + 1 + left) - (j + 1)
    if n + shift > len(seg_begin[memory]):
        seg_begin[memory] = np.concatenate((seg_begin[memory], np.zeros(n + 8, np.int64)))
        seg_owner[memory] = np.concatenate((seg_owner[memory], np.zeros(n + 8, np.int64)))
        seg_since[memory] = np.concatenate((seg_since[memory], np.zeros(n + 8)))
    begins, owners, sinces = seg_begin[memory], seg_owner[memory], seg_since[memory]
    if shift > 0:
        for k in range(n - 1, j, -1):
            begins[k + shift], owners[k + shift], sinces[k + shift] = begins[k], owners[k], sinces[k]
    elif shift < 0:
        for k in range(j + 1, n):
            begins[k + shift], owners[k + shift], sinces[k + shift] = begins[k], owners[k], sinces[k]
    owners[i] = owner
    if left:
        begins[i + 1], owners[i + 1], sinces[i + 1] = begin + room, _FREE, left_since
    seg_n[memory] = n + shift


@nb.njit(cache=True)
def _evict(w, s, v, memory, lane_start, lane_finish, lane_length, seg_begin, seg_owner, seg_since, seg_n, moves, rows):  # type: ignore[no-untyped-def]
    """Drop a copy; the last one of a version that is still needed goes to the nearest unlimited memory first."""
    if s.holders[v] == 1 and s.rest[v] > 0:
        best, best_host = np.inf, -1
        for host in range(len(w.capacity)):
            if w.capacity[host] < 0:
                arrival, _ = _route(w, s, v, host, 0.0, lane_start, lane_finish, lane_length)
                if arrival < best:
                    best, best_host = arrival, host
        if best_host < 0:
            return False
        _, links = _route(w, s, v, best_host, 0.0, lane_start, lane_finish, lane_length)
        _follow(w, s, v, links, 0.0, lane_start, lane_finish, lane_length, moves)
    _drop(w, s, v, memory, seg_begin, seg_owner, seg_since, seg_n, rows)
    return True


@nb.njit(cache=True)
def _follow(w, s, v, links, since, lane_start, lane_finish, lane_length, moves):  # type: ignore[no-untyped-def]
    """Move a version along a route (last hop first), which it enters from ``since`` on in its last hop."""
    for i in range(len(links) - 1, -1, -1):
        link = links[i]
        source, target = w.link_source[link], w.link_target[link]
        duration = w.latency_s[link] + w.size[v] / w.bandwidth[link]
        start = max(s.there_s[v, source], since) if i == 0 else s.there_s[v, source]
        if w.contention:
            first, last = w.link_lane_ptr[link], w.link_lane_ptr[link + 1]
            start = _earliest(lane_start, lane_finish, lane_length, w.link_lanes, first, last, start, duration)
            _hold(lane_start, lane_finish, lane_length, w.link_lanes, first, last, start, start + duration)
        moves.append((start, start + duration, np.int64(v), np.int64(link)))
        s.busy_s[v, source] = max(s.busy_s[v, source], start + duration)
        if s.there_s[v, target] == np.inf:
            s.holders[v] += 1
        s.there_s[v, target] = start + duration
        s.busy_s[v, target] = start + duration
        s.alloc_s[v, target] = start


@nb.njit(cache=True)
def _allocate(  # type: ignore[no-untyped-def]
    w,
    s,
    memory,
    room,
    owner,
    stamp,
    write_back_s,
    lane_start,
    lane_finish,
    lane_length,
    seg_begin,
    seg_owner,
    seg_since,
    seg_n,
    moves,
    rows,
):
    """Find room for ``owner``, evicting what is read farthest from now; return (fault, offset, free from).

    A victim that has to be written back first counts as read ``write_back_s`` positions earlier.
    """
    if w.capacity[memory] < 0 or room == 0:
        return FINE, np.int64(0), 0.0
    n = seg_n[memory]
    keys = np.empty(n)
    for i in range(n):
        keys[i] = np.inf if seg_owner[memory][i] == _FREE else -1.0
    i, since = _window(w, s, memory, room, keys, seg_begin, seg_owner, seg_since, seg_n)
    if i < 0:
        for k in range(n):
            v = seg_owner[memory][k]
            if v != _FREE and s.lock[v] != stamp:
                keys[k] = max(0.0, _next_read(w, s, v, memory) - (write_back_s if s.holders[v] == 1 else 0.0))
        i, since = _window(w, s, memory, room, keys, seg_begin, seg_owner, seg_since, seg_n)
        if i < 0:
            return NO_ROOM, np.int64(0), 0.0
        k = i
        begin, since = seg_begin[memory][i], 0.0
        while k < n and seg_begin[memory][k] < begin + room:
            v = seg_owner[memory][k]
            if v != _FREE and not _evict(
                w,
                s,
                v,
                memory,
                lane_start,
                lane_finish,
                lane_length,
                seg_begin,
                seg_owner,
                seg_since,
                seg_n,
                moves,
                rows,
            ):
                return NO_HOST, np.int64(0), 0.0
            since = max(since, seg_since[memory][k])
            k += 1
    _take(w, memory, i, room, owner, seg_begin, seg_owner, seg_since, seg_n)
    return FINE, seg_begin[memory][i], since


@nb.njit(cache=True)
def _fetch(  # type: ignore[no-untyped-def]
    w,
    s,
    v,
    memory,
    stamp,
    write_back_s,
    lane_start,
    lane_finish,
    lane_length,
    seg_begin,
    seg_owner,
    seg_since,
    seg_n,
    moves,
    rows,
):
    """Bring a version into a memory; return a fault."""
    if s.there_s[v, memory] < np.inf:
        return FINE
    room = _room(w, v, memory)
    fault, offset, since = _allocate(
        w, s, memory, room, v, stamp, write_back_s,
        lane_start, lane_finish, lane_length, seg_begin, seg_owner, seg_since, seg_n, moves, rows,
    )  # fmt: skip
    if fault != FINE:
        return fault
    arrival, links = _route(w, s, v, memory, since, lane_start, lane_finish, lane_length)
    if arrival == np.inf:
        return NO_ROUTE
    s.offset[v, memory] = offset
    _follow(w, s, v, links, since, lane_start, lane_finish, lane_length, moves)
    return FINE


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
def walk(w, order, device, duration_s, write_back_s):  # type: ignore[no-untyped-def]
    """Walk the tasks in ``order`` (T,) on ``device`` (T,) for ``duration_s`` (T,); return the fields of ``Walked``."""
    n, n_versions, n_memories = len(order), len(w.size), len(w.capacity)
    lane_start, lane_finish, lane_length = _times(w.n_lanes), _times(w.n_lanes), np.zeros(w.n_lanes, np.int64)
    seg_begin, seg_owner, seg_since = _indices(n_memories, 0), _indices(n_memories, _FREE), _times(n_memories)
    seg_n = np.ones(n_memories, np.int64)
    # One more row than versions: the scratch of the task at hand.
    s = _State(
        np.full((n_versions + 1, n_memories), np.inf),
        np.zeros((n_versions + 1, n_memories)),
        np.zeros((n_versions + 1, n_memories)),
        np.zeros((n_versions + 1, n_memories), np.int64),
        np.zeros(n_versions + 1, np.int64),
        np.zeros(n_versions, np.int64),
        np.zeros(n_versions, np.int64),
        np.full(n_versions + 1, -1),
        np.empty(len(w.input_versions), np.int64),
        np.empty(len(w.input_versions), np.int32),
    )
    moves, rows = _no_moves(), _no_rows()
    start_s, finish_s = np.zeros(n), np.zeros(n)
    fault, fault_task, fault_memory, fault_version, fault_bytes = FINE, -1, -1, -1, np.int64(0)
    at = w.reader_ptr[:-1].copy()
    for position in range(n):
        t = order[position]
        for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
            v = w.input_versions[k]
            s.reader_position[at[v]] = position
            s.reader_memory[at[v]] = w.device_memory[device[t]]
            at[v] += 1
    for v in range(n_versions):
        s.rest[v] = w.reader_ptr[v + 1] - w.reader_ptr[v] + (w.final_memory[v] >= 0)
    for v in range(n_versions):
        for k in range(w.home_ptr[v], w.home_ptr[v + 1]):
            memory = w.home_memories[k]
            s.lock[v] = 0
            fault, offset, _ = _allocate(
                w, s, memory, _room(w, v, memory), v, 0, write_back_s,
                lane_start, lane_finish, lane_length, seg_begin, seg_owner, seg_since, seg_n, moves, rows,
            )  # fmt: skip
            if fault != FINE:
                fault_memory, fault_version, fault_bytes = memory, v, _room(w, v, memory)
                break
            s.there_s[v, memory], s.offset[v, memory] = 0.0, offset
            s.holders[v] += 1
        if fault != FINE:
            break
    position, again = 0, False
    while fault == FINE and position < n:
        t = order[position]
        d = device[t]
        memory = w.device_memory[d]
        # Locks of an earlier attempt do not count: every attempt has a stamp of its own.
        stamp = 2 * position + 1 + again
        ready = 0.0
        for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
            s.lock[w.input_versions[k]] = stamp
        for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
            v = w.input_versions[k]
            fault = _fetch(
                w, s, v, memory, stamp, write_back_s,
                lane_start, lane_finish, lane_length, seg_begin, seg_owner, seg_since, seg_n, moves, rows,
            )  # fmt: skip
            if fault != FINE:
                fault_version = v
                break
            ready = max(ready, s.there_s[v, memory])
        for k in range(w.after_ptr[t], w.after_ptr[t + 1]):
            ready = max(ready, finish_s[w.after_tasks[k]])
        held = w.output_ptr[t]
        while fault == FINE and held < w.output_ptr[t + 1]:
            v, old = w.output_versions[held], w.takes_over[held]
            s.lock[v] = stamp
            if old >= 0 and s.rest[old] == 1:
                ready = max(ready, s.busy_s[old, memory])
            else:
                fault, s.offset[v, memory], since = _allocate(
                    w, s, memory, _room(w, v, memory), v, stamp, write_back_s,
                    lane_start, lane_finish, lane_length, seg_begin, seg_owner, seg_since, seg_n, moves, rows,
                )  # fmt: skip
                ready = max(ready, since)
                s.busy_s[v, memory] = since
                if fault != FINE:
                    fault_version = v
                    break
            held += 1
        scratch = w.scratch[w.task_class[t], d]
        scratch_at = np.int64(0)
        if fault == FINE and scratch > 0:
            s.lock[n_versions] = stamp
            room = -(-scratch // w.unit[memory]) * w.unit[memory]
            fault, scratch_at, since = _allocate(
                w, s, memory, room, n_versions, stamp, write_back_s,
                lane_start, lane_finish, lane_length, seg_begin, seg_owner, seg_since, seg_n, moves, rows,
            )  # fmt: skip
            ready = max(ready, since)
        if fault != FINE:
            if fault == NO_ROOM and not again:
                # What stays may lie so that no gap is wide enough: empty the memory and start the task again.
                for k in range(w.output_ptr[t], held):
                    v, old = w.output_versions[k], w.takes_over[k]
                    if not (old >= 0 and s.rest[old] == 1) and _room(w, v, memory) > 0:
                        i = np.searchsorted(seg_begin[memory][: seg_n[memory]], s.offset[v, memory])
                        seg_owner[memory][i], seg_since[memory][i] = _FREE, s.busy_s[v, memory]
                fault = FINE
                for i in range(seg_n[memory]):
                    v = seg_owner[memory][i]
                    if v != _FREE and not _evict(
                        w, s, v, memory,
                        lane_start, lane_finish, lane_length, seg_begin, seg_owner, seg_since, seg_n, moves, rows,
                    ):  # fmt: skip
                        fault, fault_version = NO_HOST, v
                again = True
                if fault == FINE:
                    continue
            fault_task, fault_memory = t, memory
            fault_bytes = scratch
            for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
                fault_bytes += _room(w, w.input_versions[k], memory)
            for k in range(w.output_ptr[t], w.output_ptr[t + 1]):
                old = w.takes_over[k]
                if not (old >= 0 and s.rest[old] == 1):
                    fault_bytes += _room(w, w.output_versions[k], memory)
            break
        again = False
        first, last = w.device_lane_ptr[d], w.device_lane_ptr[d + 1]
        cost = duration_s[t]
        start = _earliest(lane_start, lane_finish, lane_length, w.device_lanes, first, last, ready, cost)
        end = start + cost
        _hold(lane_start, lane_finish, lane_length, w.device_lanes, first, last, start, end)
        start_s[t], finish_s[t] = start, end
        if scratch > 0 and w.capacity[memory] >= 0:
            i = np.searchsorted(seg_begin[memory][: seg_n[memory]], scratch_at)
            seg_owner[memory][i], seg_since[memory][i] = _FREE, end
            rows.append((np.int64(memory), start, scratch_at, np.int64(-1), np.int64(scratch), end))
        for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
            v = w.input_versions[k]
            s.busy_s[v, memory] = max(s.busy_s[v, memory], end)
        for k in range(w.output_ptr[t], w.output_ptr[t + 1]):
            v, old = w.output_versions[k], w.takes_over[k]
            if old >= 0 and s.rest[old] == 1:
                s.offset[v, memory] = s.offset[old, memory]
                _drop(w, s, old, memory, seg_begin, seg_owner, seg_since, seg_n, rows)
                if w.capacity[memory] >= 0 and w.size[v] > 0:
                    i = np.searchsorted(seg_begin[memory][: seg_n[memory]], s.offset[v, memory])
                    seg_owner[memory][i] = v
            s.there_s[v, memory], s.busy_s[v, memory], s.alloc_s[v, memory] = end, end, start
            s.holders[v] = 1
        for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
            v = w.input_versions[k]
            s.done[v] += 1
            s.rest[v] -= 1
            if s.rest[v] == 0:
                for m in range(n_memories):
                    if s.there_s[v, m] < np.inf:
                        _drop(w, s, v, m, seg_begin, seg_owner, seg_since, seg_n, rows)
        for k in range(w.output_ptr[t], w.output_ptr[t + 1]):
            v = w.output_versions[k]
            if s.rest[v] == 0:
                _drop(w, s, v, memory, seg_begin, seg_owner, seg_since, seg_n, rows)
        position += 1
    makespan = finish_s.max() if n > 0 else 0.0
    stamp = 2 * n + 1
    if fault == FINE:
        for v in range(n_versions):
            if w.final_memory[v] >= 0 and s.there_s[v, w.final_memory[v]] < np.inf:
                s.lock[v] = stamp
        for v in range(n_versions):
            memory = w.final_memory[v]
            if memory < 0:
                continue
            s.lock[v] = stamp
            fault = _fetch(
                w, s, v, memory, stamp, write_back_s,
                lane_start, lane_finish, lane_length, seg_begin, seg_owner, seg_since, seg_n, moves, rows,
            )  # fmt: skip
            if fault != FINE:
                fault_task, fault_memory, fault_version, fault_bytes = n, memory, v, _room(w, v, memory)
                break
            makespan = max(makespan, s.there_s[v, memory])
    if fault == FINE:
        for v in range(n_versions):
            for m in range(n_memories):
                if s.there_s[v, m] < np.inf:
                    if w.final_memory[v] == m:
                        s.busy_s[v, m] = max(s.busy_s[v, m], makespan)
                    _drop(w, s, v, m, seg_begin, seg_owner, seg_since, seg_n, rows)
    moves.sort()
    rows.sort()
    k = len(moves)
    move_version, move_link = np.empty(k, np.int32), np.empty(k, np.int32)
    move_start, move_finish = np.empty(k), np.empty(k)
    moved = 0.0
    for i in range(k):
        move_start[i], move_finish[i], move_version[i], move_link[i] = moves[i]
        moved += w.size[move_version[i]]
    k = len(rows)
    row_memory, row_version = np.empty(k, np.int32), np.empty(k, np.int32)
    row_offset, row_size = np.empty(k, np.int64), np.empty(k, np.int64)
    row_alloc, row_free = np.empty(k), np.empty(k)
    for i in range(k):
        row_memory[i], row_alloc[i], row_offset[i], row_version[i], row_size[i], row_free[i] = rows[i]
    return (
        fault, fault_task, fault_memory, fault_version, fault_bytes, makespan, moved, start_s, finish_s,
        move_version, move_link, move_start, move_finish,
        row_memory, row_version, row_offset, row_size, row_alloc, row_free,
    )  # fmt: skip
