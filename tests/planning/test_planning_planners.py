"""Planners against the worked examples of their papers and against a slow reference."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning.base import Budget
from heterotask_core.planning.instance import instance_to_problem, read_instance
from heterotask_core.planning.plan_file import plan_to_json
from heterotask_core.planning.registry import PLANNERS, planner

TOPCUOGLU_W = [
    (14, 16, 9), (13, 19, 18), (11, 13, 19), (13, 8, 17), (12, 13, 10),
    (13, 16, 9), (7, 15, 11), (5, 11, 14), (18, 12, 20), (21, 7, 16),
]  # fmt: skip
TOPCUOGLU_C = {
    (0, 1): 18, (0, 2): 12, (0, 3): 9, (0, 4): 11, (0, 5): 14, (1, 7): 19, (1, 8): 16, (2, 6): 23,
    (3, 7): 27, (3, 8): 23, (4, 8): 13, (5, 7): 15, (6, 9): 17, (7, 9): 11, (8, 9): 13,
}  # fmt: skip


def instance(w: list[tuple[float, ...]], c: dict[tuple[int, int], float], *, contention: bool = False) -> Any:
    """One memory a device, full mesh; a byte takes a second."""
    names = [f"p{i}" for i in range(len(w[0]))]
    return {
        "format": "heterotask-instance/1",
        "name": "example",
        "contention": contention,
        "memories": [{"name": n, "node": n} for n in names],
        "devices": [{"name": n, "kind": "cpu", "memory": n} for n in names],
        "links": [{"from": a, "to": b, "bandwidth_bytes_per_s": 1.0} for a in names for b in names if a != b],
        "data": [{"name": f"{i}-{j}", "size_bytes": size} for (i, j), size in c.items()],
        "tasks": [
            {
                "name": f"t{t}",
                "kernel": f"t{t}",
                "reads": [f"{i}-{j}" for i, j in c if j == t],
                "writes": [f"{i}-{j}" for i, j in c if i == t],
                "seconds": dict(zip(names, row, strict=True)),
            }
            for t, row in enumerate(w)
        ],
    }


def slow_peft(w: list[tuple[float, ...]], c: dict[tuple[int, int], float]) -> list[tuple[int, float, float]]:
    """PEFT as in the paper: (device, start, finish) of every task."""
    n, devices = len(w), range(len(w[0]))
    after = [[j for j in range(n) if (i, j) in c] for i in range(n)]
    before = [[i for i in range(n) if (i, j) in c] for j in range(n)]
    oct_s = [[0.0] * len(w[0]) for _ in range(n)]
    for t in reversed(range(n)):
        for p in devices:
            oct_s[t][p] = max(
                (min(oct_s[j][q] + w[j][q] + (0 if p == q else c[t, j]) for q in devices) for j in after[t]),
                default=0.0,
            )
    done: dict[int, tuple[int, float, float]] = {}
    while len(done) < n:
        ready = [t for t in range(n) if t not in done and all(i in done for i in before[t])]
        t = max(ready, key=lambda t: (sum(oct_s[t]) / len(oct_s[t]), -t))
        best: tuple[float, int, float, float] | None = None
        for p in devices:
            start = max((done[i][2] + (0 if done[i][0] == p else c[i, t]) for i in before[t]), default=0.0)
            for _, s, f in sorted(x for x in done.values() if x[0] == p):
                if s < start + w[t][p] and f > start:
                    start = f
            score = start + w[t][p] + oct_s[t][p]
            if best is None or score < best[0]:
                best = score, p, start, start + w[t][p]
        assert best is not None
        done[t] = best[1:]
    return [done[t] for t in range(n)]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[float, ...]], dict[tuple[int, int], float]]:
    n, devices = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    cost = st.integers(1, 9)
    w = [tuple(float(draw(cost)) for _ in range(devices)) for _ in range(n)]
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    return w, {e: draw(cost) for e in pairs if draw(st.integers(0, 2)) == 0}


@pytest.mark.parametrize(("name", "makespan"), [("heft", 80.0), ("peft", 85.0)])
def test_topcuoglu_example(name: str, makespan: float) -> None:
    problem = instance_to_problem(instance(TOPCUOGLU_W, TOPCUOGLU_C))
    assert planner(name).plan(problem, budget=Budget()).makespan_s == makespan


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_peft_equals_the_slow_reference(graph: Any) -> None:
    w, c = graph
    found = planner("peft").plan(instance_to_problem(instance(w, c)), budget=Budget())
    placed = list(
        zip(found.task_device.tolist(), found.task_start_s.tolist(), found.task_finish_s.tolist(), strict=True)
    )
    assert placed == slow_peft(w, c)


def test_portfolio_is_reproducible_and_no_worse_than_the_list_schedules() -> None:
    problem = instance_to_problem(instance(TOPCUOGLU_W, TOPCUOGLU_C))
    once, again = (planner("portfolio").plan(problem, budget=Budget(evaluations=300, seed=3)) for _ in range(2))
    assert plan_to_json(problem, once) == plan_to_json(problem, again)
    assert 73.0 <= once.makespan_s <= 80.0
    assert once.evaluations == 300
    assert 0.0 < once.lower_bound_s <= 73.0


@pytest.mark.parametrize("name", PLANNERS)
def test_memory_with_a_capacity_gets_disjoint_buffers(name: str) -> None:
    if name == "cpsat":
        pytest.importorskip("ortools")
    document = instance(TOPCUOGLU_W, TOPCUOGLU_C)
    document["memories"][1]["capacity_bytes"] = 100
    document["memories"][2]["capacity_bytes"] = 100
    problem = instance_to_problem(document)
    b = planner(name).plan(problem, budget=Budget(evaluations=10)).buffers
    for i in range(len(b.version)):
        assert 0 <= b.offset_bytes[i] <= 100 - b.size_bytes[i]
        for j in range(i):
            apart_s = b.free_s[i] <= b.alloc_s[j] or b.free_s[j] <= b.alloc_s[i]
            apart = (
                b.offset_bytes[i] + b.size_bytes[i] <= b.offset_bytes[j]
                or b.offset_bytes[j] + b.size_bytes[j] <= b.offset_bytes[i]
            )
            assert b.memory[i] != b.memory[j] or apart_s or apart


def test_data_larger_than_the_memory_are_refused() -> None:
    document = instance([(1.0,), (1.0,)], {(0, 1): 8})
    document["memories"][0]["capacity_bytes"] = 7
    with pytest.raises(InfeasiblePlanError, match=r"task 't0' on 'p0' needs 8 bytes in memory 'p0', there are 7"):
        planner("peft").plan(instance_to_problem(document), budget=Budget())


def test_unknown_planner_lists_the_names() -> None:
    with pytest.raises(InfeasiblePlanError, match="there is no planner 'x'; choose one of portfolio, peft"):
        planner("x")


def test_reference_makespans() -> None:
    folder = os.environ.get("HETEROTASK_INSTANCES")
    if not folder:
        pytest.skip("HETEROTASK_INSTANCES does not name a folder of instances")
    for path in sorted(Path(folder).glob("random-*")):
        problem = read_instance(path)
        expected = problem.meta["reference_makespan"]["PEFT"]
        np.testing.assert_allclose(planner("peft").plan(problem, budget=Budget()).makespan_s, expected, rtol=1e-9)
