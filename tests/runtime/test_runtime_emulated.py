"""Emulated devices: real results, and logical times that are the simulator's, op by op."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from blocking_kernels import PAUSE
from hand_program import Builder
from random_graphs import random_graph
from runtime_kernels import FILL, STORE, TWICE

from heterotask_core.apps import find_application, parse_params
from heterotask_core.emulation import MOST_LAG, OpTimes, least_dilation, predict, with_capacity_order
from heterotask_core.errors import PlatformError
from heterotask_core.graph import TaskGraph
from heterotask_core.kernel import OutputPath
from heterotask_core.planning.base import Budget
from heterotask_core.planning.from_graph import build_problem
from heterotask_core.planning.registry import planner
from heterotask_core.platform.cluster import find_platform
from heterotask_core.platform.model import Device, Link, Memory, Node, Platform
from heterotask_core.profiling.costs import CostModel
from heterotask_core.profiling.emulated import EmulatedModel, EmulationSpec
from heterotask_core.program.lower import lower
from heterotask_core.program.model import LaneKind, OpKind
from heterotask_core.program.verify import verify
from heterotask_core.report.text import facts_text
from heterotask_core.runtime.job import execute
from heterotask_core.runtime.session import Session
from heterotask_core.simulate import simulate
from heterotask_core.stages import Plan, Workflow, check_stage, execute_stage, plan_stage, profile_stage
from heterotask_core.store import Store

ROOT = Path(__file__).parents[2]
N = 300


class Costs(CostModel):
    """Fixed costs in place of a profile: near equal, so that every device gets work."""

    def task_s(self, key, variant, device, **_):
        return {"cpu": 1e-3, "opencl": 1e-4}[device.variant_kind]

    def link(self, link):
        return link.latency_s, link.bandwidth_bytes_per_s


def machine(nodes: int, gpus: int, capacity_bytes: int | None = None) -> Platform:
    """Nodes of one CPU worker and some GPUs that share a bus; all network links share a switch."""
    memories, devices, links = [], [], []
    for n in range(nodes):
        node = f"n{n}"
        memories.append(Memory(node, node))
        devices.append(Device(f"{node}.cpu0", "emulated", node, node, "cpu", (n % 2,), emulates="cpu"))
        for g in range(gpus):
            gpu = f"{node}.gpu{g}"
            memories.append(Memory(gpu, node, capacity_bytes))
            devices.append(Device(gpu, "emulated", node, gpu, "gpu", (n % 2,), emulates="opencl"))
            links.append(Link(node, gpu, "host_to_device", 1e-5, 1e8, (f"{node}.bus",)))
            links.append(Link(gpu, node, "device_to_host", 1e-5, 1e8, (f"{node}.bus",)))
    names = [f"n{n}" for n in range(nodes)]
    links += [Link(a, b, "network", 1e-5, 1e8, ("switch",)) for a in names for b in names if a != b]
    return Platform(tuple(Node(n, "localhost") for n in names), tuple(memories), tuple(devices), tuple(links))


def program_of(graph: TaskGraph, platform: Platform):
    problem = build_problem(graph, platform, Costs({}, {}))
    program = lower(graph, platform, problem, planner("peft").plan(problem, budget=Budget()))
    verify(program)
    return program


def check_run(result, program, times: OpTimes, values, folder: Path) -> None:
    """Every run's times are the simulator's, op by op, and the results are right."""
    for run in range(len(result.start_s)):
        start_s, finish_s = predict(program, times, run)
        np.testing.assert_array_equal(result.start_s[run], start_s)
        np.testing.assert_array_equal(result.finish_s[run], finish_s)
    for i, value in enumerate(values):
        np.testing.assert_array_equal(np.load(folder / f"{i}.npy"), value)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("nodes", "gpus"),
    [
        (2, 1),
        pytest.param(4, 0, marks=pytest.mark.slow),
        pytest.param(2, 2, marks=pytest.mark.slow),
        pytest.param(1, 3, marks=pytest.mark.slow),
    ],
)
def test_logical_times_equal_the_simulators_op_by_op(tmp_path, nodes, gpus):
    """In a session, program after program: with noise and waits, with a first pass that is left out, as planned."""
    platform = machine(nodes, gpus)
    graphs = [random_graph(seed, n_tasks, length=N) for seed, n_tasks in ((3, 60), (4, 30))]
    programs = [program_of(graph, platform) for graph, _ in graphs]
    assert (programs[0].lane_kinds == LaneKind.CAPACITY).any()
    assert (programs[0].op_kind == OpKind.TRANSFER).any() == (nodes > 1)
    # With four nodes, transfers follow each other on the switch that have no node in common.
    assert any(with_capacity_order(program)[1] for program in programs) == (nodes == 4)
    with Session(platform, largest=programs) as session:
        for turn, (program, (_, values)) in enumerate(zip(programs * 2, graphs * 2, strict=True)):
            times = OpTimes.planned(program, runs=2, noise=0.3 if turn else 0.0, seed=turn)
            waits = np.random.default_rng(turn).uniform(0.0, 0.5, times.total_s.shape) * times.total_s
            times = replace(times, wait_s=waits if turn > 1 else times.wait_s)
            result = session.run(
                program,
                output_dir=tmp_path,
                repeats=2,
                warm_up=turn == 2,
                emulation=times if turn else None,
                timeout_s=120,
            )
            check_run(result, program, times, values, tmp_path)
            assert (result.makespan_s[0] != result.makespan_s[1]) == (turn > 0)
        assert session.restarts == []
        assert session.first_task_s is None


@pytest.mark.mpi
def test_logical_times_equal_the_simulators_where_tasks_block(tmp_path):
    platform = machine(1, 2)
    graph, values = TaskGraph("blocking"), []
    for i in range(8):
        x, y, z = (graph.data(f"{name}{i}", shape=(N,), dtype="float64") for name in "xyz")
        graph.add(FILL, writes={"output": x}, params={"value": i})
        graph.add(TWICE, reads={"input": x}, writes={"output": y})
        graph.add(PAUSE, reads={"parts": [y]}, writes={"output": z}, params={"seconds": 0.0}, on=(f"n0.gpu{i % 2}",))
        graph.add(STORE, reads={"input": z}, params={"path": OutputPath(f"{i}.npy")})
        values.append(np.full(N, 2.0 * i + 2.0))
    problem = build_problem(graph, platform, Costs({}, {}))
    schedule = planner("heft").plan(problem, budget=Budget())
    program = lower(graph, platform, problem, schedule)
    verify(program)
    assert simulate(program).makespan_s <= schedule.makespan_s * (1 + 1e-9)
    # Beside the bus that the GPUs share.
    held = {
        name for name, kind in zip(program.lane_names, program.lane_kinds, strict=True) if kind == LaneKind.CAPACITY
    }
    assert held > {f"{lane}.bus" for g in range(2) for lane in (f"n0→n0.gpu{g}", f"n0.gpu{g}→n0")}
    times = OpTimes.planned(program, runs=2, noise=0.3, seed=1)
    result = execute(program, platform, output_dir=tmp_path, repeats=2, emulation=times, timeout_s=120)
    check_run(result, program, times, values, tmp_path)


@pytest.mark.mpi
def test_a_job_of_its_own_has_the_same_times(tmp_path):
    graph, values = random_graph(2, 30, length=N)
    platform = machine(2, 0)
    program = program_of(graph, platform)
    times = OpTimes.planned(program, runs=2, noise=0.3, seed=2)
    result = execute(program, platform, output_dir=tmp_path, repeats=2, warm_up=True, emulation=times, timeout_s=120)
    check_run(result, program, times, values, tmp_path)


@pytest.mark.mpi
def test_paced_ranks_wait_for_the_clock_and_say_how_late_they_were(tmp_path):
    graph, values = random_graph(5, 20, length=N)
    platform = machine(1, 1)
    program = program_of(graph, platform)
    times = OpTimes.planned(program, runs=2)
    with Session(platform) as session:
        for dilate in (0.0, 1e-9, 0.3 / simulate(program).makespan_s):
            result = session.run(program, output_dir=tmp_path, repeats=2, dilate=dilate)
            check_run(result, program, times, values, tmp_path)
            assert result.completion_s > dilate * sum(result.makespan_s)
            assert len(result.lag) == (2 if dilate else 0)
            # Against next to nothing everything is late.
            assert all(lag > MOST_LAG for lag in result.lag) or dilate > 1e-9


def test_the_default_dilation_lets_the_tasks_work_fit_into_the_cores():
    graph, _ = random_graph(5, 20, length=N)
    platform = machine(1, 1)
    program = program_of(graph, platform)
    models = {"cpu": EmulatedModel(launch_s=4e-4), "gpu": EmulatedModel(speedup=10.0, kernels={"fill": 100.0})}
    expected = 0.0
    for task, call in enumerate(program.task_call.tolist()):
        on_gpu = program.device_names[program.task_device[task]] == "n0.gpu0"
        fill = program.calls[call].kernel == "fill"
        expected += 1e-4 * (100.0 if fill else 10.0) if on_gpu else 1e-3 - 4e-4
    work_s = EmulationSpec(models=models).work_s(program, platform)
    assert work_s == pytest.approx(expected)
    assert least_dilation(program, work_s, 2) == pytest.approx(expected / 1.4 / simulate(program).makespan_s)


def test_real_devices_are_not_paced(tmp_path):
    b = Builder([("c0", "cpu", "n0")])
    b.task("c0", FILL, {"output": b.slot("n0")}, params={"value": 1})
    workflow = Workflow(SimpleNamespace(name="hand"), None, SimpleNamespace(fingerprint=lambda: "hand"), b.platform)
    plan = Plan(b.build(), tmp_path / "plan", False, 1.0, 1.0)
    with pytest.raises(PlatformError, match="only emulated devices are paced"):
        execute_stage(workflow, plan, Store(tmp_path / "store"), pace=True)
    assert Store(tmp_path / "store").list("runs") == []


@pytest.mark.parametrize(("lag", "mark"), [(0.01, False), (0.2, True)])
def test_a_run_that_lags_is_marked(lag, mark):
    facts = {"utilisation": {}, "link_bytes": {}, "arena_planned_bytes": {}}
    facts |= {"makespan_s": [1.0], "predicted_makespan_s": 1.0, "lower_bound_s": 1.0, "completion_s": 5.0}
    facts |= {"origin": "emulated", "pace": {"dilate": 4.0, "lag": [0.0, lag], "in_time": lag <= MOST_LAG}}
    text = facts_text(facts)
    assert f"paced at 4 s a logical second, late by at most {100 * lag:.1f} % of the makespan" in text
    assert ("TOO LATE" in text) == mark


@pytest.mark.mpi
def test_evicted_data_come_back_unharmed(tmp_path):
    graph = TaskGraph("rounds")
    items = [graph.data(f"x{i}", shape=(N,), dtype="float64") for i in range(8)]
    for i, item in enumerate(items):
        graph.add(FILL, writes={"output": item}, params={"value": i})
    made = [graph.data(f"y{i}", shape=(N,), dtype="float64") for i in range(8)]
    before = [
        graph.add(TWICE, reads={"input": item}, writes={"output": out}, on=("n0.gpu0",))
        for item, out in zip(items, made, strict=True)
    ]
    for turn in range(2):
        done = []
        for i, item in enumerate(made):
            out = graph.data(f"z{turn}.{i}", shape=(N,), dtype="float64")
            # Round after round, so that every item is used again long after it was made.
            done.append(graph.add(TWICE, reads={"input": item}, writes={"output": out}, on=("n0.gpu0",), after=before))
            graph.add(STORE, reads={"input": out}, params={"path": OutputPath(f"{turn}.{i}.npy")})
        before = done
    # Room for five of the eight.
    platform = machine(1, 1, capacity_bytes=13_000)
    program = program_of(graph, platform)
    moved = program.op_target[program.op_kind == OpKind.COPY]
    into_gpu = moved[program.residency_memory[moved] == 1]
    versions = program.residency_version[into_gpu].tolist()
    assert len(versions) > len(set(versions))
    execute(program, platform, output_dir=tmp_path, timeout_s=120)
    for turn in range(2):
        for i in range(8):
            expected = 2.0 * (2.0 * (np.arange(N) + float(i)) + 1.0) + 1.0
            np.testing.assert_array_equal(np.load(tmp_path / f"{turn}.{i}.npy"), expected)


@pytest.mark.slow
@pytest.mark.mpi
def test_canny_on_sixteen_emulated_gpus_of_two_nodes_is_whole_and_as_simulated(tmp_path):
    app = find_application("canny")
    platform = find_platform(str(ROOT / "examples/platforms/emulated-2x8.yaml"), nodes=1)
    workflow = Workflow.of(app, parse_params(app, ["size=512", "tile=64"]), platform)
    store = Store(tmp_path / "store")
    plan = plan_stage(workflow, profile_stage(workflow, store, budget_s=2.0), store, planner="eager")
    assert len(plan.program.ranks) == 22
    run = execute_stage(workflow, plan, store, repeats=2, pace=True)
    pace = json.loads((run.folder / "summary.json").read_text())["pace"]
    assert pace["dilate"] > 0
    assert len(pace["lag"]) == 2
    assert pace["in_time"] == (max(pace["lag"]) <= MOST_LAG)
    times = EmulationSpec.of(platform).times(plan.program, runs=2)
    for repeat in range(2):
        start_s, finish_s = predict(plan.program, times, repeat)
        np.testing.assert_array_equal(run.result.start_s[repeat], start_s)
        np.testing.assert_array_equal(run.result.finish_s[repeat], finish_s)
    assert set(run.trace["device"].drop_nulls()) == {d.name for d in platform.devices}
    assert set(run.trace["origin"]) == {"emulated"}
    assert check_stage(workflow, run).passed


def test_emulated_and_real_devices_do_not_mix(tmp_path):
    platform = machine(1, 1)
    platform = replace(platform, devices=(replace(platform.devices[0], kind="cpu"), *platform.devices[1:]))
    graph, _ = random_graph(1, 20, length=N)
    with pytest.raises(PlatformError, match=r"emulated devices and real ones \(cpu\) do not mix"):
        execute(program_of(graph, platform), platform, output_dir=tmp_path)
