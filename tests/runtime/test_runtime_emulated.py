"""Emulated devices: real results, and logical times that are the simulator's, op by op."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from runtime_kernels import ADD, FILL, STORE, TWICE

from heterotask_core.emulation import OpTimes, predict
from heterotask_core.errors import PlatformError
from heterotask_core.graph import TaskGraph
from heterotask_core.kernel import OutputPath
from heterotask_core.planning.base import Budget
from heterotask_core.planning.from_graph import build_problem
from heterotask_core.planning.registry import planner
from heterotask_core.platform.model import Device, Link, Memory, Node, Platform
from heterotask_core.profiling.costs import CostModel
from heterotask_core.program.lower import lower
from heterotask_core.program.model import LaneKind, OpKind
from heterotask_core.program.verify import verify
from heterotask_core.runtime.job import execute
from heterotask_core.runtime.session import Session

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


def random_graph(seed: int, n_tasks: int) -> tuple[TaskGraph, list[np.ndarray]]:
    """Return a graph that stores everything it makes, and what that must be."""
    rng = random.Random(seed)
    graph, items, values = TaskGraph("random"), [], []
    for i in range(n_tasks):
        made = graph.data(f"d{i}", shape=(N,), dtype="float64")
        kind = rng.choice(["fill", "twice", "twice", "add"]) if len(items) > 3 else "fill"
        if kind == "fill":
            graph.add(FILL, writes={"output": made}, params={"value": i})
            values.append(np.arange(N) + float(i))
        elif kind == "twice":
            j = rng.randrange(len(items))
            graph.add(TWICE, reads={"input": items[j]}, writes={"output": made})
            values.append(2.0 * values[j] + 1.0)
        else:
            chosen = rng.sample(range(len(items)), 3)
            graph.add(ADD, reads={"parts": [items[j] for j in chosen]}, writes={"output": made})
            values.append(np.sum([values[j] for j in chosen], axis=0))
        items.append(made)
    for i, item in enumerate(items):
        graph.add(STORE, reads={"input": item}, params={"path": OutputPath(f"{i}.npy")})
    return graph, values


def program_of(graph: TaskGraph, platform: Platform):
    problem = build_problem(graph, platform, Costs({}, {}))
    program = lower(graph, platform, problem, planner("peft").plan(problem, budget=Budget()))
    verify(program)
    return program


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("nodes", "gpus", "seed"),
    [(3, 1, 3), pytest.param(2, 2, 2, marks=pytest.mark.slow), pytest.param(1, 3, 1, marks=pytest.mark.slow)],
)
def test_logical_times_equal_the_simulators_op_by_op(tmp_path, nodes, gpus, seed):
    graph, values = random_graph(seed, 60)
    platform = machine(nodes, gpus)
    program = program_of(graph, platform)
    assert (program.lane_kinds == LaneKind.CAPACITY).any()
    assert (program.op_kind == OpKind.TRANSFER).any() == (nodes > 1)
    times = OpTimes.planned(program, runs=2, noise=0.3, seed=seed)
    rng = np.random.default_rng(seed)
    times = replace(times, wait_s=rng.uniform(0.0, 0.5, times.total_s.shape) * times.total_s)
    result = execute(program, platform, output_dir=tmp_path, repeats=2, emulation=times, timeout_s=120)
    for run in range(2):
        start_s, finish_s = predict(program, times, run)
        np.testing.assert_array_equal(result.start_s[run], start_s)
        np.testing.assert_array_equal(result.finish_s[run], finish_s)
    assert result.makespan_s[0] != result.makespan_s[1]
    for i, value in enumerate(values):
        np.testing.assert_array_equal(np.load(tmp_path / f"{i}.npy"), value)


@pytest.mark.mpi
def test_a_session_gives_every_program_the_times_that_a_job_of_its_own_would(tmp_path):
    platform = machine(2, 1)
    graphs = [random_graph(seed, 30) for seed in (4, 5)]
    programs = [program_of(graph, platform) for graph, _ in graphs]
    with Session(platform, largest=programs) as session:
        for turn, (program, (_, values)) in enumerate(zip(programs * 2, graphs * 2, strict=True)):
            given = OpTimes.planned(program, runs=2, noise=0.3, seed=turn) if turn else None
            result = session.run(program, output_dir=tmp_path, repeats=2, warm_up=turn == 1, emulation=given)
            for run in range(2):
                start_s, finish_s = predict(program, given or OpTimes.planned(program, runs=2), run)
                np.testing.assert_array_equal(result.start_s[run], start_s)
                np.testing.assert_array_equal(result.finish_s[run], finish_s)
            for i, value in enumerate(values):
                np.testing.assert_array_equal(np.load(tmp_path / f"{i}.npy"), value)
        assert session.restarts == []
        assert session.first_task_s is None


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


def test_emulated_and_real_devices_do_not_mix(tmp_path):
    platform = machine(1, 1)
    platform = replace(platform, devices=(replace(platform.devices[0], kind="cpu"), *platform.devices[1:]))
    graph, _ = random_graph(1, 20)
    with pytest.raises(PlatformError, match=r"emulated devices and real ones \(cpu\) do not mix"):
        execute(program_of(graph, platform), platform, output_dir=tmp_path)
