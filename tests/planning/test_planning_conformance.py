"""Every planner on every kind of problem: a valid plan, the same one each time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from plan_faults import plan_faults
from problems import instances

from heterotask_core.planning.base import Budget
from heterotask_core.planning.instance import instance_to_problem
from heterotask_core.planning.plan_file import plan_to_json
from heterotask_core.planning.registry import PLANNERS, planner

PIPELINE: Any = {
    "format": "heterotask-instance/1",
    "name": "pipeline",
    "contention": True,
    "memories": [
        {"name": "n0", "node": "n0"},
        {"name": "n1", "node": "n1"},
        {"name": "n0 cuda", "node": "n0", "capacity_bytes": 1000},
        {"name": "n1 cuda", "node": "n1", "capacity_bytes": 1000},
    ],
    "devices": [
        *(
            {"name": f"{n} core{k}", "kind": "core", "memory": n, "lanes": [f"{n} lane{k}"]}
            for n in ("n0", "n1")
            for k in range(4)
        ),
        *(
            {"name": f"{n} cores", "kind": "cores", "memory": n, "lanes": [f"{n} lane{k}" for k in range(4)]}
            for n in ("n0", "n1")
        ),
        *({"name": f"{n} cuda", "kind": "cuda", "memory": f"{n} cuda"} for n in ("n0", "n1")),
    ],
    "links": [
        *(
            {"from": a, "to": b, "latency_s": 0.1, "bandwidth_bytes_per_s": 100.0, "lanes": [f"{a} bus", f"{a} {b}"]}
            for n in ("n0", "n1")
            for a, b in ((n, f"{n} cuda"), (f"{n} cuda", n))
        ),
        {"from": "n0", "to": "n1", "latency_s": 0.5, "bandwidth_bytes_per_s": 20.0, "lanes": ["n0 out", "n1 in"]},
        {"from": "n1", "to": "n0", "latency_s": 0.5, "bandwidth_bytes_per_s": 20.0, "lanes": ["n1 out", "n0 in"]},
    ],
    "kernels": {
        "load": {"seconds": {"core": 1.0}},
        "blur": {
            "variants": {
                "plain": {"seconds": {"core": 9.0, "n1 core0": 8.0}},
                "blocked": {"seconds": {"core": 8.5}},
                "threads": {"seconds": {"cores": 3.0}},
                "gpu": {"seconds": {"cuda": 0.5}},
            }
        },
        "join": {"variants": {"threads": {"seconds": {"cores": 2.0}}, "gpu": {"seconds": {"n0 cuda": 1.5}}}},
        "store": {"seconds": {"core": 1.0}},
    },
    "data": [
        *({"name": f"tile{i}", "size_bytes": 40} for i in range(6)),
        *({"name": f"blur{i}", "size_bytes": 40} for i in range(6)),
        {"name": "all", "size_bytes": 120, "final": "n1"},
    ],
    "tasks": [
        *(
            {"name": f"load{i}", "kernel": "load", "writes": [f"tile{i}"], "on": ["n0" if i < 3 else "n1"]}
            for i in range(6)
        ),
        *(
            {
                "name": f"blur{i}",
                "kernel": "blur",
                "reads": [f"tile{j}" for j in (i - 1, i, i + 1) if 0 <= j < 6],
                "writes": [f"blur{i}"],
            }
            for i in range(6)
        ),
        {"name": "join", "kernel": "join", "reads": [f"blur{i}" for i in range(6)], "writes": ["all"]},
        {"name": "store", "kernel": "store", "reads": ["all"], "on": ["n0 core0"], "after": ["blur5"]},
    ],
}
"""An edge detector's shape: halos, variants of one core, four cores and GPU, pinned input and output, two nodes."""


@pytest.mark.parametrize("name", PLANNERS)
def test_variants_cores_pins_and_nodes(name: str) -> None:
    if name == "cpsat":
        pytest.importorskip("ortools")
    problem = instance_to_problem(PIPELINE)
    once, again = (
        plan_to_json(problem, planner(name).plan(problem, budget=Budget(evaluations=50, seed=1))) for _ in range(2)
    )
    assert plan_faults(PIPELINE, once) == []
    assert once == again
    assert once["lower_bound_s"] <= once["makespan_s"]


@pytest.mark.parametrize("name", [n for n in PLANNERS if n != "portfolio"])
@settings(max_examples=25, deadline=None)
@given(document=instances(max_tasks=16))
def test_valid_on_random_problems(name: str, document: Any) -> None:
    if name == "cpsat":
        pytest.importorskip("ortools")
    problem = instance_to_problem(document)
    plan = plan_to_json(problem, planner(name).plan(problem, budget=Budget(evaluations=0)))
    assert plan_faults(document, plan) == []
