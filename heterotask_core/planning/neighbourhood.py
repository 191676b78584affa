"""Large-neighbourhood search: some tasks that run one after another are planned anew by CP-SAT, the others stay.

Shaw, CP 1998. What ran before the window keeps its times; what runs after it stands as late as the makespan allows, in
its order, and moves as one towards the window. The model asks how far the window lets it come, so it is as small as the
window, however large the problem. For problems without contention: a transfer takes the cheapest route's time.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from heterotask_core.planning.core import Placed
from heterotask_core.planning.cpsat import cp_model
from heterotask_core.planning.listing import cheapest_routes
from heterotask_core.planning.problem import F64, I32, I64, Problem

TICKS = 1 << 20
"""Ticks of a makespan."""
LEAST = 8
"""Ticks that are worth a change."""
GAIN = 0.05
"""Largest share of the makespan that a window may save."""
MEMORIES = 6
"""Memories in which the tasks of a window may run; those in which they are, if these are more."""


class Answer(NamedTuple):
    """An order of all tasks and a device for each."""

    order: I32
    device: I32


def _rows(pointer: I64, values: I32) -> list[list[int]]:
    return [values[a:b].tolist() for a, b in pairwise(pointer)]


class Neighbourhoods:
    """The windows of one problem. Raises :class:`MissingExtraError` without OR-tools."""

    def __init__(self, problem: Problem) -> None:
        self.cp = cp_model()
        self.problem = problem
        self.routes = cheapest_routes(problem)
        p = problem
        self.inputs = _rows(p.input_ptr, p.input_versions)
        self.outputs = _rows(p.output_ptr, p.output_versions)
        self.after = _rows(p.after_ptr, p.after_tasks)
        self.homes = _rows(p.home_ptr, p.home_memories)
        self.lanes = _rows(p.device_lane_ptr, p.device_lanes)
        self.memory = p.device_memory.tolist()
        self.producer = p.version_producer.tolist()

    def route_s(self, v: int) -> F64:
        """Return the seconds of a version's cheapest route between memories, (M, M), infinite where none leads."""
        size = float(self.problem.version_size_bytes[v])
        k = self.routes.regime[np.searchsorted(self.routes.sizes, size)]
        result: F64 = self.routes.latency_s[k] + size * self.routes.seconds_per_byte[k]
        return result

    def solve(self, plan: Placed, first: int, size: int, *, seed: int, work: float) -> Answer | None:
        """Plan the tasks at places ``first`` to ``first + size`` in the order of their starts anew.

        ``work``: the solver's deterministic time; it answers the same each time. Returns None if it finds nothing that
        is shorter.
        """
        position = np.empty(self.problem.n_tasks, np.int64)
        position[plan.order] = np.arange(self.problem.n_tasks)
        sequence = np.lexsort((position, plan.start_s)).tolist()
        window = _Window(self, plan, sequence, first, first + size)
        solver = self.cp.CpSolver()
        solver.parameters.random_seed = seed % (1 << 31)
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = work
        if solver.Solve(window.model) not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return None
        device = plan.device.copy()
        for t in window.tasks:
            device[t] = next(d for d, literal in window.on[t].items() if solver.BooleanValue(literal))
        # Tasks that follow stand between those of the window, or one of these could take their place on a device.
        began = {t: float(solver.Value(start)) for t, start in window.start.items()}
        earlier = solver.Value(window.earlier)
        began.update({t: latest / window.tick_s - earlier for t, latest in window.latest.items()})
        behind = sorted(sequence[first:], key=lambda t: (began[t], window.place[t]))
        return Answer(np.array([*sequence[:first], *behind], np.int32), device)


