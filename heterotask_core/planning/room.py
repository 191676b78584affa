"""Which devices can hold a task's data at all: the others are taken from it before any planner looks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning.problem import F64, I64, Problem


def needed_bytes(problem: Problem, memory: int) -> I64:
    """Return the fewest bytes that each task needs at once in a memory, without its scratch, (T,).

    Inputs and new outputs, each rounded up to the memory's alignment; an update needs no bytes beside its old
    version, as that can be written elsewhere first if others still read it.
    """
    unit = int(problem.memory_alignment_bytes[memory])
    rooms = -(-problem.version_size_bytes.astype(np.int64) // unit) * unit
    fresh = np.where(problem.output_takes_over < 0, rooms[problem.output_versions], 0)
    total: I64 = _sums(rooms[problem.input_versions], problem.input_ptr) + _sums(fresh, problem.output_ptr)
    return total


def _sums(values: I64, pointer: I64) -> I64:
    ends = np.concatenate([[0], np.cumsum(values)])
    total: I64 = ends[pointer[1:]] - ends[pointer[:-1]]
    return total


def restrict_to_room(problem: Problem) -> Problem:
    """Return the problem with an infinite cost where a device's memory is too small for a task's own data.

    Tasks of one class that do not fit the same devices become classes of their own; names, variants and all else
    stay, so a schedule of the result is one of ``problem``.

    Raises :class:`InfeasiblePlanError` naming task, bytes needed and bytes there are if no device is left to it.
    """
    misfit = np.zeros((problem.n_tasks, problem.n_devices), np.bool_)
    most = np.zeros((problem.n_tasks, problem.n_devices), np.int64)
    limited = np.flatnonzero(problem.memory_capacity_bytes[problem.device_memory] >= 0)
    for d in limited.tolist():
        memory = int(problem.device_memory[d])
        unit, there = int(problem.memory_alignment_bytes[memory]), int(problem.memory_capacity_bytes[memory])
        most[:, d] = needed_bytes(problem, memory)
        if problem.class_scratch_bytes is not None:
            most[:, d] += (-(-problem.class_scratch_bytes[:, d] // unit) * unit)[problem.task_class]
        misfit[:, d] = most[:, d] > there
    if not misfit.any():
        return problem
    could = np.isfinite(problem.cost_s[problem.task_class])
    lost = could.any(axis=1) & ~(could & ~misfit).any(axis=1)
    if lost.any():
        raise InfeasiblePlanError(_refusal(problem, int(np.flatnonzero(lost)[0]), most, could))
    rows = np.concatenate([problem.task_class[:, None], misfit], axis=1)
    kinds, task_class = np.unique(rows, axis=0, return_inverse=True)
    old, shut = kinds[:, 0], kinds[:, 1:].astype(np.bool_)
    cost_s: F64 = np.where(shut, np.inf, problem.cost_s[old])
    return replace(
        problem,
        task_class=task_class.reshape(-1).astype(np.int32),
        class_names=tuple(problem.class_names[c] for c in old),
        class_variants=tuple(problem.class_variants[c] for c in old),
        cost_s=cost_s,
        cost_variant=np.ascontiguousarray(problem.cost_variant[old]),
        variant_cost_s=tuple(np.where(s, np.inf, problem.variant_cost_s[c]) for c, s in zip(old, shut, strict=True)),
        class_scratch_bytes=None if problem.class_scratch_bytes is None else problem.class_scratch_bytes[old],
        class_blocking=None if problem.class_blocking is None else problem.class_blocking[old],
    )


def _refusal(problem: Problem, task: int, needed: I64, could: np.typing.NDArray[np.bool_]) -> str:
    """Return why a task fits nowhere, by the largest memory of the devices that could run it."""
    devices = np.flatnonzero(could[task])
    d = int(devices[np.argmax(problem.memory_capacity_bytes[problem.device_memory[devices]])])
    memory = int(problem.device_memory[d])
    return (
        f"task {problem.task_names[task]!r} on {problem.device_names[d]!r} needs {int(needed[task, d])} bytes in "
        f"memory {problem.memory_names[memory]!r}, there are {int(problem.memory_capacity_bytes[memory])}, and no "
        "device that can run it has more; use smaller tiles or another device"
    )
