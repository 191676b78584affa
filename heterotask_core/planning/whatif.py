"""What-if: the same problem on a changed platform, to predict scaling and to find out what limits a plan.

Every change is a pure function from problem to problem (or platform to platform); tasks keep their indices, and
devices too, so that a plan of the one is a start for the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from heterotask_core.errors import InfeasiblePlanError, PlatformError
from heterotask_core.planning.base import Budget, Planner
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.schedule import Schedule
from heterotask_core.platform.model import Link, Platform

FREE_BANDWIDTH_BYTES_PER_S = 1e100
NETWORK_S, NETWORK_BYTES_PER_S = 50e-6, 2e9
"""Latency and bandwidth between nodes that are only thought of, where no network was measured."""
UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def free_transfers(problem: Problem) -> Problem:
    """Return the problem with transfers that take no time and hold no lane."""
    n = len(problem.link_source)
    return replace(
        problem,
        contention=False,
        link_latency_s=np.zeros(n),
        link_bandwidth_bytes_per_s=np.full(n, FREE_BANDWIDTH_BYTES_PER_S),
    )


def infinite_memory(problem: Problem) -> Problem:
    """Return the problem without capacities."""
    return replace(problem, memory_capacity_bytes=np.full(problem.n_memories, -1, np.int64))


def no_latency(problem: Problem) -> Problem:
    """Return the problem with links that need no time to set up (all that an instance says of overheads)."""
    return replace(problem, link_latency_s=np.zeros(len(problem.link_source)))


def twice_devices(problem: Problem) -> Problem:
    """Return the problem with a twin of every device: same costs, same memory and links, lanes of its own."""
    p, n = problem, problem.n_devices
    used = np.unique(p.device_lanes)
    twin = np.full(len(p.lane_names), -1)
    twin[used] = len(p.lane_names) + np.arange(len(used))
    scratch = p.class_scratch_bytes
    return replace(
        p,
        device_names=(*p.device_names, *(f"{name} twin" for name in p.device_names)),
        device_kinds=p.device_kinds * 2,
        device_memory=np.tile(p.device_memory, 2),
        device_lane_ptr=np.concatenate([p.device_lane_ptr, p.device_lane_ptr[1:] + p.device_lane_ptr[n]]),
        device_lanes=np.concatenate([p.device_lanes, twin[p.device_lanes]]).astype(np.int32),
        lane_names=(*p.lane_names, *(f"{p.lane_names[x]} twin" for x in used)),
        cost_s=np.tile(p.cost_s, 2),
        cost_variant=np.tile(p.cost_variant, 2),
        variant_cost_s=tuple(np.tile(table, 2) for table in p.variant_cost_s),
        class_scratch_bytes=None if scratch is None else np.tile(scratch, 2),
        class_blocking=None if p.class_blocking is None else np.tile(p.class_blocking, 2),
    )


CHANGES: dict[str, Callable[[Problem], Problem]] = {
    "free transfers": free_transfers,
    "infinite memory": infinite_memory,
    "twice the devices": twice_devices,
    "zero overhead": no_latency,
}
"""What is recomputed to find out what limits a plan."""


def limit_memory(problem: Problem, limits: dict[str, int]) -> Problem:
    """Return the problem with capacities of at most ``limits``: bytes by memory name or device kind.

    Raises :class:`InfeasiblePlanError` for a name that is neither.
    """
    capacity = problem.memory_capacity_bytes.copy()
    for name, size in limits.items():
        of_kind = {int(m) for m, kind in zip(problem.device_memory, problem.device_kinds, strict=True) if kind == name}
        found = of_kind | {m for m, memory in enumerate(problem.memory_names) if memory == name}
        if not found:
            known = sorted({*problem.memory_names, *problem.device_kinds})
            raise InfeasiblePlanError(f"no memory or device kind is called {name!r}; there are {', '.join(known)}")
        for m in found:
            capacity[m] = size if capacity[m] < 0 else min(size, capacity[m])
    return replace(problem, memory_capacity_bytes=capacity)


def parse_limits(texts: list[str]) -> dict[str, int]:
    """Return ``["cuda=2GiB"]`` as ``{"cuda": 2147483648}``. Raises :class:`InfeasiblePlanError`."""
    limits: dict[str, int] = {}
    for text in texts:
        name, _, given = text.partition("=")
        number = given.strip().rstrip("BKMGTib")
        unit = given.strip()[len(number) :]
        try:
            size = int(float(number) * UNITS[unit])
        except (ValueError, KeyError, OverflowError):
            raise InfeasiblePlanError(f"memory limit {text!r} is not NAME=SIZE, e.g. cuda=2GiB or n0=500MB") from None
        if not name or size < 0:
            raise InfeasiblePlanError(f"memory limit {text!r} is not NAME=SIZE, e.g. cuda=2GiB or n0=500MB")
        if name in limits:
            raise InfeasiblePlanError(f"memory limit {text!r}: {name!r} is limited twice; give one limit of it")
        limits[name] = size
    return limits


@dataclass(frozen=True)
class Gain:
    """One recomputed plan; ``gain`` is how much shorter it is than the plan as things are, as a share of that."""

    what: str
    makespan_s: float
    gain: float


def gains(
    problem: Problem,
    schedule: Schedule,
    planner: Planner,
    budget: Budget,
    *,
    replaced: dict[str, Problem] | None = None,
) -> list[Gain]:
    """Return what each of ``CHANGES`` would gain, planned anew from ``schedule`` on, largest gain first.

    ``replaced`` are changed problems that the caller knows better. Infinite memory is left out where it is unlimited.
    """
    changed = {what: change(problem) for what, change in CHANGES.items()}
    if not (problem.memory_capacity_bytes >= 0).any():
        del changed["infinite memory"]
    found = []
    for what, other in {**changed, **(replaced or {})}.items():
        planned = planner.plan(other, budget=budget, warm_start=schedule)
        gain = 1.0 - planned.makespan_s / schedule.makespan_s if schedule.makespan_s > 0 else 0.0
        found.append(Gain(what, planned.makespan_s, gain))
    return sorted(found, key=lambda g: -g.gain)


def parse_counts(text: str) -> list[int]:
    """Return ``"1..6"`` or ``"1,2,4"`` as numbers. Raises :class:`PlatformError`."""
    try:
        first, dots, last = text.partition("..")
        counts = list(range(int(first), int(last) + 1)) if dots else [int(n) for n in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1 or max(counts) > 4096:
        raise PlatformError(f"node counts {text!r} are not like 1..6 or 1,2,4")
    return counts


def scaled_platform(platform: Platform, *, nodes: int, gpus: int | None = None) -> Platform:
    """Return ``nodes`` nodes like the first of ``platform``, on hosts of their own, with ``gpus`` accelerators each.

    Accelerators are copies of the first one of the node, each with its memory and links. Nodes are joined pairwise, as
    the first two of ``platform`` are if there are two. Raises :class:`PlatformError` if there is none to copy.
    """
    first = platform.nodes[0]
    own = [d for d in platform.devices if d.node == first.name and d.memory == first.name]
    others = [d for d in platform.devices if d.node == first.name and d.memory != first.name]
    if gpus and not others:
        raise PlatformError(
            f"{gpus} GPUs a node asked for, but node {first.name} has none to copy; add one to --devices"
        )
    if gpus is not None:
        others = others[:1] * gpus
    memories = {m.name: m for m in platform.memories}
    between = next((x for x in platform.links if x.kind == "network"), None)
    measured = (between.latency_s, between.bandwidth_bytes_per_s) if between else (NETWORK_S, NETWORK_BYTES_PER_S)
    node_list, memory_list, devices, links = [], [], [], []
    for n in range(nodes):
        name = f"n{n}"
        node_list.append(replace(first, name=name, host=f"{first.host}#{n}"))
        memory_list.append(replace(memories[first.name], name=name, node=name))
        for i, device in enumerate(own):
            devices.append(replace(device, name=f"{name}.{device.kind}{i}", node=name, memory=name))
        for i, device in enumerate(others):
            copy = f"{name}.{device.variant_kind}{i}"
            memory_list.append(replace(memories[device.memory], name=copy, node=name))
            devices.append(replace(device, name=copy, node=name, memory=copy))
            for link in platform.links:
                ends = {first.name: name, device.memory: copy}
                if {link.source, link.target} == set(ends):
                    lanes = tuple(f"{copy} {lane}" for lane in link.lanes)
                    links.append(replace(link, source=ends[link.source], target=ends[link.target], lanes=lanes))
    for a in range(nodes):
        for b in range(nodes):
            if a != b:
                links.append(Link(f"n{a}", f"n{b}", "network", *measured, (f"n{a}.send", f"n{b}.receive")))
    return Platform(tuple(node_list), tuple(memory_list), tuple(devices), tuple(links), platform.meta)
