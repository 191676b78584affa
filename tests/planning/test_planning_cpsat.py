"""The exact planner: published optima, brute force on tiny problems, valid plans on everything, neighbourhoods."""

from __future__ import annotations

import sys
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from plan_faults import plan_faults
from problems import instances
from test_planning_planners import TOPCUOGLU_C, TOPCUOGLU_W, instance

from heterotask_core.errors import InfeasiblePlanError, MissingExtraError
from heterotask_core.planning.base import Budget
from heterotask_core.planning.cpsat import CPSAT, solve
from heterotask_core.planning.heft import HEFT
from heterotask_core.planning.instance import instance_to_problem
from heterotask_core.planning.plan_file import plan_to_json
from heterotask_core.planning.problem import Problem


def test_without_or_tools_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(MissingExtraError, match=r"planner cpsat needs OR-tools; pip install 'heterotask\[cpsat\]'"):
        CPSAT.plan(instance_to_problem(instance([(1.0,)], {})), budget=Budget(evaluations=1))


class TestWithOrTools:
    """Everything that needs the solver."""

    @pytest.fixture(autouse=True)
    def _solver(self) -> None:
        pytest.importorskip("ortools")

    def test_topcuoglu_optimum_is_proven(self) -> None:
        problem = instance_to_problem(instance(TOPCUOGLU_W, TOPCUOGLU_C))
        once, again = (CPSAT.plan(problem, budget=Budget(evaluations=100, seed=1)) for _ in range(2))
        assert (once.makespan_s, once.lower_bound_s) == (73.0, 73.0)
        assert plan_to_json(problem, once) == plan_to_json(problem, again)

    @settings(max_examples=25, deadline=None)
    @given(document=instances(max_tasks=7))
    def test_valid_and_never_above_heft(self, document: Any) -> None:
        problem = instance_to_problem(document)
        found = CPSAT.plan(problem, budget=Budget(evaluations=4))
        assert plan_faults(document, plan_to_json(problem, found)) == []
        assert found.makespan_s <= HEFT.plan(problem, budget=Budget()).makespan_s * (1 + 1e-9)
        assert found.lower_bound_s <= found.makespan_s

    @settings(max_examples=15, deadline=None)
    @given(document=instances(max_tasks=4, contention=False))
    def test_as_short_as_trying_everything(self, document: Any) -> None:
        problem = instance_to_problem(document)
        found = CPSAT.plan(problem, budget=Budget(evaluations=40))
        assert found.makespan_s == pytest.approx(shortest(problem), rel=1e-5, abs=1e-9)

    def test_a_neighbourhood_keeps_what_is_not_free(self) -> None:
        document = instance(TOPCUOGLU_W, TOPCUOGLU_C, contention=True)
        problem = instance_to_problem(document)
        start = HEFT.plan(problem, budget=Budget())
        free = frozenset(range(5, 10))
        found, bound_s = solve(problem, start, budget=Budget(evaluations=40), free=free)
        assert found is not None
        assert bound_s == 0.0
        assert plan_faults(document, plan_to_json(problem, found)) == []
        assert found.makespan_s <= start.makespan_s
        kept = [t for t in range(10) if t not in free]
        assert found.task_device[kept].tolist() == start.task_device[kept].tolist()

    def test_large_problems_are_refused(self) -> None:
        problem = instance_to_problem(instance([(1.0,) * 40] * 3000, {}))
        with pytest.raises(InfeasiblePlanError, match="3000 tasks on 40 devices are too many for cpsat"):
            CPSAT.plan(problem, budget=Budget(evaluations=1))


def shortest(p: Problem) -> float:
    """The optimum without contention: all device choices, all orders, each task as early as it can."""
    route = np.full((p.n_versions, p.n_memories, p.n_memories), np.inf)
    for v in range(p.n_versions):
        np.fill_diagonal(route[v], 0.0)
        for a, b, latency, bandwidth in zip(
            p.link_source, p.link_target, p.link_latency_s, p.link_bandwidth_bytes_per_s, strict=True
        ):
            route[v, a, b] = latency + p.version_size_bytes[v] / bandwidth
        for k in range(p.n_memories):
            route[v] = np.minimum(route[v], route[v][:, k, None] + route[v][None, k, :])
    choices = [np.flatnonzero(np.isfinite(p.cost_s[c])).tolist() for c in p.task_class]
    best = np.inf
    for order in permutations(range(p.n_tasks)):
        for devices in product(*choices):
            best = min(best, span(p, order, devices, route))
    return best


def span(p: Problem, order: tuple[int, ...], devices: tuple[int, ...], route: Any) -> float:
    free = np.zeros(len(p.lane_names))
    finish: dict[int, float] = {}
    for t in order:
        d = devices[t]
        ready = 0.0
        for a in p.after_tasks[p.after_ptr[t] : p.after_ptr[t + 1]]:
            if a not in finish:
                return np.inf
            ready = max(ready, finish[a])
        for v in p.input_versions[p.input_ptr[t] : p.input_ptr[t + 1]]:
            producer = int(p.version_producer[v])
            if producer >= 0 and producer not in finish:
                return np.inf
            homes = p.home_memories[p.home_ptr[v] : p.home_ptr[v + 1]]
            sources = [p.device_memory[devices[producer]]] if producer >= 0 else homes
            ready = max(ready, finish.get(producer, 0.0) + min(route[v, a, p.device_memory[d]] for a in sources))
        lanes = p.device_lanes[p.device_lane_ptr[d] : p.device_lane_ptr[d + 1]]
        start = max(ready, free[lanes].max())
        finish[t] = start + p.cost_s[p.task_class[t], d]
        free[lanes] = finish[t]
    return max(finish.values())
