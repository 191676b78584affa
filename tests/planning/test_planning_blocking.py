"""Tasks that keep their device's rank from issuing copies: against the slow reference, and with every planner."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_faults import plan_faults
from problems import instances
from reference_listing import Reference

from heterotask_core.planning.base import Budget
from heterotask_core.planning.blocking import copy_lanes, split
from heterotask_core.planning.bounds import lower_bound
from heterotask_core.planning.instance import instance_to_problem
from heterotask_core.planning.plan_file import plan_to_json
from heterotask_core.planning.registry import PLANNERS, planner
from heterotask_core.planning.whatif import gains, twice_devices

TINY = {
    "format": "heterotask-instance/1",
    "name": "tiny",
    "contention": True,
    "memories": [{"name": "n", "node": "n"}, {"name": "a", "node": "n"}, {"name": "b", "node": "n"}],
    "devices": [
        {"name": "cpu", "kind": "cpu", "memory": "n"},
        {"name": "a", "kind": "cuda", "memory": "a"},
        {"name": "b", "kind": "cuda", "memory": "b"},
    ],
    "links": [
        {"from": x, "to": y, "bandwidth_bytes_per_s": 1.0, "lanes": ["bus", f"{x} to {y}"]}
        for x, y in (("n", "a"), ("a", "n"), ("n", "b"), ("b", "n"))
    ],
    "kernels": {"make": {"seconds": {"a": 1}}, "block": {"seconds": {"a": 4}}, "use": {"seconds": {"cpu": 3}}},
    "data": [{"name": "x", "size_bytes": 1}],
    "tasks": [
        {"name": "make", "kernel": "make", "writes": ["x"]},
        {"name": "block", "kernel": "block"},
        {"name": "use", "kernel": "use", "reads": ["x"]},
    ],
}


def tiny():
    problem = instance_to_problem(TINY)
    # The column of device a: "block" blocks.
    blocking = np.zeros(problem.cost_s.shape, np.bool_)
    blocking[problem.class_names.index("block"), 1] = True
    return replace(problem, class_blocking=blocking)


@st.composite
def cases(draw, **options):
    """A problem with blocking tasks, its document, and which (kernel, device) block."""
    document = draw(instances(**options))
    problem = instance_to_problem(document)
    devices = [d["name"] for d in document["devices"] if d["kind"] == "cuda"]
    pairs = [(kernel, device) for kernel in ("any", "own") for device in devices]
    chosen = frozenset(pair for pair in pairs if draw(st.booleans()))
    kernel_of = {t["name"]: t["kernel"] for t in document["tasks"]}
    table = np.zeros(problem.cost_s.shape, np.bool_)
    for t, name in enumerate(problem.task_names):
        for d, device in enumerate(problem.device_names):
            table[problem.task_class[t], d] = (kernel_of[name], device) in chosen
    return document, replace(problem, class_blocking=table), chosen


def test_a_blocking_task_waits_for_a_copy_or_the_copy_for_it():
    problem = tiny()
    before = planner("cpsat").plan(replace(problem, class_blocking=None), budget=Budget(20))
    assert before.makespan_s == pytest.approx(5.0)
    for name in ("heft", "portfolio", "cpsat", "dmda"):
        plan = planner(name).plan(problem, budget=Budget(20))
        start, finish = plan.task_start_s[1], plan.task_finish_s[1]
        assert plan.transfer_start_s[0] >= finish or plan.transfer_finish_s[0] <= start
        assert plan.task_device.tolist() == [1, 1, 0]
    assert planner("cpsat").plan(problem, budget=Budget(20)).makespan_s == pytest.approx(6.0)


def test_only_the_device_with_blocking_tasks_is_split_and_no_shared_lane_is_held():
    problem = tiny()
    parts, origin = split(problem)
    assert origin.tolist() == [0, 1, 1, 2]
    assert parts.device_names == ("cpu", "a", "a", "b")
    assert parts.cost_s[:, 1:3].tolist() == [[1.0, np.inf], [np.inf, 4.0], [np.inf, np.inf]]
    held = [parts.lane_names[lane] for lane in parts.device_lanes[parts.device_lane_ptr[2] :][:3]]
    assert held == [parts.lane_names[parts.device_lanes[1]], "n to a", "a to n"]
    assert [problem.lane_names[lane] for lane in copy_lanes(problem, 2)] == ["n to b", "b to n"]
    everything = replace(problem, class_blocking=np.ones(problem.cost_s.shape, np.bool_))
    assert split(everything)[1].tolist() == [0, 1, 2]
    for plain in (None, np.zeros(problem.cost_s.shape, np.bool_)):
        without = replace(problem, class_blocking=plain)
        assert split(without)[0] is without


def test_what_if_plans_keep_blocking_tasks():
    problem = tiny()
    plan = planner("portfolio").plan(problem, budget=Budget(20))
    assert twice_devices(problem).class_blocking.sum() == 2
    found = {g.what: g.makespan_s for g in gains(problem, plan, planner("portfolio"), Budget(20))}
    assert found["free transfers"] == pytest.approx(5.0)
    # A twin in the same memory has the same copies: a second copy engine is what is missing.
    assert found["twice the devices"] == pytest.approx(6.0)


@pytest.mark.parametrize("name", ["peft", "heft", "lookahead"])
@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_list_schedules_equal_the_slow_reference(name, case):
    document, problem, chosen = case
    plan = planner(name).plan(problem, budget=Budget())
    got = [
        (problem.device_names[d], start, finish)
        for d, start, finish in zip(plan.task_device, plan.task_start_s, plan.task_finish_s, strict=True)
    ]
    assert got == getattr(Reference(document, blocking=chosen), name)()


@pytest.mark.parametrize("name", PLANNERS)
@settings(max_examples=15, deadline=None)
@given(case=cases(max_tasks=8))
def test_nothing_is_copied_beside_a_blocking_task(name, case):
    document, problem, chosen = case
    budget = Budget(evaluations=2 if name == "cpsat" else 60)
    plan = planner(name).plan(problem, budget=budget)
    assert plan_faults(document, plan_to_json(problem, plan), chosen) == []
    assert lower_bound(problem) <= plan.makespan_s * (1 + 1e-9)
    again = planner(name).plan(problem, budget=budget, warm_start=plan)
    assert plan_faults(document, plan_to_json(problem, again), chosen) == []


@settings(max_examples=40, deadline=None)
@given(case=cases(max_tasks=8), share=st.floats(1.0, 2.0))
def test_nor_where_memories_are_limited(case, share):
    document, problem, chosen = case
    needed = max(1, int(share * problem.version_size_bytes.sum()))
    capacity = np.array([needed if name not in problem.memory_nodes else -1 for name in problem.memory_names])
    problem = replace(problem, memory_capacity_bytes=capacity)
    plan = planner("portfolio").plan(problem, budget=Budget(evaluations=60))
    assert plan_faults(document, plan_to_json(problem, plan), chosen) == []
