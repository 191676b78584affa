"""Placing one task or one copy: the compiled steps that list scheduling and search share (Numba).

Inside, arrays are bare pointers (:mod:`~heterotask_core.planning.raw`). Arguments are int64 though arrays are int32:
each mixture of the two would be compiled anew, and so would a constant, which has a type of its own at first.

Lanes are kept as :mod:`~heterotask_core.planning.lanes` says. The copies of a version form a list from ``copy_head``
through ``copy_next``, latest first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterotask_core.planning.lanes import BLOCK, gap, hold, hold_after, hold_planned
from heterotask_core.planning.problem import F64, I32, I64
from heterotask_core.planning.raw import inner, opener
from heterotask_core.planning.view import MAX_HOPS, Arrays

FIRST_ROOM = 256
"""Busy intervals a lane at first, or more where there are many tasks a lane; a pass that needs more is repeated with
four times as many."""
ROOM = 3
"""Intervals for every task and every input, in all lanes together."""
MEMO = 4
"""Gaps of a link that are remembered, one a remainder of the version's number: a task's inputs come by turns."""


class Workspace(NamedTuple):
    """The mutable state of a pass, allocated once."""

    room: int
    max_moves: int
    lane_length: I64
    busy_start: F64
    busy_finish: F64
    widest_s: F64
    """(lanes × room / BLOCK,) the widest gap before any interval of a block, or more; of lanes of BLOCKED and more."""
    finger: I64
    """(lanes,) the interval at which the last search of the lane ended."""
    changes: I64
    """(lanes,) how often the lane has changed, of all passes together."""
    memo_changes: I64
    """(links × MEMO,) of :func:`link_gap`: changes of the link's lanes when it last looked; likewise the next three."""
    memo_since: F64
    memo_duration: F64
    memo_start: F64
    used: I64
    """(copies, moves, planned moves, how often planning began anew, intervals that planned moves hold since)."""
    hold_try: I64
    """(lanes,) the beginning since which planned moves hold the lane; hold_finger: the interval last looked at."""
    hold_finger: I64
    hold_start: F64
    """Intervals that planned moves hold, a list a lane through ``hold_next`` and ``hold_before``, −1 at its ends."""
    hold_finish: F64
    hold_next: I64
    hold_before: I64
    copy_head: I32
    """(V,) the latest copy of each version, −1 for none."""
    copy_next: I32
    copy_memory: I32
    copy_s: F64
    move_version: I32
    move_link: I32
    move_start: F64
    move_finish: F64
    plan_version: I32
    plan_link: I32
    plan_start: F64
    plan_finish: F64
    label_s: F64
    """(hops + 1, M) of :func:`any_route`: arrivals, likewise the next three; known_s (M,)."""
    begin_s: F64
    via: I32
    origin: I32
    known_s: F64
    least_s: F64
    """(M,) of :func:`least_ends`; reach_s likewise."""
    reach_s: F64
    heap: I64
    waiting: I32


