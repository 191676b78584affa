"""Planned memory: every read finds its copy in a buffer, buffers lie apart, refusals come with numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_faults import plan_faults
from problems import instances
from test_planning_planners import TOPCUOGLU_C, TOPCUOGLU_W, instance

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning.base import Budget
from heterotask_core.planning.heft import HEFT
from heterotask_core.planning.instance import instance_to_problem
from heterotask_core.planning.memory import peak_bytes
from heterotask_core.planning.memory_search import refine
from heterotask_core.planning.plan_file import plan_to_json
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.registry import PLANNERS, planner
from heterotask_core.planning.schedule import Buffers, Schedule

SLACK = 1e-9


def buffer_faults(p: Problem, s: Schedule) -> list[str]:
    """What is wrong with the buffers of a plan, by a plain reading of the exchange format."""
    b, faults = s.buffers, []
    slack = SLACK * (1 + s.makespan_s)
    made = {
        int(v): (t, int(old))
        for t in range(p.n_tasks)
        for v, old in zip(
            p.output_versions[p.output_ptr[t] : p.output_ptr[t + 1]],
            p.output_takes_over[p.output_ptr[t] : p.output_ptr[t + 1]],
            strict=True,
        )
    }
    for i in range(len(b.version)):
        m = b.memory[i]
        if not 0 <= b.offset_bytes[i] <= p.memory_capacity_bytes[m] - b.size_bytes[i]:
            faults.append(f"buffer {i} lies outside")
        for j in range(i):
            apart = (
                b.memory[j] != m
                or b.free_s[i] <= b.alloc_s[j] + slack
                or b.free_s[j] <= b.alloc_s[i] + slack
                or b.offset_bytes[i] + b.size_bytes[i] <= b.offset_bytes[j]
                or b.offset_bytes[j] + b.size_bytes[j] <= b.offset_bytes[i]
            )
            new, old = (i, j) if b.alloc_s[i] >= b.alloc_s[j] else (j, i)
            takes_over = made.get(int(b.version[new]), (-1, -2))[1] == b.version[old]
            if not apart and not takes_over:
                faults.append(f"buffers {j} and {i} overlap")
    reads = [
        (int(v), int(p.device_memory[s.task_device[t]]), s.task_start_s[t], s.task_finish_s[t])
        for t in range(p.n_tasks)
        for v in p.input_versions[p.input_ptr[t] : p.input_ptr[t + 1]]
    ] + [
        (int(v), int(p.link_source[x]), a, z)
        for v, x, a, z in zip(s.transfer_version, s.transfer_link, s.transfer_start_s, s.transfer_finish_s, strict=True)
    ]
    for v, m, start, finish in reads:
        if p.memory_capacity_bytes[m] < 0:
            continue
        mine = (b.version == v) & (b.memory == m)
        if not ((b.alloc_s[mine] <= start + slack) & (b.free_s[mine] >= finish - slack)).any():
            faults.append(f"version {v} is not in memory {m} from {start} to {finish}")
    return faults


def needs(p: Problem, t: int) -> int:
    """The fewest bytes a task can need where it runs: inputs and what it writes anew."""
    out = p.output_versions[p.output_ptr[t] : p.output_ptr[t + 1]]
    fresh = out[p.output_takes_over[p.output_ptr[t] : p.output_ptr[t + 1]] < 0]
    return int(p.version_size_bytes[[*p.input_versions[p.input_ptr[t] : p.input_ptr[t + 1]], *fresh]].sum())


@settings(max_examples=60, deadline=None)
@given(document=instances(max_tasks=14), data=st.data())
def test_plans_under_limits_are_valid_or_refused_with_reason(document: Any, data: st.DataObject) -> None:
    for memory in document["memories"]:
        if "cuda" in memory["name"]:
            memory["capacity_bytes"] = data.draw(st.integers(10, 90))
    problem = instance_to_problem(document)
    refusal, schedule = "", None
    try:
        schedule = HEFT.plan(problem, budget=Budget())
    except InfeasiblePlanError as error:
        refusal = str(error)
    if schedule is None:
        limit = problem.memory_capacity_bytes[problem.memory_capacity_bytes >= 0].min(initial=10**9)
        assert f"there are {limit}" in refusal or "bytes in memory" in refusal
        # An update whose old version others still read needs room for both.
        most = max(needs(problem, t) for t in range(problem.n_tasks))
        assert most + problem.version_size_bytes.max() * len(problem.data_names) > limit
        return
    assert plan_faults(document, plan_to_json(problem, schedule)) == []
    assert buffer_faults(problem, schedule) == []
    assert schedule.makespan_s >= schedule.lower_bound_s * (1 - 1e-6)


def test_what_does_not_fit_is_refused_with_task_and_bytes() -> None:
    document = instance([(1.0,), (1.0,)], {(0, 1): 8})
    document["memories"][0]["capacity_bytes"] = 7
    with pytest.raises(InfeasiblePlanError, match=r"task 't0' on 'p0' needs 8 bytes in memory 'p0', there are 7"):
        HEFT.plan(instance_to_problem(document), budget=Budget())


def test_the_search_under_limits_is_reproducible_valid_and_no_longer() -> None:
    document = instance(TOPCUOGLU_W, TOPCUOGLU_C, contention=True)
    for memory in document["memories"][1:]:
        memory["capacity_bytes"] = 90
    problem = instance_to_problem(document)
    start = HEFT.plan(problem, budget=Budget())
    (once, count), (again, _) = (refine(problem, [start], evaluations=200, deadline_s=None, seed=5) for _ in range(2))
    assert count == 200
    assert once.makespan_s <= start.makespan_s
    assert plan_to_json(problem, once) == plan_to_json(problem, again)
    assert plan_faults(document, plan_to_json(problem, once)) == []
    assert buffer_faults(problem, once) == []
    assert refine(problem, [start], evaluations=None, deadline_s=1.0, seed=0, clock=lambda: 2.0) == (start, 0)


def test_peak_counts_live_bytes_and_the_highest_byte() -> None:
    buffers = Buffers(
        memory=np.array([0, 0, 1], np.int32),
        version=np.array([0, 1, 2], np.int32),
        offset_bytes=np.array([0, 6, 0]),
        size_bytes=np.array([5, 4, 100]),
        alloc_s=np.array([0.0, 1.0, 0.0]),
        free_s=np.array([1.0, 2.0, 9.0]),
    )
    assert peak_bytes(buffers, 0) == (5, 10)


def test_an_update_in_place_counts_once_in_the_peak() -> None:
    """Versions 0, 1 and 2 of one item follow each other on the same bytes, beside an item without bytes."""
    buffers = Buffers(
        memory=np.zeros(5, np.int32),
        version=np.array([0, 3, 1, 2, 4], np.int32),
        offset_bytes=np.array([0, 0, 0, 0, 4]),
        size_bytes=np.array([4, 0, 4, 4, 3]),
        alloc_s=np.array([0.0, 0.5, 1.0, 2.0, 2.5]),
        free_s=np.array([2.0, 9.0, 3.0, 3.0, 4.0]),
    )
    assert peak_bytes(buffers, 0) == (7, 7)


def bytes_in_use(b: Buffers, memory: int) -> int:
    """The most bytes that buffers of a memory cover at one time: a byte that two of them share counts once."""
    mine = [i for i in range(len(b.version)) if b.memory[i] == memory]
    return max(
        len({x for i in mine if b.alloc_s[i] <= at < b.free_s[i] for x in range(*_span(b, i))})
        for at in b.alloc_s[mine].tolist()
    )


def _span(b: Buffers, i: int) -> tuple[int, int]:
    return int(b.offset_bytes[i]), int(b.offset_bytes[i] + b.size_bytes[i])


@settings(max_examples=60, deadline=None)
@given(document=instances(max_tasks=14), name=st.sampled_from(PLANNERS), data=st.data())
def test_the_peak_of_every_planner_is_what_lies_there_and_within_the_capacity(
    document: Any, name: str, data: st.DataObject
) -> None:
    for memory in document["memories"]:
        if "cuda" in memory["name"]:
            memory["capacity_bytes"] = data.draw(st.integers(20, 120))
    problem = instance_to_problem(document)
    try:
        schedule = planner(name).plan(problem, budget=Budget(evaluations=20))
    except InfeasiblePlanError:
        return
    for memory in np.unique(schedule.buffers.memory).tolist():
        live, end = peak_bytes(schedule.buffers, memory)
        assert live == bytes_in_use(schedule.buffers, memory)
        assert live <= end <= problem.memory_capacity_bytes[memory]
