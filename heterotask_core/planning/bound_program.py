"""The combined bound: one mixed-integer program of who runs what, what that moves over which link, and when at best."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from heterotask_core.planning.bound_phases import Windows
from heterotask_core.planning.core import edges
from heterotask_core.planning.problem import F64, Problem

LARGEST = 1_500
"""Most (task, device) pairs and (version, link) pairs together for which the program is solved."""
CUTS = 6
"""Starts and ends of windows that are tried on every lane."""
_SAFE = 1.0 - 1e-6
"""The solver's tolerances must not lift the bound above a makespan that meets it."""


def combined_s(problem: Problem, windows: Windows, *, limit_s: float) -> float:
    """Return the bound in seconds; 0 for a problem that is too large or that the solver gives up on.

    Variables: x[t,d] in {0, 1}, task t runs on device d; z[v,l] in [0, 1], version v moves over link l; s[t], the start
    of t; the makespan M, which is minimised. Every plan satisfies all of the following, so that none is shorter:

    - *area*: each task runs once; on every lane, the costs of the tasks that start no earlier than h and after which at
      least q must pass (both from ``windows``) fit between h and M − q. With all tasks, h = q = 0, it is the area
      program; integrality counts that a few long tasks cannot be divided.
    - *chain*: s[u] + cost of u where it runs (+ the shortest transfer, if u's successor t runs in another memory)
      ≤ s[t], head ≤ s[t], and s[t] + cost + tail ≤ M.
    - *bytes*: where a reader of v runs, v is made, at home, or comes over a link, from a memory where it is made, is at
      home or comes to; with contention, no lane of a link is busy longer than M.

    A plan gives such values: its devices, its transfers (each at most once a version and link counts), its starts.
    The solver's dual bound after ``limit_s`` seconds is returned, which is valid whether it ended or not.
    """
    p = problem
    can = np.isfinite(p.cost_s)[p.task_class]
    task, device = np.nonzero(can)
    # Without contention transfers hold nothing, and only the chains know of them.
    n_links = len(p.link_source) if p.contention else 0
    if not p.n_tasks or len(task) + p.n_versions * n_links > LARGEST:
        return 0.0
    cost = p.cost_s[p.task_class[task], device]
    scale = max(windows.bound_s, 1e-300)
    x0, z0 = 0, len(task)
    s0 = z0 + p.n_versions * n_links
    m0 = s0 + p.n_tasks
    rows = _Rows(m0 + 1)
    cost = cost / scale
    head, tail = windows.head_s / scale, windows.tail_s / scale
    by_task = [np.flatnonzero(task == t) for t in range(p.n_tasks)]
    for t in range(p.n_tasks):
        rows.add([(x0 + i, 1.0) for i in by_task[t]], 1.0, 1.0)
        # s + cost + tail ≤ M
        rows.add([(s0 + t, -1.0), *((x0 + i, -cost[i]) for i in by_task[t]), (m0, 1.0)], tail[t], np.inf)
    _lanes(rows, p, task, device, cost, head, tail, m0)
    moved_s = (p.link_latency_s[None, :] + np.outer(p.version_size_bytes, 1.0 / p.link_bandwidth_bytes_per_s)) / scale
    _chains(rows, p, task, device, cost, moved_s, by_task, s0)
    if p.contention:
        _moves(rows, p, task, device, moved_s, by_task, z0, m0)
    upper = np.concatenate([np.ones(s0), np.full(p.n_tasks + 1, np.inf)])
    lower = np.concatenate([np.zeros(s0), head, [1.0]])
    found: Any = milp(
        np.append(np.zeros(m0), 1.0),
        integrality=np.concatenate([np.ones(z0), np.zeros(m0 + 1 - z0)]),
        bounds=Bounds(lower, upper),
        constraints=rows.constraint(),
        options={"time_limit": limit_s, "mip_rel_gap": 1e-4},
    )
    bound = getattr(found, "mip_dual_bound", None)
    return 0.0 if bound is None or not np.isfinite(bound) else float(bound) * scale * _SAFE


