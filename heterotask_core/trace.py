"""Times of ops → the trace table that every report and the calibration read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import polars as pl

from heterotask_core.program.model import F64, I8, I32, I64, LaneKind, OpKind, Program
from heterotask_core.simulate import reasons
from heterotask_core.tables import ORIGINS, TRACE, check_table

WHY = ("data", "reuse", "lane", "capacity")
"""Names of :class:`heterotask_core.simulate.Reason`."""


@dataclass(frozen=True)
class Bindings:
    """What each op waited for last: (N,) time it was ready, the op that it waited for (−1: none), and why."""

    ready_s: F64
    op: I32
    why: I8


def bindings(program: Program, start_s: F64, finish_s: F64, *, capacity: bool, dependencies_only: bool) -> Bindings:
    """Return the latest of what every op waits for: dependencies and, unless left out, earlier ops of its lanes.

    An op that waits for nothing is ready at 0. ``capacity``: the order of shared buses counts, as it
    does in the simulator and not when a program is executed. Of equally late ones data go before buffers and lanes.
    """
    ptr, before, posted, why = reasons(program, capacity=capacity)
    return Bindings(*_latest(ptr, before, posted, why, start_s, finish_s, dependencies_only))


def trace_table(program: Program, start_s: F64, finish_s: F64, *, origin: str, repeat: int = 0) -> pl.DataFrame:
    """Return one row an op in the schema ``tables.TRACE``; times (N,) count from the first kernel's start."""
    if origin not in ORIGINS:
        raise ValueError(f"origin {origin!r} is none of {ORIGINS}")
    n = program.n_ops
    kernels = program.op_kind == OpKind.KERNEL
    zero = float(start_s[kernels].min()) if kernels.any() else 0.0
    start_s, finish_s = start_s - zero, finish_s - zero
    bound = bindings(program, start_s, finish_s, capacity=origin != "measured", dependencies_only=False)
    task = np.asarray(program.op_task, np.int64)
    call = np.where(task >= 0, program.task_call[task], -1) if len(program.task_call) else np.full(n, -1)
    source, target = np.asarray(program.op_source, np.int64), np.asarray(program.op_target, np.int64)
    lane = first_issue_lane(program)
    rank = program.lane_rank[lane]
    rank_device = {name: i for i, name in enumerate(program.device_names)}
    by_rank = np.array([rank_device.get(role.device or "", -1) for role in program.ranks], np.int64)
    device = np.where(task >= 0, program.task_device[task] if len(program.task_device) else -1, by_rank[rank])
    columns: dict[str, Any] = {
        "op": np.arange(n),
        "repeat": np.full(n, repeat),
        "kind": _names([kind.name.lower() for kind in OpKind], program.op_kind),
        "task": _names(program.task_names, task),
        "kernel": _names([c.kernel for c in program.calls], call),
        "variant": _names([c.variant for c in program.calls], call),
        "data": _names(program.item_names, _at(program.version_item, _at(program.residency_version, target))),
        "rank": rank,
        "node": _names([role.node for role in program.ranks], rank),
        "device": _names(program.device_names, device),
        "lane": _names(program.lane_names, lane),
        "source": _names(program.memory_names, _at(program.residency_memory, source)),
        "target": _names(program.memory_names, _at(program.residency_memory, target)),
        "size_bytes": np.where(target >= 0, _at(program.residency_size_bytes, target), 0),
        "planned_start_s": program.op_start_s,
        "planned_finish_s": program.op_start_s + program.op_duration_s,
        "ready_s": bound.ready_s,
        "start_s": start_s,
        "finish_s": finish_s,
        "waited_for": bound.op,
        "why": _names(WHY, np.where(bound.op >= 0, bound.why, -1)),
        "origin": pl.repeat(origin, n, eager=True),
    }
    table = pl.DataFrame([pl.Series(name, columns[name], strict=False).cast(kind) for name, kind in TRACE.items()])
    return check_table(table, TRACE, what="trace")


def first_issue_lane(program: Program) -> I64:
    """Return (N,) the first issue lane of every op."""
    lane = np.full(program.n_ops, -1, np.int64)
    for k in range(len(program.lane_names) - 1, -1, -1):
        if program.lane_kinds[k] != LaneKind.CAPACITY:
            lane[program.lane_ops[program.lane_ptr[k] : program.lane_ptr[k + 1]]] = k
    return lane


def _names(names: Sequence[str], index: Any) -> pl.Series:
    """Names at an index, null where it is negative."""
    at = pl.Series(np.asarray(index, np.int64))
    return pl.Series(list(names), dtype=pl.String).gather(pl.select(pl.when(at >= 0).then(at)).to_series())


def _at(values: Any, index: Any) -> I64:
    """Values at an index, −1 where it is negative."""
    if not len(values):
        return np.full(len(index), -1, np.int64)
    return np.where(index >= 0, np.asarray(values, np.int64)[index], -1)


@numba.njit(cache=True)
def _latest(ptr, before, posted, why, start, finish, dependencies_only):  # type: ignore[no-untyped-def]
    n = len(ptr) - 1
    ready = np.zeros(n, np.float64)
    op = np.full(n, -1, np.int32)
    reason = np.zeros(n, np.int8)
    for i in range(n):
        for e in range(ptr[i], ptr[i + 1]):
            if dependencies_only and why[e] > 1:
                continue
            done = start[before[e]] if posted[e] else finish[before[e]]
            if op[i] < 0 or done > ready[i] or (done == ready[i] and why[e] < reason[i]):
                ready[i] = max(done, 0.0)
                op[i] = before[e]
                reason[i] = why[e]
    return ready, op, reason
