"""Times of ops → the trace table that every report and the calibration read."""

from __future__ import annotations

import numpy as np
import polars as pl

from heterotask_core.program.model import F64, LaneKind, OpKind, Program
from heterotask_core.simulate import predecessors
from heterotask_core.tables import ORIGINS, TRACE, check_table


def trace_table(program: Program, start_s: F64, finish_s: F64, *, origin: str, repeat: int = 0) -> pl.DataFrame:
    """Return one row an op in the schema ``tables.TRACE``; times (N,) count from the first kernel's start."""
    if origin not in ORIGINS:
        raise ValueError(f"origin {origin!r} is none of {ORIGINS}")
    n = program.n_ops
    kernels = program.op_kind == OpKind.KERNEL
    zero = float(start_s[kernels].min()) if kernels.any() else 0.0
    ptr, before, posted = predecessors(program)
    done_s = np.where(posted == 1, start_s[before], finish_s[before])
    ready = np.array([done_s[ptr[i] : ptr[i + 1]].max(initial=zero) for i in range(n)], np.float64) - zero
    lane = first_issue_lane(program)
    rank = program.lane_rank[lane]
    rows = []
    for i in range(n):
        task = int(program.op_task[i])
        call = program.calls[program.task_call[task]] if task >= 0 else None
        source, target = int(program.op_source[i]), int(program.op_target[i])
        role = program.ranks[rank[i]]
        version = int(program.residency_version[target]) if target >= 0 else -1
        device = program.device_names[program.task_device[task]] if task >= 0 else role.device
        rows.append(
            {
                "op": i,
                "repeat": repeat,
                "kind": OpKind(program.op_kind[i]).name.lower(),
                "task": program.task_names[task] if task >= 0 else None,
                "kernel": call.kernel if call else None,
                "variant": call.variant if call else None,
                "data": program.item_names[program.version_item[version]] if version >= 0 else None,
                "rank": int(rank[i]),
                "node": role.node,
                "device": device,
                "lane": program.lane_names[lane[i]],
                "source": program.memory_names[program.residency_memory[source]] if source >= 0 else None,
                "target": program.memory_names[program.residency_memory[target]] if target >= 0 else None,
                "size_bytes": int(program.residency_size_bytes[target]) if target >= 0 else 0,
                "planned_start_s": float(program.op_start_s[i]),
                "planned_finish_s": float(program.op_start_s[i] + program.op_duration_s[i]),
                "ready_s": float(ready[i]),
                "start_s": float(start_s[i] - zero),
                "finish_s": float(finish_s[i] - zero),
                "origin": origin,
            }
        )
    return check_table(pl.DataFrame(rows, schema=TRACE), TRACE, what="trace")


def first_issue_lane(program: Program) -> np.ndarray:
    """Return (N,) the first issue lane of every op."""
    lane = np.full(program.n_ops, -1, np.int64)
    for k in range(len(program.lane_names) - 1, -1, -1):
        if program.lane_kinds[k] != LaneKind.CAPACITY:
            lane[program.lane_ops[program.lane_ptr[k] : program.lane_ptr[k + 1]]] = k
    return lane
