"""Graphs become problems: whole arrays, lanes, classes, and what is infeasible or not profiled."""

import math

import numpy as np
import pytest

from heterotask_core.errors import InfeasiblePlanError, ProfileError
from heterotask_core.graph import TaskGraph, class_key
from heterotask_core.kernel import Kernel, Variant
from heterotask_core.planning.from_graph import build_problem, check_runnable
from heterotask_core.platform.model import Device, Link, Memory, Node, Platform
from heterotask_core.profiling.costs import CostModel, Overheads

CPU = Variant("numpy", "cpu", "numpy:copyto")
SLOW = Variant("slow", "cpu", "numpy:copyto")
CL = Variant("opencl", "opencl", "numpy:copyto", scratch_bytes=lambda params, shapes: shapes["x"][0])
MAKE = Kernel("make", __name__, writes=("dst",), variants=(CPU,))
BUMP = Kernel("bump", __name__, updates=("x",), variants=(SLOW, CPU, CL))
ADD = Kernel("add", __name__, reads=("a", "b"), writes=("dst",), variants=(CPU,))

PLATFORM = Platform(
    (Node("n0", "h"), Node("n1", "h")),
    (Memory("n0", "n0"), Memory("n0.cl", "n0", 1000, 128, reserve_bytes=100), Memory("n1", "n1")),
    (
        Device("n0.cpu0", "cpu", "n0", "n0", "Xeon", (0,)),
        Device("n0.cl", "opencl", "n0", "n0.cl", "GPU", (1,)),
        Device("n1.cpu0", "cpu", "n1", "n1", "Xeon", (0,)),
    ),
    (
        Link("n0", "n0.cl", "host_to_device", 1e-5, 1e9),
        Link("n0.cl", "n0", "device_to_host", 1e-5, 1e9),
        Link("n0", "n1", "network", 1e-4, 1e8, ("n0.send", "n1.receive")),
        Link("n1", "n0", "network", 1e-4, 1e8, ("n1.send", "n0.receive")),
    ),
)


def graph() -> TaskGraph:
    g = TaskGraph("g")
    a, b, c = (g.data(n, shape=(4,), dtype="float32") for n in "abc")
    first = g.add(MAKE, writes={"dst": a})
    g.add(MAKE, writes={"dst": b}, on=["n1"])
    g.add(BUMP, updates={"x": a})
    g.add(ADD, reads={"a": a, "b": b}, writes={"dst": c}, after=[first])
    return g


def costs(g: TaskGraph) -> CostModel:
    make, _, bump, add = (class_key(t) for t in g)
    return CostModel(
        {
            (make, "numpy", "cpu", "Xeon", 1): 1.0,
            (bump, "slow", "cpu", "Xeon", 1): 5.0,
            (bump, "numpy", "cpu", "Xeon", 1): 2.0,
            (bump, "opencl", "opencl", "GPU", 0): 0.5,
            (add, "numpy", "cpu", "Xeon", 1): 3.0,
        },
        {("n0", "n0.cl"): (2e-5, 2e9)},
    )


