"""Canny on a made machine: GPUs and CPU groups of equal nodes, a cost table instead of measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calibration.prior import Machine
from heterotask_core.graph import TaskGraph, class_key
from heterotask_core.kernel import usable_variants
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
class Case:
    """What is planned for; ``costs`` are what profiling sees."""

    graph: TaskGraph
    platform: Platform
    costs: CostModel


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
