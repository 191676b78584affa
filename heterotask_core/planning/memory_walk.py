"""The walk of :mod:`~heterotask_core.planning.memory` over tasks in order: copies, buffers, transfers (Numba).

It never goes back: bytes are handed out in walking order, and a buffer starts when the last one on its bytes has
ended. A task that finds no gap wide enough though its bytes would fit empties the memory and starts again.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numba as nb
import numpy as np

from heterotask_core.planning.memory_state import (
    FINE,
    FREE,
    NO_HOST,
    NO_ROOM,
    allocate,
    drop,
    earliest,
    evict,
    fetch,
    hold,
    new_state,
    room_of,
)
from heterotask_core.planning.problem import F64, I32, I64


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
def walk(w, order, device, duration_s, write_back):  # type: ignore[no-untyped-def]
    """Walk the tasks in ``order`` (T,) on ``device`` (T,) for ``duration_s`` (T,); return the fields of ``Walked``.

    A copy that has to be written back before it leaves counts as read ``write_back`` tasks earlier than it is.
    """
    n, n_versions = len(order), len(w.size)
    s = new_state(w)
    start_s, finish_s = np.zeros(n), np.zeros(n)
    _list_readers(w, s, order, device)
    fault, version, memory = _place_homes(w, s, write_back)
    task, needed = -1, np.int64(0)
    if fault != FINE:
        needed = room_of(w, version, memory)
    position, again = 0, False
    while fault == FINE and position < n:
        t = order[position]
        memory = w.device_memory[device[t]]
        # Locks of an earlier attempt do not count: every attempt has a stamp of its own.
        fault, version, allocated, ready, scratch_at = _bring(
            w, s, t, device[t], 2 * position + 1 + again, finish_s, write_back
        )
        if fault == NO_ROOM and not again:
            _give_back(w, s, t, memory, allocated)
            again = True
            fault, version = _empty(w, s, memory)
            if fault == FINE:
                continue
        if fault != FINE:
            task, needed = t, _bytes_needed(w, s, t, device[t])
            break
        again = False
        first, last = w.device_lane_ptr[device[t]], w.device_lane_ptr[device[t] + 1]
        start = earliest(s, w.device_lanes, first, last, ready, duration_s[t])
        start_s[t], finish_s[t] = start, start + duration_s[t]
        hold(s, w.device_lanes, first, last, start, finish_s[t])
        _run(w, s, t, device[t], start, finish_s[t], scratch_at)
        position += 1
    makespan = finish_s.max() if n > 0 else 0.0
    if fault == FINE:
        fault, version, memory, makespan = _place_finals(w, s, 2 * n + 1, makespan, write_back)
        if fault != FINE:
            task, needed = n, room_of(w, version, memory)
    if fault == FINE:
        for v in range(n_versions):
            for m in range(len(w.capacity)):
                if s.there_s[v, m] < np.inf:
                    if w.final_memory[v] == m:
                        s.busy_s[v, m] = max(s.busy_s[v, m], makespan)
                    drop(w, s, v, m)
    return fault, task, memory, version, needed, makespan, *_tables(w, s, start_s, finish_s)


@nb.njit(cache=True)
def _list_readers(w, s, order, device):  # type: ignore[no-untyped-def]
    at = w.reader_ptr[:-1].copy()
    for position in range(len(order)):
        t = order[position]
        for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
            v = w.input_versions[k]
            s.reader_position[at[v]] = position
            s.reader_memory[at[v]] = w.device_memory[device[t]]
            at[v] += 1


@nb.njit(cache=True)
def _place_homes(w, s, write_back):  # type: ignore[no-untyped-def]
    """Give the home copies their bytes; return (fault, version, memory)."""
    for v in range(len(w.size)):
        s.lock[v] = 0
        for k in range(w.home_ptr[v], w.home_ptr[v + 1]):
            memory = w.home_memories[k]
            fault, offset, _ = allocate(w, s, memory, room_of(w, v, memory), v, 0, write_back)
            if fault != FINE:
                return fault, v, np.int64(memory)
            s.there_s[v, memory] = 0.0
            s.offset[v, memory] = offset
            s.holders[v] += 1
    return FINE, 0, np.int64(0)


@nb.njit(cache=True)
def _bring(w, s, t, d, stamp, finish_s, write_back):  # type: ignore[no-untyped-def]
    """Bring inputs and make room for outputs and scratch.

    Return (fault, version, outputs given room, ready in seconds, offset of the scratch).
    """
    memory = w.device_memory[d]
    ready, scratch_at = 0.0, np.int64(0)
    first = w.output_ptr[t]
    for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
        s.lock[w.input_versions[k]] = stamp
    for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
        v = w.input_versions[k]
        fault = fetch(w, s, v, memory, stamp, write_back)
        if fault != FINE:
            return fault, np.int64(v), first, ready, scratch_at
        ready = max(ready, s.there_s[v, memory])
    for k in range(w.after_ptr[t], w.after_ptr[t + 1]):
        ready = max(ready, finish_s[w.after_tasks[k]])
    for k in range(first, w.output_ptr[t + 1]):
        v = w.output_versions[k]
        s.lock[v] = stamp
        if _in_place(w, s, k):
            ready = max(ready, s.busy_s[w.takes_over[k], memory])
            continue
        fault, offset, since = allocate(w, s, memory, room_of(w, v, memory), v, stamp, write_back)
        if fault != FINE:
            return fault, np.int64(v), k, ready, scratch_at
        s.offset[v, memory], s.busy_s[v, memory] = offset, since
        ready = max(ready, since)
    scratch = w.scratch[w.task_class[t], d]
    if scratch > 0:
        s.lock[len(w.size)] = stamp
        room = -(-scratch // w.unit[memory]) * w.unit[memory]
        fault, scratch_at, since = allocate(w, s, memory, room, len(w.size), stamp, write_back)
        if fault != FINE:
            return fault, np.int64(0), w.output_ptr[t + 1], ready, scratch_at
        ready = max(ready, since)
    return FINE, np.int64(0), w.output_ptr[t + 1], ready, scratch_at


@nb.njit(cache=True)
def _in_place(w, s, k):  # type: ignore[no-untyped-def]
    """Return whether output ``k`` takes over the bytes of the version it updates: nobody else reads that any more."""
    old = w.takes_over[k]
    return old >= 0 and s.rest[old] == 1


@nb.njit(cache=True)
def _segment(s, memory, offset):  # type: ignore[no-untyped-def]
    return np.searchsorted(s.seg_begin[memory][: s.seg_n[memory]], offset)


@nb.njit(cache=True)
def _give_back(w, s, t, memory, last):  # type: ignore[no-untyped-def]
    """Free what outputs up to ``last`` of a task that does not fit were given."""
    for k in range(w.output_ptr[t], last):
        v = w.output_versions[k]
        if not _in_place(w, s, k) and room_of(w, v, memory) > 0:
            i = _segment(s, memory, s.offset[v, memory])
            s.seg_owner[memory][i] = FREE
            s.seg_since[memory][i] = s.busy_s[v, memory]


@nb.njit(cache=True)
def _empty(w, s, memory):  # type: ignore[no-untyped-def]
    """Evict every copy; return (fault, version)."""
    for i in range(s.seg_n[memory]):
        v = s.seg_owner[memory][i]
        if v != FREE and not evict(w, s, v, memory):
            return NO_HOST, v
    return FINE, np.int64(0)


@nb.njit(cache=True)
def _bytes_needed(w, s, t, d):  # type: ignore[no-untyped-def]
    """Return the bytes of a task's inputs, outputs and scratch in the memory of device ``d``."""
    memory = w.device_memory[d]
    needed = w.scratch[w.task_class[t], d]
    for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
        needed += room_of(w, w.input_versions[k], memory)
    for k in range(w.output_ptr[t], w.output_ptr[t + 1]):
        if not _in_place(w, s, k):
            needed += room_of(w, w.output_versions[k], memory)
    return needed