def test_a_graph_becomes_a_problem():
    g = graph()
    p = build_problem(g, PLATFORM, costs(g))
    inf = math.inf
    assert (p.name, p.contention, p.data_names) == ("g", True, ("a", "b", "c"))
    assert p.task_names == ("make-0", "make-1", "bump-2", "add-3")
    # The pinned task has a class of its own.
    assert p.class_names == ("make#0", "make#1", "bump#2", "add#3")
    assert p.task_class.tolist() == [0, 1, 2, 3]
    assert p.cost_s.tolist() == [[1.0, inf, 1.0], [inf, inf, 1.0], [2.0, 0.5, 2.0], [3.0, inf, 3.0]]
    assert p.class_variants == (("numpy",), ("numpy",), ("slow", "numpy", "opencl"), ("numpy",))
    assert p.cost_variant.tolist() == [[0, -1, 0], [-1, -1, 0], [1, 2, 1], [0, -1, 0]]
    assert p.variant_cost_s[2].tolist() == [[5.0, inf, 5.0], [2.0, inf, 2.0], [inf, 0.5, inf]]
    assert p.class_scratch_bytes is not None
    assert p.class_scratch_bytes.tolist() == [[0, 0, 0], [0, 0, 0], [0, 4, 0], [0, 0, 0]]
    assert p.memory_capacity_bytes.tolist() == [-1, 900, -1]
    assert p.memory_alignment_bytes.tolist() == [256, 128, 256]
    assert p.device_memory.tolist() == [0, 1, 2]
    assert p.lane_names == (
        *("n0.cpu0", "n0.cl", "n1.cpu0", "n0→n0.cl", "n0.cl→n0"),
        *("n0.send", "n1.receive", "n1.send", "n0.receive"),
    )
    assert p.device_lanes.tolist() == [0, 1, 2]
    assert p.link_lane_ptr.tolist() == [0, 1, 2, 4, 6]
    assert p.link_lanes.tolist() == [3, 4, 5, 6, 7, 8]
    assert p.link_latency_s.tolist() == [2e-5, 1e-5, 1e-4, 1e-4]
    assert p.link_bandwidth_bytes_per_s.tolist() == [2e9, 1e9, 1e8, 1e8]
    assert p.version_data.tolist() == [0, 1, 0, 2]
    assert p.version_number.tolist() == [1, 1, 2, 1]
    assert p.version_size_bytes.tolist() == [16, 16, 16, 16]
    assert p.version_producer.tolist() == [0, 1, 2, 3]
    assert p.home_ptr.tolist() == [0, 0, 0, 0, 0]
    assert p.version_final_memory.tolist() == [-1, -1, -1, -1]
    assert (p.input_ptr.tolist(), p.input_versions.tolist()) == ([0, 0, 0, 1, 3], [0, 2, 1])
    assert (p.output_ptr.tolist(), p.output_versions.tolist()) == ([0, 1, 2, 3, 4], [0, 1, 2, 3])
    assert p.output_takes_over.tolist() == [-1, -1, 0, -1]
    assert (p.after_ptr.tolist(), p.after_tasks.tolist()) == ([0, 0, 0, 0, 1], [0])


def test_overheads_change_costs_and_links():
    g = graph()
    overheads = Overheads(
        dispatch_s={"opencl": 0.25},
        compute_scale={"cpu": 2.0},
        kernel_scale={"add|cpu": 3.0, "bump|opencl": 10.0},
        link_setup_s={"network": 1e-3},
        link_scale={"network": 2.0},
        contention=0.5,
    )
    p = build_problem(g, PLATFORM, costs(g), overheads=overheads)
    assert p.cost_s[:, 0].tolist() == [3.0, math.inf, 6.0, 27.0]
    assert p.cost_s[2].tolist() == [6.0, 5.25, 6.0]
    np.testing.assert_allclose(p.link_latency_s, [2e-5, 1e-5, 1.2e-3, 1.2e-3])
    assert p.link_bandwidth_bytes_per_s.tolist() == [2e9, 1e9, 5e7, 5e7]


def test_a_kernel_without_variant_for_any_device_is_named():
    g = TaskGraph("g")
    a = g.data("a", shape=(4,), dtype="float32")
    g.add(
        Kernel("gpu_only", __name__, writes=("dst",), variants=(Variant("cu", "cuda", "numpy:copyto"),)),
        writes={"dst": a},
    )
    with pytest.raises(
        InfeasiblePlanError,
        match=r"^kernel 'gpu_only' \(task 'gpu_only-0'\) has no usable variant for the devices present "
        r"\(cpu, opencl\); its variants: cu \(cuda\); add a device with --devices$",
    ):
        build_problem(g, PLATFORM, costs(graph()))
    with pytest.raises(InfeasiblePlanError, match=r"^kernel 'gpu_only' \(task 'gpu_only-0'\) has no usable variant"):
        check_runnable(g, PLATFORM)
    check_runnable(graph(), PLATFORM)


def test_a_task_pinned_to_nothing_here_is_named():
    g = TaskGraph("g")
    a = g.data("a", shape=(4,), dtype="float32")
    g.add(MAKE, writes={"dst": a}, on=["n7"])
    with pytest.raises(InfeasiblePlanError, match="task 'make-0' must run on 'n7', which is no device or node here"):
        build_problem(g, PLATFORM, costs(graph()))


def test_a_missing_timing_is_named():
    g = graph()
    timings = {k: v for k, v in costs(g).timings.items() if k[1] != "opencl"}
    with pytest.raises(
        ProfileError,
        match=r"^kernel 'bump', task 'bump-2': the profile has no timing of variant 'opencl' on n0.cl \(GPU\); run",
    ):
        build_problem(g, PLATFORM, CostModel(timings, {}))
