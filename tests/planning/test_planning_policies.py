"""Online policies: whole runs on small problems, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning.base import Budget
from heterotask_core.planning.instance import instance_to_problem
from heterotask_core.planning.plan_file import plan_to_json
from heterotask_core.planning.policies.machine import Machine, task_levels
from heterotask_core.planning.policies.network import FairNetwork, Flow, SerialNetwork
from heterotask_core.planning.policies.planner import POLICIES, simulate_policy
from heterotask_core.planning.registry import planner


def document(tasks: list[Any], kernels: Any, *, data: list[Any] | None = None, gpus: int = 1, cores: int = 1) -> Any:
    """Cores in ``ram``, GPUs behind links of 10 bytes a second that share the lane ``bus``."""
    names = [f"gpu{i}" for i in range(gpus)]
    pairs = [(a, b) for n in names for a, b in (("ram", n), (n, "ram"))]
    return {
        "format": "heterotask-instance/1",
        "name": "example",
        "contention": True,
        "memories": [{"name": "ram", "node": "n0"}, *({"name": n, "node": "n0"} for n in names)],
        "devices": [
            *({"name": f"cpu{i}", "kind": "cpu", "memory": "ram"} for i in range(cores)),
            *({"name": n, "kind": "gpu", "memory": n} for n in names),
        ],
        "links": [{"from": a, "to": b, "bandwidth_bytes_per_s": 10.0, "lanes": ["bus", f"{a} {b}"]} for a, b in pairs],
        "kernels": kernels,
        "data": data or [],
        "tasks": tasks,
    }


def placed(doc: Any, name: str) -> tuple[dict[str, tuple[str, float, float]], list[tuple[str, str, float, float]]]:
    problem = instance_to_problem(doc)
    plan = plan_to_json(problem, planner(name).plan(problem, budget=Budget()))
    tasks = {p["task"]: (p["device"], p["start_s"], p["finish_s"]) for p in plan["tasks"]}
    return tasks, [(x["data"], x["to"], x["start_s"], x["finish_s"]) for x in plan["transfers"]]


BOTH = {"k": {"seconds": {"cpu": 6.0, "gpu": 2.0}}}


def test_eager_gives_the_first_task_to_the_first_worker_that_asks() -> None:
    tasks, _ = placed(document([{"name": f"t{i}", "kernel": "k"} for i in range(4)], BOTH), "eager")
    assert tasks == {
        "t0": ("cpu0", 0.0, 6.0),
        "t1": ("gpu0", 0.0, 2.0),
        "t2": ("gpu0", 2.0, 4.0),
        "t3": ("gpu0", 4.0, 6.0),
    }


def test_prio_takes_the_task_on_the_longest_path_first() -> None:
    chain = [{"name": "a", "kernel": "k"}, {"name": "b", "kernel": "k"}, {"name": "c", "kernel": "k", "after": ["b"]}]
    doc = document(chain, {"k": {"seconds": {"cpu": 6.0}}}, gpus=0)
    assert task_levels(Machine(instance_to_problem(doc))) == [1, 2, 1]
    assert placed(doc, "eager")[0] == {"a": ("cpu0", 0.0, 6.0), "b": ("cpu0", 6.0, 12.0), "c": ("cpu0", 12.0, 18.0)}
    assert placed(doc, "prio")[0] == {"b": ("cpu0", 0.0, 6.0), "a": ("cpu0", 6.0, 12.0), "c": ("cpu0", 12.0, 18.0)}


def test_lws_keeps_successors_where_they_became_ready() -> None:
    tasks = [
        {"name": "a", "kernel": "k"},
        {"name": "b", "kernel": "k"},
        {"name": "c", "kernel": "k", "after": ["a"]},
        {"name": "d", "kernel": "k", "after": ["b"]},
    ]
    doc = document(tasks, {"k": {"seconds": {"cpu": 3.0}}}, gpus=0, cores=2)
    assert placed(doc, "lws")[0] == {
        "a": ("cpu0", 0.0, 3.0),
        "b": ("cpu1", 0.0, 3.0),
        "c": ("cpu0", 3.0, 6.0),
        "d": ("cpu1", 3.0, 6.0),
    }


def test_dm_ignores_the_transfer_that_dmda_counts() -> None:
    data = [{"name": "x", "size_bytes": 30, "home": "ram"}]
    doc = document([{"name": "t", "kernel": "k", "reads": ["x"]}], BOTH, data=data)
    assert placed(doc, "dm") == ({"t": ("gpu0", 3.0, 5.0)}, [("x", "gpu0", 0.0, 3.0)])
    # Predicted is twice the transfer, as if another one went on all the time: 6 + 2 seconds and a penalty of 6.
    assert placed(doc, "dmda") == ({"t": ("cpu0", 0.0, 6.0)}, [])


def test_dmda_prefetches_while_the_device_works() -> None:
    data = [{"name": f"x{i}", "size_bytes": 10, "home": "ram"} for i in range(3)]
    tasks = [{"name": f"t{i}", "kernel": "k", "reads": [f"x{i}"]} for i in range(3)]
    doc = document(tasks, {"k": {"seconds": {"gpu": 2.0}}}, data=data)
    assert placed(doc, "dmda") == (
        {"t0": ("gpu0", 1.0, 3.0), "t1": ("gpu0", 3.0, 5.0), "t2": ("gpu0", 5.0, 7.0)},
        [("x0", "gpu0", 0.0, 1.0), ("x1", "gpu0", 1.0, 2.0), ("x2", "gpu0", 2.0, 3.0)],
    )


def test_dmdar_takes_the_task_that_has_its_data_and_dmdas_the_urgent_one() -> None:
    data = [{"name": "big", "size_bytes": 90, "home": "ram"}]
    tasks = [
        {"name": "first", "kernel": "gpu"},
        {"name": "second", "kernel": "gpu"},
        {"name": "heavy", "kernel": "gpu", "reads": ["big"]},
        {"name": "light", "kernel": "gpu"},
        {"name": "last", "kernel": "gpu", "after": ["heavy"]},
    ]
    doc = document(tasks, {"gpu": {"seconds": {"gpu": 2.0}}}, data=data)
    assert list(sorted_by_start(doc, "dmda")) == ["first", "second", "heavy", "light", "last"]
    assert list(sorted_by_start(doc, "dmdar")) == ["first", "second", "light", "heavy", "last"]
    assert list(sorted_by_start(doc, "dmdas")) == ["heavy", "first", "second", "light", "last"]


def sorted_by_start(doc: Any, name: str) -> list[str]:
    tasks, _ = placed(doc, name)
    return sorted(tasks, key=lambda t: tasks[t][1])


def test_heteroprio_starts_every_kind_with_what_it_is_best_at() -> None:
    kernels = {"dense": {"seconds": {"cpu": 20.0, "gpu": 1.0}}, "sparse": {"seconds": {"cpu": 2.0, "gpu": 1.0}}}
    tasks = [{"name": f"{k}{i}", "kernel": k} for i in range(3) for k in ("sparse", "dense")]
    result, _ = placed(document(tasks, kernels), "heteroprio")
    assert {t: d for t, (d, _, _) in result.items()} == {
        "sparse0": "cpu0",
        "sparse1": "gpu0",
        "sparse2": "gpu0",
        "dense0": "gpu0",
        "dense1": "gpu0",
        "dense2": "gpu0",
    }


def test_copies_go_over_several_hops_and_to_their_final_memory() -> None:
    data = [{"name": "x", "size_bytes": 10, "final": "gpu1"}]
    kernels = {"make": {"seconds": {"gpu0": 1.0}}, "use": {"seconds": {"cpu": 4.0}}}
    tasks = [{"name": "a", "kernel": "make", "writes": ["x"]}, {"name": "b", "kernel": "use", "reads": ["x"]}]
    doc = document(tasks, kernels, data=data, gpus=2)
    for name in POLICIES:
        assert placed(doc, name) == (
            {"a": ("gpu0", 0.0, 1.0), "b": ("cpu0", 2.0, 6.0)},
            [("x", "ram", 1.0, 2.0), ("x", "gpu1", 2.0, 3.0)],
        )


def test_a_task_that_its_data_cannot_reach_is_named() -> None:
    data = [{"name": "x", "size_bytes": 10}]
    kernels = {"make": {"seconds": {"gpu0": 1.0}}, "use": {"seconds": {"cpu": 4.0}}}
    doc = document(
        [{"name": "a", "kernel": "make", "writes": ["x"]}, {"name": "b", "kernel": "use", "reads": ["x"]}],
        kernels,
        data=data,
    )
    doc["links"] = [x for x in doc["links"] if x["to"] != "ram"]
    for name in POLICIES:
        with pytest.raises(InfeasiblePlanError, match=f"task 'b': {name} found no device that can run it"):
            planner(name).plan(instance_to_problem(doc), budget=Budget())


def flows(network: Any, links: list[int], at: list[float]) -> list[tuple[float, float]]:
    """Submit a flow of version 0 over each link at its time; return (start, finish) of each."""
    submitted = [Flow(0, link) for link in links]
    pending = sorted(zip(at, submitted, strict=True), key=lambda x: x[0])
    while pending or network.next_event_s() < float("inf"):
        now = min([t for t, _ in pending[:1]] + [network.next_event_s()])
        network.advance(now)
        while pending and pending[0][0] <= now:
            network.submit(pending.pop(0)[1], now)
    return [(f.start_s, f.finish_s) for f in submitted]


def test_two_networks() -> None:
    data = [{"name": "x", "size_bytes": 20, "home": "ram"}]
    machine = Machine(instance_to_problem(document([], {}, data=data, gpus=2)))
    to_gpu0, from_gpu0, to_gpu1, _ = range(4)
    # One after another on the bus; the bandwidth of the bus shared, and one at a time for each pair.
    assert flows(SerialNetwork(machine), [to_gpu0, to_gpu1], [0.0, 1.0]) == [(0.0, 2.0), (2.0, 4.0)]
    assert flows(FairNetwork(machine), [to_gpu0, to_gpu1], [0.0, 1.0]) == [(0.0, 3.0), (1.0, 4.0)]
    assert flows(FairNetwork(machine), [to_gpu0, to_gpu0], [0.0, 1.0]) == [(0.0, 2.0), (2.0, 4.0)]
    assert flows(FairNetwork(machine), [to_gpu0, from_gpu0, to_gpu1], [0.0, 0.0, 0.0]) == [(0.0, 6.0)] * 3


def test_finished_items_go_home_when_the_links_are_quiet() -> None:
    data = [{"name": "x", "size_bytes": 10, "home": "ram"}, {"name": "y", "size_bytes": 10, "home": "ram"}]
    tasks = [
        {"name": "a", "kernel": "k", "updates": ["x"]},
        {"name": "b", "kernel": "k", "updates": ["y"]},
    ]
    problem = instance_to_problem(document(tasks, {"k": {"seconds": {"gpu": 2.0}}}, data=data))
    record = simulate_policy(problem, "dmda", write_back=True)
    moved = [(problem.data_names[problem.version_data[f.version]], f.start_s, f.finish_s) for f in record.flows]
    assert moved == [("x", 0.0, 1.0), ("y", 1.0, 2.0), ("x", 3.0, 4.0), ("y", 5.0, 6.0)]
    assert record.makespan_s == 5.0
