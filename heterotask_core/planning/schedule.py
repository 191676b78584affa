"""A schedule: which variant of each task runs where and when, which copies move when, where buffers lie."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from heterotask_core.planning.problem import F64, I32, I64, Problem


@dataclass(frozen=True)
class Buffers:
    """Planned buffers of memories with a capacity: one row a residency, sorted by (memory, alloc_s)."""

    memory: I32
    version: I32
    offset_bytes: I64
    size_bytes: I64
    alloc_s: F64
    free_s: F64

    @staticmethod
    def empty() -> Buffers:
        """No buffers."""
        i32, i64, f64 = np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.float64)
        return Buffers(i32, i32, i64, i64, f64, f64)


@dataclass(frozen=True)
class Schedule:
    """The plan of a problem. Times are seconds from the start; arrays are parallel.

    ``task_variant`` is an index into ``problem.class_variants`` of the task's class (−1: the unnamed one).
    Transfers are sorted by (start, finish); each moves a version over one link (one hop).
    """

    planner: str
    seed: int
    evaluations: int
    task_device: I32
    task_variant: I32
    task_start_s: F64
    task_finish_s: F64
    transfer_version: I32
    transfer_link: I32
    transfer_start_s: F64
    transfer_finish_s: F64
    makespan_s: float
    lower_bound_s: float
    buffers: Buffers = field(default_factory=Buffers.empty)

    def link_bytes(self, problem: Problem) -> F64:
        """Return the bytes moved over each link of ``problem``, (L,); a route of two hops counts on both links."""
        moved = np.zeros(len(problem.link_source))
        np.add.at(moved, self.transfer_link, problem.version_size_bytes[self.transfer_version].astype(np.float64))
        return moved

    def moved_bytes(self, problem: Problem) -> float:
        """Return the bytes moved over all links together."""
        return float(problem.version_size_bytes[self.transfer_version].sum())

    def above_optimal(self) -> float | None:
        """Return by what fraction the makespan can at most exceed the optimum, or None without a lower bound."""
        return self.makespan_s / self.lower_bound_s - 1.0 if self.lower_bound_s > 0 else None
