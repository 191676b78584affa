"""The core's view of a problem: flat arrays, sorted and reduced so that a pass is cheap (see :mod:`.core`).

A lane that is only ever held together with another is left out, and devices that look the same to a task's
successors share a class. None of this changes a result.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterotask_core.planning.once import once
from heterotask_core.planning.problem import F64, I32, I64, Problem

MAX_HOPS = 4
"""Most hops of a route."""


class Arrays(NamedTuple):
    """What the core reads of a problem (see :class:`Problem`), with successors and links sorted by source."""

    contention: bool
    n_tasks: int
    n_devices: int
    n_memories: int
    n_versions: int
    cost_s: F64
    task_class: I32
    device_memory: I32
    device_lane_ptr: I64
    device_lanes: I32
    n_lanes: int
    source_ptr: I64
    source_links: I32
    link_source: I32
    link_target: I32
    latency_s: F64
    bandwidth: F64
    link_lane_ptr: I64
    """Without the lanes that another lane of the same link stands for."""
    link_lanes: I32
    least_latency_s: F64
    least_seconds_per_byte: F64
    version_size: F64
    home_ptr: I64
    home_memories: I32
    final_memory: I32
    input_ptr: I64
    input_versions: I32
    output_ptr: I64
    output_versions: I32
    edge_ptr: I64
    edge_target: I32
    n_predecessors: I32
    after_ptr: I64
    after_tasks: I32
    direct_link: I32
    """(M × M,) the link from one memory to another, −1 for none."""
    next_link: I32
    """(M × M,) the first link of a cheap route, −1 for none: a route to bound the search for the earliest one."""
    memory_ptr: I64
    """Devices of each memory, in index order (CSR over memories)."""
    memory_devices: I32
    memory_class: I32
    """(D,) devices whose memories have the same devices share a number: a bias may be given a class, not a device."""
    least_hold_s: F64
    """(lanes,) the shortest time for which anything holds the lane."""
    mixed_lanes: bool
    """Whether some lane belongs to a device and to a link."""


NETWORK = (
    "n_memories",
    "link_source",
    "link_target",
    "link_latency_s",
    "link_bandwidth_bytes_per_s",
    "version_size_bytes",
)
"""What routes depend on."""
PRECEDENCE = ("input_ptr", "input_versions", "version_producer", "after_ptr", "after_tasks")
"""What the edges between tasks depend on."""


@once(*PRECEDENCE)
def edges(problem: Problem) -> tuple[I64, I32, I32, I64]:
    """Return successor pairs without doubles: pointer, target, and the flat (edge of each input; −1 for home)."""
    n = problem.n_tasks
    target = np.repeat(np.arange(n), np.diff(problem.input_ptr))
    source = problem.version_producer[problem.input_versions].astype(np.int64)
    known = source >= 0
    after_target = np.repeat(np.arange(n), np.diff(problem.after_ptr))
    keys = np.concatenate([source[known] * n + target[known], problem.after_tasks.astype(np.int64) * n + after_target])
    unique, inverse = np.unique(keys, return_inverse=True)
    pointer = np.searchsorted(unique, np.arange(n + 1) * n)
    edge_of_input = np.full(len(source), -1, np.int64)
    edge_of_input[known] = inverse[: int(known.sum())]
    return (
        pointer.astype(np.int64),
        (unique % max(n, 1)).astype(np.int32),
        np.bincount(unique % max(n, 1), minlength=n).astype(np.int32),
        edge_of_input,
    )


@once(*NETWORK)
def _next_links(problem: Problem) -> I32:
    m = problem.n_memories
    sizes = problem.version_size_bytes
    size = float(sizes.mean()) if len(sizes) else 0.0
    cost = np.full((m, m), np.inf)
    first = np.full((m, m), -1, np.int32)
    np.fill_diagonal(cost, 0.0)
    cost[problem.link_source, problem.link_target] = problem.link_latency_s + size / problem.link_bandwidth_bytes_per_s
    first[problem.link_source, problem.link_target] = np.arange(len(problem.link_source))
    for k in range(m):
        through = cost[:, k, None] + cost[None, k, :]
        shorter = through < cost
        first = np.where(shorter, first[:, k, None], first)
        cost = np.where(shorter, through, cost)
    return first.ravel()


@once("link_source", "link_lane_ptr", "link_lanes", "device_lanes")
def _needed_lanes(problem: Problem) -> tuple[I64, I32]:
    """Return the lanes of every link without those whose users all hold another lane too."""
    pointer, lanes = problem.link_lane_ptr, problem.link_lanes
    users: dict[int, set[int]] = {}
    for link in range(len(problem.link_source)):
        for lane in lanes[pointer[link] : pointer[link + 1]].tolist():
            users.setdefault(lane, set()).add(link)
    on_devices = set(problem.device_lanes.tolist())
    kept, length = [], [0]
    for link in range(len(problem.link_source)):
        own = lanes[pointer[link] : pointer[link + 1]].tolist()
        for lane in own:
            implied = lane not in on_devices and any(
                users[lane] < users[other] or (users[lane] == users[other] and other < lane)
                for other in own
                if other != lane
            )
            if not implied:
                kept.append(lane)
        length.append(len(kept))
    return np.array(length, np.int64), np.array(kept, np.int32)


def _least_hold_s(problem: Problem, pointer: I64, lanes: I32) -> F64:
    least = np.full(len(problem.lane_names), np.inf)
    cost = np.where(problem.cost_s > 0.0, problem.cost_s, np.inf).min(axis=0, initial=np.inf)
    width = np.diff(problem.device_lane_ptr)
    np.minimum.at(least, problem.device_lanes, np.repeat(cost, width))
    size = problem.version_size_bytes.astype(np.float64).min(initial=np.inf)
    if np.isfinite(size):
        duration = problem.link_latency_s + size / problem.link_bandwidth_bytes_per_s
        np.minimum.at(least, lanes, np.repeat(duration, np.diff(pointer)))
    return np.where(np.isfinite(least), least, 0.0)


@once(*NETWORK)
def _least_routes(problem: Problem) -> list[F64]:
    """Return the least latency and the least seconds a byte of any route between two memories, (M, M) each."""
    m = problem.n_memories
    inverse_bandwidth = 1.0 / problem.link_bandwidth_bytes_per_s
    least = []
    for value in (problem.link_latency_s, inverse_bandwidth):
        table = np.full((m, m), np.inf)
        np.fill_diagonal(table, 0.0)
        np.minimum.at(table, (problem.link_source, problem.link_target), value)
        for k in range(m):
            table = np.minimum(table, table[:, k, None] + table[None, k, :])
        # A hair below, so that rounding never prunes the best route.
        least.append(table * (1.0 - 1e-9))
    return least


def arrays(problem: Problem) -> Arrays:
    """Return the core's view of ``problem``."""
    m = problem.n_memories
    order = np.argsort(problem.link_source, kind="stable").astype(np.int32)
    least = _least_routes(problem)
    edge_ptr, edge_target, n_predecessors, _ = edges(problem)
    link_lane_ptr, link_lanes = _needed_lanes(problem)
    direct = np.full(m * m, -1, np.int32)
    direct[problem.link_source * m + problem.link_target] = np.arange(len(problem.link_source))
    by_memory = np.argsort(problem.device_memory, kind="stable").astype(np.int32)
    memory_ptr = np.searchsorted(problem.device_memory[by_memory], np.arange(m + 1)).astype(np.int64)
    return Arrays(
        problem.contention,
        problem.n_tasks,
        problem.n_devices,
        m,
        problem.n_versions,
        np.ascontiguousarray(problem.cost_s),
        problem.task_class,
        problem.device_memory,
        problem.device_lane_ptr,
        problem.device_lanes,
        len(problem.lane_names),
        np.searchsorted(problem.link_source[order], np.arange(m + 1)).astype(np.int64),
        order,
        problem.link_source,
        problem.link_target,
        problem.link_latency_s,
        problem.link_bandwidth_bytes_per_s,
        link_lane_ptr,
        link_lanes,
        least[0],
        least[1],
        problem.version_size_bytes.astype(np.float64),
        problem.home_ptr,
        problem.home_memories,
        problem.version_final_memory,
        problem.input_ptr,
        problem.input_versions,
        problem.output_ptr,
        problem.output_versions,
        edge_ptr,
        edge_target,
        n_predecessors,
        problem.after_ptr,
        problem.after_tasks,
        direct,
        _next_links(problem),
        memory_ptr,
        by_memory,
        memory_classes(problem),
        _least_hold_s(problem, link_lane_ptr, link_lanes),
        bool(np.isin(link_lanes, problem.device_lanes).any()),
    )


@once("cost_s", "device_memory")
def memory_classes(problem: Problem) -> I32:
    """Return a number for every device: equal for devices whose memories have devices of the same costs.

    Numbered by first device. An optimistic cost table is the same for all devices of a class.
    """
    columns: dict[bytes, int] = {}
    column = [columns.setdefault(problem.cost_s[:, p].tobytes(), len(columns)) for p in range(problem.n_devices)]
    known: dict[frozenset[int], int] = {}
    of_memory: dict[int, frozenset[int]] = {}
    for memory in set(problem.device_memory.tolist()):
        of_memory[memory] = frozenset(column[p] for p in np.flatnonzero(problem.device_memory == memory))
    found = [known.setdefault(of_memory[memory], len(known)) for memory in problem.device_memory.tolist()]
    return np.array(found, np.int32)
