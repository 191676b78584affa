"""The list schedulers of the core against a plain, slow reference, task by task."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from problems import instances
from reference_listing import Reference

from heterotask_core.planning.base import Budget
from heterotask_core.planning.core import arrays
from heterotask_core.planning.instance import instance_to_problem
from heterotask_core.planning.listing import cheapest_routes, heft_rule, place
from heterotask_core.planning.registry import planner

NAMES = ("peft", "heft", "cpop", "lookahead")


def planned(name: str, document: Any) -> list[tuple[str, float, float]]:
    problem = instance_to_problem(document)
    s = planner(name).plan(problem, budget=Budget())
    devices = [problem.device_names[d] for d in s.task_device]
    return list(zip(devices, s.task_start_s.tolist(), s.task_finish_s.tolist(), strict=True))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(document=instances())
def test_lanes_routes_and_pins_as_in_the_reference(name: str, document: Any) -> None:
    assert planned(name, document) == getattr(Reference(document), name)()


@pytest.mark.parametrize("beta", [0.3, 3.0])
@settings(max_examples=60, deadline=None)
@given(document=instances())
def test_transfers_that_count_beta_times_as_in_the_reference(beta: float, document: Any) -> None:
    problem = instance_to_problem(document)
    placed = place(problem, arrays(problem), heft_rule(problem)._replace(beta=beta))
    devices = [problem.device_names[d] for d in placed.device]
    found = list(zip(devices, placed.start_s.tolist(), placed.finish_s.tolist(), strict=True))
    assert found == Reference(document).heft(beta)


@pytest.mark.parametrize("name", NAMES)
def test_many_inputs_over_shared_lanes_as_in_the_reference(name: str) -> None:
    """Transfers of one task wait for each other: held lanes grow at both ends, between, and join."""
    nodes = [f"n{i}" for i in range(3)]
    rng = np.random.default_rng(5)
    links = [
        {"from": a, "to": b, "latency_s": 0.1, "bandwidth_bytes_per_s": 3.0, "lanes": [f"{a} send", f"{b} receive"]}
        for a, b in itertools.permutations(nodes, 2)
    ]
    parts = [f"d{i}" for i in range(40)]
    tasks = [{"name": f"make {d}", "kernel": "k", "writes": [d], "on": [nodes[int(rng.integers(3))]]} for d in parts]
    gathers = [{"name": f"gather {n}", "kernel": "k", "reads": parts[n::2], "on": [nodes[n]]} for n in (0, 1)]
    document = {
        "format": "heterotask-instance/1",
        "name": "gather",
        "contention": True,
        "memories": [{"name": n, "node": n} for n in nodes],
        "devices": [{"name": f"{n} cpu", "kind": "cpu", "memory": n} for n in nodes],
        "links": links,
        "kernels": {"k": {"seconds": {"cpu": 1.0}}},
        "data": [{"name": d, "size_bytes": int(rng.integers(1, 9))} for d in parts],
        "tasks": [*tasks, *gathers, {"name": "all", "kernel": "k", "reads": parts}],
    }
    assert planned(name, document) == getattr(Reference(document), name)()


def test_routes_of_at_most_four_hops_change_with_the_size() -> None:
    names = [f"m{i}" for i in range(6)]
    chain = [(a, b, 0.0, 8.0) for a, b in itertools.pairwise(names)]
    document = {
        "format": "heterotask-instance/1",
        "name": "chain",
        "contention": True,
        "memories": [{"name": n, "node": n} for n in names],
        "devices": [{"name": n, "kind": "cpu", "memory": n} for n in names],
        "links": [
            {"from": a, "to": b, "latency_s": latency, "bandwidth_bytes_per_s": bandwidth}
            for a, b, latency, bandwidth in [*chain, ("m0", "m2", 10.0, 16.0)]
        ],
        "data": [{"name": f"d{i}", "size_bytes": size, "home": "m0"} for i, size in enumerate((8, 16, 64, 80, 800))],
        "tasks": [],
    }
    routes = cheapest_routes(instance_to_problem(document))
    assert routes.sizes.tolist() == [8.0, 16.0, 64.0, 80.0, 800.0]
    assert routes.regime.tolist() == [0, 0, 1, 1, 1]
    assert routes.latency_s[:, 0, 2].tolist() == [0.0, 10.0]
    assert routes.seconds_per_byte[:, 0, 2].tolist() == [0.25, 0.0625]
    assert routes.seconds_per_byte[0, 0].tolist() == [0.0, 0.125, 0.25, 0.375, 0.5, 0.0625 + 3 * 0.125]
    assert routes.latency_s[0, 1].tolist() == [np.inf, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert routes.seconds_per_byte[0, 1].tolist() == [0.0, 0.0, 0.125, 0.25, 0.375, 0.5]


def test_random_instances_as_in_the_reference_and_in_the_file() -> None:
    """The file's makespans come from implementations that know direct links only."""
    folder = os.environ.get("HETEROTASK_INSTANCES")
    if not folder:
        pytest.skip("HETEROTASK_INSTANCES does not name a folder of instances")
    for path in sorted(Path(folder).glob("random-*.json.gz")):
        document = json.loads(gzip.decompress(path.read_bytes()))
        expected = document["meta"]["reference_makespan"]
        direct = Reference(document, max_hops=1)
        for name in ("peft", "heft"):
            makespan = max(finish for _, _, finish in getattr(direct, name)())
            assert makespan == pytest.approx(expected[name.upper()], rel=1e-9), (path.name, name)
        assert max(f for _, _, f in planned("peft", document)) == pytest.approx(expected["PEFT"], rel=1e-9), path.name
