"""Plans with blocking tasks as programs: what is simulated is what was planned, and nothing is copied beside them."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from program_cases import BUMP, JOIN, MAKE, MAP, Costs, platform

from heterotask_core.graph import TaskGraph
from heterotask_core.kernel import Kernel, Variant
from heterotask_core.planning.base import Budget
from heterotask_core.planning.from_graph import build_problem
from heterotask_core.planning.registry import planner
from heterotask_core.program.lower import lower
from heterotask_core.program.model import LaneKind, OpKind
from heterotask_core.program.verify import verify
from heterotask_core.simulate import simulate

BLOCK = Kernel(
    "block",
    __name__,
    reads=("x",),
    writes=("y",),
    variants=(
        Variant("v-cpu", "cpu", "program_cases:nothing"),
        Variant("v-opencl", "opencl", "program_cases:nothing", on_host=True, blocking=True),
    ),
)


def machine():
    """Two nodes whose GPUs have a core to run them."""
    made = platform(2)
    return replace(made, devices=tuple(replace(d, core_ids=d.core_ids or (2,)) for d in made.devices))


def blocking_graph(rng, n_tasks):
    graph, alive = TaskGraph("random"), []
    for i in range(n_tasks):
        kernel = rng.choice((MAKE, MAP, BLOCK, JOIN, BUMP)) if len(alive) > 2 else MAKE
        if kernel in (MAKE, MAP, BLOCK):
            made = graph.data(f"d{i}", shape=(rng.choice((0, 100, 3000)),), dtype="uint8")
            reads = {} if kernel is MAKE else {"x": rng.choice(alive)}
            graph.add(kernel, reads=reads, writes={"y": made}, on=(f"n{i % 2}.gpu",) if kernel is BLOCK else ())
            alive.append(made)
        elif kernel is JOIN:
            target, *sources = rng.sample(alive, 3)
            graph.add(kernel, reads={"xs": sources}, updates={"y": target})
        else:
            graph.add(kernel, updates={"y": rng.choice(alive)})
    return graph


@pytest.mark.parametrize("name", ["peft", "heft", "portfolio", "dmda"])
def test_what_is_simulated_is_what_was_planned(name):
    cluster, seen = machine(), 0
    for seed in range(12):
        graph = blocking_graph(random.Random(seed), 16)
        problem = build_problem(graph, cluster, Costs({}, {}))
        schedule = planner(name).plan(problem, budget=Budget(evaluations=50))
        program = lower(graph, cluster, problem, schedule)
        verify(program)
        found = simulate(program)
        inside = (program.op_kind == OpKind.COPY) & (
            program.residency_memory[program.op_source] == program.residency_memory[program.op_target]
        )
        if not inside.any():
            assert found.makespan_s <= schedule.makespan_s * (1 + 1e-9)
        for op, task in enumerate(program.op_task.tolist()):
            if task < 0 or graph.tasks[task].kernel is not BLOCK:
                continue
            rank = next(r for r, role in enumerate(program.ranks) if role.device == graph.tasks[task].on[0])
            copies = [
                program.lane_ops[program.lane_ptr[k] : program.lane_ptr[k + 1]]
                for k in np.flatnonzero(program.lane_rank == rank)
                if program.lane_kinds[k] != LaneKind.COMPUTE
            ]
            start, finish = found.start_s[op] + 1e-12, found.finish_s[op] - 1e-12
            for other in np.concatenate(copies).tolist():
                assert found.finish_s[other] <= start or found.start_s[other] >= finish
                seen += 1
                # Earlier ones are waited for in the run too; later ones go as soon as they can.
            before = set(program.dep_ops[program.dep_ptr[op] : program.dep_ptr[op + 1]].tolist())
            for ops in copies:
                earlier = ops[ops < op]
                assert not len(earlier) or int(earlier[-1]) in before
    assert seen > 20


def test_only_blocking_devices_get_lanes_of_their_own_beside_the_bus():
    cluster = machine()
    graph = TaskGraph("two")
    made, other = (graph.data(name, shape=(100,), dtype="uint8") for name in "xy")
    graph.add(MAKE, writes={"y": made})
    plain = build_problem(graph, cluster, Costs({}, {}))
    assert plain.class_blocking is None
    graph.add(BLOCK, reads={"x": made}, writes={"y": other}, on=("n0.gpu",))
    problem = build_problem(graph, cluster, Costs({}, {}))
    new = [name for name in problem.lane_names if name not in plain.lane_names]
    assert new == ["n0→n0.gpu", "n0.gpu→n0"]
    gpu = problem.device_names.index("n0.gpu")
    assert np.argwhere(problem.class_blocking).tolist() == [[1, gpu]]
