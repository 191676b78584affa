"""The machine as the planner sees it: nodes, memories, devices and links.

Every node has one host memory (its *arena*), named like the node; CPU devices work in it. A device of
another kind has a memory of its own, named like the device. Links are directed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

DeviceKind = Literal["cpu", "opencl", "cuda", "emulated"]
LinkKind = Literal["host_to_device", "device_to_host", "network", "peer"]


@dataclass(frozen=True, slots=True)
class Memory:
    """A place where copies of data live; capacity None means unlimited (checked at launch for arenas)."""

    name: str
    node: str
    capacity_bytes: int | None = None
    alignment_bytes: int = 256
    max_allocation_bytes: int | None = None
    reserve_bytes: int = 0

    @property
    def slab_bytes(self) -> int:
        """Size of one allocation, a multiple of the alignment; 0 where all can be had in one."""
        return (self.max_allocation_bytes or 0) // self.alignment_bytes * self.alignment_bytes


@dataclass(frozen=True, slots=True)
class Device:
    """What runs kernels: driven by one rank.

    ``core_ids`` are the cores its rank is pinned to (a CPU device computes on them). ``selector`` tells
    the backend which physical device it is (platform and device index, PCI id). An emulated device runs
    the CPU variant and takes the time of ``emulates`` (a device kind) instead.
    """

    name: str
    kind: DeviceKind
    node: str
    memory: str
    model: str
    """What timings are keyed by: equal models are expected to be equally fast."""
    core_ids: tuple[int, ...] = ()
    selector: str = ""
    emulates: str | None = None
    driver: str = ""

    @property
    def variant_kind(self) -> str:
        """The device kind of the variants that it runs as far as costs are concerned."""
        return self.emulates or self.kind


@dataclass(frozen=True, slots=True)
class Link:
    """A directed connection of two memories; a transfer takes latency + bytes / bandwidth and holds all lanes.

    Lanes named here are shared by name; a link without lanes is a lane of its own.
    """

    source: str
    target: str
    kind: LinkKind
    latency_s: float
    bandwidth_bytes_per_s: float
    lanes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """A machine (or a virtual part of one): where its ranks are started.

    Virtual nodes share ``host``; ``agent_cores`` are the cores of the node agent.
    """

    name: str
    host: str
    agent_cores: tuple[int, ...] = ()


@dataclass(frozen=True)
class Platform:
    """Nodes, memories, devices and links, in a fixed order that indices everywhere refer to."""

    nodes: tuple[Node, ...]
    memories: tuple[Memory, ...]
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Facts for people (CPU model, driver versions); not part of the fingerprint."""

    def fingerprint(self) -> str:
        """Return a hash of everything that a plan depends on (link times left out: they are profile)."""
        data = {
            "nodes": [asdict(n) for n in self.nodes],
            "memories": [asdict(m) for m in self.memories],
            "devices": [asdict(d) for d in self.devices],
            "links": [(x.source, x.target, x.kind, x.lanes) for x in self.links],
        }
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]

    def device(self, name: str) -> Device:
        """Return the device called ``name``."""
        return next(d for d in self.devices if d.name == name)

    def memory_index(self) -> dict[str, int]:
        """Return memory name → index."""
        return {m.name: i for i, m in enumerate(self.memories)}
