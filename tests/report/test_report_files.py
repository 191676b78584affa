from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import numpy as np
import polars as pl
import pytest

from heterotask_core.graph import TaskGraph
from heterotask_core.kernel import Kernel, Variant
from heterotask_core.planning.from_graph import build_problem
from heterotask_core.planning.schedule import Schedule
from heterotask_core.platform.model import Device, Link, Memory, Node, Platform
from heterotask_core.profiling.costs import CostModel
from heterotask_core.program.lower import lower
from heterotask_core.report.breakdown import critical_path, deviations
from heterotask_core.report.gantt import gantt_svg
from heterotask_core.report.perfetto import perfetto_json
from heterotask_core.report.summary import summarise
from heterotask_core.report.text import facts_text
from heterotask_core.simulate import simulate
from heterotask_core.tables import TRACE, check_table
from heterotask_core.trace import trace_table


def nothing():
    """Stands for an implementation."""


CPU = (Variant("plain", "cpu", f"{__name__}:nothing"),)
MAKE = Kernel("make", __name__, writes=("y",), variants=CPU)
USE = Kernel("use", __name__, reads=("x",), writes=("y",), variants=CPU)


class Costs(CostModel):
    """One second a task; 1 byte a millisecond over the network."""

    def task_s(self, key, variant, device, **_):
        return 1.0

    def link(self, link):
        return 0.0, 1000.0


@pytest.fixture
def program():
    """make on node a, 500 bytes to node b, use there: 1 s, 0.5 s, 2 s."""
    machine = Platform(
        nodes=(Node("a", "localhost"), Node("b", "localhost")),
        memories=(Memory("a", "a"), Memory("b", "b")),
        devices=(Device("a.cpu", "cpu", "a", "a", "m", (0,)), Device("b.cpu", "cpu", "b", "b", "m", (1,))),
        links=(Link("a", "b", "network", 0.0, 1000.0),),
    )
    graph = TaskGraph("pair")
    x, y = graph.data("x", shape=(500,), dtype="uint8"), graph.data("y", shape=(4,), dtype="uint8")
    graph.add(MAKE, writes={"y": x})
    graph.add(USE, reads={"x": x}, writes={"y": y})
    i32, f64 = (lambda *v: np.array(v, np.int32)), (lambda *v: np.array(v, np.float64))
    schedule = Schedule(
        "test", 0, 1, i32(0, 1), i32(0, 0), f64(0.0, 1.5), f64(1.0, 3.5), i32(0), i32(0), f64(1.0), f64(1.5), 3.5, 0.0
    )
    return lower(graph, machine, build_problem(graph, machine, Costs({}, {})), schedule)


@pytest.fixture
def trace(program):
    times = simulate(program)
    return trace_table(program, times.start_s, times.finish_s, origin="simulated")


def test_trace_has_a_row_an_op_and_what_it_waited_for(trace):
    check_table(trace, TRACE, what="trace")
    columns = ("kind", "node", "source", "target", "ready_s", "start_s", "finish_s", "waited_for", "why")
    assert trace.select(columns).rows() == [
        ("kernel", "a", None, None, 0.0, 0.0, 1.0, -1, None),
        ("transfer", "a", "a", "b", 1.0, 1.0, 1.5, 0, "data"),
        ("kernel", "b", None, None, 1.5, 1.5, 3.5, 1, "data"),
    ]
    assert trace.select("task", "kernel", "data", "device", "lane", "size_bytes").rows() == [
        ("make-0", "make", None, "a.cpu", "a.cpu.compute", 0),
        (None, None, "x", None, "a.send", 500),
        ("use-1", "use", None, "b.cpu", "b.cpu.compute", 0),
    ]


def test_summary(program, trace):
    found = summarise(program, trace)
    assert found.window_s == 3.5
    assert found.origin == "simulated"
    assert found.utilisation == {"a.cpu": 1.0 / 3.5, "b.cpu": 2.0 / 3.5}
    assert found.link_bytes == {"a → b": 500}
    assert found.link_busy_s == {"a → b": 0.5}
    assert found.decomposition_s == {
        "a.cpu": {"compute_s": 1.0, "transfer_wait_s": 0.0, "overhead_s": 0.0, "idle_s": 2.5},
        "b.cpu": {"compute_s": 2.0, "transfer_wait_s": 0.5, "overhead_s": 0.0, "idle_s": 1.0},
    }
    json.dumps(found.as_json(), allow_nan=False)


def test_critical_path_names_every_step_and_why(program):
    start_s, finish_s = np.array([0.0, 1.1, 2.0]), np.array([1.0, 1.9, 4.0])
    path = critical_path(program, start_s, finish_s, capacity=False)
    assert [(s.what, s.why, round(s.own_s, 12), round(s.gap_s, 12)) for s in path.steps] == [
        ("make-0", None, 1.0, 0.0),
        ("x", "data", 0.8, 0.1),
        ("use-1", "data", 2.0, 0.1),
    ]
    assert path.sums_s == pytest.approx(
        {"compute_s": 3.0, "copy_s": 0.0, "transfer_s": 0.8, "overhead_s": 0.2, "lead_s": 0.0}
    )
    assert path.by_kernel_s == pytest.approx({"make": 1.0, "use": 2.0})