class _Rows:
    """Rows of a sparse constraint matrix, collected one by one."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.row: list[int] = []
        self.column: list[int] = []
        self.value: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(self, terms: Any, low: float, high: float) -> None:
        for column, value in terms:
            self.row.append(len(self.low))
            self.column.append(int(column))
            self.value.append(float(value))
        self.low.append(low)
        self.high.append(high)

    def constraint(self) -> LinearConstraint:
        matrix: Any = csr_array((self.value, (self.row, self.column)), shape=(len(self.low), self.width))
        return LinearConstraint(matrix, np.array(self.low), np.array(self.high))


def _lanes(rows: _Rows, p: Problem, task: Any, device: Any, cost: F64, head: F64, tail: F64, m0: int) -> None:
    on_lane: dict[int, list[int]] = {}
    for i, d in enumerate(device.tolist()):
        for lane in p.device_lanes[p.device_lane_ptr[d] : p.device_lane_ptr[d + 1]].tolist():
            on_lane.setdefault(lane, []).append(i)
    seen: set[bytes] = set()
    share = np.linspace(0.0, 1.0, CUTS, endpoint=False)
    for after in {0.0, *np.quantile(head, share).tolist()}:
        for until in {0.0, *np.quantile(tail, share).tolist()}:
            inside = (head >= after) & (tail >= until)
            if not inside.any() or inside.tobytes() in seen:
                continue
            seen.add(inside.tobytes())
            room = float(head[inside].min() + tail[inside].min())
            for pairs in on_lane.values():
                rows.add([*((i, -cost[i]) for i in pairs if inside[task[i]]), (m0, 1.0)], room, np.inf)


def _chains(
    rows: _Rows, p: Problem, task: Any, device: Any, cost: F64, moved_s: F64, by_task: list[Any], s0: int
) -> None:
    """Add s[u] + cost[u] ≤ s[t] for every edge, and for every version and memory also with a transfer into it."""
    pointer, target, _, _ = edges(p)
    for u in range(p.n_tasks):
        for k in range(pointer[u], pointer[u + 1]):
            rows.add([(s0 + target[k], 1.0), (s0 + u, -1.0), *((i, -cost[i]) for i in by_task[u])], 0.0, np.inf)
    memory = p.device_memory[device]
    into = np.full((p.n_versions, p.n_memories), np.inf)
    for x in range(len(p.link_source)):
        into[:, p.link_target[x]] = np.minimum(into[:, p.link_target[x]], moved_s[:, x])
    for t in range(p.n_tasks):
        for v in p.input_versions[p.input_ptr[t] : p.input_ptr[t + 1]].tolist():
            u = int(p.version_producer[v])
            if u < 0:
                continue
            for m in np.unique(memory[by_task[t]]).tolist():
                wait = into[v, m]
                if not 0.0 < wait < np.inf:
                    continue
                # In m runs t but not u: the last hop alone takes so long.
                here = [(i, -wait) for i in by_task[t] if memory[i] == m]
                there = [(i, -cost[i] + (wait if memory[i] == m else 0.0)) for i in by_task[u]]
                rows.add([(s0 + t, 1.0), (s0 + u, -1.0), *here, *there], 0.0, np.inf)


def _moves(rows: _Rows, p: Problem, task: Any, device: Any, moved_s: F64, by_task: list[Any], z0: int, m0: int) -> None:
    n_links = len(p.link_source)
    memory = p.device_memory[device]
    arriving = [np.flatnonzero(p.link_target == m).tolist() for m in range(p.n_memories)]
    readers: list[list[int]] = [[] for _ in range(p.n_versions)]
    for t in range(p.n_tasks):
        for v in p.input_versions[p.input_ptr[t] : p.input_ptr[t + 1]].tolist():
            readers[v].append(t)

    def present(v: int, m: int) -> tuple[list[tuple[int, float]], bool]:
        """Return terms whose sum is at least 1 if v is ever in m, and whether it is at home there."""
        producer = int(p.version_producer[v])
        if producer < 0:
            home = m in p.home_memories[p.home_ptr[v] : p.home_ptr[v + 1]]
            made: list[tuple[int, float]] = []
        else:
            home = False
            made = [(int(i), 1.0) for i in by_task[producer] if memory[i] == m]
        return made + [(z0 + v * n_links + x, 1.0) for x in arriving[m]], home

    for v in range(p.n_versions):
        final = int(p.version_final_memory[v])
        if not readers[v] and final < 0:
            continue
        for m in range(p.n_memories):
            terms, home = present(v, m)
            if home:
                continue
            for t in readers[v]:
                here = [(i, -1.0) for i in by_task[t] if memory[i] == m]
                if here:
                    rows.add([*terms, *here], 0.0, np.inf)
            if m == final:
                rows.add(terms, 1.0, np.inf)
        for x in range(n_links):
            terms, home = present(v, int(p.link_source[x]))
            if not home:
                rows.add([*terms, (z0 + v * n_links + x, -1.0)], 0.0, np.inf)
    on_lane: dict[int, list[int]] = {}
    for x in range(n_links):
        for lane in p.link_lanes[p.link_lane_ptr[x] : p.link_lane_ptr[x + 1]].tolist():
            on_lane.setdefault(lane, []).append(x)
    for links in on_lane.values():
        busy = [(z0 + v * n_links + x, -moved_s[v, x]) for x in links for v in range(p.n_versions) if readers[v]]
        rows.add([*busy, (m0, 1.0)], 0.0, np.inf)