@nb.njit(cache=True)
def _run(w, s, t, d, start, end, scratch_at):  # type: ignore[no-untyped-def]
    """Let a task run from ``start`` to ``end``: outputs appear, copies that nobody reads any more leave."""
    memory = w.device_memory[d]
    scratch = w.scratch[w.task_class[t], d]
    if scratch > 0 and w.capacity[memory] >= 0:
        i = _segment(s, memory, scratch_at)
        s.seg_owner[memory][i] = FREE
        s.seg_since[memory][i] = end
        s.rows.append((np.int64(memory), start, scratch_at, np.int64(-1), np.int64(scratch), end))
    for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
        v = w.input_versions[k]
        s.busy_s[v, memory] = max(s.busy_s[v, memory], end)
    for k in range(w.output_ptr[t], w.output_ptr[t + 1]):
        v = w.output_versions[k]
        if _in_place(w, s, k):
            old = w.takes_over[k]
            s.offset[v, memory] = s.offset[old, memory]
            drop(w, s, old, memory)
            if w.capacity[memory] >= 0 and w.size[v] > 0:
                s.seg_owner[memory][_segment(s, memory, s.offset[v, memory])] = v
        s.there_s[v, memory] = end
        s.busy_s[v, memory] = end
        s.alloc_s[v, memory] = start
        s.holders[v] = 1
    for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
        v = w.input_versions[k]
        s.done[v] += 1
        s.rest[v] -= 1
        if s.rest[v] == 0:
            for m in range(len(w.capacity)):
                if s.there_s[v, m] < np.inf:
                    drop(w, s, v, m)
    for k in range(w.output_ptr[t], w.output_ptr[t + 1]):
        if s.rest[w.output_versions[k]] == 0:
            drop(w, s, w.output_versions[k], memory)


