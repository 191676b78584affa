"""Lower bounds on cases that can be worked out by hand."""

import pytest

from heterotask_core.planning.bounds import bounds, lower_bound
from heterotask_core.planning.instance import instance_to_problem


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
