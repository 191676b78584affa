"""Windows planned anew by CP-SAT: never longer, shorter where a better plan lies in a window, reproducible, dropped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import instances
from test_planning_search import cholesky

from heterotask_core.planning.base import Budget
from heterotask_core.planning.core import Placed, arrays, decode, edges
from heterotask_core.planning.instance import instance_to_problem
from heterotask_core.planning.listing import heft_rule, place
from heterotask_core.planning.plan_file import plan_to_json
from heterotask_core.planning.portfolio import PortfolioPlanner
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.search import CREDIT, Search

pytest.importorskip("ortools")
from heterotask_core.planning.neighbourhood import LEAST, TICKS, Answer, Neighbourhoods


def placed(problem: Problem, answer: Answer) -> Placed:
    priority = np.empty(problem.n_tasks)
    priority[answer.order] = -np.arange(problem.n_tasks)
    return decode(arrays(problem), priority, np.zeros((problem.n_tasks, 0)), answer.device)


def made(problem: Problem) -> Placed:
    return place(problem, arrays(problem), heft_rule(problem))


def chain(costs: list[dict[str, float]]) -> Any:
    """Tasks one after another on two devices with a memory each; moving a copy takes a second."""
    tasks = [
        {"name": f"t{i}", "kernel": f"k{i}", "reads": [f"d{i - 1}"] if i else [], "writes": [f"d{i}"]}
        for i in range(len(costs))
    ]
    return {
        "format": "heterotask-instance/1",
        "name": "chain",
        "contention": False,
        "memories": [{"name": m, "node": "n"} for m in "ab"],
        "devices": [{"name": m, "kind": m, "memory": m} for m in "ab"],
        "links": [{"from": x, "to": y, "bandwidth_bytes_per_s": 1.0} for x, y in ("ab", "ba")],
        "kernels": {f"k{i}": {"seconds": cost} for i, cost in enumerate(costs)},
        "data": [{"name": f"d{i}", "size_bytes": 1} for i in range(len(costs))],
        "tasks": tasks,
    }


@settings(max_examples=15, deadline=None)
@given(document=instances(max_tasks=14, contention=False), first=st.integers(0, 13), size=st.integers(1, 8))
def test_an_answer_is_as_short_as_promised(document: Any, first: int, size: int) -> None:
    problem = instance_to_problem(document)
    plan = made(problem)
    windows = Neighbourhoods(problem)
    first = min(first, problem.n_tasks - 1)
    answer = windows.solve(plan, first, size, seed=0, work=0.2)
    if answer is None:
        return
    again = windows.solve(plan, first, size, seed=0, work=0.2)
    assert again is not None
    assert again.order.tolist() == answer.order.tolist()
    assert sorted(answer.order.tolist()) == list(range(problem.n_tasks))
    pointer, target, _, _ = edges(problem)
    position = np.empty(problem.n_tasks, np.int64)
    position[answer.order] = np.arange(problem.n_tasks)
    source = np.repeat(np.arange(problem.n_tasks), np.diff(pointer))
    assert (position[source] < position[target]).all()
    assert (answer.device != plan.device).sum() <= size
    assert placed(problem, answer).makespan_s <= plan.makespan_s * (1 - (LEAST - 4) / TICKS)


def fixed(*tasks: dict[str, Any]) -> Any:
    """Tasks of a second each, on the devices given; ``home`` is in ``b``."""
    document = chain([dict.fromkeys(task.pop("on"), 1.0) for task in tasks])
    for task, more in zip(document["tasks"], tasks, strict=True):
        task.update({"reads": [], **more})
    document["data"].append({"name": "home", "size_bytes": 2, "home": "b"})
    return document


@pytest.mark.parametrize(
    "tasks",
    [
        pytest.param(
            [{"on": "b"}, {"on": "a", "after": ["t0"]}, {"on": "a", "after": ["t0"]}, {"on": "ab"}],
            id="it waits for a task",
        ),
        pytest.param([{"on": "b"}, {"on": "a", "reads": ["d0"]}, {"on": "ab"}], id="its input is made"),
        pytest.param([{"on": "a"}, {"on": "b"}], id="nothing"),
        pytest.param([{"on": "a", "reads": ["home"]}, {"on": "ab"}], id="its input comes from home"),
        pytest.param(
            [{"on": "a"}, {"on": "b", "after": ["t0"]}, {"on": "a", "after": ["t1"]}, {"on": "b"}],
            id="its device is held",
        ),
    ],
)
def test_what_follows_a_window_does_not_move_before_what_it_waits_for(tasks: list[dict[str, Any]]) -> None:
    problem = instance_to_problem(fixed(*tasks))
    plan = made(problem)
    windows = Neighbourhoods(problem)
    for first in range(problem.n_tasks):
        for size in range(1, problem.n_tasks + 1):
            assert windows.solve(plan, first, size, seed=0, work=1.0) is None, (first, size)


def test_a_window_finds_a_better_device() -> None:
    problem = instance_to_problem(chain([{"a": 1.0, "b": 1.5}] * 2 + [{"a": 9.0, "b": 4.0}] + [{"a": 1.0, "b": 1.5}]))
    plan = place(problem, arrays(problem), heft_rule(problem)._replace(forced=np.zeros(4, np.int32)))
    assert plan.makespan_s == 12.0
    windows = Neighbourhoods(problem)
    answer = windows.solve(plan, 1, 2, seed=0, work=1.0)
    assert answer is not None
    # One second to b, four there, one back.
    assert answer.device.tolist() == [0, 0, 1, 0]
    better = placed(problem, answer)
    assert better.makespan_s == 9.0
    last = windows.solve(better, 2, 2, seed=0, work=1.0)
    assert last is not None
    best = placed(problem, last)
    assert best.makespan_s == 8.5
    assert windows.solve(best, 0, 4, seed=0, work=1.0) is None


def test_credit_doubles_where_windows_pay_and_halves_where_they_do_not() -> None:
    problem = instance_to_problem(chain([{"a": 1.0, "b": 1.5}] * 2 + [{"a": 9.0, "b": 4.0}] + [{"a": 1.0, "b": 1.5}]))
    view = arrays(problem)
    search = Search(problem, view, seed=0)
    search.begin(np.arange(4, dtype=np.int32), search.groups[np.zeros(4, np.int32)])
    windows = Neighbourhoods(problem)
    assert search.polish(windows, CREDIT, most=None, go_on=lambda _: True) == (2 * CREDIT, True)
    assert search.best_s == 8.5
    assert search.polish(windows, CREDIT, most=None, go_on=lambda _: True) == (CREDIT // 2, False)
    assert search.polish(windows, CREDIT, most=search.count, go_on=lambda _: True) == (CREDIT // 2, False)


@pytest.mark.parametrize("contention", [False, True])
def test_the_portfolio_is_reproducible_with_windows(monkeypatch: pytest.MonkeyPatch, contention: bool) -> None:
    solved = []
    solve = Neighbourhoods.solve

    def counted(self: Neighbourhoods, *arguments: Any, **options: Any) -> Answer | None:
        solved.append(arguments[1])
        return solve(self, *arguments, **options)

    monkeypatch.setattr(Neighbourhoods, "solve", counted)
    problem = instance_to_problem({**cholesky(5), "contention": contention})
    budget = Budget(evaluations=35 * 3_100, seed=1)
    once, again = (PortfolioPlanner().plan(problem, budget=budget) for _ in range(2))
    assert plan_to_json(problem, once) == plan_to_json(problem, again)
    assert once.evaluations <= 35 * 3_100
    # Where transfers hold lanes there are none.
    assert bool(solved) != contention