def workspace(a: Arrays, room: int = 0, moves: int = 0) -> Workspace:
    """Return a workspace for passes over ``a``: ``room`` intervals a lane (0: by size), ``moves`` transfers."""
    if room == 0:
        room = FIRST_ROOM
        while room * a.n_lanes < ROOM * (a.n_tasks + len(a.input_versions)):
            room *= 4
    n_moves = max(moves, 2 * len(a.input_versions) + a.n_versions, 16)
    n_copies = n_moves + len(a.output_versions) + len(a.home_memories)
    n_plan = 2 * (int(np.diff(a.input_ptr).max(initial=1)) + 1) * MAX_HOPS
    n_holds = n_plan * int(np.diff(a.link_lane_ptr).max(initial=1))
    labels = (MAX_HOPS + 1) * a.n_memories
    i32, f64 = np.int32, np.float64
    return Workspace(
        room=room,
        max_moves=n_moves,
        lane_length=np.zeros(a.n_lanes, np.int64),
        busy_start=np.empty(a.n_lanes * room, f64),
        busy_finish=np.empty(a.n_lanes * room, f64),
        widest_s=np.empty(a.n_lanes * (room // BLOCK + 1), f64),
        finger=np.zeros(a.n_lanes, np.int64),
        changes=np.zeros(a.n_lanes, np.int64),
        memo_changes=np.full(len(a.link_source) * MEMO, -1, np.int64),
        memo_since=np.zeros(len(a.link_source) * MEMO),
        memo_duration=np.zeros(len(a.link_source) * MEMO),
        memo_start=np.zeros(len(a.link_source) * MEMO),
        used=np.zeros(5, np.int64),
        hold_try=np.zeros(a.n_lanes, np.int64),
        hold_finger=np.zeros(a.n_lanes, np.int64),
        hold_start=np.empty(n_holds, f64),
        hold_finish=np.empty(n_holds, f64),
        hold_next=np.empty(n_holds, np.int64),
        hold_before=np.empty(n_holds, np.int64),
        copy_head=np.empty(a.n_versions, i32),
        copy_next=np.empty(n_copies, i32),
        copy_memory=np.empty(n_copies, i32),
        copy_s=np.empty(n_copies, f64),
        move_version=np.empty(n_moves, i32),
        move_link=np.empty(n_moves, i32),
        move_start=np.empty(n_moves, f64),
        move_finish=np.empty(n_moves, f64),
        plan_version=np.empty(n_plan, i32),
        plan_link=np.empty(n_plan, i32),
        plan_start=np.empty(n_plan, f64),
        plan_finish=np.empty(n_plan, f64),
        label_s=np.empty(labels, f64),
        begin_s=np.empty(labels, f64),
        via=np.empty(labels, i32),
        origin=np.empty(labels, i32),
        known_s=np.empty(a.n_memories, f64),
        least_s=np.empty(a.n_memories, f64),
        reach_s=np.empty(a.n_memories, f64),
        heap=np.empty(a.n_tasks, np.int64),
        waiting=np.empty(a.n_tasks, i32),
    )


raw_view, raw_workspace = opener(Arrays), opener(Workspace)
"""For compiled code: addresses of :class:`Arrays`, :class:`Workspace` → the same, pointers in the place of arrays."""


@inner(forceinline=True)
def link_gap(a, w, version, link, t, duration):  # type: ignore[no-untyped-def]
    """Do as :func:`gap` for a transfer over a link; what was found last is right again if nothing has changed."""
    first, last = a.link_lane_ptr[link], a.link_lane_ptr[link + 1]
    at = link * MEMO + version % MEMO
    changes = np.int64(0)
    for i in range(first, last):
        changes += w.changes[a.link_lanes[i]]
    if w.memo_changes[at] == changes and w.memo_duration[at] == duration and w.memo_since[at] <= t <= w.memo_start[at]:
        return w.memo_start[at]
    start = gap(w, a.link_lanes, first, last, t, duration)
    w.memo_changes[at] = changes
    w.memo_since[at] = t
    w.memo_duration[at] = duration
    w.memo_start[at] = start
    return start


@inner
def gap_around(a, w, lanes, first, last, t, duration):  # type: ignore[no-untyped-def]
    """Do as :func:`gap`, around what planned moves hold too."""
    t = gap(w, lanes, first, last, t, duration)
    while True:
        after = _behind_plan(a, w, lanes, first, last, t, duration)
        if after == t:
            return t
        t = gap(w, lanes, first, last, after, duration)


@inner(forceinline=True)
def _behind_plan(a, w, lanes, first, last, t, duration):  # type: ignore[no-untyped-def]
    """Return the end of an interval in which a planned move holds one of the lanes then, ``t`` if there is none."""
    if duration <= 0.0:
        return t
    for k in range(first, last):
        lane = lanes[k]
        if w.hold_try[lane] == w.used[3]:
            i = hold_after(w, lane, t)
            if i >= 0 and w.hold_start[i] < min(t + duration, w.hold_finish[i]):
                return w.hold_finish[i]
    return t


@inner(forceinline=True)
def link_gap_around(a, w, version, link, t, duration):  # type: ignore[no-untyped-def]
    """Do as :func:`link_gap`, around what planned moves hold too."""
    first, last = a.link_lane_ptr[link], a.link_lane_ptr[link + 1]
    t = link_gap(a, w, version, link, t, duration)
    after = _behind_plan(a, w, a.link_lanes, first, last, t, duration)
    return t if after == t else gap_around(a, w, a.link_lanes, first, last, after, duration)


@inner(forceinline=True)
def copy_time(w, version, memory):  # type: ignore[no-untyped-def]
    """Return when the version is in the memory, infinite if it is not on its way there."""
    c = w.copy_head[version]
    while c >= 0:
        if w.copy_memory[c] == memory:
            return w.copy_s[c]
        c = w.copy_next[c]
    return np.inf


@inner(forceinline=True)
def add_copy(w, version, memory, time_s):  # type: ignore[no-untyped-def]
    """Note a copy of the version."""
    c = w.used[0]
    w.copy_memory[c] = memory
    w.copy_s[c] = time_s
    w.copy_next[c] = w.copy_head[version]
    w.copy_head[version] = c
    w.used[0] = c + 1


@inner(forceinline=True)
def plan_from(w, kept):  # type: ignore[no-untyped-def]
    """Forget the planned moves from ``kept`` on, and what all of them hold."""
    w.used[2] = kept
    w.used[3] += 1
    w.used[4] = 0


@inner(forceinline=True)
def reset(a, w):  # type: ignore[no-untyped-def]
    """Empty the workspace: free lanes, home copies only."""
    for lane in range(a.n_lanes):
        w.lane_length[lane] = 0
        w.changes[lane] += 1
    w.used[0] = 0
    w.used[1] = 0
    plan_from(w, np.int64(0))
    for v in range(a.n_versions):
        w.copy_head[v] = -1
        for k in range(a.home_ptr[v], a.home_ptr[v + 1]):
            add_copy(w, v, np.int64(a.home_memories[k]), 0.0)


@inner(forceinline=True)
def _plan_hop(w, at, version, link, start, finish):  # type: ignore[no-untyped-def]
    w.plan_version[at] = version
    w.plan_link[at] = link
    w.plan_start[at] = start
    w.plan_finish[at] = finish


@inner
def _direct(a, w, version, memory):  # type: ignore[no-untyped-def]
    """Return (arrival, start, link) of the earliest single hop (tie: lower source); link −1 if there is none."""
    n = a.n_memories
    size = a.version_size[version]
    best, best_source, best_start, best_link = np.inf, n, 0.0, np.int64(-1)
    c = w.copy_head[version]
    while c >= 0:
        source = w.copy_memory[c]
        link = a.direct_link[source * n + memory]
        if link >= 0:
            since = w.copy_s[c]
            duration = a.latency_s[link] + size / a.bandwidth[link]
            if since + duration <= best:
                start = since
                if a.contention:
                    start = link_gap_around(a, w, version, link, since, duration)
                arrival = start + duration
                if arrival < best or (arrival == best and source < best_source):
                    best, best_source, best_start, best_link = arrival, source, start, link
        c = w.copy_next[c]
    return best, best_start, best_link


@inner
def direct_route(a, w, version, memory):  # type: ignore[no-untyped-def]
    """Do as :func:`route` with single hops only."""
    best, start, link = _direct(a, w, version, memory)
    if link >= 0:
        _plan_hop(w, w.used[2], version, link, start, best)
        w.used[2] += 1
    return best


@inner
def route(a, w, version, memory, limit):  # type: ignore[no-untyped-def]
    """Plan the earliest route of a version to a memory that has none; return its arrival, infinite without one.

    Routes that arrive after ``limit`` may be left out. The hops are appended to the planned moves, first hop first.
    """
    n = a.n_memories
    size = a.version_size[version]
    best, best_start, best_link = _direct(a, w, version, memory)
    # Is there a way around that could be faster?
    soon = min(best, limit)
    c = w.copy_head[version]
    while c >= 0:
        source, since = w.copy_memory[c], w.copy_s[c]
        if (
            since + (a.least_latency_s[source * n + memory] + size * a.least_seconds_per_byte[source * n + memory])
            <= soon
        ):
            for k in range(a.source_ptr[source], a.source_ptr[source + 1]):
                link = a.source_links[k]
                to = a.link_target[link]
                if to == memory:
                    continue
                rest = a.least_latency_s[to * n + memory] + size * a.least_seconds_per_byte[to * n + memory]
                duration = a.latency_s[link] + size / a.bandwidth[link]
                start = since
                if a.contention and since + duration + rest <= soon:
                    start = link_gap(a, w, version, link, since, duration)
                if start + duration + rest <= soon:
                    return any_route(a, w, version, memory, limit)
        c = w.copy_next[c]
    if best_link >= 0:
        _plan_hop(w, w.used[2], version, best_link, best_start, best)
        w.used[2] += 1
    return best


@inner
def _some_arrival(a, w, version, memory):  # type: ignore[no-untyped-def]
    """Return when the version would arrive along one cheap route: an upper bound, infinite if that is too long."""
    n = a.n_memories
    size = a.version_size[version]
    least, m, since = np.inf, -1, 0.0
    c = w.copy_head[version]
    while c >= 0:
        at = w.copy_memory[c] * n + memory
        value = w.copy_s[c] + (a.least_latency_s[at] + size * a.least_seconds_per_byte[at])
        if value < least:
            least, m, since = value, w.copy_memory[c], w.copy_s[c]
        c = w.copy_next[c]
    hops = 0
    while m >= 0 and m != memory:
        link = a.next_link[m * n + memory]
        if link < 0 or hops == MAX_HOPS:
            return np.inf
        duration = a.latency_s[link] + size / a.bandwidth[link]
        if a.contention:
            since = link_gap_around(a, w, version, link, since, duration)
        since += duration
        m = a.link_target[link]
        hops += 1
    return since if m >= 0 else np.inf


@inner
def any_route(a, w, version, memory, limit):  # type: ignore[no-untyped-def]
    """Do as :func:`route` over all routes, hop by hop: the general case."""
    n = a.n_memories
    size = a.version_size[version]
    for i in range((MAX_HOPS + 1) * n):
        w.label_s[i] = np.inf
        w.origin[i] = n
    for m in range(n):
        w.known_s[m] = np.inf
    c = w.copy_head[version]
    while c >= 0:
        m = w.copy_memory[c]
        w.known_s[m] = min(w.known_s[m], w.copy_s[c])
        w.label_s[m] = w.known_s[m]
        w.origin[m] = m
        c = w.copy_next[c]
    bound = min(limit, _some_arrival(a, w, version, memory))
    for h in range(1, MAX_HOPS + 1):
        extended = False
        for m in range(n):
            since = w.label_s[(h - 1) * n + m]
            if since == np.inf:
                continue
            floor = a.least_latency_s[m * n + memory] + size * a.least_seconds_per_byte[m * n + memory]
            if since + floor > bound or not since + floor < w.known_s[memory]:
                continue
            origin = w.origin[(h - 1) * n + m]
            for k in range(a.source_ptr[m], a.source_ptr[m + 1]):
                link = a.source_links[k]
                to = a.link_target[link]
                duration = a.latency_s[link] + size / a.bandwidth[link]
                rest = a.least_latency_s[to * n + memory] + size * a.least_seconds_per_byte[to * n + memory]
                # Later than a route that is known, or than a copy that is there: no gap has to be looked for.
                if since + duration + rest > min(bound, w.known_s[memory]) or since + duration > w.known_s[to]:
                    continue
                start = since
                if a.contention:
                    start = link_gap_around(a, w, version, link, since, duration)
                arrival = start + duration
                at = h * n + to
                tie = arrival == w.label_s[at] and origin < w.origin[at]
                if arrival < w.known_s[to] or tie:
                    w.label_s[at] = arrival
                    w.begin_s[at] = start
                    w.via[at] = link
                    w.origin[at] = origin
                    w.known_s[to] = arrival
                    extended = True
        if not extended:
            break
    best, hops = w.known_s[memory], 0
    if best < np.inf:
        while w.label_s[hops * n + memory] != best:
            hops += 1
        m = memory
        for h in range(hops, 0, -1):
            at = h * n + m
            link = np.int64(w.via[at])
            _plan_hop(w, w.used[2] + h - 1, version, link, w.begin_s[at], w.label_s[at])
            m = a.link_source[link]
        w.used[2] += hops
    return best


@inner
def inputs_arrive(a, w, task, memory, since, limit):  # type: ignore[no-untyped-def]
    """Plan the transfers of a task's inputs to a memory and hold them; return when the last is there, or ``since``.

    Infinite without a route, or if that is after ``limit``.
    """
    for k in range(a.input_ptr[task], a.input_ptr[task + 1]):
        v = np.int64(a.input_versions[k])
        there = copy_time(w, v, memory)
        if there == np.inf:
            planned = w.used[2]
            there = route(a, w, v, memory, limit)
            if a.contention and there <= limit:
                for h in range(planned, w.used[2]):
                    link = w.plan_link[h]
                    for i in range(a.link_lane_ptr[link], a.link_lane_ptr[link + 1]):
                        hold_planned(w, a.link_lanes[i], w.plan_start[h], w.plan_finish[h])
        if there > limit or there == np.inf:
            return np.inf
        since = max(since, there)
    return since


@inner
def least_arrivals(a, w, task, since):  # type: ignore[no-untyped-def]
    """Set ``least_s`` to a lower bound of when the task's inputs are in each memory: no lane is busy."""
    n = a.n_memories
    for m in range(n):
        w.least_s[m] = since
    for k in range(a.input_ptr[task], a.input_ptr[task + 1]):
        v = a.input_versions[k]
        size = a.version_size[v]
        for m in range(n):
            w.reach_s[m] = np.inf
        c = w.copy_head[v]
        while c >= 0:
            there = w.copy_s[c]
            at = w.copy_memory[c] * n
            for m in range(n):
                value = there + (a.least_latency_s[at + m] + size * a.least_seconds_per_byte[at + m])
                w.reach_s[m] = min(w.reach_s[m], value)
            c = w.copy_next[c]
        for m in range(n):
            w.least_s[m] = max(w.least_s[m], w.reach_s[m])


@inner
def carry_out(a, w, first, last):  # type: ignore[no-untyped-def]
    """Turn planned moves into moves: hold their lanes, note the copies. False if the workspace is too small."""
    for h in range(first, last):
        at = w.used[1]
        if at == w.max_moves:
            return False
        v, link, begin, end = np.int64(w.plan_version[h]), w.plan_link[h], w.plan_start[h], w.plan_finish[h]
        w.move_version[at] = v
        w.move_link[at] = link
        w.move_start[at] = begin
        w.move_finish[at] = end
        w.used[1] = at + 1
        add_copy(w, v, np.int64(a.link_target[link]), end)
        if a.contention:
            for i in range(a.link_lane_ptr[link], a.link_lane_ptr[link + 1]):
                lane = a.link_lanes[i]
                if not hold(w, lane, a.least_hold_s[lane], begin, end):
                    return False
    return True


@inner
def occupy(a, w, task, p, start, finish):  # type: ignore[no-untyped-def]
    """Hold the lanes of the device and note what the task makes. False if the workspace is too small."""
    for i in range(a.device_lane_ptr[p], a.device_lane_ptr[p + 1]):
        lane = a.device_lanes[i]
        if not hold(w, lane, a.least_hold_s[lane], start, finish):
            return False
    for k in range(a.output_ptr[task], a.output_ptr[task + 1]):
        add_copy(w, np.int64(a.output_versions[k]), np.int64(a.device_memory[p]), finish)
    return True


@inner
def deliver(a, w):  # type: ignore[no-untyped-def]
    """Bring final versions to their memories; return the last arrival, infinite without a route, −1 without room."""
    last = 0.0
    for v in range(a.n_versions):
        memory = np.int64(a.final_memory[v])
        if memory < 0:
            continue
        there = copy_time(w, v, memory)
        if there == np.inf:
            plan_from(w, np.int64(0))
            there = route(a, w, v, memory, np.inf)
            if there == np.inf:
                return there
            if not carry_out(a, w, np.int64(0), w.used[2]):
                return -1.0
        last = max(last, there)
    return last