@nb.njit(cache=True)
def _place_finals(w, s, stamp, makespan, write_back):  # type: ignore[no-untyped-def]
    """Bring the last versions where they must get; return (fault, version, memory, makespan)."""
    for v in range(len(w.size)):
        if w.final_memory[v] >= 0:
            s.lock[v] = stamp
    for v in range(len(w.size)):
        memory = w.final_memory[v]
        if memory >= 0:
            fault = fetch(w, s, v, memory, stamp, write_back)
            if fault != FINE:
                return fault, np.int64(v), np.int64(memory), makespan
            makespan = max(makespan, s.there_s[v, memory])
    return FINE, np.int64(0), np.int64(0), makespan


@nb.njit(cache=True)
def _tables(w, s, start_s, finish_s):  # type: ignore[no-untyped-def]
    """Return bytes moved, times, transfers and buffers as arrays."""
    s.moves.sort()
    s.rows.sort()
    n = len(s.moves)
    move_version, move_link = np.empty(n, np.int32), np.empty(n, np.int32)
    move_start, move_finish = np.empty(n), np.empty(n)
    moved = 0.0
    for i in range(n):
        move_start[i], move_finish[i], move_version[i], move_link[i] = s.moves[i]
        moved += w.size[move_version[i]]
    n = len(s.rows)
    row_memory, row_version = np.empty(n, np.int32), np.empty(n, np.int32)
    row_offset, row_size = np.empty(n, np.int64), np.empty(n, np.int64)
    row_alloc, row_free = np.empty(n), np.empty(n)
    for i in range(n):
        row_memory[i], row_alloc[i], row_offset[i], row_version[i], row_size[i], row_free[i] = s.rows[i]
    return (
        moved, start_s, finish_s, move_version, move_link, move_start, move_finish,
        row_memory, row_version, row_offset, row_size, row_alloc, row_free,
    )  # fmt: skip
