"""A plan that needs a route where there is none: the message names task, data item and both memories."""

from __future__ import annotations

from typing import Any

import pytest

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning.base import Budget
from heterotask_core.planning.instance import instance_to_problem
from heterotask_core.planning.registry import planner


def apart(**changes: Any) -> dict[str, Any]:
    """Return two memories that no link joins; what is made in the one is read in the other."""
    return {
        "format": "heterotask-instance/1",
        "name": "apart",
        "contention": True,
        "memories": [{"name": m, "node": m} for m in ("left", "right")],
        "devices": [
            {"name": "l", "kind": "cpu", "memory": "left"},
            {"name": "r", "kind": "gpu", "memory": "right"},
            {"name": "s", "kind": "gpu", "memory": "right"},
        ],
        "links": [],
        "kernels": {"make": {"seconds": {"cpu": 1}}, "use": {"seconds": {"gpu": 1}}},
        "data": [{"name": "x", "size_bytes": 8}],
        "tasks": [
            {"name": "t0", "kernel": "make", "writes": ["x"]},
            {"name": "t1", "kernel": "use", "reads": ["x"]},
        ],
    } | changes


@pytest.mark.parametrize("name", ["peft", "heft", "restricted", "portfolio"])
def test_a_task_that_its_data_cannot_reach(name: str) -> None:
    with pytest.raises(InfeasiblePlanError) as caught:
        planner(name).plan(instance_to_problem(apart()), budget=Budget(evaluations=0))
    assert str(caught.value) == (
        "task 't1' on 'r': 'x' has no route of at most 4 links from memory 'left' to 'right', and its data get to no "
        "other device that can run it; add links"
    )


def test_a_result_that_cannot_get_where_it_must_end() -> None:
    data = [{"name": "y", "size_bytes": 8, "home": "left", "final": "right"}]
    document = apart(data=data, tasks=[{"name": "t0", "kernel": "make", "updates": ["y"]}])
    with pytest.raises(InfeasiblePlanError) as caught:
        planner("peft").plan(instance_to_problem(document), budget=Budget())
    assert str(caught.value) == (
        "'y' has no route of at most 4 links from memory 'left' to 'right', where it must end; add links"
    )
