"""Concurrency: windows and what they find, equal devices, shared engines, and what planning makes of it."""

import os

import polars as pl
import profiling_kernels as pk
import pytest

from heterotask_core.graph import class_key
from heterotask_core.planning.from_graph import build_problem
from heterotask_core.platform.model import Device, Link, Memory, Node, Platform
from heterotask_core.profiling.busy import _row, lacking_windows, plan_windows
from heterotask_core.profiling.costs import CostModel
from heterotask_core.profiling.items import wanted_items
from heterotask_core.profiling.load import is_disturbed, stolen_s
from heterotask_core.profiling.measure import Profile, profile
from heterotask_core.profiling.samples import deviants, median_interval, settled
from heterotask_core.store import Store
from heterotask_core.tables import BUSY, LINKS, PAIRS, TIMINGS, check_table

CORE = min(os.sched_getaffinity(0))


def platform(cpus=2):
    devices = tuple(Device(f"n0.cpu{i}", "cpu", "n0", "n0", "Xeon", (CORE,)) for i in range(cpus))
    return Platform((Node("n0", os.uname().nodename),), (Memory("n0", "n0"),), devices, ())


def test_kernels_that_can_run_beside_themselves_have_windows():
    graph, here = pk.small_graph(), platform()
    wanted = wanted_items(graph, here)
    known = {identity: {"median_s": 1.0} for identity in wanted}
    windows = plan_windows(graph, here, wanted, known)
    # One total and one save: alone in a run, so alone is how they are timed.
    assert [(w.kernel, sorted(w.runs), sorted(w.own)) for w in windows] == [
        ("fill", ["n0.cpu0", "n0.cpu1"], ["n0.cpu0", "n0.cpu1"]),
        ("scale", ["n0.cpu0", "n0.cpu1"], ["n0.cpu0", "n0.cpu1"]),
    ]
    assert plan_windows(graph, platform(1), wanted, known) == []
    done = {(*item.identity, name) for w in windows[:1] for name, item in w.runs.items()}
    assert lacking_windows(windows, done) == windows[1:]


def test_without_a_sample_that_says_anything_no_slow_down_is_known():
    item = next(iter(wanted_items(pk.small_graph(), platform()).values()))
    row = _row(item, "n0.cpu0", {item.identity: {"median_s": 0.5}}, [])
    assert (row["alone_s"], row["busy_s"], row["scale"], row["count"]) == (0.5, 0.5, 1.0, 0)


def test_ranks_that_share_a_core_are_found_to_slow_each_other_down(tmp_path):
    store, graph = Store(tmp_path), pk.small_graph(1 << 20)
    found = profile(graph, platform(), store, budget_s=0.4)
    check_table(found.busy, BUSY, what="busy")
    assert sorted(found.busy.select("kernel", "device").rows()) == [
        ("fill", "n0.cpu0"),
        ("fill", "n0.cpu1"),
        ("scale", "n0.cpu0"),
        ("scale", "n0.cpu1"),
    ]
    assert (found.busy["scale"] >= 1.0).all()
    assert (found.busy["bytes"] > 0).all()
    again = profile(graph, platform(), store, budget_s=0.4)
    assert again.measured == 0
    assert again.busy.equals(found.busy)


def test_planning_takes_the_slow_down_where_tasks_run_side_by_side():
    graph, here = pk.small_graph(), platform()
    fill, scale, total = (class_key(graph.tasks[i]) for i in (0, 1, 4))
    timings = {(class_key(t), "numpy", "cpu", "Xeon", 1): 1.0 for t in graph}
    slow = {(key, "numpy", "n0.cpu0"): 1.5 for key in (fill, scale, total)}
    problem = build_problem(graph, here, CostModel(timings, {}, "", slow))
    assert problem.cost_s.tolist() == [[1.5, 1.0], [1.5, 1.0], [1.0, 1.0], [1.0, 1.0]]


