"""Find the devices of this host and lay them out as nodes, memories and links.

A specification is a comma-separated list: ``cpu:N`` (N groups of one core), ``cpu:NxK`` (N groups of K cores),
``opencl:N``, ``cuda:N``. It describes every node; *virtual nodes* divide the cores and devices that this process
may use, and share cores when there are too few.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from heterotask_core.errors import PlatformError
from heterotask_core.platform.describe import read_platform
from heterotask_core.platform.model import Device, DeviceKind, Link, LinkKind, Memory, Node, Platform

MAX_DEFAULT_GROUPS = 16
MAX_GROUPS_PER_CORE = 16
"""Sharing cores is for tests of programs for larger machines; beyond this it is a slip of the pen."""
PACKAGES: dict[DeviceKind, str] = {"opencl": "pyopencl", "cuda": "cupy"}

# Unmeasured links only need an order of magnitude: the profile replaces them.
NOMINAL: dict[LinkKind, tuple[float, float]] = {
    "host_to_device": (20e-6, 8e9),
    "device_to_host": (20e-6, 8e9),
    "network": (50e-6, 2e9),
}

_PART = re.compile(r"(?P<kind>[a-z]+)(?::(?P<count>\d+)(?:x(?P<cores>\d+))?)?")


@dataclass(frozen=True, slots=True)
class Request:
    """Devices of one kind wanted on each node; ``cores`` a group, for CPU devices."""

    kind: DeviceKind
    count: int
    cores: int = 1


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An OpenCL or CUDA device that is present; ``selector`` finds it again."""

    model: str
    selector: str
    driver: str
    memory_bytes: int
    alignment_bytes: int
    max_allocation_bytes: int
    fault: str = ""
    """Why it cannot be used."""


def discover(devices: str = "", nodes: int = 1) -> Platform:
    """Return the platform of this host for a specification (default: CPU groups of one core on every core).

    The name of a YAML file stands for the platform that the file describes.

    Raises :class:`PlatformError` (one line) for an unknown kind, a specification without devices, or more
    devices or cores in a group than there are.
    """
    if nodes < 1:
        raise PlatformError(f"{nodes} nodes asked for; there must be at least 1")
    if devices.endswith((".yaml", ".yml")):
        if nodes > 1:
            raise PlatformError(f"{nodes} nodes asked for, but {devices} says which nodes there are; leave --nodes out")
        return read_platform(Path(devices))
    cores = sorted(os.sched_getaffinity(0))
    requests = parse_devices(devices) if devices.strip() else [_default_request(len(cores), nodes)]
    found: dict[DeviceKind, list[Accelerator]] = {
        r.kind: _accelerators(r.kind, r.count * nodes) for r in requests if r.kind != "cpu"
    }
    return assemble(requests, nodes=nodes, cores=cores, cpu_model=_cpu_model(), host=os.uname().nodename, found=found)


def parse_devices(text: str) -> list[Request]:
    """Return the requests of a specification; raises :class:`PlatformError`."""
    requests: list[Request] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise PlatformError(f"devices {text!r}: {part!r} is not KIND:COUNT, e.g. cpu:2, cpu:2x4, opencl:1")
        kind = match["kind"]
        if kind not in ("cpu", "opencl", "cuda"):
            raise PlatformError(f"devices {text!r}: unknown kind {kind!r}; known: cpu, opencl, cuda")
        if any(r.kind == kind for r in requests):
            raise PlatformError(f"devices {text!r}: {kind} is given twice; write one count")
        if match["cores"] is not None and kind != "cpu":
            raise PlatformError(
                f"devices {text!r}: only cpu devices are groups of cores; write {kind}:{match['count']}"
            )
        cores = int(match["cores"] or 1)
        if cores < 1:
            raise PlatformError(f"devices {text!r}: a group needs at least 1 core")
        count = int(match["count"] or 1)
        if count:
            requests.append(Request(kind, count, cores))  # type: ignore[arg-type]
    if not requests:
        raise PlatformError(f"devices {text!r}: no device is left; ask for at least one, e.g. cpu:1")
    return requests


