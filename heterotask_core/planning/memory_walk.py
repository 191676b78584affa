"""The walk of :mod:`~heterotask_core.planning.memory` over tasks in order: copies, buffers, transfers (Numba).

It never goes back: bytes are handed out in walking order, and a buffer starts when the last one on its bytes has
ended. A task that finds no gap wide enough though its bytes would fit empties the memory and starts again, and then
once more without keeping the old versions of what it updates.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np

from heterotask_core.planning.core import pop, push
from heterotask_core.planning.memory_state import (
    FINE,
    FREE,
    NO_ROOM,
    OVERFLOW,
    State,
    Walk,
    add_row,
    allocate,
    clear,
    drop,
    earliest,
    evict,
    fetch,
    hold,
    open_state,
    open_walk,
    room_of,
    segment,
    state,
    walk_view,
)
from heterotask_core.planning.problem import F64, I32, I64, Problem
from heterotask_core.planning.raw import addresses, inner


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


class Walker:
    """Walks of one problem, in one state that is used again. Not shared between threads."""

    def __init__(self, problem: Problem) -> None:
        self._view: Walk = walk_view(problem)
        self._packed_view = addresses(self._view)
        self._allocate(state(self._view))

    def _allocate(self, room: State) -> None:
        self._state = room
        self._packed_state = addresses(room)

    def walk(self, key: F64, device: I64, duration_s: F64, early: float) -> tuple[int, float, float]:
        """Walk the tasks by ``key``, then index, each after what it waits for; return (fault, makespan, bytes moved).

        Each runs on ``device`` (T,) for ``duration_s`` (T,). A copy that has to be written back before it leaves
        counts as read ``early`` tasks earlier than it is.
        """
        while True:
            _walk(self._packed_view, self._packed_state, -key, device, duration_s, early)
            if self._state.fault[0] != OVERFLOW:
                return int(self._state.fault[0]), float(self._state.result[0]), float(self._state.result[1])
            self._allocate(state(self._view, 4 * self._state.room))

    def walked(self) -> Walked:
        """Return the last walk's result, transfers sorted by start, buffers by memory and start."""
        s = self._state
        moves, rows = int(s.used[0]), int(s.used[1])
        # Sorted by all columns, so that the order in which they were decided does not show.
        x = np.lexsort((s.move_link[:moves], s.move_version[:moves], s.move_finish[:moves], s.move_start[:moves]))
        y = np.lexsort(
            (s.row_free[:rows], s.row_size[:rows], s.row_version[:rows], s.row_offset[:rows], s.row_alloc[:rows],
             s.row_memory[:rows])
        )  # fmt: skip
        fault, task, fault_memory, fault_version, needed = s.fault.tolist()
        return Walked(
            fault, task, fault_memory, fault_version, needed, float(s.result[0]), float(s.result[1]),
            s.start_s.copy(), s.finish_s.copy(), s.move_version[x].astype(np.int32), s.move_link[x].astype(np.int32),
            s.move_start[x], s.move_finish[x], s.row_memory[y].astype(np.int32), s.row_version[y].astype(np.int32),
            s.row_offset[y], s.row_size[y], s.row_alloc[y], s.row_free[y],
        )  # fmt: skip


@inner
def _order(w, s, priority):  # type: ignore[no-untyped-def]
    """Set ``order`` to the tasks by highest priority, then index, each after what it waits for."""
    n_ready, count = 0, 0
    for t in range(w.n_tasks):
        s.waiting[t] = w.waiting[t]
        if w.waiting[t] == 0:
            push(s.heap, n_ready, priority, t)
            n_ready += 1
    while n_ready > 0:
        t = pop(s.heap, n_ready, priority)
        n_ready -= 1
        s.order[count] = t
        count += 1
        for k in range(w.output_ptr[t], w.output_ptr[t + 1]):
            v = w.output_versions[k]
            for i in range(w.reader_ptr[v], w.reader_ptr[v + 1]):
                n_ready = _release(s, n_ready, priority, w.readers[i])
        for i in range(w.follower_ptr[t], w.follower_ptr[t + 1]):
            n_ready = _release(s, n_ready, priority, w.followers[i])


@inner
def _release(s, n_ready, priority, task):  # type: ignore[no-untyped-def]
    s.waiting[task] -= 1
    if s.waiting[task] > 0:
        return n_ready
    push(s.heap, n_ready, priority, task)
    return n_ready + 1


