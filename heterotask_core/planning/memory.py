"""Planned memory: buffers with offsets, eviction, write-back and re-fetch for memories with a capacity.

:func:`fit_memory` walks a schedule in start order, keeps its devices, and decides copies anew. It never goes
back: bytes are handed out in walking order, and a buffer starts when the last one on its bytes has ended.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, replace

import numpy as np

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning.core import MAX_HOPS
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.schedule import Buffers, Schedule

SCRATCH = -1
"""The version of a buffer that holds scratch bytes while a task runs."""


@dataclass
class _Copy:
    """A residency: bytes [offset, offset + room) from ``alloc_s`` on; ``busy_s`` is the end of its last use."""

    offset: int
    room: int
    alloc_s: float
    there_s: float
    busy_s: float


class _Lanes:
    """Busy intervals of every lane; the earliest gap common to several."""

    def __init__(self, n: int) -> None:
        self._busy: list[list[tuple[float, float]]] = [[] for _ in range(n)]

    def take(self, lanes: list[int], ready_s: float, duration_s: float) -> float:
        start = self.earliest(lanes, ready_s, duration_s)
        if duration_s > 0:
            for lane in lanes:
                bisect.insort(self._busy[lane], (start, start + duration_s))
        return start

    def earliest(self, lanes: list[int], ready_s: float, duration_s: float) -> float:
        t, moved = ready_s, duration_s > 0
        while moved:
            moved = False
            for lane in lanes:
                busy = self._busy[lane]
                i = max(0, bisect.bisect_left(busy, (t, -1.0)) - 1)
                while i < len(busy) and busy[i][0] < t + duration_s:
                    if busy[i][1] > t:
                        t, moved = busy[i][1], True
                    i += 1
        return t


class _Fit:
    """The state of one walk."""

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        p = self.problem = problem
        self.schedule = schedule
        self.capacity = [int(c) for c in p.memory_capacity_bytes]
        self.copies: list[dict[int, _Copy]] = [{} for _ in self.capacity]
        self.ended: list[list[tuple[int, int, float]]] = [[] for _ in self.capacity]
        """Bytes that were used: (offset, end, until when)."""
        self.rows: list[tuple[int, int, int, int, float, float]] = []
        self.moves: list[tuple[float, float, int, int]] = []
        self.lanes = _Lanes(len(p.lane_names))
        order = np.lexsort((np.arange(p.n_tasks), schedule.task_start_s)).tolist()
        self.order: list[int] = self._topological(order)
        self.step = 0
        memory = p.device_memory[schedule.task_device]
        self.readers: list[list[tuple[int, int]]] = [[] for _ in range(p.n_versions)]
        for position, t in enumerate(self.order):
            for v in p.input_versions[p.input_ptr[t] : p.input_ptr[t + 1]]:
                self.readers[v].append((position, int(memory[t])))

    def _topological(self, order: list[int]) -> list[int]:
        # Tasks of no duration may share a start with what they wait for: program order settles it.
        done: set[int] = set()
        result: list[int] = []
        p = self.problem

        def visit(t: int) -> None:
            stack = [t]
            while stack:
                top = stack[-1]
                before = [int(x) for x in p.version_producer[p.input_versions[p.input_ptr[top] : p.input_ptr[top + 1]]]]
                before += [int(x) for x in p.after_tasks[p.after_ptr[top] : p.after_ptr[top + 1]]]
                open_ = [b for b in before if b >= 0 and b not in done]
                if open_:
                    stack.extend(open_)
                else:
                    stack.pop()
                    if top not in done:
                        done.add(top)
                        result.append(top)

        for t in order:
            visit(t)
        return result

    def next_read(self, v: int, memory: int) -> float:
        """Position of the next read of the version out of this memory; readers elsewhere count as the last."""
        return min((s for s, m in self.readers[v] if s >= self.step and m == memory), default=float("inf"))

    def needed(self, v: int) -> bool:
        """Whether anyone reads the version from now on, or it must reach a memory."""
        return bool(self.problem.version_final_memory[v] >= 0) or any(s >= self.step for s, _ in self.readers[v])

    def room(self, v: int, memory: int) -> int:
        """Bytes of a buffer, rounded up to the memory's alignment."""
        unit = int(self.problem.memory_alignment_bytes[memory])
        return -(-int(self.problem.version_size_bytes[v]) // unit) * unit

    def drop(self, v: int, memory: int) -> None:
        """End a residency when its last use is over."""
        copy = self.copies[memory].pop(v)
        if self.capacity[memory] >= 0:
            self.rows.append(
                (memory, v, copy.offset, int(self.problem.version_size_bytes[v]), copy.alloc_s, copy.busy_s)
            )
            self.ended[memory].append((copy.offset, copy.offset + copy.room, copy.busy_s))

    def hole(self, memory: int, room: int) -> tuple[int, float] | None:
        """Return (offset, free from) of the gap that is free earliest, or None if no gap is wide enough."""
        taken = sorted((c.offset, c.offset + c.room) for c in self.copies[memory].values() if c.room)
        found, at = [], 0
        for low, high in [*taken, (self.capacity[memory], self.capacity[memory])]:
            if low - at >= room:
                starts = {at, low - room} | {e for _, e, _ in self.ended[memory] if at <= e <= low - room}
                for s in starts:
                    since = max((u for a, e, u in self.ended[memory] if a < s + room and e > s), default=0.0)
                    found.append((since, s))
            at = max(at, high)
        if not found:
            return None
        since, offset = min(found)
        return offset, since

    def allocate(self, memory: int, room: int, locked: set[int], what: str) -> tuple[int, float]:
        """Find room, evicting what is read farthest from now; return (offset, free from)."""
        if self.capacity[memory] < 0 or room == 0:
            return 0, 0.0
        for v in [v for v in self.copies[memory] if v not in locked and not self.needed(v)]:
            self.drop(v, memory)
        while (found := self.hole(memory, room)) is None:
            victims = [v for v, c in self.copies[memory].items() if v not in locked and c.room]
            if not victims:
                held = sum(c.room for c in self.copies[memory].values())
                raise InfeasiblePlanError(
                    f"{what} needs {held + room} bytes in memory {self.problem.memory_names[memory]!r}, "
                    f"there are {self.capacity[memory]} ({room} in one piece); use smaller tiles or another device"
                )
            victim = max(victims, key=lambda v: (self.next_read(v, memory), -v))
            elsewhere = any(victim in c for m, c in enumerate(self.copies) if m != memory)
            if not elsewhere:
                self.write_back(victim, memory, what)
            self.drop(victim, memory)
        offset, since = found
        # What lies on these bytes from now on hides what lay there before.
        self.ended[memory] = [
            piece
            for a, e, u in self.ended[memory]
            for piece in ((a, min(e, offset), u), (max(a, offset + room), e, u))
            if piece[0] < piece[1]
        ]
        return offset, since

    def write_back(self, v: int, memory: int, what: str) -> None:
        """Copy the last copy of a version to the nearest memory without a capacity."""
        hosts = [m for m, c in enumerate(self.capacity) if c < 0]
        routes = [r for m in hosts if (r := self.route(v, m)) is not None]
        if not routes:
            raise InfeasiblePlanError(
                f"{what}: memory {self.problem.memory_names[memory]!r} is full "
                f"({self.capacity[memory]} bytes) and no route leads from it to an unlimited memory; add a link"
            )
        self.follow(v, min(routes)[1], set(), what)

    def route(self, v: int, target: int) -> tuple[float, list[int]] | None:
        """Return (arrival, links) of the earliest route from where the version is."""
        p = self.problem
        label = {m: (c[v].there_s, list[int]()) for m, c in enumerate(self.copies) if v in c}
        best = dict(label)
        size = float(p.version_size_bytes[v])
        for _ in range(MAX_HOPS):
            reached: dict[int, tuple[float, list[int]]] = {}
            for link, (a, b) in enumerate(zip(p.link_source.tolist(), p.link_target.tolist(), strict=True)):
                # A stop on the way needs no planned room where the memory is unlimited; others are no stops.
                if a not in label or (b != target and self.capacity[b] >= 0):
                    continue
                since, links = label[a]
                duration = float(p.link_latency_s[link] + size / p.link_bandwidth_bytes_per_s[link])
                start = self.lanes.earliest(self.lanes_of(link), since, duration)
                if b not in best or start + duration < best[b][0]:
                    best[b] = reached[b] = (start + duration, [*links, link])
            label = reached
        return best.get(target)

    def lanes_of(self, link: int) -> list[int]:
        """Lanes that a transfer holds."""
        p = self.problem
        if not p.contention:
            return []
        lanes: list[int] = p.link_lanes[p.link_lane_ptr[link] : p.link_lane_ptr[link + 1]].tolist()
        return lanes

    def follow(self, v: int, links: list[int], locked: set[int], what: str) -> None:
        """Move a version along a route, a buffer at every stop."""
        p = self.problem
        for link in links:
            source, target = int(p.link_source[link]), int(p.link_target[link])
            if v in self.copies[target]:
                continue
            room = self.room(v, target)
            offset, since = self.allocate(target, room, locked | {v}, what)
            duration = float(p.link_latency_s[link] + p.version_size_bytes[v] / p.link_bandwidth_bytes_per_s[link])
            ready = max(since, self.copies[source][v].there_s)
            start = self.lanes.take(self.lanes_of(link), ready, duration)
            end = start + duration
            self.moves.append((start, end, v, link))
            self.copies[source][v].busy_s = max(self.copies[source][v].busy_s, end)
            self.copies[target][v] = _Copy(offset, room, start, end, end)

    def fetch(self, v: int, memory: int, locked: set[int], what: str) -> None:
        """Bring a version into a memory."""
        if v in self.copies[memory]:
            return
        found = self.route(v, memory)
        if found is None:
            raise InfeasiblePlanError(
                f"{what}: {self.problem.data_names[self.problem.version_data[v]]!r} has no route to "
                f"memory {self.problem.memory_names[memory]!r}; add links"
            )
        self.follow(v, found[1], locked, what)

    def run(self) -> Schedule:
        """Walk the schedule."""
        p, schedule = self.problem, self.schedule
        for v in range(p.n_versions):
            for memory in p.home_memories[p.home_ptr[v] : p.home_ptr[v + 1]].tolist():
                room = self.room(v, memory)
                what = f"data item {p.data_names[p.version_data[v]]!r} (home)"
                offset, _ = self.allocate(memory, room, set(self.copies[memory]), what)
                self.copies[memory][v] = _Copy(offset, room, 0.0, 0.0, 0.0)
        start_s, finish_s = np.zeros(p.n_tasks), np.zeros(p.n_tasks)
        for position, t in enumerate(self.order):
            self.step = position
            start_s[t], finish_s[t] = self.place(t, finish_s)
        self.step = len(self.order)
        makespan = float(finish_s.max(initial=0.0))
        for v in np.flatnonzero(p.version_final_memory >= 0).tolist():
            memory = int(p.version_final_memory[v])
            self.fetch(v, memory, {u for u in self.copies[memory] if self.needed(u)}, "the final copies")
            makespan = max(makespan, self.copies[memory][v].there_s)
        for memory, copies in enumerate(self.copies):
            for v in list(copies):
                copies[v].busy_s = max(copies[v].busy_s, makespan if p.version_final_memory[v] == memory else 0.0)
                self.drop(v, memory)
        self.moves.sort()
        self.rows.sort(key=lambda r: (r[0], r[4], r[2]))
        return replace(
            schedule,
            task_start_s=start_s,
            task_finish_s=finish_s,
            transfer_start_s=np.array([x[0] for x in self.moves], np.float64),
            transfer_finish_s=np.array([x[1] for x in self.moves], np.float64),
            transfer_version=np.array([x[2] for x in self.moves], np.int32),
            transfer_link=np.array([x[3] for x in self.moves], np.int32),
            makespan_s=makespan,
            buffers=Buffers(
                memory=np.array([r[0] for r in self.rows], np.int32),
                version=np.array([r[1] for r in self.rows], np.int32),
                offset_bytes=np.array([r[2] for r in self.rows], np.int64),
                size_bytes=np.array([r[3] for r in self.rows], np.int64),
                alloc_s=np.array([r[4] for r in self.rows], np.float64),
                free_s=np.array([r[5] for r in self.rows], np.float64),
            ),
        )

    def place(self, t: int, finish_s: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
        """Place one task with its buffers; return its start and finish."""
        p, schedule = self.problem, self.schedule
        d = int(schedule.task_device[t])
        memory = int(p.device_memory[d])
        what = f"task {p.task_names[t]!r} on {p.device_names[d]!r}"
        inputs = p.input_versions[p.input_ptr[t] : p.input_ptr[t + 1]].tolist()
        outputs = p.output_versions[p.output_ptr[t] : p.output_ptr[t + 1]].tolist()
        replaced = p.output_takes_over[p.output_ptr[t] : p.output_ptr[t + 1]].tolist()
        locked = set(inputs)
        for v in inputs:
            self.fetch(v, memory, locked, what)
        ready = max((self.copies[memory][v].there_s for v in inputs), default=0.0)
        ready = max([ready, *finish_s[p.after_tasks[p.after_ptr[t] : p.after_ptr[t + 1]]].tolist()])
        made: dict[int, tuple[int, int]] = {}
        in_place: dict[int, int] = {}
        for v, old in zip(outputs, replaced, strict=True):
            others = old >= 0 and any(s > self.step for s, _ in self.readers[old])
            if old >= 0 and not others:
                in_place[v] = old
                ready = max(ready, self.copies[memory][old].busy_s)
                continue
            room = self.room(v, memory)
            offset, since = self.allocate(memory, room, locked, what)
            made[v] = offset, room
            # Held from now on, so that the next output does not get the same bytes.
            self.copies[memory][v] = _Copy(offset, room, since, since, since)
            locked.add(v)
            ready = max(ready, since)
        scratch = 0 if p.class_scratch_bytes is None else int(p.class_scratch_bytes[p.task_class[t], d])
        scratch_at = 0
        if scratch and self.capacity[memory] >= 0:
            unit = int(p.memory_alignment_bytes[memory])
            scratch_at, since = self.allocate(memory, -(-scratch // unit) * unit, locked, what)
            ready = max(ready, since)
        variant = max(int(schedule.task_variant[t]), 0)
        cost = float(p.variant_cost_s[p.task_class[t]][variant, d])
        lanes = p.device_lanes[p.device_lane_ptr[d] : p.device_lane_ptr[d + 1]].tolist()
        start = self.lanes.take(lanes, ready, cost)
        end = start + cost
        for v in inputs:
            self.copies[memory][v].busy_s = max(self.copies[memory][v].busy_s, end)
        for v, old in in_place.items():
            copy = self.copies[memory][old]
            self.drop(old, memory)
            self.ended[memory] = [x for x in self.ended[memory] if x[:2] != (copy.offset, copy.offset + copy.room)]
            made[v] = copy.offset, copy.room
        for v in outputs:
            self.copies[memory][v] = _Copy(*made[v], start, end, end)
        if scratch and self.capacity[memory] >= 0:
            self.rows.append((memory, SCRATCH, scratch_at, scratch, start, end))
            unit = int(p.memory_alignment_bytes[memory])
            self.ended[memory].append((scratch_at, scratch_at + -(-scratch // unit) * unit, end))
        return start, end


def fit_memory(problem: Problem, schedule: Schedule) -> Schedule:
    """Return a schedule with planned buffers for every memory with a capacity; others are left as they are.

    Raises :class:`InfeasiblePlanError` naming task, bytes needed and bytes there are.
    """
    if not (problem.memory_capacity_bytes >= 0).any():
        return schedule
    return _Fit(problem, schedule).run()
