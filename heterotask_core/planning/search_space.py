"""What the local search reads of a problem beside the core's view: device groups, neighbours, weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterotask_core.planning.problem import F64, I32, I64, Problem
from heterotask_core.planning.raw import opener
from heterotask_core.planning.view import Arrays

FAST_SHARE = 0.7
"""Share of device draws that follow speed (number of devices / cost); the others take any that can run the task."""


class Space(NamedTuple):
    """The search's view. A *group* is a set of devices with one memory and equal costs; the decoder picks among them.

    CSR pairs over tasks unless said otherwise. Costs are seconds, sizes bytes.
    """

    n_groups: int
    group_ptr: I64
    group_devices: I32
    group_memory: I32
    cost_s: F64
    """(C × G,), infinite where the group cannot run the class."""
    choice: F64
    """(C × G,) cumulated probability with which a draw takes a group."""
    out_ptr: I64
    out_target: I32
    """Tasks that wait for this one; T + memory where a final version must get to a memory."""
    out_bytes: F64
    """Most bytes that one version brings along the edge; −1 for plain precedence."""
    before_ptr: I64
    before_tasks: I32
    near_ptr: I64
    near_tasks: I32
    """Producers and consumers of data."""
    item_ptr: I64
    item_tasks: I32
    """CSR over data items: tasks that write the item, in program order."""
    task_item: I32
    """(T,) the first item that the task writes, −1 for none."""


raw_space = opener(Space)
"""For compiled code: addresses of :class:`Space` → the same with pointers in the place of arrays."""


def device_groups(problem: Problem) -> I32:
    """Return the group of every device (D,), numbered by first device."""
    known: dict[tuple[int, bytes, int], int] = {}
    lanes = np.diff(problem.device_lane_ptr)
    return np.array(
        [
            known.setdefault((int(problem.device_memory[p]), problem.cost_s[:, p].tobytes(), int(lanes[p])), len(known))
            for p in range(problem.n_devices)
        ],
        np.int32,
    )


def _csr(keys: I64, values: I64, n: int) -> tuple[I64, I32]:
    """Return pairs grouped by key, sorted by (key, value), without doubles."""
    pairs = np.unique(np.stack([keys, values], axis=1), axis=0) if len(keys) else np.zeros((0, 2), np.int64)
    return np.searchsorted(pairs[:, 0], np.arange(n + 1)).astype(np.int64), pairs[:, 1].astype(np.int32)


def search_space(problem: Problem, view: Arrays) -> Space:
    """Return the search's view of ``problem``."""
    n = problem.n_tasks
    group = device_groups(problem)
    n_groups = int(group.max(initial=-1)) + 1
    group_ptr, group_devices = _csr(group.astype(np.int64), np.arange(problem.n_devices), n_groups)
    first = group_devices[group_ptr[:-1]]
    cost = np.ascontiguousarray(problem.cost_s[:, first])

    consumer = np.repeat(np.arange(n), np.diff(problem.input_ptr))
    producer = problem.version_producer[problem.input_versions].astype(np.int64)
    known = producer >= 0
    size = problem.version_size_bytes[problem.input_versions].astype(np.float64)[known]
    producer, consumer = producer[known], consumer[known]
    waiting = np.repeat(np.arange(n), np.diff(problem.after_ptr))
    final = np.flatnonzero((problem.version_final_memory >= 0) & (problem.version_producer >= 0))
    source = np.concatenate([producer, problem.after_tasks, problem.version_producer[final]]).astype(np.int64)
    target = np.concatenate([consumer, waiting, n + problem.version_final_memory[final]]).astype(np.int64)
    weight = np.concatenate([size, np.full(len(waiting), -1.0), problem.version_size_bytes[final].astype(np.float64)])
    # Of several edges between two tasks the heaviest stays.
    order = np.lexsort((-weight, target, source))
    source, target, weight = source[order], target[order], weight[order]
    keep = np.ones(len(source), np.bool_)
    keep[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
    out_ptr = np.searchsorted(source[keep], np.arange(n + 1)).astype(np.int64)

    before_ptr, before_tasks = _csr(
        np.concatenate([consumer, waiting]), np.concatenate([producer, problem.after_tasks.astype(np.int64)]), n
    )
    near_ptr, near_tasks = _csr(np.concatenate([consumer, producer]), np.concatenate([producer, consumer]), n)
    writer = np.repeat(np.arange(n), np.diff(problem.output_ptr))
    item = problem.version_data[problem.output_versions].astype(np.int64)
    item_ptr, item_tasks = _csr(item, writer, len(problem.data_names))
    task_item = np.full(n, -1, np.int32)
    task_item[writer[::-1]] = item[::-1]
    return Space(
        n_groups,
        group_ptr,
        group_devices,
        problem.device_memory[first].astype(np.int32),
        cost,
        _choice(cost, np.diff(group_ptr)),
        out_ptr,
        target[keep].astype(np.int32),
        weight[keep],
        before_ptr,
        before_tasks,
        near_ptr,
        near_tasks,
        item_ptr,
        item_tasks,
        task_item,
    )


def _choice(cost: F64, members: I64) -> F64:
    """Return the cumulated probabilities (C, G) of device draws."""
    can = np.isfinite(cost)
    floor = np.where(can, cost, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    # A cost of zero would take all the weight.
    speed = np.where(can, members / np.maximum(cost, np.maximum(floor, 1e-12)), 0.0)
    speed /= np.maximum(speed.sum(axis=1, keepdims=True), 1e-300)
    even = can / np.maximum(can.sum(axis=1, keepdims=True), 1)
    result: F64 = np.cumsum(FAST_SHARE * speed + (1.0 - FAST_SHARE) * even, axis=1)
    return result
