"""Planned and lowered random graphs, executed by all kinds of ranks, against serial NumPy."""

from __future__ import annotations

import importlib.util
from functools import partial

import numpy as np
import pytest
from random_graphs import random_graph

from heterotask_core.planning.base import Budget
from heterotask_core.planning.from_graph import build_problem
from heterotask_core.planning.registry import planner
from heterotask_core.platform.model import Device, Link, Memory, Node, Platform
from heterotask_core.profiling.costs import CostModel
from heterotask_core.program.lower import lower
from heterotask_core.runtime.job import execute
from heterotask_core.runtime.session import Session

pytestmark = pytest.mark.mpi
N = 5000


class Costs(CostModel):
    """Fixed costs in place of a profile: near equal, so that every device gets work."""

    def task_s(self, key, variant, device, **_):
        return {"cpu": 1e-3, "opencl": 5e-4}[device.kind]

    def link(self, link):
        return 1e-5, 1e9


def _platform() -> Platform:
    """Two virtual nodes; the first has an OpenCL device where PyOpenCL is installed."""
    memories = [Memory("n0", "n0"), Memory("n1", "n1")]
    devices = [
        Device("n0.cpu0", "cpu", "n0", "n0", "cpu", core_ids=(0,)),
        Device("n1.cpu0", "cpu", "n1", "n1", "cpu", core_ids=(1,)),
    ]
    links = [Link("n0", "n1", "network", 1e-5, 1e9), Link("n1", "n0", "network", 1e-5, 1e9)]
    if importlib.util.find_spec("pyopencl") is not None:
        # Its allocations hold three items each.
        memories.append(Memory("n0.gpu", "n0", capacity_bytes=1 << 20, max_allocation_bytes=130_000))
        devices.insert(1, Device("n0.gpu", "opencl", "n0", "n0.gpu", "gpu", core_ids=(0,)))
        links.append(Link("n0", "n0.gpu", "host_to_device", 1e-5, 1e9))
        links.append(Link("n0.gpu", "n0", "device_to_host", 1e-5, 1e9))
    nodes = (Node("n0", "localhost"), Node("n1", "localhost"))
    return Platform(nodes=nodes, memories=tuple(memories), devices=tuple(devices), links=tuple(links))


def test_planned_graphs_give_what_serial_execution_gives(tmp_path):
    """The first in a job of its own, the others in a session's job."""
    platform = _platform()
    with Session(platform) as session:
        for seed in (1, 2, 3):
            graph, values = random_graph(seed, 30, length=N)
            problem = build_problem(graph, platform, Costs({}, {}))
            program = lower(graph, platform, problem, planner("peft").plan(problem, budget=Budget()))
            assert set(program.task_device.tolist()) == set(range(len(platform.devices)))
            run = partial(execute, program, platform) if seed == 1 else partial(session.run, program)
            result = run(output_dir=tmp_path / str(seed), repeats=2, timeout_s=60)
            for i, value in enumerate(values):
                np.testing.assert_array_equal(np.load(tmp_path / str(seed) / f"{i}.npy"), value)
            assert np.isfinite(result.start_s).all()
            planned = dict(zip(program.memory_names, program.memory_size_bytes.tolist(), strict=True))
            assert planned.get("n0.gpu", 1 << 20) > 130_000
            assert result.arena_peak_bytes == planned
