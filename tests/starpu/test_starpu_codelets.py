"""StarPU's CPU codelets compute the same bits as our variants, and StarPU's runs pass the applications' checks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "starpu"
sys.path.insert(0, str(BENCHMARK))

import build  # noqa: E402
import same  # noqa: E402
from job import Devices, Setting, Starpu  # noqa: E402

from heterotask_core.apps import find_application  # noqa: E402

pytestmark = [
    pytest.mark.starpu,
    pytest.mark.slow,
    pytest.mark.skipif(not build.available(), reason="StarPU is not installed (apt-get install libstarpu-dev)"),
]


@pytest.mark.parametrize("name", list(same.SMALL))
def test_every_task_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    app = find_application(name)
    graph = app.build(app.Params(**same.SMALL[name]))
    host = same.open_host(name, tmp_path)
    different = [pair.task.name for pair in same.pairs(graph, host, tmp_path) if not pair.same]
    assert different == []
    assert host.errors == []


@pytest.mark.parametrize("name", list(same.SMALL))
@pytest.mark.parametrize("devices", ["cpu:2", "cpu:1,opencl:1"])
def test_starpu_gives_correct_results(name: str, devices: str, tmp_path: Path) -> None:
    if "opencl" in devices:
        pytest.importorskip("pyopencl")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two cores are needed")
    app = find_application(name)
    starpu = Starpu(name, same.SMALL[name], Devices.parse(devices), build.build(), tmp_path / "home")
    answer = starpu.run(Setting("lws"), tmp_path / "results")
    assert answer["tasks"] == len(app.build(app.Params(**same.SMALL[name])))
    assert app.check(app.Params(**same.SMALL[name]), tmp_path / "results").passed


def test_devices_that_starpu_is_not_given_are_refused() -> None:
    with pytest.raises(ValueError, match="cpu:N and opencl:N"):
        Devices.parse("cuda:1")


@pytest.mark.skipif(
    not build.available(mpi=True), reason="StarPU-MPI is not installed (apt-get install libopenmpi-dev)"
)
@pytest.mark.parametrize("name", list(same.SMALL))
def test_starpu_gives_correct_results_on_two_nodes(name: str, tmp_path: Path) -> None:
    app = find_application(name)
    graph = app.build(app.Params(**same.SMALL[name]))
    ranks = [task.index % 2 for task in graph]
    binary = build.build(mpi=True)
    starpu = Starpu(name, same.SMALL[name], Devices.parse("cpu:1"), binary, tmp_path / "home", ranks=ranks)
    answer = starpu.run(Setting("dmdas"), tmp_path / "results", repeats=2)
    assert len(answer["makespan_s"]) == 2
    assert app.check(app.Params(**same.SMALL[name]), tmp_path / "results").passed
