"""Planned memory: buffers with offsets, eviction, write-back and re-fetch for memories with a capacity.

:func:`fit_memory` walks a schedule in start order, keeps its devices, and decides copies anew: a copy that must
leave is the one whose next read is farthest (a clean one is dropped, the last one of a version is written to the
host first); it is fetched again when it is read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning.memory_state import NO_HOST, NO_ROOM
from heterotask_core.planning.memory_walk import Walked, Walker
from heterotask_core.planning.problem import F64, I64, Problem
from heterotask_core.planning.schedule import Buffers, Schedule

SCRATCH = -1
"""The version of a buffer that holds scratch bytes while a task runs."""
WRITE_BACKS = (0.0, 8.0, 64.0)
"""How many tasks earlier than it is read a copy counts as read if it must be written back before it leaves: which
is best depends on the problem, so all are tried."""


def limited(problem: Problem) -> bool:
    """Return whether any memory has a capacity."""
    return bool((problem.memory_capacity_bytes >= 0).any())


def fit_memory(problem: Problem, schedule: Schedule) -> Schedule:
    """Return a schedule with planned buffers for every memory with a capacity; others are left as they are.

    Raises :class:`InfeasiblePlanError` naming task, bytes needed and bytes there are.
    """
    if not limited(problem):
        return schedule
    roomy = _without_reuse(problem, schedule)
    if roomy is not None:
        return replace(schedule, buffers=roomy)
    walker = Walker(problem)
    device, duration_s = schedule.task_device.astype(np.int64), durations(problem, schedule)
    tried: list[Walked] = []
    for early in WRITE_BACKS:
        walker.walk(schedule.task_start_s, device, duration_s, early)
        tried.append(walker.walked())
    best = min(tried, key=lambda x: (x.fault, x.makespan_s, x.moved_bytes))
    if best.fault:
        raise InfeasiblePlanError(fault_text(problem, schedule, best))
    return replace(schedule, **fields_of(best))


def warm_up_walk(problem: Problem) -> None:
    """Load or compile the code of the walk on a tiny problem without limits, so that no clock waits for it."""
    n = problem.n_tasks
    Walker(problem).walk(np.zeros(n), np.zeros(n, np.int64), np.ones(n), 0.0)


def tight(problem: Problem) -> bool:
    """Return whether some memory with a capacity is smaller than all data items together."""
    sizes = np.zeros(len(problem.data_names))
    sizes[problem.version_data] = problem.version_size_bytes
    least = min((int(c) for c in problem.memory_capacity_bytes if c >= 0), default=-1)
    return bool(0 <= least < sizes.sum())


def _without_reuse(problem: Problem, schedule: Schedule) -> Buffers | None:
    """Return buffers of the schedule as it is, each with bytes of its own; None if there are not enough."""
    p, s = problem, schedule
    n_out, n_in = np.diff(p.output_ptr), np.diff(p.input_ptr)
    made_by, read_by = np.repeat(np.arange(p.n_tasks), n_out), np.repeat(np.arange(p.n_tasks), n_in)
    memory_of_task = p.device_memory[s.task_device]
    home = np.repeat(np.arange(p.n_versions), np.diff(p.home_ptr))
    version = np.concatenate([home, p.output_versions, s.transfer_version])
    memory = np.concatenate([p.home_memories, memory_of_task[made_by], p.link_target[s.transfer_link]])
    alloc = np.concatenate([np.zeros(len(home)), s.task_start_s[made_by], s.transfer_start_s])
    free = np.concatenate([np.zeros(len(home)), s.task_finish_s[made_by], s.transfer_finish_s])
    # The last use of a copy, by (version, memory).
    last: F64 = np.zeros((p.n_versions, p.n_memories))
    np.maximum.at(last, (p.input_versions, memory_of_task[read_by]), s.task_finish_s[read_by])
    np.maximum.at(last, (s.transfer_version, p.link_source[s.transfer_link]), s.transfer_finish_s)
    final = np.flatnonzero(p.version_final_memory >= 0)
    last[final, p.version_final_memory[final]] = s.makespan_s
    free = np.maximum(free, last[version, memory])
    size = p.version_size_bytes[version].astype(np.int64)
    if p.class_scratch_bytes is not None:
        scratch = p.class_scratch_bytes[p.task_class, s.task_device]
        users = np.flatnonzero(scratch)
        version = np.concatenate([version, np.full(len(users), SCRATCH)])
        memory = np.concatenate([memory, memory_of_task[users]])
        alloc, free = np.concatenate([alloc, s.task_start_s[users]]), np.concatenate([free, s.task_finish_s[users]])
        size = np.concatenate([size, scratch[users]])
    kept = p.memory_capacity_bytes[memory] >= 0
    version, memory, alloc, free, size = version[kept], memory[kept], alloc[kept], free[kept], size[kept]
    order = np.lexsort((alloc, memory))
    version, memory, alloc, free, size = version[order], memory[order], alloc[order], free[order], size[order]
    unit = p.memory_alignment_bytes[memory]
    room = -(-size // unit) * unit
    end = np.cumsum(room)
    first = np.searchsorted(memory, memory)
    offset = end - room - (end - room)[first]
    if (offset + room > p.memory_capacity_bytes[memory]).any():
        return None
    return Buffers(memory.astype(np.int32), version.astype(np.int32), offset, size, alloc, free)


def durations(problem: Problem, schedule: Schedule) -> F64:
    """Return how long each task takes in its variant on its device, (T,)."""
    variants = np.maximum(schedule.task_variant, 0)
    rows = zip(problem.task_class.tolist(), variants.tolist(), schedule.task_device.tolist(), strict=True)
    return np.array([problem.variant_cost_s[c][x, d] for c, x, d in rows], np.float64)


def fields_of(walked: Walked) -> dict[str, Any]:
    """Return the fields of a schedule that a walk decides."""
    return {
        "task_start_s": walked.start_s,
        "task_finish_s": walked.finish_s,
        "transfer_start_s": walked.move_start_s,
        "transfer_finish_s": walked.move_finish_s,
        "transfer_version": walked.move_version,
        "transfer_link": walked.move_link,
        "makespan_s": float(walked.makespan_s),
        "buffers": Buffers(
            memory=walked.row_memory,
            version=walked.row_version,
            offset_bytes=walked.row_offset,
            size_bytes=walked.row_size,
            alloc_s=walked.row_alloc_s,
            free_s=walked.row_free_s,
        ),
    }


def fault_text(problem: Problem, schedule: Schedule, walked: Walked) -> str:
    """Return why a walk failed: task, memory, bytes needed and bytes there are."""
    memory = problem.memory_names[walked.fault_memory]
    there = int(problem.memory_capacity_bytes[walked.fault_memory])
    item = problem.data_names[problem.version_data[walked.fault_version]]
    if walked.fault_task < 0:
        what = f"the home copy of {item!r}"
    elif walked.fault_task == problem.n_tasks:
        what = f"the final copy of {item!r}"
    else:
        device = problem.device_names[schedule.task_device[walked.fault_task]]
        what = f"task {problem.task_names[walked.fault_task]!r} on {device!r}"
    if walked.fault == NO_ROOM:
        return (
            f"{what} needs {walked.fault_bytes} bytes in memory {memory!r}, there are {there}; "
            "use smaller tiles or another device"
        )
    if walked.fault == NO_HOST:
        return f"{what}: memory {memory!r} is full ({there} bytes) and no route leads from it to an unlimited memory"
    return f"{what}: {item!r} has no route to memory {memory!r}; add links"


def peak_bytes(buffers: Buffers, memory: int) -> tuple[int, int]:
    """Return (peak of live bytes, highest byte used) of one memory's buffers; the difference is packing loss.

    Buffers on the same bytes at the same time, as an update in place and what it updates are, count once.
    """
    mine = np.flatnonzero((buffers.memory == memory) & (buffers.size_bytes > 0))
    mine = mine[np.lexsort((buffers.free_s[mine], buffers.alloc_s[mine], buffers.offset_bytes[mine]))]
    offset, size = buffers.offset_bytes[mine], buffers.size_bytes[mine]
    alloc_s, free_s = buffers.alloc_s[mine], buffers.free_s[mine].copy()
    # What is taken over has left when the next one on its bytes starts.
    same = offset[:-1] == offset[1:]
    free_s[:-1][same] = np.minimum(free_s[:-1], alloc_s[1:])[same]
    # A buffer that ends when another starts has left.
    times = np.concatenate([free_s, alloc_s])
    change = np.concatenate([-size, size])
    live: I64 = np.cumsum(change[np.lexsort((np.repeat([0, 1], len(size)), times))])
    return int(live.max(initial=0)), int((offset + size).max(initial=0))