def test_a_measured_kernel_stands_for_its_other_classes(tmp_path):
    graph = pk.small_graph()
    found = profile(graph, platform(1), Store(tmp_path), budget_s=0.2)
    base = {name: found.timings.filter(kernel="scale")[name][0] for name in set(BUSY) & set(found.timings.columns)}
    rows = [
        base | {"device": "n0.cpu0", "alone_s": 1.0, "busy_s": 2.0, "mad_s": 0.0, "scale": s, "count": 5, "bytes": b}
        for s, b in ((2.0, 600), (3.0, 1 << 30))
    ]
    busy = pl.DataFrame(rows, BUSY, orient="row")
    model = CostModel.from_profile(Profile(found.timings, found.links, 0, 4, "", busy=busy))
    assert model.slow_down == {(base["class_key"], "numpy", "n0.cpu0"): 2.0}


def test_copies_that_wait_for_kernels_share_the_device_lane():
    pairs = pl.DataFrame(
        [
            ("n0→n0.cl", "n0.cl→n0", 1.0, 1.0, 1.1, 0.9),
            ("n0.cl", "n0→n0.cl", 1.0, 1.0, 1.9, 0.1),
            ("n0.cl", "n0.cl→n0", 1.0, 1.0, 1.2, 0.8),
        ],
        PAIRS,
        orient="row",
    )
    empty = pl.DataFrame(schema=LINKS)
    timings = pl.DataFrame(schema=TIMINGS)
    model = CostModel.from_profile(Profile(timings, empty, 0, 0, "", pairs=pairs))
    assert model.engines == {("n0", "n0.cl"): ("n0.cl",)}
    memories = (Memory("n0", "n0"), Memory("n0.cl", "n0"))
    devices = (
        Device("n0.cpu0", "cpu", "n0", "n0", "Xeon", (CORE,)),
        Device("n0.cl", "opencl", "n0", "n0.cl", "PoCL"),
    )
    links = (Link("n0", "n0.cl", "host_to_device", 1.0, 1.0), Link("n0.cl", "n0", "device_to_host", 1.0, 1.0))
    here = Platform((Node("n0", "h"),), memories, devices, links)
    graph = pk.small_graph()
    costs = {(class_key(t), "numpy", "cpu", "Xeon", 1): 1.0 for t in graph}
    costs[class_key(graph.tasks[1]), "opencl", "opencl", "PoCL", 0] = 1.0
    problem = build_problem(graph, here, CostModel(costs, {}, "", {}, model.engines))
    assert problem.lane_names == ("n0.cpu0", "n0.cl", "n0→n0.cl", "n0.cl→n0")
    assert problem.link_lanes.tolist() == [2, 1, 3]


def test_one_of_several_equal_devices_that_is_off_is_named():
    fast, slow = [1.0, 1.01, 0.99, 1.0], [1.2, 1.21, 1.19, 1.2]
    assert deviants({"a": fast, "b": fast, "c": slow}) == {"c": pytest.approx(1.2)}
    assert deviants({"a": slow, "b": fast}) == {"a": pytest.approx(1.2)}
    assert deviants({"a": fast, "b": [1.02, 1.03, 1.01, 1.02]}) == {}
    noisy = [1.0, 1.4, 0.6, 1.2]
    assert deviants({"a": noisy, "b": [x + 0.2 for x in noisy]}) == {}
    assert deviants({"a": fast}) == {}


def test_measuring_stops_when_the_median_is_known():
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    # Ten samples: the second smallest and largest bound the median with 97.9 %.
    assert median_interval([float(i) for i in range(10)]) == (1.0, 8.0)
    assert settled([1.0, 1.01, 0.99, 1.0, 1.0, 1.01, 5.0])
    assert not settled([1.0, 1.0, 1.0])
    assert not settled([1.0, 1.2, 0.8, 1.1, 0.9, 1.0, 1.15, 0.85])


def test_waiting_for_a_core_is_disturbance_unless_own_threads_had_it():
    ms = 1_000_000
    before = {"1": (0, 0)}
    assert stolen_s(before, {"1": (10 * ms, 3 * ms)}, cores=1) == pytest.approx(3e-3)
    # The driver's thread computed while the polling one waited.
    both = {"1": (2 * ms, 8 * ms), "2": (8 * ms, 2 * ms)}
    assert stolen_s({"1": (0, 0), "2": (0, 0)}, both, cores=1) == pytest.approx(0.0)
    assert stolen_s({}, {}, cores=1) == 0.0
    assert is_disturbed(3e-3, 10e-3)
    assert not is_disturbed(1e-4, 10e-3)
