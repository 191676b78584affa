"""Where the time went: the makespan by device, the executed critical path, and what took longer than planned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from heterotask_core.program.model import F64, DependencyKind, LaneKind, OpKind, Program
from heterotask_core.trace import WHY, Bindings, bindings

PARTS = ("compute_s", "transfer_wait_s", "overhead_s", "idle_s")
MAX_STEPS = 400
"""Steps of a critical path that are listed; the sums cover all."""
TOP = 10


@dataclass(frozen=True)
class Step:
    """An op of the critical path: ``own_s`` of the makespan pass in it, ``gap_s`` between its being ready and its
    start; ``why`` it waited for the step before (None for the first)."""

    op: int
    what: str
    kind: str
    device: str | None
    lane: str
    start_s: float
    own_s: float
    gap_s: float
    why: str | None


@dataclass(frozen=True)
class CriticalPath:
    """The chain of ops, each started by the end of the one before, that ends with the last kernel.

    ``sums_s``: compute, copy, transfer, overhead (ready but not started) and lead (before the first op); they sum up
    to the makespan.
    """

    steps: tuple[Step, ...]
    n_steps: int
    sums_s: dict[str, float]
    by_kernel_s: dict[str, float]


def times_of(program: Program, trace: pl.DataFrame) -> tuple[F64, F64]:
    """Return (N,) start and end of a trace of one repeat; NaN for ops that it lacks."""
    start_s, finish_s = np.full(program.n_ops, np.nan), np.full(program.n_ops, np.nan)
    op = trace["op"].to_numpy()
    start_s[op], finish_s[op] = trace["start_s"].to_numpy(), trace["finish_s"].to_numpy()
    return start_s, finish_s


def makespan_of(program: Program, finish_s: F64) -> float:
    """Return the end of the last kernel; times count from the start of the first."""
    kernels = program.op_kind == OpKind.KERNEL
    return float(finish_s[kernels].max()) if kernels.any() else 0.0


def decompose(program: Program, start_s: F64, finish_s: F64, *, capacity: bool) -> dict[str, dict[str, float]]:
    """Return device → its share of the makespan in compute, transfer wait, overhead and idle seconds.

    They sum up to the makespan. *Transfer wait*: the next op lacks only data that are on their way (copies and
    transfers, with their queues). *Overhead*: it is ready and its lane free. *Idle*: what it needs is not computed yet,
    a buffer is not free, or nothing is left to do. ``capacity`` as in :func:`~heterotask_core.trace.bindings`.
    """
    window_s = makespan_of(program, finish_s)
    bound = bindings(program, start_s, finish_s, capacity=capacity, dependencies_only=True)
    found = {}
    for device, ops in _compute_lanes(program).items():
        parts = dict.fromkeys(PARTS, 0.0)
        at_s = 0.0
        for op in ops:
            begin_s, end_s = min(float(start_s[op]), window_s), min(float(finish_s[op]), window_s)
            ready_s = min(max(float(bound.ready_s[op]), at_s), max(begin_s, at_s))
            parts["overhead_s"] += max(0.0, begin_s - ready_s)
            if ready_s > at_s and bound.op[op] >= 0 and program.op_kind[bound.op[op]] != OpKind.KERNEL:
                made_s = _made(program, finish_s, int(bound.op[op]))
                parts["transfer_wait_s"] += ready_s - min(max(made_s, at_s), ready_s)
            busy = "compute_s" if program.op_kind[op] == OpKind.KERNEL else "transfer_wait_s"
            parts[busy] += max(0.0, end_s - max(begin_s, at_s))
            at_s = max(at_s, end_s)
        parts["idle_s"] = max(0.0, window_s - sum(parts.values()))
        found[device] = parts
    return found


def critical_path(program: Program, start_s: F64, finish_s: F64, *, capacity: bool) -> CriticalPath:
    """Return the executed critical path, walked back from the last kernel's end along what each op waited for."""
    kernels = np.flatnonzero(program.op_kind == OpKind.KERNEL)
    sums = {"compute_s": 0.0, "copy_s": 0.0, "transfer_s": 0.0, "overhead_s": 0.0, "lead_s": 0.0}
    by_kernel: dict[str, float] = {}
    if not len(kernels):
        return CriticalPath((), 0, sums, by_kernel)
    bound = bindings(program, start_s, finish_s, capacity=capacity, dependencies_only=False)
    where = _lanes(program)
    op = int(kernels[np.argmax(finish_s[kernels])])
    at_s = float(finish_s[op])
    steps: list[Step] = []
    while op >= 0:
        before = int(bound.op[op])
        begin_s = min(float(start_s[op]), at_s)
        ready_s = min(float(bound.ready_s[op]), begin_s) if before >= 0 else begin_s
        kind = OpKind(program.op_kind[op]).name.lower()
        step = _step(program, bound, where, op, begin_s, at_s - begin_s, begin_s - ready_s)
        steps.append(step)
        sums["compute_s" if kind == "kernel" else f"{kind}_s"] += step.own_s
        sums["overhead_s"] += step.gap_s
        if kind == "kernel":
            name = program.calls[program.task_call[program.op_task[op]]].kernel
            by_kernel[name] = by_kernel.get(name, 0.0) + step.own_s
        at_s, op = ready_s, before
    sums["lead_s"] = at_s
    steps.reverse()
    listed = (
        steps
        if len(steps) <= MAX_STEPS
        else sorted(sorted(steps, key=lambda s: -(s.own_s + s.gap_s))[:MAX_STEPS], key=lambda s: s.start_s)
    )
    by_kernel = dict(sorted(by_kernel.items(), key=lambda kv: (-kv[1], kv[0])))
    return CriticalPath(tuple(listed), len(steps), sums, by_kernel)


