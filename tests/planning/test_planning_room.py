"""Tasks go where their data fit, with every planner; refused is only what fits nowhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_faults import plan_faults
from problems import instances
from test_planning_memory import buffer_faults

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning import portfolio
from heterotask_core.planning.base import Budget
from heterotask_core.planning.heft import HEFT
from heterotask_core.planning.instance import instance_to_problem
from heterotask_core.planning.memory_search import refine
from heterotask_core.planning.plan_file import plan_to_json
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.registry import PLANNERS, planner
from heterotask_core.planning.room import needed_bytes, restrict_to_room


def document(capacity: int, *, host: bool = True) -> Any:
    """Four pairs of tasks that are ten times faster on the GPUs, of which the large ones need 90 bytes at once."""
    sizes = {f"{kind}{i}": size for i in range(4) for kind, size in (("small", 5), ("large", 40), ("out", 50))}
    return {
        "format": "heterotask-instance/1",
        "name": "room",
        "contention": True,
        "memories": [
            {"name": "ram", "node": "n0"},
            {"name": "tiny", "node": "n0", "capacity_bytes": 20},
            {"name": "wide", "node": "n0", "capacity_bytes": capacity},
        ],
        "devices": [
            *([{"name": "cpu", "kind": "cpu", "memory": "ram"}] if host else []),
            {"name": "tiny", "kind": "cuda", "memory": "tiny"},
            {"name": "wide", "kind": "cuda", "memory": "wide"},
        ],
        "links": [
            {"from": a, "to": b, "latency_s": 0.01, "bandwidth_bytes_per_s": 100.0}
            for x in ("tiny", "wide")
            for a, b in (("ram", x), (x, "ram"))
        ],
        "kernels": {"k": {"seconds": {**({"cpu": 10.0} if host else {}), "cuda": 1.0}}},
        "data": [
            {"name": name, "size_bytes": size, **({} if name.startswith("out") else {"home": "ram"})}
            for name, size in sizes.items()
        ],
        "tasks": [
            task
            for i in range(4)
            for task in (
                {"name": f"light{i}", "kernel": "k", "updates": [f"small{i}"]},
                {"name": f"heavy{i}", "kernel": "k", "reads": [f"large{i}"], "writes": [f"out{i}"]},
            )
        ],
    }


def checked(name: str, instance: Any) -> tuple[Problem, Any]:
    """Plan with a planner of that name; return problem and plan, which has no faults."""
    if name == "cpsat":
        pytest.importorskip("ortools")
    problem = instance_to_problem(instance)
    schedule = planner(name).plan(problem, budget=Budget(evaluations=30))
    plan = plan_to_json(problem, schedule)
    assert plan_faults(instance, plan) == []
    assert buffer_faults(problem, schedule) == []
    return problem, plan


@pytest.mark.parametrize("name", PLANNERS)
def test_tasks_go_where_their_data_fit(name: str) -> None:
    _, plan = checked(name, document(90))
    assert all(p["device"] != "tiny" for p in plan["tasks"] if p["task"].startswith("heavy"))
    _, plan = checked(name, document(89))
    assert all(p["device"] == "cpu" for p in plan["tasks"] if p["task"].startswith("heavy"))


@pytest.mark.parametrize("name", PLANNERS)
def test_what_fits_nowhere_is_refused_with_the_largest_memory(name: str) -> None:
    if name == "cpsat":
        pytest.importorskip("ortools")
    problem = instance_to_problem(document(89, host=False))
    with pytest.raises(
        InfeasiblePlanError, match=r"task 'heavy0' on 'wide' needs 90 bytes in memory 'wide', there are 89"
    ):
        planner(name).plan(problem, budget=Budget(evaluations=30))


def test_an_update_that_others_read_beside_writes_the_old_version_away() -> None:
    instance = document(70)
    instance["tasks"] = [
        {"name": "make", "kernel": "k", "writes": ["out0"], "on": ["wide"]},
        {"name": "slow", "kernel": "k", "writes": ["small0"], "on": ["cpu"]},
        {"name": "read", "kernel": "k", "reads": ["out0", "small0"], "on": ["cpu"]},
        {"name": "update", "kernel": "k", "updates": ["out0"], "on": ["wide"]},
    ]
    # Both versions of 50 bytes do not fit into 70: the one that "read" takes later is written to the host.
    _, plan = checked("heft", instance)
    finish = {p["task"]: p["finish_s"] for p in plan["tasks"]}
    assert finish["update"] < finish["slow"] < finish["read"]


def test_classes_split_by_what_fits_and_keep_their_variants() -> None:
    problem = instance_to_problem(document(90))
    fitted = restrict_to_room(problem)
    assert needed_bytes(problem, 1).tolist() == [5, 90] * 4
    can = np.isfinite(fitted.cost_s[fitted.task_class])
    assert can.tolist() == [[True, True, True], [True, False, True]] * 4
    assert [fitted.class_names[c] for c in fitted.task_class] == [problem.class_names[c] for c in problem.task_class]
    assert (np.isfinite(fitted.variant_cost_s[fitted.task_class[1]]) == can[1]).all()
    roomy = instance_to_problem(
        {**document(90), "memories": [{"name": m, "node": "n"} for m in ("ram", "tiny", "wide")]}
    )
    assert restrict_to_room(roomy) is roomy


@pytest.mark.parametrize("name", PLANNERS)
@settings(max_examples=5, deadline=None)
@given(instance=instances(max_tasks=10), data=st.data())
def test_random_problems_with_limits_are_planned_or_fit_nowhere(name: str, instance: Any, data: st.DataObject) -> None:
    for memory in instance["memories"]:
        if "cuda" in memory["name"]:
            memory["capacity_bytes"] = data.draw(st.integers(5, 60))
    problem = instance_to_problem(instance)
    fits = np.ones((problem.n_tasks, problem.n_devices), np.bool_)
    for d, m in enumerate(problem.device_memory):
        if problem.memory_capacity_bytes[m] >= 0:
            fits[:, d] = needed_bytes(problem, int(m)) <= problem.memory_capacity_bytes[m]
    if (fits & np.isfinite(problem.cost_s[problem.task_class])).any(axis=1).all():
        checked(name, instance)
        return
    with pytest.raises(InfeasiblePlanError, match=r"task 't\d+' on .* needs \d+ bytes in memory .*, there are \d+"):
        HEFT.plan(problem, budget=Budget())


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_an_interrupt_returns_the_best_so_far(nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes while the n-th plan is completed; the first is completed all the same, and nothing is searched after."""
    instance = document(95)
    problem = instance_to_problem(instance)
    complete, calls = portfolio.finish, 0

    def interrupted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise KeyboardInterrupt
        return complete(*args, **options)

    monkeypatch.setattr(portfolio, "finish", interrupted)
    schedule = portfolio.PORTFOLIO.plan(problem, budget=Budget(evaluations=200))
    assert plan_faults(instance, plan_to_json(problem, schedule)) == []
    assert calls == max(nth, 2)
    assert schedule.evaluations <= 100


def test_no_walk_begins_that_would_end_after_the_deadline() -> None:
    problem = instance_to_problem(document(95))
    start = HEFT.plan(problem, budget=Budget())
    times = iter([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert refine(problem, [start], evaluations=None, deadline_s=4.5, seed=0, clock=lambda: next(times))[1] == 4
