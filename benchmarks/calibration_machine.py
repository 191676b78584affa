"""Canny on a made machine: GPUs and CPU groups of equal nodes, a cost table instead of measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibration.prior import FAMILIES, Family, Machine, Prior
from calibration.virtual import Truth, VirtualEvaluator
from heterotask_core.graph import TaskGraph, class_key
from heterotask_core.kernel import usable_variants
from heterotask_core.planning.registry import planner
from heterotask_core.platform.model import Device, Link, Memory, Node, Platform
from heterotask_core.profiling.costs import CostModel, timing_cores
from kernels.canny.graph import build_graph

WEIGHTS = {
    "weights": 0.05, "load": 0.5, "gaussian": 1.5, "sobel": 1.0, "suppress": 1.0, "threshold": 0.4, "label": 2.0,
    "merge": 0.1, "spread": 0.1, "apply": 0.4, "encode": 0.3, "store": 0.2,
}  # fmt: skip
"""Time of a kernel on a GPU over the median task's: bytes touched, and what a label costs more than a pass."""
HOST = frozenset({"load", "encode", "store"})
"""Work of the host, as fast beside a GPU as on a CPU device."""
NUMPY_SLOWNESS = 2.5
"""Time of a NumPy variant over the compiled one's."""


@dataclass(frozen=True)
class Setting:
    """What is the same for all draws."""

    prior: Path
    seed: int
    evaluations: int
    planner_evaluations: int
    tiles: int
    tile: int
    """Pixels of a tile's side."""
    nodes: int
    gpus: int
    cpus: Mapping[str, int]
    """Name of a set of devices → CPU groups a node in it."""
    here: bool = False
    """Whether all nodes are this host."""


@dataclass(frozen=True)
class Case:
    """A machine and what is hidden of it; ``costs`` are what profiling sees."""

    machine: Machine
    truth: Truth
    graph: TaskGraph
    platform: Platform
    costs: CostModel
    planner_evaluations: int
    noise_seed: int

    def virtual(self, extra: int = 0) -> VirtualEvaluator:
        """Return the virtual machine; ``extra`` gives other noise."""
        return VirtualEvaluator(
            self.graph,
            self.platform,
            self.costs,
            planner=planner("portfolio"),
            truth=self.truth,
            evaluations=self.planner_evaluations,
            seed=self.noise_seed + extra,
        )


def draw_case(setting: Setting, number: int, family: Family, devices: str) -> Case:
    """Draw a machine and what is hidden of it; both are the same whichever of its devices are used."""
    prior = Prior.read(setting.prior)
    rng = np.random.default_rng([setting.seed, number, FAMILIES.index(family)])
    machine = prior.draw_machine(rng)
    truth = prior.draw_truth(family, _platform(setting, machine, max(setting.cpus.values())), rng)
    cost_seed, noise_seed = (int(rng.integers(1 << 31)) for _ in range(2))
    return make_case(setting, machine, truth, devices, cost_seed=cost_seed, noise_seed=noise_seed)


def make_case(
    setting: Setting, machine: Machine, truth: Truth, devices: str, *, cost_seed: int, noise_seed: int
) -> Case:
    """Return Canny on ``devices`` of a machine."""
    graph = canny(setting.tiles, setting.tile)
    made = _platform(setting, machine, setting.cpus[devices])
    table = costs(graph, made, machine, seed=cost_seed)
    return Case(machine, truth, graph, made, table, setting.planner_evaluations, noise_seed)


def _platform(setting: Setting, machine: Machine, cpus: int) -> Platform:
    return platform(machine, nodes=setting.nodes, gpus=setting.gpus, cpus=cpus, here=setting.here)


def platform(machine: Machine, *, nodes: int, gpus: int, cpus: int, here: bool = False) -> Platform:
    """Return ``nodes`` × (``gpus`` GPUs, ``cpus`` CPU groups), all emulated; ``here``: on this host."""
    names = [f"n{n}" for n in range(nodes)]
    memories: list[Memory] = []
    devices: list[Device] = []
    links: list[Link] = []
    wire = machine.link_latency_s, machine.link_bandwidth_bytes_per_s
    for name in names:
        memories.append(Memory(name, name))
        devices += [
            Device(f"{name}.cpu{c}", "emulated", name, name, "made cpu", (c,), emulates="cpu") for c in range(cpus)
        ]
        for g in range(gpus):
            gpu = f"{name}.gpu{g}"
            memories.append(Memory(gpu, name))
            devices.append(Device(gpu, "emulated", name, gpu, "made gpu", (), emulates="cuda"))
            links += [Link(name, gpu, "host_to_device", *wire), Link(gpu, name, "device_to_host", *wire)]
    for a in names:
        for b in names:
            if a != b:
                network = machine.link_latency_s, machine.network_bandwidth_bytes_per_s
                links.append(Link(a, b, "network", *network, (f"{a}.send", f"{b}.receive")))
    hosts = ["localhost" if here else name for name in names]
    return Platform(
        tuple(Node(name, host) for name, host in zip(names, hosts, strict=True)),
        tuple(memories),
        tuple(devices),
        tuple(links),
    )


def canny(tiles: int, tile: int) -> TaskGraph:
    """Return the graph of a picture of ``tiles`` × ``tiles`` tiles of ``tile`` × ``tile`` pixels."""
    size = tiles * tile
    return build_graph(size, size, image="", content="", size=size, tile=tile, sigma=1.4, low=0.1, high=0.2)


def costs(graph: TaskGraph, platform: Platform, machine: Machine, *, seed: int) -> CostModel:
    """Return the made cost table: the GPU's times by kernel, the CPU's by a factor that varies with the kernel."""
    rng = np.random.default_rng(seed)
    slowness = {
        kernel: machine.cpu_slowness * math.exp(machine.kernel_spread * rng.standard_normal()) for kernel in WEIGHTS
    }
    timings: dict[tuple[str, str, str, str, int], float] = {}
    for task in graph:
        gpu_s = WEIGHTS[task.kernel.name] * machine.task_s
        for device in {d.model: d for d in platform.devices}.values():
            for variant in usable_variants(
                task.kernel,
                params=task.params,
                shapes=task.shapes(),
                device_kind=device.variant_kind,
                cores=len(device.core_ids),
                exact=graph.exact,
                installed=False,
            ):
                factor = 1.0
                if device.variant_kind == "cpu" and task.kernel.name not in HOST:
                    factor = slowness[task.kernel.name] * (NUMPY_SLOWNESS if variant.name == "numpy" else 1.0)
                key = (class_key(task), variant.name, device.variant_kind, device.model, timing_cores(device))
                timings[key] = gpu_s * factor
    return CostModel(timings, {}, f"made {machine} {seed}")