def assemble(
    requests: list[Request],
    *,
    nodes: int,
    cores: list[int],
    cpu_model: str,
    host: str,
    found: dict[DeviceKind, list[Accelerator]],
) -> Platform:
    """Lay out what was found; pure, so that platforms of other machines can be made in tests.

    Groups of all nodes take cores in turn and start again when all are used; accelerators are dealt to nodes
    in turn and driven from the next core. Raises :class:`PlatformError` when something is too little, or a core
    would be shared by more than :data:`MAX_GROUPS_PER_CORE` devices.
    """
    node_list: list[Node] = []
    memories: list[Memory] = []
    device_list: list[Device] = []
    links: list[Link] = []
    position = 0
    dealt = dict.fromkeys(found, 0)

    def take(count: int) -> tuple[int, ...]:
        nonlocal position
        taken = tuple(sorted(cores[(position + i) % len(cores)] for i in range(count)))
        position += count
        return taken

    claimed = nodes * sum(request.count * request.cores for request in requests if request.kind == "cpu")
    if claimed > MAX_GROUPS_PER_CORE * len(cores):
        raise PlatformError(
            f"CPU devices of {claimed} cores asked for, but this process may use {len(cores)}, each for at most "
            f"{MAX_GROUPS_PER_CORE} devices; ask for fewer"
        )
    for n in range(nodes):
        name = f"n{n}"
        memories.append(Memory(name, name))
        first = len(device_list)
        for request in requests:
            if request.kind == "cpu":
                if request.cores > len(cores):
                    raise PlatformError(
                        f"cpu groups of {request.cores} cores asked for, but this process may use {len(cores)}; "
                        "ask for smaller groups"
                    )
                for i in range(request.count):
                    device_list.append(
                        Device(f"{name}.cpu{i}", "cpu", name, name, cpu_model, core_ids=take(request.cores))
                    )
                continue
            present = found[request.kind]
            if request.count * nodes > len(present):
                raise PlatformError(
                    f"{request.count * nodes} {request.kind} devices asked for ({request.count} a node), "
                    f"{len(present)} present; ask for fewer or install a driver (see `heterotask doctor`)"
                )
            for i in range(request.count):
                what = present[dealt[request.kind]]
                dealt[request.kind] += 1
                device = f"{name}.{request.kind}{i}"
                memories.append(
                    Memory(device, name, what.memory_bytes, what.alignment_bytes, what.max_allocation_bytes)
                )
                device_list.append(
                    Device(
                        device,
                        request.kind,
                        name,
                        device,
                        what.model,
                        core_ids=take(1),
                        selector=what.selector,
                        driver=what.driver,
                    )
                )
                # One engine each way; a device's copies of one direction are serialised by it.
                links.append(Link(name, device, "host_to_device", *NOMINAL["host_to_device"], (f"{device}.h2d",)))
                links.append(Link(device, name, "device_to_host", *NOMINAL["device_to_host"], (f"{device}.d2h",)))
        agent = device_list[first].core_ids[:1] if len(device_list) > first else ()
        node_list.append(Node(name, host, agent_cores=agent))
    for a in node_list:
        for b in node_list:
            if a is not b:
                lanes = (f"{a.name}.send", f"{b.name}.receive")
                links.append(Link(a.name, b.name, "network", *NOMINAL["network"], lanes))
    meta = {"cpu": cpu_model, "cores": len(cores), "memory_bytes": psutil.virtual_memory().total}
    return Platform(tuple(node_list), tuple(memories), tuple(device_list), tuple(links), meta)


def _default_request(cores: int, nodes: int) -> Request:
    # Few cores: all of them compute, and the node agent shares one. Many: one is left to the agent, one to the OS.
    free = cores if cores <= 2 else cores - 2
    return Request("cpu", max(1, min(MAX_DEFAULT_GROUPS, free) // nodes))


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return os.uname().machine


def _accelerators(kind: DeviceKind, wanted: int) -> list[Accelerator]:
    """Ask a child process: drivers start threads, change affinity and print, and a broken one may crash."""
    package = PACKAGES[kind]
    if importlib.util.find_spec(package) is None:
        raise PlatformError(
            f"{wanted} {kind} devices asked for, but {package} is not installed; pip install 'heterotask[{kind}]'"
        )
    code = f"from heterotask_core.platform.accelerators import print_{kind}; print_{kind}()"
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        raise PlatformError(f"asking for {kind} devices took more than 120 s; see `heterotask doctor`") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise PlatformError(f"{wanted} {kind} devices asked for, none usable: {reason}; see `heterotask doctor`")
    return _usable(kind, wanted, [Accelerator(**entry) for entry in json.loads(lines[-1])])


def _usable(kind: DeviceKind, wanted: int, found: Sequence[Accelerator]) -> list[Accelerator]:
    """Leave out what cannot compile anything; raise :class:`PlatformError` where that leaves too few."""
    usable = [one for one in found if not one.fault]
    faults = "; ".join(f"{one.model} cannot compile kernels ({one.fault})" for one in found if one.fault)
    if faults and len(usable) < wanted:
        raise PlatformError(
            f"{wanted} {kind} devices asked for, {len(usable)} usable: {faults}; install a driver that knows this "
            "processor, see `heterotask doctor`"
        )
    return usable
