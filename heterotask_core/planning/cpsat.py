"""Exact planning of small problems with OR-tools' CP-SAT (extra ``cpsat``): optional intervals on lanes.

Times are whole ticks. All durations are rounded down, so what the solver proves of the rounded problem bounds the real
one; the plan is rebuilt from the order of the solution with real durations. Capacities of memories are not in the
model: the plan is fitted into them afterwards, and the bound stays one.
"""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from heterotask_core.errors import InfeasiblePlanError, MissingExtraError
from heterotask_core.planning.base import Budget, Planner, Progress
from heterotask_core.planning.blocking import plans_blocking
from heterotask_core.planning.heft import HEFT
from heterotask_core.planning.memory import durations, fit_memory
from heterotask_core.planning.peft import PEFT
from heterotask_core.planning.problem import F64, Problem
from heterotask_core.planning.room import restrict_to_room
from heterotask_core.planning.schedule import Schedule

TICKS = 1 << 20
"""Ticks of the horizon where durations are not whole numbers anyway."""
LARGEST_MODEL = 100_000
"""Most (task, device) and (version, link) pairs; larger problems are refused."""
DETERMINISTIC_PER_EVALUATION = 0.05
"""The solver's deterministic time for an evaluation of the budget; the solver runs single-threaded then."""


