"""List scheduling over devices and variants: priorities, and insertion-based placing with planned transfers.

PEFT: Arabnejad & Barbosa, "List Scheduling Algorithm for Heterogeneous Systems by an Optimistic Cost Table",
TPDS 2014. HEFT: Topcuoglu, Hariri & Wu, TPDS 2002. The rules for transfers, ties and infeasible devices are ours.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning.problem import F64, Problem
from heterotask_core.planning.schedule import Schedule

MAX_HOPS = 4
Interval = tuple[float, float]


@dataclass(frozen=True)
class Reserved:
    """One hop of a transfer: version, link, start and finish in seconds."""

    version: int
    link: int
    start_s: float
    finish_s: float


class Analysis:
    """What list schedulers derive once from a problem: mean communication, OCT, ranks, routes."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        p = problem
        self.inputs = [p.input_versions[p.input_ptr[t] : p.input_ptr[t + 1]].tolist() for t in range(p.n_tasks)]
        self.outputs = [p.output_versions[p.output_ptr[t] : p.output_ptr[t + 1]].tolist() for t in range(p.n_tasks)]
        self.after = [p.after_tasks[p.after_ptr[t] : p.after_ptr[t + 1]].tolist() for t in range(p.n_tasks)]
        self.w = p.cost_s[p.task_class]
        for t in range(p.n_tasks):
            if not np.isfinite(self.w[t]).any():
                raise InfeasiblePlanError(
                    f"task {p.task_names[t]!r} has no variant for any device of this platform; add one or a device"
                )
        self.routes = self._routes()
        self.mean_latency_s, self.mean_inverse_bandwidth = self._mean_link()
        self.successors: list[list[tuple[int, float]]] = [[] for _ in range(p.n_tasks)]
        self.n_predecessors = [0] * p.n_tasks
        for t in range(p.n_tasks):
            costs: dict[int, float] = dict.fromkeys(self.after[t], 0.0)
            for v in self.inputs[t]:
                producer = int(p.version_producer[v])
                if producer >= 0:
                    costs[producer] = costs.get(producer, 0.0) + (
                        self.mean_latency_s + float(p.version_size_bytes[v]) * self.mean_inverse_bandwidth
                    )
            self.n_predecessors[t] = len(costs)
            for producer, cost in costs.items():
                self.successors[producer].append((t, cost))

    def _routes(self) -> dict[tuple[int, int], list[list[int]]]:
        """Loop-free routes of at most four hops by (source, target) memory, fewer hops first."""
        p = self.problem
        out: dict[int, list[int]] = {}
        for link in range(len(p.link_source)):
            out.setdefault(int(p.link_source[link]), []).append(link)
        routes: dict[tuple[int, int], list[list[int]]] = {}
        # Where every pair has a link, detours are never shorter: bandwidths of one model obey the triangle rule.
        complete = len(p.link_source) >= p.n_memories * (p.n_memories - 1)
        for source in range(p.n_memories):
            frontier: list[tuple[list[int], set[int], int]] = [([], {source}, source)]
            for _ in range(1 if complete and p.n_memories > 6 else MAX_HOPS):
                step = []
                for path, seen, at in frontier:
                    for link in out.get(at, []):
                        target = int(p.link_target[link])
                        if target not in seen:
                            step.append(([*path, link], seen | {target}, target))
                            routes.setdefault((source, target), []).append([*path, link])
                frontier = step
        return routes

    def _mean_link(self) -> tuple[float, float]:
        p = self.problem
        latencies, inverses = [], []
        memories = sorted(set(p.device_memory.tolist()))
        for a in memories:
            for b in memories:
                if a == b or (a, b) not in self.routes:
                    continue
                best = min(
                    (
                        (
                            sum(float(p.link_latency_s[x]) for x in path),
                            sum(1.0 / float(p.link_bandwidth_bytes_per_s[x]) for x in path),
                        )
                        for path in self.routes[a, b]
                    ),
                    key=lambda c: c[0] + c[1] * 1e6,
                )
                latencies.append(best[0])
                inverses.append(best[1])
        if not latencies:
            return 0.0, 0.0
        return float(np.mean(latencies)), float(np.mean(inverses))

    def oct(self) -> F64:
        """Return the optimistic cost table (T, D), seconds."""
        p = self.problem
        table = np.zeros((p.n_tasks, p.n_devices))
        other = p.device_memory[:, None] != p.device_memory[None, :]
        for t in range(p.n_tasks - 1, -1, -1):
            for s, cost in self.successors[t]:
                reach = np.where(np.isfinite(self.w[s]), table[s] + self.w[s], math.inf)
                table[t] = np.maximum(table[t], (reach[None, :] + np.where(other, cost, 0.0)).min(axis=1))
        return table

    def rank_oct(self, table: F64) -> F64:
        """Return PEFT's rank: the mean OCT over feasible devices."""
        return np.array([float(np.mean(row[np.isfinite(w)])) for row, w in zip(table, self.w, strict=True)])

    def rank_u(self) -> F64:
        """Return HEFT's upward rank in seconds."""
        rank = np.zeros(self.problem.n_tasks)
        for t in range(self.problem.n_tasks - 1, -1, -1):
            mean = float(np.mean(self.w[t][np.isfinite(self.w[t])]))
            rank[t] = mean + max((cost + rank[s] for s, cost in self.successors[t]), default=0.0)
        return rank