@nb.njit(cache=True)
def _walk(view, room, priority, device, duration_s, early):  # type: ignore[no-untyped-def]
    """Walk; the results are left in the state."""
    w, s = open_walk(view), open_state(room)
    n = w.n_tasks
    clear(w, s)
    _order(w, s, priority)
    _list_readers(w, s, device)
    fault, version, memory = _place_homes(w, s, early)
    task, needed, makespan = -1, 0, 0.0
    if fault != FINE:
        needed = room_of(w, version, memory)
    position, again = 0, np.int64(0)
    while fault == FINE and position < n:
        t = s.order[position]
        d = device[t]
        memory = w.device_memory[d]
        # Locks of an earlier attempt do not count: every attempt has a stamp of its own.
        fault, version, allocated, ready, scratch_at = _bring(w, s, t, d, 3 * position + 1 + again, early)
        if fault == NO_ROOM and again < 2:
            _give_back(w, s, t, memory, allocated)
            again += 1
            fault, version = _empty(w, s, memory)
            if fault == FINE and again == 2:
                _give_up(w, s, t)
            if fault == FINE:
                continue
        if fault != FINE:
            task, needed = t, _bytes_needed(w, s, t, d)
            break
        again = np.int64(0)
        first, last = w.device_lane_ptr[d], w.device_lane_ptr[d + 1]
        start = earliest(s, w.device_lanes, first, last, ready, duration_s[t])
        finish = start + duration_s[t]
        s.start_s[t] = start
        s.finish_s[t] = finish
        makespan = max(makespan, finish)
        if not hold(s, w.device_lanes, first, last, start, finish) or not _run(w, s, t, d, start, finish, scratch_at):
            fault = OVERFLOW
        position += 1
    if fault == FINE:
        fault, version, memory, makespan = _place_finals(w, s, 3 * n + 1, makespan, early)
        if fault != FINE:
            task, needed = n, room_of(w, version, memory)
    if fault == FINE and not _leave(w, s, makespan):
        fault = OVERFLOW
    moved = 0.0
    for i in range(s.used[0]):
        moved += w.size[s.move_version[i]]
    s.result[0] = makespan
    s.result[1] = moved
    s.fault[0] = fault
    s.fault[1] = task
    s.fault[2] = memory
    s.fault[3] = version
    s.fault[4] = needed


@inner
def _list_readers(w, s, device):  # type: ignore[no-untyped-def]
    """List the readers of every version in walking order; ``done`` counts them on the way."""
    for position in range(w.n_tasks):
        t = s.order[position]
        for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
            v = w.input_versions[k]
            at = w.reader_ptr[v] + s.done[v]
            s.reader_position[at] = position
            s.reader_memory[at] = w.device_memory[device[t]]
            s.done[v] += 1
    for v in range(w.n_versions):
        s.done[v] = 0


@inner
def _place_homes(w, s, early):  # type: ignore[no-untyped-def]
    """Give the home copies their bytes; return (fault, version, memory)."""
    for v in range(w.n_versions):
        s.lock[v] = 0
        for k in range(w.home_ptr[v], w.home_ptr[v + 1]):
            memory = w.home_memories[k]
            fault, offset, _ = allocate(w, s, memory, room_of(w, v, memory), v, 0, early)
            if fault != FINE:
                return fault, v, memory
            s.there_s[v * w.n_memories + memory] = 0.0
            s.offset[v * w.n_memories + memory] = offset
            s.holders[v] += 1
    return FINE, 0, 0