class CpSatPlanner:
    """Proves the optimum of small problems within the budget, or returns the best plan and bound found."""

    name = "cpsat"

    @plans_blocking
    def plan(
        self,
        problem: Problem,
        *,
        budget: Budget,
        warm_start: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Schedule:
        """Return the best schedule found; its lower bound is what the solver proved.

        Raises :class:`MissingExtraError` without OR-tools, :class:`InfeasiblePlanError` for a problem too large.
        """
        cp_model()
        problem = restrict_to_room(problem)
        if not fits(problem):
            raise InfeasiblePlanError(
                f"{problem.n_tasks} tasks on {problem.n_devices} devices are too many for cpsat; use portfolio"
            )
        planners: tuple[Planner, ...] = (PEFT, HEFT)
        starts = [p.plan(problem, budget=Budget(evaluations=0)) for p in planners]
        if warm_start is not None:
            starts.append(warm_start)
        best = min(starts, key=lambda s: s.makespan_s)
        best = replace(best, planner=self.name, seed=budget.seed, evaluations=0)
        if not problem.n_tasks or budget.evaluations == 0 or budget.time_s == 0:
            return best
        found, bound_s = solve(problem, best, budget=budget, progress=progress)
        bound_s = max(bound_s, best.lower_bound_s)
        if found is not None and found.makespan_s < best.makespan_s:
            best = found
        evaluations = budget.evaluations or 0
        return replace(best, lower_bound_s=min(bound_s, best.makespan_s), evaluations=evaluations)


CPSAT = CpSatPlanner()


def fits(problem: Problem) -> bool:
    """Return whether the problem is small enough for a model."""
    return problem.n_tasks * problem.n_devices + problem.n_versions * len(problem.link_source) <= LARGEST_MODEL


def cp_model() -> Any:
    """Return OR-tools' module. Raises :class:`MissingExtraError` naming the extra."""
    try:
        from ortools.sat.python import cp_model as module
    except ImportError as error:
        raise MissingExtraError("planner cpsat needs OR-tools; pip install 'heterotask[cpsat]'") from error
    return module


def solve(
    problem: Problem,
    start: Schedule,
    *,
    budget: Budget,
    free: frozenset[int] | None = None,
    progress: Progress | None = None,
) -> tuple[Schedule | None, float]:
    """Return (a plan no longer than ``start`` or None, lower bound in seconds) of the problem.

    ``free``: only these tasks may change device, transfers of others' data their links, and the order among what
    stays is kept (a neighbourhood of ``start`` for a large-neighbourhood search; the bound is then 0).
    """
    cp = cp_model()
    model = _Model(cp, problem, start, free)
    solver = cp.CpSolver()
    solver.parameters.random_seed = budget.seed % (1 << 31)
    if budget.time_s is not None:
        solver.parameters.max_time_in_seconds = budget.time_s
        solver.parameters.num_workers = len(os.sched_getaffinity(0))
    if budget.evaluations is not None:
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = budget.evaluations * DETERMINISTIC_PER_EVALUATION
    callback = None
    if progress is not None:
        callback = _report(cp, model.tick_s, progress)
    status = solver.Solve(model.model, callback)
    if status not in (cp.OPTIMAL, cp.FEASIBLE):
        return None, 0.0
    bound_s = solver.BestObjectiveBound() * model.tick_s if free is None else 0.0
    return model.rebuild(solver), bound_s


def _report(cp: Any, tick_s: float, progress: Progress) -> Any:
    class Callback(cp.CpSolverSolutionCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def on_solution_callback(self) -> None:
            self.count += 1
            progress(self.count, self.ObjectiveValue() * tick_s)

    return Callback()


class _Model:
    """The constraint model of one problem. Names: ``on[t][d]`` t runs on d, ``uses[v, x]`` v goes over link x."""

    def __init__(self, cp: Any, problem: Problem, start: Schedule, free: frozenset[int] | None) -> None:
        p = self.problem = problem
        self.begin = start
        self.model = cp.CpModel()
        self.link_s = p.link_latency_s[None, :] + np.outer(p.version_size_bytes, 1.0 / p.link_bandwidth_bytes_per_s)
        self.tick_s = self._tick()
        self.horizon = int(np.floor(start.makespan_s / self.tick_s * (1 + 1e-12)))
        self.makespan = self.model.NewIntVar(0, self.horizon, "makespan")
        self.free = free
        self._tasks()
        self._data()
        self._hints()
        self.model.Minimize(self.makespan)

    def _tick(self) -> float:
        finite = self.problem.cost_s[np.isfinite(self.problem.cost_s)]
        values = np.concatenate([finite, self.link_s.ravel()])
        if len(values) and (values == np.floor(values)).all() and self.begin.makespan_s < 1 << 40:
            return 1.0
        return max(self.begin.makespan_s, 1e-300) / TICKS

    def _floor(self, seconds: float) -> int:
        # A hair above, so that whole numbers that were computed inexactly stay what they are.
        return int(np.floor(seconds / self.tick_s * (1 + 1e-12)))

    def _tasks(self) -> None:
        p, model = self.problem, self.model
        self.on: list[dict[int, Any]] = []
        self.start, self.end = [], []
        self.lanes: dict[int, list[Any]] = {}
        for t in range(p.n_tasks):
            start, end = model.NewIntVar(0, self.horizon, f"s{t}"), model.NewIntVar(0, self.horizon, f"e{t}")
            cost = p.cost_s[p.task_class[t]]
            allowed = np.flatnonzero(np.isfinite(cost)).tolist()
            if self.free is not None and t not in self.free:
                allowed = [int(self.begin.task_device[t])]
            literals = {}
            for d in allowed:
                literals[d] = model.NewBoolVar(f"on{t},{d}")
                ticks = self._floor(cost[d])
                interval = model.NewOptionalIntervalVar(start, ticks, end, literals[d], f"i{t},{d}")
                for lane in p.device_lanes[p.device_lane_ptr[d] : p.device_lane_ptr[d + 1]].tolist():
                    self.lanes.setdefault(lane, []).append(interval)
            model.AddExactlyOne(literals.values())
            model.Add(self.makespan >= end)
            self.on.append(literals)
            self.start.append(start)
            self.end.append(end)
        for t in range(p.n_tasks):
            for b in p.after_tasks[p.after_ptr[t] : p.after_ptr[t + 1]].tolist():
                model.Add(self.start[t] >= self.end[b])
        # Where a task runs, memory by memory: what data care about.
        self.inside: list[dict[int, Any]] = []
        for t in range(p.n_tasks):
            by_memory: dict[int, list[Any]] = {}
            for d, literal in self.on[t].items():
                by_memory.setdefault(int(p.device_memory[d]), []).append(literal)
            inside = {}
            for m, here in by_memory.items():
                inside[m] = here[0] if len(here) == 1 else model.NewBoolVar(f"in{t},{m}")
                if len(here) > 1:
                    model.AddMaxEquality(inside[m], here)
            self.inside.append(inside)

    def _data(self) -> None:
        p, model = self.problem, self.model
        readers: list[list[int]] = [[] for _ in range(p.n_versions)]
        for t in range(p.n_tasks):
            for v in p.input_versions[p.input_ptr[t] : p.input_ptr[t + 1]].tolist():
                readers[v].append(t)
        self.uses: dict[tuple[int, int], tuple[Any, Any]] = {}
        for v in range(p.n_versions):
            final = int(p.version_final_memory[v])
            if readers[v] or final >= 0:
                there = self._copies(v) if p.contention else self._arrivals(v)
                for t in readers[v]:
                    for m, inside in self.inside[t].items():
                        present, time_s = there[m]
                        model.AddImplication(inside, present)
                        model.Add(self.start[t] >= time_s).OnlyEnforceIf(inside)
                if final >= 0:
                    present, time_s = there[final]
                    model.AddBoolAnd([present])
                    model.Add(self.makespan >= time_s)
        for intervals in self.lanes.values():
            model.AddNoOverlap(intervals)
        if self.free is not None:
            self._keep_order()

    def _sources(self, v: int) -> dict[int, tuple[Any, Any]]:
        """Return memory → (literal, time) where a version is made or at home."""
        p = self.problem
        producer = int(p.version_producer[v])
        if producer >= 0:
            return {m: (literal, self.end[producer]) for m, literal in self.inside[producer].items()}
        one = self.model.NewConstant(1)
        return dict.fromkeys(p.home_memories[p.home_ptr[v] : p.home_ptr[v + 1]].tolist(), (one, 0))

    def _arrivals(self, v: int) -> dict[int, tuple[Any, Any]]:
        """Without contention a copy arrives after the shortest route, whatever else moves."""
        p, model = self.problem, self.model
        least = np.full((p.n_memories, p.n_memories), np.inf)
        np.fill_diagonal(least, 0.0)
        least[p.link_source, p.link_target] = self.link_s[v]
        for k in range(p.n_memories):
            least = np.minimum(least, least[:, k, None] + least[None, k, :])
        sources = self._sources(v)
        found = {}
        # Arrivals where nobody reads may lie behind the horizon.
        latest = self.horizon + self._floor(float(np.max(least, where=np.isfinite(least), initial=0.0)))
        for m in range(p.n_memories):
            time_s = model.NewIntVar(0, latest, f"a{v},{m}")
            if p.version_producer[v] < 0:
                ticks = min((least[a, m] for a in sources), default=np.inf)
                if ticks < np.inf:
                    found[m] = model.NewConstant(1), self._floor(ticks)
                else:
                    found[m] = model.NewConstant(0), 0
                continue
            reachable = []
            for a, (literal, made) in sources.items():
                if least[a, m] < np.inf:
                    reachable.append(literal)
                    model.Add(time_s >= made + self._floor(least[a, m])).OnlyEnforceIf(literal)
            present = model.NewBoolVar(f"p{v},{m}")
            model.AddBoolOr([*reachable, present.Not()])
            found[m] = present, time_s
        return found

    def _copies(self, v: int) -> dict[int, tuple[Any, Any]]:
        """With contention a copy exists where it is made, at home, or where one transfer brings it."""
        p, model = self.problem, self.model
        sources = self._sources(v)
        fixed = self.free is not None and self._settled(v)
        used = set(self.begin.transfer_link[self.begin.transfer_version == v].tolist())
        present = [model.NewBoolVar(f"p{v},{m}") for m in range(p.n_memories)]
        times = [model.NewIntVar(0, self.horizon, f"a{v},{m}") for m in range(p.n_memories)]
        brings: list[list[Any]] = [[] for _ in range(p.n_memories)]
        # Transfers of no duration must not feed each other in a circle.
        depth = [model.NewIntVar(0, p.n_memories, f"h{v},{m}") for m in range(p.n_memories)]
        for x, (a, b) in enumerate(zip(p.link_source.tolist(), p.link_target.tolist(), strict=True)):
            if (fixed and x not in used) or (p.version_producer[v] < 0 and b in sources):
                continue
            literal = model.NewBoolVar(f"u{v},{x}")
            ticks = self._floor(self.link_s[v, x])
            start, end = model.NewIntVar(0, self.horizon, f"x{v},{x}"), model.NewIntVar(0, self.horizon, f"y{v},{x}")
            interval = model.NewOptionalIntervalVar(start, ticks, end, literal, f"j{v},{x}")
            for lane in p.link_lanes[p.link_lane_ptr[x] : p.link_lane_ptr[x + 1]].tolist():
                self.lanes.setdefault(lane, []).append(interval)
            model.AddImplication(literal, present[a])
            model.Add(start >= times[a]).OnlyEnforceIf(literal)
            model.Add(times[b] >= end).OnlyEnforceIf(literal)
            if ticks == 0:
                model.Add(depth[b] > depth[a]).OnlyEnforceIf(literal)
            brings[b].append(literal)
            self.uses[v, x] = literal, start
        for m in range(p.n_memories):
            if m in sources:
                made, time_s = sources[m]
                model.Add(times[m] >= time_s).OnlyEnforceIf(made)
                model.AddImplication(made, present[m])
                # What is made here needs no transfer to here.
                for literal in brings[m]:
                    model.AddImplication(made, literal.Not())
                model.AddAtMostOne(brings[m])
                model.AddBoolOr([made, *brings[m], present[m].Not()])
            else:
                model.AddAtMostOne(brings[m])
                model.AddBoolOr([*brings[m], present[m].Not()])
        return dict(enumerate(zip(present, times, strict=True)))

    def _settled(self, v: int) -> bool:
        p = self.problem
        assert self.free is not None
        if int(p.version_producer[v]) in self.free:
            return False
        return not any(v in p.input_versions[p.input_ptr[t] : p.input_ptr[t + 1]] for t in self.free)

    def _keep_order(self) -> None:
        """Keep the order of what may not change on every lane."""
        p, s = self.problem, self.begin
        assert self.free is not None
        rows: dict[int, list[tuple[float, float, Any, int]]] = {}
        for t in range(p.n_tasks):
            if t not in self.free:
                d = int(s.task_device[t])
                row = (
                    float(s.task_start_s[t]),
                    float(s.task_finish_s[t]),
                    self.start[t],
                    self._floor(p.cost_s[p.task_class[t], d]),
                )
                for lane in p.device_lanes[p.device_lane_ptr[d] : p.device_lane_ptr[d + 1]].tolist():
                    rows.setdefault(lane, []).append(row)
        for v, x, a, b in zip(
            s.transfer_version.tolist(), s.transfer_link.tolist(), s.transfer_start_s, s.transfer_finish_s, strict=True
        ):
            if (v, x) in self.uses and self._settled(v):
                literal, start = self.uses[v, x]
                self.model.AddBoolAnd([literal])
                for lane in p.link_lanes[p.link_lane_ptr[x] : p.link_lane_ptr[x + 1]].tolist():
                    rows.setdefault(lane, []).append((float(a), float(b), start, self._floor(self.link_s[v, x])))
        for lane in rows.values():
            lane.sort(key=lambda r: r[:2])
            for one, other in pairwise(lane):
                self.model.Add(other[2] >= one[2] + one[3])

    def _hints(self) -> None:
        s = self.begin
        for t, literals in enumerate(self.on):
            self.model.AddHint(self.start[t], self._floor(float(s.task_start_s[t])))
            for d, literal in literals.items():
                self.model.AddHint(literal, int(d == s.task_device[t]))
        moved = {
            (v, x): start
            for v, x, start in zip(
                s.transfer_version.tolist(), s.transfer_link.tolist(), s.transfer_start_s.tolist(), strict=True
            )
        }
        for key, (literal, start) in self.uses.items():
            self.model.AddHint(literal, int(key in moved))
            if key in moved:
                self.model.AddHint(start, self._floor(moved[key]))

    def rebuild(self, solver: Any) -> Schedule:
        """Return the schedule of the solution: its devices, transfers and orders, with real durations."""
        p = self.problem
        device = np.array(
            [next(d for d, literal in row.items() if solver.BooleanValue(literal)) for row in self.on], np.int32
        )
        variant = p.cost_variant[p.task_class, device].astype(np.int32)
        key = np.array([solver.Value(x) for x in self.start])
        bare = replace(self.begin, task_device=device, task_variant=variant)
        if p.contention:
            moves = [
                (v, x, solver.Value(s)) for (v, x), (literal, s) in self.uses.items() if solver.BooleanValue(literal)
            ]
        else:
            moves = self._shortest(device)
        timed = _Timing(p, bare, moves, key, self.link_s).run()
        return fit_memory(p, timed)

    def _shortest(self, device: np.ndarray[Any, Any]) -> list[tuple[int, int, int]]:
        """Return transfers along shortest routes (no contention): from where a version is made to all its readers."""
        p = self.problem
        moves: list[tuple[int, int, int]] = []
        for v in range(p.n_versions):
            targets = {
                int(p.device_memory[device[t]])
                for t in range(p.n_tasks)
                if v in p.input_versions[p.input_ptr[t] : p.input_ptr[t + 1]]
            } | ({int(p.version_final_memory[v])} - {-1})
            producer = int(p.version_producer[v])
            homes = p.home_memories[p.home_ptr[v] : p.home_ptr[v + 1]].tolist()
            at = [int(p.device_memory[device[producer]])] if producer >= 0 else homes
            distance = np.full(p.n_memories, np.inf)
            distance[at] = 0.0
            via = np.full(p.n_memories, -1)
            for _ in range(p.n_memories):
                for x, (a, b) in enumerate(zip(p.link_source.tolist(), p.link_target.tolist(), strict=True)):
                    if distance[a] + self.link_s[v, x] < distance[b]:
                        distance[b], via[b] = distance[a] + self.link_s[v, x], x
            needed: set[int] = set()
            for m in targets:
                while via[m] >= 0 and via[m] not in needed:
                    needed.add(int(via[m]))
                    m = int(p.link_source[via[m]])
            moves += [(v, x, 0) for x in sorted(needed)]
        return moves


class _Timing:
    """Earliest times of given tasks and transfers in given orders on their lanes."""

    def __init__(
        self, problem: Problem, bare: Schedule, moves: list[tuple[int, int, int]], key: Any, link_s: F64
    ) -> None:
        self.problem, self.bare, self.moves, self.key, self.link_s = problem, bare, moves, key, link_s

    def run(self) -> Schedule:
        p, n = self.problem, self.problem.n_tasks
        device = self.bare.task_device
        length = np.concatenate([durations(p, self.bare), [self.link_s[v, x] for v, x, _ in self.moves]])
        before: list[list[int]] = [[] for _ in range(len(length))]
        arrival = {(v, int(p.link_target[x])): n + i for i, (v, x, _) in enumerate(self.moves)}

        def source(v: int, memory: int) -> list[int]:
            if (v, memory) in arrival:
                return [arrival[v, memory]]
            return [int(p.version_producer[v])] if p.version_producer[v] >= 0 else []

        for t in range(n):
            before[t] += p.after_tasks[p.after_ptr[t] : p.after_ptr[t + 1]].tolist()
            for v in p.input_versions[p.input_ptr[t] : p.input_ptr[t + 1]].tolist():
                before[t] += source(v, int(p.device_memory[device[t]]))
        lanes: dict[int, list[tuple[int, int]]] = {}
        for t in range(n):
            d = device[t]
            for lane in p.device_lanes[p.device_lane_ptr[d] : p.device_lane_ptr[d + 1]].tolist():
                lanes.setdefault(lane, []).append((int(self.key[t]), t))
        for i, (v, x, start) in enumerate(self.moves):
            before[n + i] += source(v, int(p.link_source[x]))
            if p.contention:
                for lane in p.link_lanes[p.link_lane_ptr[x] : p.link_lane_ptr[x + 1]].tolist():
                    lanes.setdefault(lane, []).append((start, n + i))
        # What takes no tick may share its start with what waits for it: the graph's order settles it.
        place = {op: i for i, op in enumerate(_sorted(before))}
        for row in lanes.values():
            row.sort(key=lambda r: (r[0], place[r[1]]))
            for (_, one), (_, other) in pairwise(row):
                before[other].append(one)
        finish = np.zeros(len(length))
        start_s = np.zeros(len(length))
        for op in _sorted(before):
            start_s[op] = max((finish[b] for b in before[op]), default=0.0)
            finish[op] = start_s[op] + length[op]
        order = np.lexsort((finish[n:], start_s[n:]))
        makespan = float(finish[:n].max(initial=0.0))
        for v in np.flatnonzero(p.version_final_memory >= 0).tolist():
            for op in source(v, int(p.version_final_memory[v])):
                makespan = max(makespan, float(finish[op]))
        return replace(
            self.bare,
            task_start_s=start_s[:n],
            task_finish_s=finish[:n],
            transfer_version=np.array([self.moves[i][0] for i in order], np.int32),
            transfer_link=np.array([self.moves[i][1] for i in order], np.int32),
            transfer_start_s=start_s[n:][order],
            transfer_finish_s=finish[n:][order],
            makespan_s=makespan,
        )


def _sorted(before: list[list[int]]) -> list[int]:
    """Return the ops so that each stands after what it waits for."""
    after: list[list[int]] = [[] for _ in before]
    waiting = [len(b) for b in before]
    for op, needs in enumerate(before):
        for b in needs:
            after[b].append(op)
    order = [op for op, n in enumerate(waiting) if n == 0]
    for op in order:
        for follower in after[op]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                order.append(follower)
    return order
