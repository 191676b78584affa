"""Blocking variants: while one runs, the rank of its device issues no copies, so it holds their lanes as well.

Planners know lanes of devices only. A device with blocking variants is therefore split for them into two that share
its lane, of the same name and memory: one runs what does not block, the other, which holds the copies' lanes too,
what does. Problems without blocking variants are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from heterotask_core.planning.problem import F64, I32, Problem
from heterotask_core.planning.schedule import Schedule


def copy_lanes(problem: Problem, device: int) -> list[int]:
    """Return the lanes of the copies into and out of a device's memory that no other link and no device holds."""
    p, memory = problem, problem.device_memory[device]
    links = np.flatnonzero((p.link_source == memory) | (p.link_target == memory))
    users = np.bincount(p.link_lanes, minlength=len(p.lane_names))
    users[p.device_lanes] = 2
    lanes = (p.link_lanes[p.link_lane_ptr[x] : p.link_lane_ptr[x + 1]].tolist() for x in links)
    return [lane for held in lanes for lane in held if users[lane] == 1]


def held_lanes(problem: Problem) -> Callable[[int, int], list[int]]:
    """Return a function (task, device) → lanes that the task holds on the device."""
    found: dict[tuple[int, bool], list[int]] = {}

    def held(task: int, device: int) -> list[int]:
        key = device, blocks(problem, task, device)
        if key not in found:
            found[key] = _lanes(problem, *key)
        return found[key]

    return held


def _lanes(problem: Problem, device: int, blocking: bool) -> list[int]:
    own: list[int] = problem.device_lanes[slice(*problem.device_lane_ptr[device : device + 2])].tolist()
    return own + copy_lanes(problem, device) if blocking else own


def blocks(problem: Problem, task: int, device: int) -> bool:
    """Return whether a task's variant on a device is a blocking one."""
    table = problem.class_blocking
    return table is not None and bool(table[problem.task_class[task], device])


def split(problem: Problem) -> tuple[Problem, I32]:
    """Return the problem with every device in two where some of its variants block, and each one's device here.

    Without blocking variants that is the problem itself.
    """
    p, n = problem, problem.n_devices
    if p.class_blocking is None or not p.class_blocking.any():
        return p, np.arange(n, dtype=np.int32)
    can = np.isfinite(p.cost_s)
    some = np.asarray((can & p.class_blocking).any(axis=0), np.bool_)
    rest = np.asarray((can & ~p.class_blocking).any(axis=0), np.bool_) | ~some
    parts = [(d, blocking) for d in range(n) for blocking in (False, True) if (some if blocking else rest)[d]]
    origin = np.array([d for d, _ in parts], np.int32)
    shut = p.class_blocking[:, origin] != np.array([blocking for _, blocking in parts])
    held = [_lanes(p, d, blocking) for d, blocking in parts]
    cost_s: F64 = np.where(shut, np.inf, p.cost_s[:, origin])
    return replace(
        p,
        device_names=tuple(p.device_names[d] for d in origin),
        device_kinds=tuple(p.device_kinds[d] for d in origin),
        device_memory=p.device_memory[origin],
        device_lane_ptr=np.cumsum([0, *map(len, held)]).astype(np.int64),
        device_lanes=np.array([lane for row in held for lane in row], np.int32),
        cost_s=cost_s,
        cost_variant=np.ascontiguousarray(p.cost_variant[:, origin]),
        variant_cost_s=tuple(
            np.where(row, np.inf, table[:, origin]) for row, table in zip(shut, p.variant_cost_s, strict=True)
        ),
        class_scratch_bytes=None if p.class_scratch_bytes is None else p.class_scratch_bytes[:, origin],
        class_blocking=None,
    ), origin


def split_schedule(problem: Problem, origin: I32, schedule: Schedule) -> Schedule:
    """Return a schedule of ``problem`` as one of what :func:`split` makes of it."""
    assert problem.class_blocking is not None
    first = np.searchsorted(origin, schedule.task_device)
    last = np.searchsorted(origin, schedule.task_device, side="right") - 1
    blocking = problem.class_blocking[problem.task_class, schedule.task_device]
    return replace(schedule, task_device=np.where(blocking, last, first).astype(np.int32))


Plan = TypeVar("Plan", bound=Callable[..., Schedule])


def plans_blocking(plan: Plan) -> Plan:
    """Make a planner's ``plan``, which knows lanes of devices only, one for problems with blocking variants too."""

    @wraps(plan)
    def planned(self: Any, problem: Problem, *, warm_start: Schedule | None = None, **options: Any) -> Schedule:
        parts, origin = split(problem)
        if parts is problem:
            return plan(self, problem, warm_start=warm_start, **options)
        start = None if warm_start is None else split_schedule(problem, origin, warm_start)
        schedule = plan(self, parts, warm_start=start, **options)
        return replace(schedule, task_device=origin[schedule.task_device])

    return cast(Plan, planned)
