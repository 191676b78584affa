"""A plan for a terminal stays readable whatever the numbers are."""

import pytest

from heterotask_core.planning.base import Budget
from heterotask_core.planning.instance import instance_to_problem
from heterotask_core.planning.registry import planner
from heterotask_core.report.plan_text import above_text, gantt_lines, plan_lines, schedule_bars

EMPTY = {
    "format": "heterotask-instance/1",
    "name": "none",
    "memories": [{"name": "m", "node": "n"}],
    "devices": [{"name": "a", "kind": "cpu", "memory": "m"}],
    "tasks": [],
}


@pytest.mark.parametrize(
    ("above", "said"),
    [
        (None, "no lower bound"),
        (0.0, "proven optimal"),
        (0.125, "at most 12.5 % above optimal"),
        (10.0, "at most 1000.0 % above optimal"),
        (2e90, "at most 2e+90 times the optimum"),
    ],
)
def test_the_distance_from_the_optimum_is_a_short_number(above, said):
    assert above_text(above) == said


def test_a_plan_without_tasks_has_no_bounds_and_no_chart():
    problem = instance_to_problem(EMPTY)
    schedule = planner("heft").plan(problem, budget=Budget())
    assert [*plan_lines(problem, schedule)] == [
        "none: heft makespan 0 s, no lower bound",
        "  1 device(s) without a task",
        "  0 B moved in 0 transfers",
    ]
    assert [*gantt_lines(schedule_bars(problem, schedule))] == []
