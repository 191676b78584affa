"""The local search: exact incremental evaluation, reproducible, ended by count, clock or interrupt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import instances

from heterotask_core.planning.base import Budget
from heterotask_core.planning.core import arrays, decode, edges
from heterotask_core.planning.instance import instance_to_problem
from heterotask_core.planning.listing import heft_rule, peft_rule, place
from heterotask_core.planning.placing import workspace
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.search import COLD, Search, cycles, improve
from heterotask_core.planning.search_evaluate import marks
from heterotask_core.planning.search_space import device_groups


def cholesky(n: int) -> Any:
    """Tiled Cholesky on three cores and two GPUs behind one bus."""
    tile = {"size_bytes": 100, "home": "ram"}
    seconds = {
        "potrf": {"cpu": 3.0, "cuda": 2.0},
        "trsm": {"cpu": 6.0, "cuda": 1.0},
        "syrk": {"cpu": 6.0, "cuda": 0.7},
        "gemm": {"cpu": 12.0, "cuda": 0.9},
    }
    tasks: list[dict[str, Any]] = []

    def add(kernel: str, updated: str, *read: str) -> None:
        tasks.append({"name": f"t{len(tasks)}", "kernel": kernel, "reads": list(read), "updates": [updated]})

    for k in range(n):
        add("potrf", f"{k},{k}")
        for i in range(k + 1, n):
            add("trsm", f"{i},{k}", f"{k},{k}")
        for i in range(k + 1, n):
            add("syrk", f"{i},{i}", f"{i},{k}")
            for j in range(k + 1, i):
                add("gemm", f"{i},{j}", f"{i},{k}", f"{j},{k}")
    memories = ["ram", "cuda0", "cuda1"]
    return {
        "format": "heterotask-instance/1",
        "name": "cholesky",
        "memories": [{"name": m, "node": "n0"} for m in memories],
        "devices": [{"name": f"cpu{i}", "kind": "cpu", "memory": "ram"} for i in range(3)]
        + [{"name": m, "kind": "cuda", "memory": m} for m in memories[1:]],
        "links": [
            {"from": a, "to": b, "latency_s": 0.01, "bandwidth_bytes_per_s": 500.0, "lanes": [a + b, "bus"]}
            for a in memories
            for b in memories
            if a != b
        ],
        "kernels": {name: {"seconds": cost} for name, cost in seconds.items()},
        "data": [{"name": f"{i},{j}", **tile} for i in range(n) for j in range(i + 1)],
        "tasks": tasks,
    }


@pytest.fixture(scope="module")
def problem() -> Problem:
    return instance_to_problem(cholesky(6))


def searched(problem: Problem, evaluations: int, seed: int = 0) -> Any:
    view = arrays(problem)
    starts = [place(problem, view, rule(problem)) for rule in (peft_rule, heft_rule)]
    return improve(problem, view, starts, budget=Budget(evaluations=evaluations, seed=seed), deadline_s=None)


@settings(max_examples=40, deadline=None)
@given(instances(max_tasks=14), st.integers(0, 1000), st.sampled_from([1, 2, 5]))
def test_evaluations_from_a_mark_equal_evaluations_from_the_start(document: Any, seed: int, n_marks: int) -> None:
    problem = instance_to_problem(document)
    view = arrays(problem)
    first = place(problem, view, peft_rule(problem))
    search = Search(problem, view, seed=seed)
    search.marks = marks(view, search.work, n_marks)
    current = search.begin(first.order, search.groups[first.device])
    pointer, target, _, _ = edges(problem)
    source = np.repeat(np.arange(problem.n_tasks), np.diff(pointer))
    for _ in range(6):
        search.run(current, 17, 0.05 * first.makespan_s)
        again = Search(problem, view, seed=0)
        assert again.begin(current.order, current.group).score[0] == current.score[0]
        assert sorted(current.order.tolist()) == list(range(problem.n_tasks))
        assert (current.pos[source] < current.pos[target]).all()
        assert np.isfinite(problem.cost_s[problem.task_class, again.begin(current.order, current.group).device]).all()
    assert search.count == 6 * 17


def test_the_best_plan_is_what_it_was_scored(problem: Problem) -> None:
    view = arrays(problem)
    search = Search(problem, view, seed=1)
    first = place(problem, view, peft_rule(problem))
    current = search.begin(first.order, search.groups[first.device])
    search.run(current, 3000, 1e-3 * first.makespan_s)
    assert search.best_s < first.makespan_s
    assert search.placed().makespan_s <= search.best_s


def test_equal_seeds_give_equal_plans_and_the_count_is_exact(problem: Problem) -> None:
    (once, count), (again, _), (other, _) = searched(problem, 4000), searched(problem, 4000), searched(problem, 4000, 1)
    assert count == 4000
    for name, value in once._asdict().items():
        np.testing.assert_array_equal(value, getattr(again, name))
    assert not np.array_equal(once.order, other.order)


@pytest.mark.parametrize("evaluations", [0, 1, 7, 200, 56 * 2000])
def test_budgets_are_used_up(problem: Problem, evaluations: int) -> None:
    view = arrays(problem)
    listed = min(place(problem, view, rule(problem)).makespan_s for rule in (peft_rule, heft_rule))
    found, count = searched(problem, evaluations)
    assert count == evaluations
    assert found.makespan_s <= listed


def test_the_clock_ends_the_search(problem: Problem) -> None:
    now = 100.0

    def clock() -> float:
        nonlocal now
        now += 0.01
        return now

    view = arrays(problem)
    starts = [place(problem, view, peft_rule(problem))]
    found, count = improve(problem, view, starts, budget=Budget(), deadline_s=103.0, clock=clock)
    assert count > 0
    assert now < 103.0 + 0.1
    assert found.makespan_s <= starts[0].makespan_s


def test_an_interrupt_returns_the_best_so_far(problem: Problem) -> None:
    seen: list[float] = []

    def progress(count: int, makespan_s: float) -> None:
        seen.append(makespan_s)
        if len(seen) == 3:
            raise KeyboardInterrupt

    view = arrays(problem)
    starts = [place(problem, view, peft_rule(problem))]
    found, count = improve(
        problem, view, starts, budget=Budget(evaluations=1_000_000), deadline_s=None, progress=progress
    )
    assert count < 1_000_000
    assert seen == sorted(seen, reverse=True)
    assert found.makespan_s <= seen[-1]


def test_a_workspace_that_is_too_small_grows(problem: Problem) -> None:
    view = arrays(problem)
    first = place(problem, view, peft_rule(problem))
    scores = []
    for room in (1, 256):
        search = Search(problem, view, seed=3)
        search.work = workspace(view, room)
        search.marks = marks(view, search.work, 4)
        current = search.begin(first.order, search.groups[first.device])
        search.run(current, 500, 1e-3 * first.makespan_s)
        scores.append((search.count, float(current.score[0]), current.order.tolist()))
    assert scores[0] == scores[1]


def test_the_order_of_a_pass_gives_the_pass_again(problem: Problem) -> None:
    view = arrays(problem)
    rule = heft_rule(problem)
    once = place(problem, view, rule)
    priority = np.empty(problem.n_tasks)
    priority[once.order] = -np.arange(problem.n_tasks)
    again = decode(view, priority, np.zeros((problem.n_tasks, 0)), once.device)
    for name, value in once._asdict().items():
        np.testing.assert_array_equal(value, getattr(again, name))


def test_a_bias_may_be_given_a_device_or_a_class(problem: Problem) -> None:
    view = arrays(problem)
    by_class = np.random.default_rng(0).random((problem.n_tasks, int(view.memory_class.max()) + 1))
    priority, forced = heft_rule(problem).priority, np.full(problem.n_tasks, -1, np.int32)
    once = decode(view, priority, by_class, forced)
    again = decode(view, priority, np.ascontiguousarray(by_class[:, view.memory_class]), forced)
    np.testing.assert_array_equal(once.start_s, again.start_s)


def test_devices_of_equal_costs_and_memory_are_one_group(problem: Problem) -> None:
    assert device_groups(problem).tolist() == [0, 0, 0, 1, 2]


@pytest.mark.parametrize("per_task", [0.1, 30.0, 900.0, 1e6])
def test_cycles_use_the_whole_budget(per_task: float) -> None:
    found = cycles(per_task, np.random.default_rng(0), 3)
    assert sum(c.share for c in found) == pytest.approx(1.0)
    assert all(COLD < c.hot < 1.0 and -1 <= c.start < 3 for c in found)
