from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from heterotask_core.graph import TaskGraph
from heterotask_core.kernel import Kernel, Variant
from heterotask_core.planning.from_graph import build_problem
from heterotask_core.planning.schedule import Schedule
from heterotask_core.platform.model import Device, Link, Memory, Node, Platform
from heterotask_core.program.lower import lower
from heterotask_core.report.gantt import gantt_svg
from heterotask_core.report.perfetto import perfetto_json
from heterotask_core.report.summary import summarise
from heterotask_core.simulate import simulate
from heterotask_core.tables import TRACE, check_table
from heterotask_core.trace import trace_table


def nothing():
    """Stands for an implementation."""


CPU = (Variant("plain", "cpu", f"{__name__}:nothing"),)
MAKE = Kernel("make", __name__, writes=("y",), variants=CPU)
USE = Kernel("use", __name__, reads=("x",), writes=("y",), variants=CPU)


class Costs:
    """One second a task; 1 byte a millisecond over the network."""

    def task_s(self, key, variant, device, *, what):
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
    return lower(graph, machine, build_problem(graph, machine, Costs()), schedule)


@pytest.fixture
def trace(program):
    times = simulate(program)
    return trace_table(program, times.start_s, times.finish_s, origin="simulated")


def test_trace_has_a_row_an_op(trace):
    check_table(trace, TRACE, what="trace")
    assert trace.select("kind", "node", "source", "target", "ready_s", "start_s", "finish_s").rows() == [
        ("kernel", "a", None, None, 0.0, 0.0, 1.0),
        ("transfer", "a", "a", "b", 1.0, 1.0, 1.5),
        ("kernel", "b", None, None, 1.5, 1.5, 3.5),
    ]


def test_summary(program, trace):
    found = summarise(program, trace)
    assert found.window_s == 3.5
    assert found.utilisation == {"a.cpu": 1.0 / 3.5, "b.cpu": 2.0 / 3.5}
    assert found.link_bytes == {"a → b": 500}
    assert found.decomposition_s["b.cpu"] == {"compute_s": 2.0, "overhead_s": 0.0, "wait_s": 1.5}


def test_gantt_escapes_and_parses(program, trace):
    root = ET.fromstring(gantt_svg(program, trace, title="a < b"))
    assert root.tag.endswith("svg")
    assert any("a < b" in (node.text or "") for node in root.iter())


def test_perfetto_names_tracks_and_draws_the_transfer(program, trace):
    events = json.loads(perfetto_json(program, trace))["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"a", "b"}
    assert [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"] == [
        ("make-0", 0.0, 1e6),
        ("x", 1e6, 5e5),
        ("use-1", 1.5e6, 2e6),
    ]
    assert [e["ph"] for e in events if e.get("cat") == "transfer" and e["ph"] != "X"] == ["s", "f"]