@inner
def _bring(w, s, t, d, stamp, early):  # type: ignore[no-untyped-def]
    """Bring inputs and make room for outputs and scratch.

    Return (fault, version, outputs given room, ready in seconds, offset of the scratch).
    """
    memory = w.device_memory[d]
    ready, scratch_at = 0.0, 0
    first, last = w.output_ptr[t], w.output_ptr[t + 1]
    for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
        s.lock[w.input_versions[k]] = stamp
    for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
        v = w.input_versions[k]
        fault = fetch(w, s, v, memory, stamp, early)
        if fault != FINE:
            return fault, v, first, ready, scratch_at
        ready = max(ready, s.there_s[v * w.n_memories + memory])
    for k in range(w.after_ptr[t], w.after_ptr[t + 1]):
        ready = max(ready, s.finish_s[w.after_tasks[k]])
    # The outputs, and the scratch as one more version behind all others.
    for k in range(first, last + 1):
        if k == last:
            v = w.n_versions
            room = -(-w.scratch[w.task_class[t] * w.n_devices + d] // w.unit[memory]) * w.unit[memory]
            if room <= 0:
                break
        else:
            v = w.output_versions[k]
            room = room_of(w, v, memory)
        s.lock[v] = stamp
        if k < last and _in_place(w, s, k):
            ready = max(ready, s.busy_s[w.takes_over[k] * w.n_memories + memory])
            continue
        fault, offset, since = allocate(w, s, memory, room, v, stamp, early)
        if fault != FINE:
            return fault, v if k < last else 0, k, ready, scratch_at
        s.offset[v * w.n_memories + memory] = offset
        s.busy_s[v * w.n_memories + memory] = since
        scratch_at = offset
        ready = max(ready, since)
    return FINE, 0, last, ready, scratch_at


@inner
def _in_place(w, s, k):  # type: ignore[no-untyped-def]
    """Return whether output ``k`` takes over the bytes of the version it updates: nobody else reads that copy."""
    old = w.takes_over[k]
    return old >= 0 and (s.rest[old] == 1 or s.given_up[old] == 1)


@inner
def _give_up(w, s, t):  # type: ignore[no-untyped-def]
    """Let a task take over what it updates though others read that still: from their copies, or the host's.

    All copies of the memory were evicted before, so there is another copy of each version that is still read.
    """
    for k in range(w.output_ptr[t], w.output_ptr[t + 1]):
        if w.takes_over[k] >= 0:
            s.given_up[w.takes_over[k]] = 1


@inner
def _give_back(w, s, t, memory, last):  # type: ignore[no-untyped-def]
    """Free what outputs up to ``last`` of a task that does not fit were given."""
    for k in range(w.output_ptr[t], last):
        v = w.output_versions[k]
        if not _in_place(w, s, k) and room_of(w, v, memory) > 0 and w.capacity[memory] >= 0:
            i = segment(s, memory, s.offset[v * w.n_memories + memory])
            s.seg_owner[i] = FREE
            s.seg_since[i] = s.busy_s[v * w.n_memories + memory]


@inner
def _empty(w, s, memory):  # type: ignore[no-untyped-def]
    """Evict every copy; return (fault, version)."""
    first = memory * s.room
    for i in range(first, first + s.seg_n[memory]):
        v = s.seg_owner[i]
        if v != FREE:
            fault = evict(w, s, v, memory)
            if fault != FINE:
                return fault, v
    return FINE, 0


@inner
def _bytes_needed(w, s, t, d):  # type: ignore[no-untyped-def]
    """Return the bytes of a task's inputs, outputs and scratch in the memory of device ``d``."""
    memory = w.device_memory[d]
    needed = w.scratch[w.task_class[t] * w.n_devices + d]
    for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
        needed += room_of(w, w.input_versions[k], memory)
    for k in range(w.output_ptr[t], w.output_ptr[t + 1]):
        if not _in_place(w, s, k):
            needed += room_of(w, w.output_versions[k], memory)
    return needed


@inner
def _run(w, s, t, d, start, end, scratch_at):  # type: ignore[no-untyped-def]
    """Let a task run from ``start`` to ``end``: outputs appear, copies that nobody reads any more leave.

    False: no room to note them.
    """
    memory, n = w.device_memory[d], w.n_memories
    scratch = w.scratch[w.task_class[t] * w.n_devices + d]
    fits = True
    if scratch > 0 and w.capacity[memory] >= 0:
        i = segment(s, memory, scratch_at)
        s.seg_owner[i] = FREE
        s.seg_since[i] = end
        fits = add_row(s, memory, start, scratch_at, -1, scratch, end)
    for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
        at = w.input_versions[k] * n + memory
        s.busy_s[at] = max(s.busy_s[at], end)
    for k in range(w.output_ptr[t], w.output_ptr[t + 1]):
        v = w.output_versions[k]
        at = v * n + memory
        if _in_place(w, s, k):
            old = w.takes_over[k]
            s.offset[at] = s.offset[old * n + memory]
            fits &= drop(w, s, old, memory)
            if w.capacity[memory] >= 0 and w.size[v] >= 1.0:
                s.seg_owner[segment(s, memory, s.offset[at])] = v
        s.there_s[at] = end
        s.busy_s[at] = end
        s.alloc_s[at] = start
        s.holders[v] = 1
    for k in range(w.input_ptr[t], w.input_ptr[t + 1]):
        v = w.input_versions[k]
        s.done[v] += 1
        s.rest[v] -= 1
        fits &= _dropped_if_done(w, s, v)
    for k in range(w.output_ptr[t], w.output_ptr[t + 1]):
        fits &= _dropped_if_done(w, s, w.output_versions[k])
    return fits


@inner
def _dropped_if_done(w, s, v):  # type: ignore[no-untyped-def]
    """End all residencies of a version that nobody reads any more. False: no room to note them."""
    fits = True
    if s.rest[v] == 0:
        for m in range(w.n_memories):
            if s.there_s[v * w.n_memories + m] < np.inf:
                fits &= drop(w, s, v, m)
    return fits


@inner
def _place_finals(w, s, stamp, makespan, early):  # type: ignore[no-untyped-def]
    """Bring the last versions where they must get; return (fault, version, memory, makespan)."""
    for v in range(w.n_versions):
        if w.final_memory[v] >= 0:
            s.lock[v] = stamp
    for v in range(w.n_versions):
        memory = w.final_memory[v]
        if memory >= 0:
            fault = fetch(w, s, v, memory, stamp, early)
            if fault != FINE:
                return fault, v, memory, makespan
            makespan = max(makespan, s.there_s[v * w.n_memories + memory])
    return FINE, 0, 0, makespan


@inner
def _leave(w, s, makespan):  # type: ignore[no-untyped-def]
    """End all residencies that are left. False: no room to note them."""
    fits = True
    for v in range(w.n_versions):
        for m in range(w.n_memories):
            at = v * w.n_memories + m
            if s.there_s[at] < np.inf:
                if w.final_memory[v] == m:
                    s.busy_s[at] = max(s.busy_s[at], makespan)
                fits &= drop(w, s, v, m)
    return fits
