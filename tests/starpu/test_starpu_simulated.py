"""A plan that is replayed with the times it was made for ends when it said; slower tasks end it later."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "starpu"))

from simulated import Replay

from heterotask_core.planning.base import Budget
from heterotask_core.planning.instance import instance_to_problem
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.registry import planner


def two_nodes() -> Problem:
    """Four chains that share a result, on two nodes with one link each way."""
    tasks = [{"name": f"a{k}", "kernel": "a", "writes": [f"x{k}"]} for k in range(4)]
    tasks += [{"name": f"b{k}", "kernel": "b", "reads": [f"x{k}", f"x{(k + 1) % 4}"]} for k in range(4)]
    return instance_to_problem(
        {
            "format": "heterotask-instance/1",
            "name": "two-nodes",
            "contention": True,
            "memories": [{"name": "m0", "node": "n0"}, {"name": "m1", "node": "n1"}],
            "devices": [{"name": f"c{k}", "kind": "cpu", "memory": f"m{k}"} for k in range(2)],
            "links": [
                {"from": "m0", "to": "m1", "latency_s": 0.1, "bandwidth_bytes_per_s": 10.0},
                {"from": "m1", "to": "m0", "latency_s": 0.1, "bandwidth_bytes_per_s": 10.0},
            ],
            "kernels": {"a": {"seconds": {"cpu": 1.0}}, "b": {"seconds": {"cpu": 2.0}}},
            "data": [{"name": f"x{k}", "size_bytes": 5} for k in range(4)],
            "tasks": tasks,
        }
    )


def test_as_planned_it_ends_as_planned() -> None:
    problem = two_nodes()
    schedule = planner("heft").plan(problem, budget=Budget(evaluations=0))
    replay = Replay(problem, schedule)
    assert replay.makespan_s([1.0] * problem.n_tasks) == pytest.approx(schedule.makespan_s)


def test_twice_the_times_without_transfers_take_twice_as_long() -> None:
    problem = two_nodes()
    schedule = planner("heft").plan(problem, budget=Budget(evaluations=0))
    replay = Replay(problem, schedule)
    once, twice = replay.makespan_s([1.0] * problem.n_tasks), replay.makespan_s([2.0] * problem.n_tasks)
    moved_s = float(np.sum(schedule.transfer_finish_s - schedule.transfer_start_s))
    assert once < twice <= 2.0 * once
    assert twice >= 2.0 * once - moved_s
