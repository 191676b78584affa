"""Local search over the order and the devices of tasks, scored by placing them: simulated annealing in cycles.

Kirkpatrick, Gelatt & Vecchi, Science 1983. A cycle cools from a start (a list schedule, or the best plan so far);
how many cycles there are and how hot they begin depends on how many evaluations a task the budget allows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from heterotask_core.planning.base import Budget, Progress
from heterotask_core.planning.core import Arrays, Placed, arrays, decode, moves_of
from heterotask_core.planning.neighbourhood import Neighbourhoods
from heterotask_core.planning.placing import Workspace, workspace
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.raw import addresses
from heterotask_core.planning.search_evaluate import Marks, marks
from heterotask_core.planning.search_loop import SHARES, Plan, plan, search_loop
from heterotask_core.planning.search_space import Space, device_groups, search_space

MARKS = 12
"""Kept states along the order: more of them cost more to keep than they save."""
STEPS = 60
"""Temperatures of a cycle."""
FIRST_CHUNK = 16
"""Evaluations of the first call, by which the speed is measured."""
MARK_BYTES = 1 << 26
"""Most bytes of kept states; large problems keep fewer."""
CHUNK_S = 0.01
"""Time of one call where time is the budget."""
MOST_CHUNK = 50_000
"""Most evaluations of one call: an interrupt waits for its end."""
PROBE_SHARE = 0.01
"""Share of the time that measures the speed."""
PER_CYCLE, MOST_CYCLES = 1500.0, 12
"""Evaluations a task that a cycle should have; most cycles."""
DIRECT_LOSS, DIRECT_TASKS = 3e-3, 1_000
"""By how much the start may be longer with single hops only, which evaluate faster; below so many tasks, by any."""
MILD = 3e-4
"""First temperature of the first cycle, in makespans."""
COLD = 1e-5
"""Last temperature of every cycle, in makespans."""
WINDOW, WINDOW_WORK = 15, 0.03
"""Tasks that CP-SAT plans anew at a time, and its deterministic time for them."""
WINDOW_EVALUATIONS = 1_000_000
"""Evaluations × tasks that such a window counts as: what the search makes in its time."""
CREDIT, MOST_CREDIT = 8, 16
"""Windows in a row that may fail after the first cycle, and most of them."""


class Search:
    """A search of one problem; its evaluations are counted across cycles. Not shared between threads."""

    def __init__(self, problem: Problem, view: Arrays, *, seed: int) -> None:
        self.problem, self.view = problem, view
        self.space: Space = search_space(problem, view)
        self.groups = device_groups(problem)
        n_links = len(problem.link_source)
        self.direct = n_links == problem.n_memories * (problem.n_memories - 1)
        """Where every pair of memories has a link, routes of several hops hardly ever win and cost most of the time."""
        self.rng = np.random.default_rng(seed)
        self.count = 0
        self.best_s = np.inf
        self.best: tuple[Any, Any] | None = None
        self._view, self._space = addresses(self.view), addresses(self.space)
        self._allocate(256, 0)

    def _allocate(self, room: int, moves: int) -> None:
        self.work: Workspace = workspace(self.view, room, moves)
        state_bytes = 16 * room * self.view.n_lanes + 4 * self.view.n_versions
        self.marks: Marks = marks(self.view, self.work, max(1, min(MARKS, MARK_BYTES // (2 * state_bytes))))

    def _call(self, current: Plan, evaluations: int, temperature_s: float) -> None:
        """Run the loop; with more room where it runs out of it."""
        while True:
            done = search_loop(
                self._view, addresses(self.work), self._space, addresses(self.marks), addresses(current), SHARES,
                evaluations, temperature_s, self.direct,
            )  # fmt: skip
            if done >= 0:
                self.count += done
                return
            done = -1 - done
            self.count += done
            evaluations -= done
            self._allocate(4 * self.work.room, 2 * self.work.max_moves)
            if evaluations > 0:
                self._call(current, 0, 0.0)

    def begin(self, order: Any, group: Any) -> Plan:
        """Return an evaluated plan to search from."""
        current = plan(order, group, int(self.rng.integers(1 << 62)))
        self._call(current, 0, 0.0)
        current.score[1] = current.score[0]
        self._note(current)
        return current

    def _note(self, current: Plan) -> bool:
        if current.score[1] < self.best_s:
            self.best_s = float(current.score[1])
            self.best = (current.best_order.copy(), current.best_group.copy())
            return True
        return False

    def run(self, current: Plan, evaluations: int, temperature_s: float) -> bool:
        """Evaluate; return whether the best plan of the search became better."""
        self._call(current, evaluations, temperature_s)
        return self._note(current)

    def polish(
        self, windows: Neighbourhoods, credit: int, *, most: int | None, go_on: Callable[[float], bool]
    ) -> tuple[int, bool]:
        """Plan windows of the best plan anew until ``credit`` in a row have failed; return the next credit, and
        whether the best plan became better.

        It doubles where that made the plan shorter, and halves where it did not: whoever does not pay gets no time.
        ``most``: evaluations that the search may count; ``go_on`` is asked before each with the seconds of the last.
        """
        n = self.problem.n_tasks
        counted = max(1, WINDOW_EVALUATIONS // n)
        failures, better, took_s = 0, False, 0.0
        plan = self.placed()
        while failures < credit and (most is None or self.count + counted <= most) and go_on(took_s):
            began = time.monotonic()
            first = int(self.rng.integers(max(1, n - WINDOW + 1)))
            answer = windows.solve(plan, first, WINDOW, seed=int(self.rng.integers(1 << 31)), work=WINDOW_WORK)
            self.count += counted
            failures += 1
            before = self.best_s
            if answer is not None:
                self.begin(answer.order, self.groups[answer.device])
                if self.best_s < before:
                    plan, failures, better = self.placed(), 0, True
            took_s = time.monotonic() - began
        return (min(2 * credit, MOST_CREDIT) if better else credit // 2), better

    def placed(self) -> Placed:
        """Return the best plan as a pass, over all routes if that is shorter."""
        assert self.best is not None
        order, group = self.best
        current = plan(order, group, 0)
        self._call(current, 0, 0.0)
        own = Placed(
            -1, float(current.score[0]), current.device, current.start_s, current.finish_s, *moves_of(self.work), order
        )
        n = self.problem.n_tasks
        priority = np.empty(n)
        priority[order] = -np.arange(n)
        other = decode(self.view, priority, np.zeros((n, 0)), own.device)
        return other if other.failed < 0 and other.makespan_s < own.makespan_s else own


def improve(
    problem: Problem,
    view: Arrays,
    starts: Sequence[Placed],
    *,
    budget: Budget,
    deadline_s: float | None,
    progress: Progress | None = None,
    interrupted: Callable[[], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    windows: Neighbourhoods | None = None,
) -> tuple[Placed, int]:
    """Return the best pass found and the number of evaluations; an interrupt (Ctrl-C) ends the search
    and calls ``interrupted``.

    ``starts`` are passes to search from. It ends after ``budget.evaluations`` or at ``deadline_s`` of ``clock``;
    without either, at once. With ``windows`` the best plan is also improved by them after each cycle.
    """
    first = min(starts, key=lambda p: p.makespan_s)
    if (budget.evaluations is None and deadline_s is None) or budget.evaluations == 0 or not problem.n_tasks:
        return first, 0
    search = Search(problem, view, seed=budget.seed)
    try:
        _search(search, starts, budget=budget, deadline_s=deadline_s, progress=progress, clock=clock, windows=windows)
    except KeyboardInterrupt:
        if interrupted is not None:
            interrupted()
    if search.best is None:
        return first, search.count
    found = search.placed()
    return (found if found.makespan_s < first.makespan_s else first), search.count


@cache
def warm_up() -> Problem:
    """Load or compile the code of the search, so that no clock waits for it; return the tiny problem it ran on."""
    name = ("a",)
    none, one, ends = np.zeros(0, np.int32), np.zeros(1, np.int32), np.array([0, 0])
    empty, nothing = np.zeros(0), np.zeros(1, np.int64)
    tiny = Problem(
        name="warm-up", contention=True, memory_names=name, memory_nodes=name,
        memory_capacity_bytes=np.array([-1]), memory_alignment_bytes=np.array([1]),
        device_names=name, device_kinds=name, device_memory=one, device_lane_ptr=np.array([0, 1]), device_lanes=one,
        link_source=none, link_target=none, link_latency_s=empty, link_bandwidth_bytes_per_s=empty,
        link_lane_ptr=nothing, link_lanes=none, lane_names=name, data_names=(), version_data=none, version_number=none,
        version_size_bytes=np.zeros(0, np.int64), version_producer=none, home_ptr=nothing, home_memories=none,
        version_final_memory=none, task_names=name, task_class=one, input_ptr=ends, input_versions=none,
        output_ptr=ends, output_versions=none, output_takes_over=none, after_ptr=ends, after_tasks=none,
        class_names=name, class_variants=((),), cost_s=np.ones((1, 1)), cost_variant=np.full((1, 1), -1, np.int32),
        variant_cost_s=(np.ones((1, 1)),),
    )  # fmt: skip
    view = arrays(tiny)
    first = decode(view, np.zeros(1), np.zeros((1, 0)), np.array([-1], np.int32))
    improve(tiny, view, [first], budget=Budget(evaluations=1), deadline_s=None)
    return tiny


class Cycle(NamedTuple):
    """One cooling: share of the budget, first temperature in makespans, index of the start (−1: the best plan)."""

    share: float
    hot: float
    start: int


def cycles(per_task: float, rng: np.random.Generator, n_starts: int) -> list[Cycle]:
    """Return the coolings for a number of evaluations a task: few and mild ones where there are not many."""
    n = int(np.clip(per_task / PER_CYCLE, 1, MOST_CYCLES))
    # The first one is mild: it improves the best list schedule without losing what is good about it.
    found = [Cycle(1.0 / n, MILD, 0)]
    for i in range(1, n):
        hot = float(np.exp(rng.uniform(np.log(2e-3), np.log(6e-2))))
        found.append(Cycle(1.0 / n, hot, int(rng.integers(n_starts)) if i % 2 else -1))
    return found


def _search(
    search: Search,
    starts: Sequence[Placed],
    *,
    budget: Budget,
    deadline_s: float | None,
    progress: Progress | None,
    clock: Callable[[], float],
    windows: Neighbourhoods | None,
) -> None:
    began = clock()
    most = budget.evaluations

    def spent() -> float:
        """Share of the budget that is used up."""
        by_count = search.count / most if most is not None else 0.0
        by_time = (clock() - began) / max(deadline_s - began, 1e-9) if deadline_s is not None else 0.0
        return max(by_count, by_time)

    order = sorted(starts, key=lambda p: p.makespan_s)
    current = search.begin(order[0].order, search.groups[order[0].device])
    many = search.problem.n_tasks >= DIRECT_TASKS
    if many and search.direct and search.best_s > order[0].makespan_s * (1.0 + DIRECT_LOSS):
        # Here routes of several hops do win.
        search.direct = False
        current = search.begin(order[0].order, search.groups[order[0].device])
    scale = search.best_s
    chunk, chunk_s = FIRST_CHUNK, 0.0

    def step(temperature_s: float) -> None:
        """Run some evaluations; how many depends on the budget, or else on the time that they take."""
        nonlocal chunk, chunk_s
        before = clock()
        if most is not None:
            chunk = min(most - search.count, most // (4 * STEPS) + 1, MOST_CHUNK)
        if search.run(current, chunk, temperature_s) and progress is not None:
            progress(search.count, search.best_s)
        chunk_s = clock() - before
        if most is None:
            chunk = max(1, min(2 * chunk, MOST_CHUNK, int(chunk * CHUNK_S / max(chunk_s, 1e-6))))

    if most is None:
        # A probe, by which the number of evaluations is estimated.
        while spent() < PROBE_SHARE:
            step(COLD * scale)
    per_task = (most if most is not None else search.count / spent()) / search.problem.n_tasks
    left = 1.0 - spent()
    planned = cycles(per_task, search.rng, len(order))
    credit = CREDIT

    def in_time(took_s: float) -> bool:
        return deadline_s is None or clock() + took_s < deadline_s

    def polish() -> None:
        nonlocal credit
        if windows is not None and credit > 0 and search.best is not None:
            credit, better = search.polish(windows, credit, most=most, go_on=in_time)
            if better and progress is not None:
                progress(search.count, search.best_s)

    for i, cycle in enumerate(planned):
        if i > 0:
            polish()
        first = spent()
        # The last one ends with the budget, whatever the sum of the shares is rounded to.
        end = 1.0 if i + 1 == len(planned) else 1.0 - left * sum(c.share for c in planned[i + 1 :])
        if cycle.start > 0:
            current = search.begin(order[cycle.start].order, search.groups[order[cycle.start].device])
        elif search.best is not None:
            current = search.begin(*search.best)
        while (done := spent()) < end:
            if deadline_s is not None and clock() + chunk_s > deadline_s:
                return
            step(scale * cycle.hot * (COLD / cycle.hot) ** min(1.0, (done - first) / (end - first)))
