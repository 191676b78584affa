"""Drawn list schedules, priced devices, and what the portfolio makes of CP-SAT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from plan_faults import plan_faults
from test_planning_planners import TOPCUOGLU_C, TOPCUOGLU_W, instance
from test_planning_search import cholesky

from heterotask_core.planning.base import Budget
from heterotask_core.planning.bounds import area_prices
from heterotask_core.planning.core import Placed, arrays
from heterotask_core.planning.instance import instance_to_problem
from heterotask_core.planning.listing import peft_rule, place
from heterotask_core.planning.peft_area import overpaid_s
from heterotask_core.planning.plan_file import plan_to_json
from heterotask_core.planning.portfolio import PortfolioPlanner
from heterotask_core.planning.registry import planner
from heterotask_core.planning.sampling import KEPT, sampled_passes


def test_prices_of_the_area_program() -> None:
    # Two devices, the second twice as fast: a second of it is worth twice as much, so neither is overpaid.
    document = instance([(2.0, 1.0)] * 3, {})
    for task in document["tasks"]:
        del task["seconds"]
        task["kernel"] = "k"
    document["kernels"] = {"k": {"seconds": {"p0": 2.0, "p1": 1.0}}}
    problem = instance_to_problem(document)
    np.testing.assert_allclose(area_prices(problem), [1 / 3, 2 / 3])
    np.testing.assert_allclose(overpaid_s(problem), [[0.0, 0.0]], atol=1e-12)


def test_a_device_that_another_class_needs_is_overpaid() -> None:
    # Only p1 can run "b", which fills it: an "a" there costs its whole second, on p0 nothing.
    document = instance([(1.0, 1.0), (1.0, 1.0), (1.0, 1.0)], {})
    for task, kernel in zip(document["tasks"], "abb", strict=True):
        del task["seconds"]
        task["kernel"] = kernel
    document["kernels"] = {"a": {"seconds": {"p0": 1.0, "p1": 1.0}}, "b": {"seconds": {"p1": 1.0}}}
    problem = instance_to_problem(document)
    np.testing.assert_allclose(overpaid_s(problem), [[0.0, 1.0], [0.0, 0.0]], atol=1e-12)


def drawn(document: Any, most: int, seed: int = 0, **options: Any) -> tuple[list[Placed], int, bool]:
    problem = instance_to_problem(document)
    return sampled_passes(
        problem, arrays(problem), most=most, seed=seed, **({"go_on": lambda: True, "progress": None} | options)
    )


def test_equal_seeds_draw_equal_passes_and_the_count_is_exact() -> None:
    (once, count, ended), (again, _, _), (other, _, _) = (drawn(cholesky(5), 60, seed) for seed in (0, 0, 1))
    assert (count, ended) == (60, True)
    assert len(once) == KEPT
    assert [p.makespan_s for p in once] == sorted(p.makespan_s for p in once)
    for one, two in zip(once, again, strict=True):
        for name, value in one._asdict().items():
            np.testing.assert_array_equal(value, getattr(two, name))
    assert [p.makespan_s for p in once] != [p.makespan_s for p in other]


def test_drawn_schedules_are_shorter_than_peft() -> None:
    problem = instance_to_problem(cholesky(10))
    peft = place(problem, arrays(problem), peft_rule(problem))
    assert drawn(cholesky(10), 100)[0][0].makespan_s < peft.makespan_s


def test_drawing_ends_when_it_is_told_to() -> None:
    left = iter([True] * 6 + [False])
    assert drawn(cholesky(4), 60, go_on=lambda: next(left))[1] == 5


def test_an_interrupt_ends_drawing_and_searching_with_the_best_so_far() -> None:
    problem = instance_to_problem(cholesky(5))
    seen: list[float] = []

    def progress(count: int, makespan_s: float) -> None:
        seen.append(makespan_s)
        if len(seen) == 2:
            raise KeyboardInterrupt

    plan = PortfolioPlanner().plan(problem, budget=Budget(evaluations=5_000), progress=progress)
    assert len(seen) == 2
    assert plan.evaluations < 60
    assert plan.makespan_s == seen[1] < seen[0]
    assert plan_faults(cholesky(5) | {"contention": True}, plan_to_json(problem, plan)) == []


@pytest.mark.parametrize("evaluations", [1, 10, 500, 3_000])
def test_draws_and_search_share_the_evaluations(evaluations: int) -> None:
    problem = instance_to_problem(cholesky(5))
    told: list[tuple[int, float]] = []
    plan = PortfolioPlanner(exact=False).plan(
        problem, budget=Budget(evaluations=evaluations), progress=lambda *row: told.append(row)
    )
    assert plan.evaluations == evaluations
    assert told == sorted(told, key=lambda row: (row[0], -row[1]))
    assert [m for _, m in told] == sorted((m for _, m in told), reverse=True)
    assert plan.makespan_s <= told[-1][1]
    assert plan.makespan_s <= planner("peft-area").plan(problem, budget=Budget()).makespan_s


def test_small_problems_are_proven_optimal_where_cpsat_is_installed() -> None:
    pytest.importorskip("ortools")
    problem = instance_to_problem(instance(TOPCUOGLU_W, TOPCUOGLU_C))
    once, again = (planner("portfolio").plan(problem, budget=Budget(evaluations=20_000, seed=1)) for _ in range(2))
    assert plan_to_json(problem, once) == plan_to_json(problem, again)
    assert (once.makespan_s, once.lower_bound_s) == (73.0, 73.0)
    assert plan_faults(instance(TOPCUOGLU_W, TOPCUOGLU_C), plan_to_json(problem, once)) == []
