"""Every application at random sizes and tilings, planned at random over variants and devices, run by real ranks."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serial_executor import needs_opencl

from heterotask_core.app import Application
from heterotask_core.planning.base import Budget
from heterotask_core.planning.from_graph import build_problem
from heterotask_core.planning.registry import planner
from heterotask_core.platform.model import Device, Link, Memory, Node, Platform
from heterotask_core.profiling.costs import CostModel
from heterotask_core.program.lower import lower
from heterotask_core.runtime.session import Session
from kernels.canny.app import CANNY
from kernels.cholesky.app import CHOLESKY
from kernels.fft2d.app import FFT2D
from kernels.heat.app import HEAT
from kernels.kmeans.app import KMEANS
from kernels.mosaic.app import MOSAIC
from kernels.wf.app import WF

pytestmark = [pytest.mark.mpi, pytest.mark.slow]
ARENA_BYTES = 1 << 27
EXAMPLES = 3

PLATFORMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "cpu": (("cpu", "cpu"),),
    "opencl": (("opencl",),),
    "mixed": (("cpu", "opencl"),),
    "two nodes, cpu": (("cpu",), ("cpu",)),
    "two nodes, mixed": (("cpu", "opencl"), ("cpu",)),
}
"""Name → the kinds of each (virtual) node's devices."""