def deviations(trace: pl.DataFrame) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Return the classes (kernel and device kind, or link) and the ops that cost most more or less than planned.

    Rows are sorted by the sum of what was taken beyond the plan, in absolute value.
    """
    taken = pl.col("finish_s") - pl.col("start_s")
    planned = pl.col("planned_finish_s") - pl.col("planned_start_s")
    table = trace.with_columns(
        taken_s=taken,
        planned_s=planned,
        beyond_s=taken - planned,
        what=pl.coalesce("task", "data"),
        of=pl.coalesce(pl.col("kernel"), pl.concat_str(["source", pl.lit(" → "), "target"])),
    )
    classes = (
        table.group_by("of", "variant", maintain_order=True)
        .agg(
            pl.len().alias("count"),
            pl.col("planned_s").sum(),
            pl.col("taken_s").sum(),
            (pl.col("taken_s") / pl.col("planned_s")).filter(pl.col("planned_s") > 0).median().alias("median_ratio"),
            pl.col("beyond_s").sum(),
        )
        .sort(pl.col("beyond_s").abs(), descending=True, maintain_order=True)
        .head(TOP)
    )
    ops = (
        table.sort(pl.col("beyond_s").abs(), descending=True, maintain_order=True)
        .head(TOP)
        .select("op", "what", "of", "variant", "device", "planned_s", "taken_s", "beyond_s")
    )
    return classes.to_dicts(), ops.to_dicts()


def _compute_lanes(program: Program) -> dict[str, list[int]]:
    lanes: dict[str, list[int]] = {name: [] for name in program.device_names}
    for k, kind in enumerate(program.lane_kinds.tolist()):
        device = program.ranks[program.lane_rank[k]].device if program.lane_rank[k] >= 0 else None
        if kind == LaneKind.COMPUTE and device is not None:
            lanes[device] = program.lane_ops[program.lane_ptr[k] : program.lane_ptr[k + 1]].tolist()
    return lanes


def _made(program: Program, finish_s: F64, op: int) -> float:
    """When the kernel had made what a chain of copies brings: they are followed back by the data that they read."""
    while op >= 0 and program.op_kind[op] != OpKind.KERNEL:
        span = slice(program.dep_ptr[op], program.dep_ptr[op + 1])
        data = program.dep_ops[span][program.dep_kinds[span] == DependencyKind.DATA]
        op = int(data[np.argmax(finish_s[data])]) if len(data) else -1
    return float(finish_s[op]) if op >= 0 else 0.0


def _lanes(program: Program) -> dict[int, int]:
    where: dict[int, int] = {}
    for k in range(len(program.lane_names) - 1, -1, -1):
        if program.lane_kinds[k] != LaneKind.CAPACITY:
            where.update(dict.fromkeys(program.lane_ops[program.lane_ptr[k] : program.lane_ptr[k + 1]].tolist(), k))
    return where


def _step(
    program: Program, bound: Bindings, where: dict[int, int], op: int, start_s: float, own_s: float, gap_s: float
) -> Step:
    task = int(program.op_task[op])
    if task >= 0:
        what = program.task_names[task]
    else:
        version = program.residency_version[program.op_target[op]]
        what = program.item_names[program.version_item[version]]
    lane = where[op]
    why = WHY[bound.why[op]] if bound.op[op] >= 0 else None
    kind = OpKind(program.op_kind[op]).name.lower()
    device = program.ranks[program.lane_rank[lane]].device
    return Step(op, what, kind, device, program.lane_names[lane], start_s, own_s, gap_s, why)