class Lanes:
    """Busy intervals of every lane, and the earliest common gap."""

    def __init__(self, n_lanes: int) -> None:
        self.busy: list[list[Interval]] = [[] for _ in range(n_lanes)]

    def gap(self, lanes: Sequence[int], ready_s: float, duration_s: float, extra: dict[int, list[Interval]]) -> float:
        """Return the earliest start ≥ ``ready_s`` at which all ``lanes`` are free for ``duration_s``."""
        start = ready_s
        moved = True
        while moved:
            moved = False
            for lane in lanes:
                for a, b in (*self.busy[lane], *extra.get(lane, ())):
                    if a < start + duration_s and start < b and (duration_s > 0 or a < start):
                        start, moved = b, True
        return start

    def reserve(self, lane: int, interval: Interval) -> None:
        """Mark a lane busy."""
        if interval[1] > interval[0]:
            insort(self.busy[lane], interval)


class Placer:
    """Places tasks one after another; what is placed stays."""

    def __init__(self, analysis: Analysis) -> None:
        self.a = analysis
        p = self.p = analysis.problem
        self.lanes = Lanes(len(p.lane_names))
        self.arrival: list[dict[int, float]] = [{} for _ in range(p.n_versions)]
        for v in range(p.n_versions):
            for m in p.home_memories[p.home_ptr[v] : p.home_ptr[v + 1]]:
                self.arrival[v][int(m)] = 0.0
        self.device = np.full(p.n_tasks, -1, np.int32)
        self.start = np.zeros(p.n_tasks)
        self.finish = np.zeros(p.n_tasks)
        self.transfers: list[Reserved] = []

    def fetch(self, version: int, memory: int, extra: dict[int, list[Interval]]) -> tuple[float, list[Reserved]] | None:
        """Return the earliest arrival of a version in a memory and the hops it takes; None without a route."""
        p = self.p
        best: tuple[float, int, int] | None = None
        chosen: list[Reserved] = []
        for source in sorted(self.arrival[version]):
            for path in self.a.routes.get((source, memory), ()):
                at, hops, local = self.arrival[version][source], [], {k: list(v) for k, v in extra.items()}
                for link in path:
                    duration = float(p.link_latency_s[link]) + float(p.version_size_bytes[version]) / float(
                        p.link_bandwidth_bytes_per_s[link]
                    )
                    used = p.link_lanes[p.link_lane_ptr[link] : p.link_lane_ptr[link + 1]].tolist()
                    start = self.lanes.gap(used, at, duration, local) if p.contention else at
                    at = start + duration
                    hops.append(Reserved(version, link, start, at))
                    for lane in used:
                        local.setdefault(lane, []).append((start, at))
                key = (at, len(path), source)
                if best is None or key < best:
                    best, chosen = key, hops
        return None if best is None else (best[0], chosen)

    def try_on(self, t: int, d: int) -> tuple[float, float, list[Reserved]] | None:
        """Return (start, finish, transfers) of task ``t`` on device ``d``; None if it cannot run there."""
        p = self.p
        w = float(self.a.w[t, d])
        if not math.isfinite(w):
            return None
        memory = int(p.device_memory[d])
        ready = max((float(self.finish[x]) for x in self.a.after[t]), default=0.0)
        extra: dict[int, list[Interval]] = {}
        hops: list[Reserved] = []
        for v in self.a.inputs[t]:
            if memory in self.arrival[v]:
                ready = max(ready, self.arrival[v][memory])
                continue
            found = self.fetch(v, memory, extra)
            if found is None:
                return None
            ready = max(ready, found[0])
            for hop in found[1]:
                hops.append(hop)
                for lane in p.link_lanes[p.link_lane_ptr[hop.link] : p.link_lane_ptr[hop.link + 1]].tolist():
                    extra.setdefault(lane, []).append((hop.start_s, hop.finish_s))
        lanes = p.device_lanes[p.device_lane_ptr[d] : p.device_lane_ptr[d + 1]].tolist()
        start = self.lanes.gap(lanes, ready, w, {})
        return start, start + w, hops

    def place(self, t: int, d: int, start: float, finish: float, hops: list[Reserved]) -> None:
        """Make a placement final."""
        p = self.p
        self.device[t], self.start[t], self.finish[t] = d, start, finish
        for lane in p.device_lanes[p.device_lane_ptr[d] : p.device_lane_ptr[d + 1]].tolist():
            self.lanes.reserve(lane, (start, finish))
        self.move(hops)
        for v in self.a.outputs[t]:
            self.arrival[v][int(p.device_memory[d])] = finish

    def move(self, hops: list[Reserved]) -> None:
        """Make transfers final."""
        p = self.p
        for hop in hops:
            target = int(p.link_target[hop.link])
            self.arrival[hop.version][target] = min(self.arrival[hop.version].get(target, math.inf), hop.finish_s)
            self.transfers.append(hop)
            if p.contention:
                for lane in p.link_lanes[p.link_lane_ptr[hop.link] : p.link_lane_ptr[hop.link + 1]].tolist():
                    self.lanes.reserve(lane, (hop.start_s, hop.finish_s))