class DrawnCosts(CostModel):
    """Every variant of every class on every device takes a time that ``rng`` draws: plans are as mixed as can be."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__({}, {})
        object.__setattr__(self, "_rng", rng)

    def task_s(self, *_: object, **__: object) -> float:
        """Return 1 to 100 µs."""
        return 10 ** self._rng.uniform(-6, -4)  # type: ignore[attr-defined, no-any-return]

    def link(self, link: Link) -> tuple[float, float]:
        """Return a link that hardly counts."""
        return 1e-7, 1e11


def _platform(nodes: tuple[tuple[str, ...], ...]) -> Platform:
    memories, devices, links = [], [], []
    names = [f"n{i}" for i in range(len(nodes))]
    for node, kinds in zip(names, nodes, strict=True):
        memories.append(Memory(node, node))
        for i, kind in enumerate(kinds):
            place = node
            if kind == "opencl":
                place = f"{node}.opencl{i}"
                memories.append(Memory(place, node, capacity_bytes=ARENA_BYTES))
                links.append(Link(node, place, "host_to_device", 1e-7, 1e11))
                links.append(Link(place, node, "device_to_host", 1e-7, 1e11))
            devices.append(Device(f"{node}.{kind}{i}", kind, node, place, kind, core_ids=(i % 2,)))
    links += [Link(a, b, "network", 1e-7, 1e11) for a in names for b in names if a != b]
    return Platform(
        nodes=tuple(Node(n, "localhost") for n in names),
        memories=tuple(memories),
        devices=tuple(devices),
        links=tuple(links),
    )


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=needs_opencl if "cpu" not in name else ()) for name in PLATFORMS]
)
def job(request: pytest.FixtureRequest) -> Iterator[tuple[Platform, Session]]:
    """A platform and a job on it that takes program after program."""
    platform = _platform(PLATFORMS[request.param])
    with Session(platform, arena_bytes={m.name: ARENA_BYTES for m in platform.memories}) as session:
        yield platform, session


def _canny(draw: Callable[..., Any], _: Path) -> dict[str, Any]:
    return {"size": draw(st.integers(3, 130)), "tile": draw(st.integers(16, 80)), "sigma": draw(st.floats(0.3, 2.0))}


def _cholesky(draw: Callable[..., Any], _: Path) -> dict[str, Any]:
    size = draw(st.integers(1, 150))
    return {
        "size": size,
        "tile": draw(st.integers(max(1, size // 6), 160)),
        "dtype": draw(st.sampled_from(["float32", "float64"])),
    }


def _heat(draw: Callable[..., Any], _: Path) -> dict[str, Any]:
    size = draw(st.integers(1, 120))
    return {"size": size, "tile": draw(st.integers(max(2, size // 5), 130)), "steps": draw(st.integers(0, 6))}


def _kmeans(draw: Callable[..., Any], _: Path) -> dict[str, Any]:
    return {
        "picture": "china",
        "clusters": draw(st.integers(2, 8)),
        "iterations": draw(st.integers(0, 4)),
        "block": draw(st.integers(40_000, 300_000)),
        "dtype": draw(st.sampled_from(["float32", "float64"])),
    }


def _fft2d(draw: Callable[..., Any], _: Path) -> dict[str, Any]:
    size = 2 ** draw(st.integers(1, 7))
    return {"size": size, "band": draw(st.integers(max(1, size // 6), size))}


def _mosaic(draw: Callable[..., Any], cache: Path) -> dict[str, Any]:
    shrink = draw(st.integers(1, 4))
    return {
        "size": draw(st.integers(32, 64)),
        "count": draw(st.integers(2, 6)),
        "seed": draw(st.integers(0, 50)),
        "tile": shrink * draw(st.integers(16, 30)),
        "shrink": shrink,
        "cache": str(cache),
    }


def _wf(draw: Callable[..., Any], folder: Path) -> dict[str, Any]:
    """A recorded workflow of up to 20 tasks, each of which reads some files of earlier ones and writes one or two."""
    tasks, files, sizes = [], ["in"], {"in": draw(st.integers(0, 5000))}
    for i in range(draw(st.integers(1, 20))):
        reads = draw(st.lists(st.sampled_from(files), min_size=1, max_size=4, unique=True))
        writes = [f"f{i}.{k}" for k in range(draw(st.integers(1, 2)))]
        sizes |= {name: draw(st.integers(0, 5000)) for name in writes}
        parents = sorted({name[1:].split(".")[0] for name in reads if name != "in"})
        tasks.append({"name": f"t{i}", "id": f"t{i}", "children": [], "parents": [f"t{p}" for p in parents],
                      "inputFiles": reads, "outputFiles": writes})  # fmt: skip
        files += writes
    content = {
        "name": "drawn",
        "schemaVersion": "1.5",
        "workflow": {
            "specification": {
                "tasks": tasks,
                "files": [{"id": name, "sizeInBytes": size} for name, size in sizes.items()],
            },
            "execution": {
                "makespanInSeconds": 1,
                "tasks": [{"id": task["id"], "runtimeInSeconds": 1e-3} for task in tasks],
            },
        },
    }
    text = json.dumps(content)
    path = folder / f"{abs(hash(text))}.json"
    path.write_text(text)
    return {"file": str(path)}


APPS: dict[str, tuple[Application, Callable[[Callable[..., Any], Path], dict[str, Any]]]] = {
    "canny": (CANNY, _canny),
    "cholesky": (CHOLESKY, _cholesky),
    "heat": (HEAT, _heat),
    "kmeans": (KMEANS, _kmeans),
    "fft2d": (FFT2D, _fft2d),
    "mosaic": (MOSAIC, _mosaic),
    "wf": (WF, _wf),
}


@pytest.mark.parametrize("name", APPS)
def test_any_size_and_tiling_on_any_devices(
    name: str, job: tuple[Platform, Session], tmp_path_factory: pytest.TempPathFactory
) -> None:
    app, parameters = APPS[name]
    platform, session = job
    if name == "wf" and not any(device.kind == "cpu" for device in platform.devices):
        pytest.skip("wf replays on CPUs only")
    cache = tmp_path_factory.mktemp("made")

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.data(), st.integers(0, 1 << 30))
    def run(data: st.DataObject, seed: int) -> None:
        params = app.Params(**parameters(data.draw, cache))
        folder = tmp_path_factory.mktemp("run")
        graph = app.build(params)
        problem = build_problem(graph, platform, DrawnCosts(random.Random(seed)))
        program = lower(graph, platform, problem, planner("heft").plan(problem, budget=Budget(seed=seed)))
        session.run(program, output_dir=folder)
        outcome = app.check(params, folder)
        assert outcome.passed, (params, outcome)

    run()