def test_deviations_are_sorted_by_what_they_cost(program, trace):
    slower = trace.with_columns(finish_s=pl.when(pl.col("op") == 2).then(9.5).otherwise(pl.col("finish_s")))
    classes, ops = deviations(slower)
    assert [(row["of"], row["count"], row["median_ratio"], row["beyond_s"]) for row in classes] == [
        ("use", 1, 4.0, 6.0),
        ("make", 1, 1.0, 0.0),
        ("a → b", 1, 1.0, 0.0),
    ]
    assert (ops[0]["what"], ops[0]["planned_s"], ops[0]["taken_s"]) == ("use-1", 2.0, 8.0)


def test_gantt_escapes_and_parses(program, trace):
    root = ET.fromstring(gantt_svg(program, trace, title="a < b"))
    assert root.tag.endswith("svg")
    assert any("a < b" in (node.text or "") for node in root.iter())


def test_gantt_of_many_ops_stays_small_and_says_how_busy_a_lane_is(program, trace):
    n = 100_000
    many = pl.concat([trace.head(1)] * n).with_columns(
        op=pl.int_range(n, dtype=pl.Int32),
        kernel=pl.when(pl.int_range(n) % 3 == 0).then(pl.lit("use")).otherwise(pl.lit("make")),
        **{
            name: pl.int_range(n) * 1e-5 + extra
            for name, extra in (
                ("planned_start_s", 0.0),
                ("planned_finish_s", 1e-5),
                ("start_s", 0.0),
                ("finish_s", 5e-6),
            )
        },
    )
    text = gantt_svg(program, many, title="many")
    assert len(text) < 100_000
    paths = [node.attrib["d"] for node in ET.fromstring(text).iter() if node.tag.endswith("path")]
    # All columns have one colour (of two thirds of the ops) and height: one bar each for planned and executed.
    assert [d.count("M") for d in paths] == [1, 1]
    heights = [float(d.split("v")[1].split("h")[0]) for d in paths]
    assert heights == [12.0, 6.0]


def test_perfetto_names_tracks_draws_waits_and_both_ends_of_the_transfer(program, trace):
    events = json.loads(perfetto_json(program, trace))["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] in ("process_name", "thread_name")]
    assert names == [
        "node a (simulated)",
        "node b (simulated)",
        "a network: sends",
        "a network: receives",
        "a.cpu compute",
        "b network: sends",
        "b network: receives",
        "b.cpu compute",
    ]
    track = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert [(track[e["pid"], e["tid"]], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"] == [
        ("a.cpu compute", "make-0", 0.0, 1e6),
        ("a network: sends", "wait: data of make-0", 0.0, 1e6),
        ("a network: sends", "x", 1e6, 5e5),
        ("b network: receives", "wait: data of make-0", 0.0, 1e6),
        ("b network: receives", "x", 1e6, 5e5),
        ("b.cpu compute", "wait: data of x", 0.0, 1.5e6),
        ("b.cpu compute", "use-1", 1.5e6, 2e6),
    ]
    arrows = [(e["ph"], track[e["pid"], e["tid"]], e["ts"]) for e in events if e["ph"] in "sf"]
    assert arrows == [
        ("s", "a.cpu compute", 5e5),
        ("f", "a network: sends", 1e6),
        ("s", "b network: receives", 1.25e6),
        ("f", "b.cpu compute", 1.5e6),
        ("s", "a network: sends", 1e6),
        ("f", "b network: receives", 1.25e6),
    ]


def test_text_names_devices_path_and_deviations(program, trace):
    slower = trace.with_columns(finish_s=pl.when(pl.col("op") == 2).then(4.5).otherwise(pl.col("finish_s")))
    facts = summarise(program, slower).as_json() | {
        "origin": "emulated",
        "makespan_s": [4.5],
        "predicted_makespan_s": 3.5,
        "lower_bound_s": 3.0,
        "completion_s": 1.0,
        "arena_planned_bytes": {"a": 1 << 20},
        "arena_peak_bytes": {"a": 1 << 20},
        "clocks": {
            "a": {"offset_s": 0.0, "drift": 0.0, "at_s": 0.0, "error_s": 0.0},
            "b": {"offset_s": 1.5, "drift": 2e-6, "at_s": 9.0, "error_s": 3e-5},
        },
    }
    assert facts_text(json.loads(json.dumps(facts))).splitlines() == [
        "makespan: predicted 3500.0 ms, emulated 4500.0 ms (logical time: nothing here is a measurement), "
        "lower bound 3000.0 ms",
        "application completion time: 1.00 s",
        "  device             busy  transfer wait  overhead     idle   (% of the makespan)",
        "  a.cpu              22.2            0.0       0.0     77.8",
        "  b.cpu              66.7           11.1       0.0     22.2",
        "critical path, 3 steps: compute 4000.00 ms, transfer 500.00 ms",
        "  by kernel: use 3000.00 ms, make 1000.00 ms",
        "    1500.00 ms  use-1 on b.cpu.compute: 3000.00 ms after 0.00 ms of overhead, waited for data",
        "       0.00 ms  make-0 on a.cpu.compute: 1000.00 ms after 0.00 ms of overhead",
        "    1000.00 ms  x on a.send: 500.00 ms after 0.00 ms of overhead, waited for data",
        "furthest from the plan:",
        "  use (plain): 1 ops, 1.50 × the plan (median), +1000.0 ms in all",
        "  a → b: 0.0 MiB moved, busy 11.1 %",
        "  memory a: planned peak 1.0 MiB, actual 1.0 MiB",
        "  clock of b: 1500.000 ms ahead of the first node's, drift 2.00 µs/s, its times are right within 30.0 µs",
    ]
    still = facts_text(facts | {"link_bytes": {}}).splitlines()
    assert "  links: no bytes moved" in still
    assert not [line for line in still if "MiB moved" in line]