def list_schedule(analysis: Analysis, rank: F64, score: Callable[[int, int, float], float]) -> Placer:
    """Place ready tasks by descending ``rank`` on the device with the smallest ``score(task, device, EFT)``.

    Raises :class:`InfeasiblePlanError` when a task's inputs reach no device that can run it.
    """
    placer, p = Placer(analysis), analysis.problem
    waiting = list(analysis.n_predecessors)
    ready = [(-float(rank[t]), t) for t in range(p.n_tasks) if not waiting[t]]
    heapq.heapify(ready)
    while ready:
        _, t = heapq.heappop(ready)
        best: tuple[float, int] | None = None
        kept: tuple[float, float, list[Reserved]] = (0.0, 0.0, [])
        for d in range(p.n_devices):
            tried = placer.try_on(t, d)
            if tried is not None and (best is None or (score(t, d, tried[1]), d) < best):
                best, kept = (score(t, d, tried[1]), d), tried
        if best is None:
            raise InfeasiblePlanError(f"task {p.task_names[t]!r}: its inputs reach no device that can run it")
        placer.place(t, best[1], *kept)
        for s, _ in analysis.successors[t]:
            waiting[s] -= 1
            if not waiting[s]:
                heapq.heappush(ready, (-float(rank[s]), s))
    for v in range(p.n_versions):
        memory = int(p.version_final_memory[v])
        if memory >= 0 and memory not in placer.arrival[v]:
            found = placer.fetch(v, memory, {})
            if found is None:
                raise InfeasiblePlanError(
                    f"{p.data_names[p.version_data[v]]!r} cannot reach {p.memory_names[memory]!r}"
                )
            placer.move(found[1])
    return placer


def to_schedule(placer: Placer, *, planner: str, seed: int, evaluations: int, lower_bound_s: float) -> Schedule:
    """Return the finished schedule of a placer; buffers are not planned here."""
    p = placer.p
    hops = sorted(placer.transfers, key=lambda h: (h.start_s, h.finish_s, h.version, h.link))
    finals = [placer.arrival[v][int(m)] for v, m in enumerate(p.version_final_memory) if m >= 0]
    return Schedule(
        planner=planner,
        seed=seed,
        evaluations=evaluations,
        task_device=placer.device,
        task_variant=p.cost_variant[p.task_class, placer.device],
        task_start_s=placer.start,
        task_finish_s=placer.finish,
        transfer_version=np.array([h.version for h in hops], np.int32),
        transfer_link=np.array([h.link for h in hops], np.int32),
        transfer_start_s=np.array([h.start_s for h in hops], np.float64),
        transfer_finish_s=np.array([h.finish_s for h in hops], np.float64),
        makespan_s=max([*placer.finish.tolist(), *finals], default=0.0),
        lower_bound_s=lower_bound_s,
    )