class _Window:
    """The model. ``earlier``: by how many ticks all that follows the window moves towards it."""

    def __init__(self, of: Neighbourhoods, plan: Placed, sequence: list[int], first: int, last: int) -> None:
        self.of, self.plan = of, plan
        self.tick_s = max(float(plan.makespan_s), 1e-300) / TICKS
        self.before, self.tasks, self.behind = sequence[:first], sequence[first:last], sequence[last:]
        self.place = {t: i for i, t in enumerate(sequence)}
        self.span = range(first, min(last, len(sequence)))
        self.model = of.cp.CpModel()
        self.most = int(GAIN * TICKS)
        self._follow()
        self.earlier = self.model.NewIntVar(0, max(0, self.most), "earlier")
        self.model.Add(self.earlier >= LEAST)
        self.model.Maximize(self.earlier)
        self.intervals: dict[int, list[Any]] = {}
        self._tasks()
        self._data()
        self._others()
        for held in self.intervals.values():
            self.model.AddNoOverlap(held)

    def _up(self, seconds: float) -> int:
        # A hair below, so that what is a whole number of ticks but for rounding stays one.
        return int(np.ceil(seconds / self.tick_s - 1e-6))

    def _down(self, seconds: float) -> int:
        return int(seconds / self.tick_s)

    def _in_window(self, t: int) -> bool:
        return self.place[t] in self.span

    def _by(self, latest_s: float) -> Any:
        """Return when something has to be done that has time until ``latest_s`` now."""
        return self._down(latest_s) - self.earlier

    def _follow(self) -> None:
        """Find the latest start of all tasks that follow the window, and what they take from it."""
        p, plan, of = self.of.problem, self.plan, self.of
        end = float(plan.makespan_s)
        due: dict[int, float] = {}
        lane_due: dict[int, float] = {}
        self.latest: dict[int, float] = {}
        """Task → latest start."""
        self.taken: list[tuple[int, int, float]] = []
        """(version that the window makes, memory, when it has to be there)."""
        self.waited: list[tuple[int, float]] = []
        """(task of the window, when it has to have ended for one that only waits for it)."""
        for v in np.flatnonzero((p.version_final_memory >= 0) & (p.version_producer >= 0)).tolist():
            self._needed(v, int(p.version_final_memory[v]), end, due)
        for t in reversed(self.behind):
            d = int(plan.device[t])
            ends = min([due.get(t, end), *(lane_due.get(lane, end) for lane in of.lanes[d])])
            latest = self.latest[t] = ends - float(plan.finish_s[t] - plan.start_s[t])
            lane_due.update(dict.fromkeys(of.lanes[d], latest))
            self._no_earlier(latest, 0.0)
            for v in of.inputs[t]:
                self._needed(v, of.memory[d], latest, due)
            for b in of.after[t]:
                due[b] = min(due.get(b, end), latest)
                if self._in_window(b):
                    self.waited.append((b, latest))
                elif self.place[b] < self.span.start:
                    self._no_earlier(latest, float(plan.finish_s[b]))
        for t in self.before:
            for lane in of.lanes[plan.device[t]]:
                self._no_earlier(lane_due.get(lane, end), float(plan.finish_s[t]))

    def _no_earlier(self, latest_s: float, soonest_s: float) -> None:
        """Let what may begin at ``latest_s`` move no further than to what it waits for, which stays."""
        self.most = min(self.most, self._down(latest_s - soonest_s))

    def _needed(self, v: int, memory: int, latest_s: float, due: dict[int, float]) -> None:
        """Note that a version has to be in a memory."""
        q = self.of.producer[v]
        if q < 0:
            self._no_earlier(latest_s, min(float(self.of.route_s(v)[m, memory]) for m in self.of.homes[v]))
        elif self._in_window(q):
            self.taken.append((v, memory, latest_s))
        else:
            there = latest_s - float(self.of.route_s(v)[self.of.memory[self.plan.device[q]], memory])
            due[q] = min(due.get(q, np.inf), there)
            if self.place[q] < self.span.start:
                self._no_earlier(there, float(self.plan.finish_s[q]))

    def _memories(self) -> set[int]:
        """Return the memories in which the tasks may run: those they are in, and where their inputs are made."""
        found = {self.of.memory[self.plan.device[t]] for t in self.tasks}
        makers = [self.of.producer[v] for t in self.tasks for v in self.of.inputs[t]]
        for m in [*(self.of.memory[self.plan.device[q]] for q in makers if q >= 0), *self.of.memory]:
            if len(found) >= MEMORIES:
                break
            found.add(m)
        return found

    def _tasks(self) -> None:
        p, model = self.of.problem, self.model
        self.on: dict[int, dict[int, Any]] = {}
        self.inside: dict[int, dict[int, Any]] = {}
        self.start: dict[int, Any] = {}
        self.end: dict[int, Any] = {}
        near = self._memories()
        for t in self.tasks:
            start = self.start[t] = model.NewIntVar(0, TICKS, "")
            end = self.end[t] = model.NewIntVar(0, TICKS, "")
            model.AddHint(start, self._down(float(self.plan.start_s[t])))
            self.on[t] = {}
            by_memory: dict[int, list[Any]] = {}
            for d in np.flatnonzero(np.isfinite(p.cost_s[p.task_class[t]])).tolist():
                if self.of.memory[d] not in near:
                    continue
                literal = self.on[t][d] = model.NewBoolVar("")
                model.AddHint(literal, int(d == self.plan.device[t]))
                length = self._up(float(p.cost_s[p.task_class[t], d]))
                interval = model.NewOptionalFixedSizeIntervalVar(start, length, literal, "")
                model.Add(end == start + length).OnlyEnforceIf(literal)
                for lane in self.of.lanes[d]:
                    self.intervals.setdefault(lane, []).append(interval)
                by_memory.setdefault(self.of.memory[d], []).append(literal)
            model.AddExactlyOne(self.on[t].values())
            model.Add(end <= self._by(float(self.plan.makespan_s)))
            self.inside[t] = {m: here[0] if len(here) == 1 else model.NewBoolVar("") for m, here in by_memory.items()}
            for m, here in by_memory.items():
                if len(here) > 1:
                    model.Add(sum(here) == self.inside[t][m])
            for b in self.of.after[t]:
                model.Add(start >= (self.end[b] if self._in_window(b) else self._up(float(self.plan.finish_s[b]))))

    def _data(self) -> None:
        """Make every task wait for its inputs, and what follows for what the window makes."""
        model = self.model
        for t in self.tasks:
            for v in self.of.inputs[t]:
                route_s, q = self.of.route_s(v), self.of.producer[v]
                for m, here in self.inside[t].items():
                    if q >= 0 and self._in_window(q):
                        for a, there in self.inside[q].items():
                            if np.isfinite(route_s[a, m]):
                                arrives = self.end[q] + self._up(float(route_s[a, m]))
                                model.Add(self.start[t] >= arrives).OnlyEnforceIf(here, there)
                            else:
                                model.AddBoolOr([here.Not(), there.Not()])
                        continue
                    made_s = float(self.plan.finish_s[q]) if q >= 0 else 0.0
                    at = [self.of.memory[self.plan.device[q]]] if q >= 0 else self.of.homes[v]
                    soonest = made_s + min((float(route_s[a, m]) for a in at), default=np.inf)
                    if np.isfinite(soonest):
                        model.Add(self.start[t] >= self._up(soonest)).OnlyEnforceIf(here)
                    else:
                        model.Add(here == 0)
        for v, m, latest_s in self.taken:
            q = self.of.producer[v]
            for a, there in self.inside[q].items():
                route = float(self.of.route_s(v)[a, m])
                if np.isfinite(route):
                    model.Add(self.end[q] + self._up(route) <= self._by(latest_s)).OnlyEnforceIf(there)
                else:
                    model.Add(there == 0)
        for t, latest_s in self.waited:
            model.Add(self.end[t] <= self._by(latest_s))

    def _others(self) -> None:
        """Hold the lanes for the tasks before and after the window."""
        plan = self.plan
        for t in self.before:
            a, b = self._up(float(plan.start_s[t])), self._up(float(plan.finish_s[t]))
            # A task of the window may begin before it does now, as soon as its inputs are there: in any gap.
            if b > a:
                for lane in self.of.lanes[plan.device[t]]:
                    if lane in self.intervals:
                        self.intervals[lane].append(self.model.NewFixedSizeIntervalVar(a, b - a, ""))
        for t in self.behind:
            begin = self.latest[t]
            a, b = self._down(begin), self._down(begin + float(plan.finish_s[t] - plan.start_s[t]))
            for lane in self.of.lanes[plan.device[t]]:
                if lane in self.intervals and b > a:
                    self.intervals[lane].append(self.model.NewFixedSizeIntervalVar(a - self.earlier, b - a, ""))
