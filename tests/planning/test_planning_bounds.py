"""Lower bounds on cases that can be worked out by hand."""

import gc
import weakref

import pytest
from hypothesis import given, settings
from problems import instances

from heterotask_core.planning.base import Budget
from heterotask_core.planning.bounds import _quick, bounds, lower_bound
from heterotask_core.planning.instance import instance_to_problem
from heterotask_core.planning.registry import planner


def independent(seconds, *, tasks, lanes=None):
    """Tasks of one kernel on devices d0, d1, … of one memory."""
    names = [f"d{i}" for i in range(len(seconds))]
    devices = [{"name": n, "kind": "cpu", "memory": "m"} for n in names]
    for device, held in zip(devices, lanes or [], strict=False):
        device["lanes"] = held
    return instance_to_problem(
        {
            "format": "heterotask-instance/1",
            "name": "independent",
            "memories": [{"name": "m", "node": "n0"}],
            "devices": devices,
            "links": [],
            "kernels": {"k": {"seconds": dict(zip(names, seconds, strict=True))}},
            "data": [],
            "tasks": [{"name": f"t{i}", "kernel": "k"} for i in range(tasks)],
        }
    )


def test_work_is_spread_by_speed():
    assert lower_bound(independent([1.0, 3.0], tasks=4)) == pytest.approx(3.0)


def test_devices_that_share_lanes_share_time():
    # The pair of cores takes 1 s, each core alone 4 s: two cores that work alone are half as fast as the pair.
    problem = independent([4.0, 4.0, 1.0], tasks=4, lanes=[["a"], ["b"], ["a", "b"]])
    assert lower_bound(problem) == pytest.approx(4.0)


def test_one_task_is_bounded_by_its_fastest_device():
    assert lower_bound(independent([2.0, 5.0], tasks=1)) == pytest.approx(2.0)


def test_a_chain_of_one_kernel_beside_parallel_work():
    problem = instance_to_problem(
        {
            "format": "heterotask-instance/1",
            "name": "chain",
            "memories": [{"name": "m", "node": "n0"}],
            "devices": [{"name": d, "kind": d, "memory": "m"} for d in ("slow", "fast")],
            "links": [],
            "kernels": {
                "chain": {"seconds": {"slow": 2.0, "fast": 1.0}},
                "free": {"seconds": {"fast": 1.0}},
            },
            "data": [],
            "tasks": [
                {"name": "c0", "kernel": "chain"},
                {"name": "c1", "kernel": "chain", "after": ["c0"]},
                {"name": "c2", "kernel": "chain", "after": ["c1"]},
                *({"name": f"f{i}", "kernel": "free", "after": ["c2"]} for i in range(2)),
            ],
        }
    )
    found = bounds(problem)
    assert found["critical path"] == pytest.approx(4.0)
    assert found["area"] == pytest.approx(10 / 3)
    # With k of the chain on the slow device: the fast one is busy for 5 − k, the chain and what follows take 4 + k.
    assert found["mixed"] == pytest.approx(4.5)
    assert lower_bound(problem) == max(found.values())


def fork_and_join(middle, *, seconds, on=None):
    """A task, ``middle`` tasks after it, and one after them; ``seconds`` a device, all in one memory."""
    names = [f"d{i}" for i in range(len(seconds))]
    tasks = [
        {"name": "first", "kernel": "k"},
        *({"name": f"m{i}", "kernel": "k", "after": ["first"]} for i in range(middle)),
        {"name": "last", "kernel": "k", "after": [f"m{i}" for i in range(middle)]},
    ]
    document = {
        "format": "heterotask-instance/1",
        "name": "fork and join",
        "memories": [{"name": "m", "node": "n0"}],
        "devices": [{"name": n, "kind": "cpu", "memory": "m"} for n in names],
        "links": [],
        "kernels": {"k": {"seconds": dict(zip(names, seconds, strict=True))}},
        "data": [],
        "tasks": tasks,
    }
    return instance_to_problem(document)


def test_work_between_two_tasks_counts_beside_them():
    found = bounds(fork_and_join(4, seconds=[1.0, 1.0]))
    assert found["critical path"] == pytest.approx(3.0)
    assert found["area"] == pytest.approx(3.0)
    # Four tasks on two devices between two others: 1 + 2 + 1.
    assert found["phases"] == pytest.approx(4.0, rel=1e-4)


def test_long_tasks_cannot_be_divided():
    problem = independent([1.0, 1.0], tasks=3)
    found = bounds(problem, combined_s_limit=5.0)
    assert found["area"] == pytest.approx(1.5)
    assert found["combined"] == pytest.approx(2.0, rel=1e-3)
    # The best that was ever found out is kept with the problem.
    assert lower_bound(problem) == found["combined"]


def test_bytes_must_get_through_the_link():
    # Three readers can only run where nothing lies at home: 3 transfers of 2 s over one link.
    problem = instance_to_problem(
        {
            "format": "heterotask-instance/1",
            "name": "bytes",
            "memories": [{"name": m, "node": m} for m in ("a", "b")],
            "devices": [{"name": f"d{i}", "kind": "cpu", "memory": "b"} for i in range(3)],
            "links": [{"from": "a", "to": "b", "latency_s": 1.0, "bandwidth_bytes_per_s": 4.0}],
            "kernels": {"k": {"seconds": {"cpu": 0.5}}},
            "data": [{"name": f"x{i}", "size_bytes": 4, "home": "a"} for i in range(3)],
            "tasks": [{"name": f"t{i}", "kernel": "k", "reads": [f"x{i}"]} for i in range(3)],
        }
    )
    assert bounds(problem, combined_s_limit=5.0)["combined"] == pytest.approx(6.0, rel=1e-3)


@settings(max_examples=40, deadline=None)
@given(document=instances(max_tasks=10))
def test_no_plan_beats_a_bound(document):
    problem = instance_to_problem(document)
    found = bounds(problem, combined_s_limit=5.0)
    best = planner("portfolio").plan(problem, budget=Budget(evaluations=200))
    for name, value in found.items():
        assert value <= best.makespan_s * (1 + 1e-9), name


@settings(max_examples=15, deadline=None)
@given(document=instances(max_tasks=5))
def test_no_bound_exceeds_the_proven_optimum(document):
    pytest.importorskip("ortools")
    problem = instance_to_problem(document)
    exact = planner("cpsat").plan(problem, budget=Budget(time_s=5.0))
    for name, value in bounds(problem, combined_s_limit=5.0).items():
        assert value <= exact.makespan_s * (1 + 1e-9), name


def test_what_is_known_of_a_problem_is_kept_and_goes_with_it():
    problem = independent([1.0, 3.0], tasks=4)
    assert bounds(problem) == bounds(problem)
    known, apart = _quick(problem)
    assert known is _quick(problem)[0]
    assert bounds(problem) == known
    kept = weakref.ref(apart.head_s)
    del problem, apart
    gc.collect()
    assert kept() is None
