"""The list schedulers: priorities and device biases for :func:`~heterotask_core.planning.core.decode`.

PEFT: Arabnejad & Barbosa, TPDS 2014. HEFT, CPOP: Topcuoglu, Hariri & Wu, TPDS 2002.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numba as nb
import numpy as np

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning.base import Budget, Progress
from heterotask_core.planning.bounds import lower_bound
from heterotask_core.planning.core import MAX_HOPS, Arrays, Placed, arrays, decode, edges
from heterotask_core.planning.memory import fit_memory
from heterotask_core.planning.problem import F64, I32, I64, Problem
from heterotask_core.planning.schedule import Schedule


class Rule(NamedTuple):
    """A list scheduler: task priorities (T,), device bias (T, D), forced device (T,) or −1."""

    priority: F64
    bias: F64
    forced: I32


def mean_edge_s(problem: Problem) -> tuple[I64, I32, F64]:
    """Return the successors (CSR) and the mean transfer time c̄ of each pair, 0 for plain precedence."""
    pointer, target, _, edge_of_input = edges(problem)
    used = np.unique(problem.device_memory)
    sizes, which = np.unique(problem.version_size_bytes[problem.input_versions], return_inverse=True)
    mean = np.array([_mean_transfer_s(problem, used, float(size)) for size in sizes])
    edge_s = np.zeros(len(target))
    known = edge_of_input >= 0
    np.add.at(edge_s, edge_of_input[known], mean[which[known]] if len(sizes) else 0.0)
    return pointer, target, edge_s


def _mean_transfer_s(problem: Problem, used: I32, size: float) -> float:
    m = problem.n_memories
    latency, per_byte = np.full((m, m), np.inf), np.full((m, m), np.inf)
    latency[problem.link_source, problem.link_target] = problem.link_latency_s
    per_byte[problem.link_source, problem.link_target] = 1.0 / problem.link_bandwidth_bytes_per_s
    one_latency, one_per_byte = latency.copy(), per_byte.copy()
    for _ in range(MAX_HOPS - 1):
        for k in range(m):
            new_latency = latency[:, k, None] + one_latency[None, k, :]
            new_per_byte = per_byte[:, k, None] + one_per_byte[None, k, :]
            with np.errstate(invalid="ignore"):
                shorter = new_latency + size * new_per_byte < latency + size * per_byte
            latency = np.where(shorter, new_latency, latency)
            per_byte = np.where(shorter, new_per_byte, per_byte)
    pairs = [(a, b) for a in used for b in used if a != b and np.isfinite(latency[a, b])]
    if not pairs:
        return 0.0
    index = tuple(np.array(pairs).T)
    return float(np.mean(latency[index]) + size * np.mean(per_byte[index]))


@nb.njit(cache=True)
def _oct(pointer, target, edge_s, cost_s, task_class, device_memory, n_memories):  # type: ignore[no-untyped-def]
    n, n_devices = len(task_class), len(device_memory)
    table = np.zeros((n, n_devices))
    rank = np.zeros(n)
    near = np.empty(n_memories)
    for t in range(n - 1, -1, -1):
        for k in range(pointer[t], pointer[t + 1]):
            j = target[k]
            near[:] = np.inf
            far = np.inf
            for q in range(n_devices):
                w = cost_s[task_class[j], q]
                if w < np.inf:
                    value = table[j, q] + w
                    far = min(far, value)
                    near[device_memory[q]] = min(near[device_memory[q]], value)
            for p in range(n_devices):
                table[t, p] = max(table[t, p], min(near[device_memory[p]], far + edge_s[k]))
        total, count = 0.0, 0
        for p in range(n_devices):
            if cost_s[task_class[t], p] < np.inf:
                total += table[t, p]
                count += 1
        rank[t] = total / max(count, 1)
    return table, rank


@nb.njit(cache=True)
def _ranks(pointer, target, edge_s, mean_s):  # type: ignore[no-untyped-def]
    n = len(mean_s)
    up, down = mean_s.copy(), np.zeros(n)
    for t in range(n - 1, -1, -1):
        for k in range(pointer[t], pointer[t + 1]):
            up[t] = max(up[t], mean_s[t] + (edge_s[k] + up[target[k]]))
    for t in range(n):
        for k in range(pointer[t], pointer[t + 1]):
            down[target[k]] = max(down[target[k]], down[t] + mean_s[t] + edge_s[k])
    return up, down


def _mean_s(problem: Problem) -> F64:
    finite = np.isfinite(problem.cost_s)
    total = np.where(finite, problem.cost_s, 0.0).sum(axis=1)
    mean: F64 = (total / np.maximum(finite.sum(axis=1), 1))[problem.task_class]
    return mean


def _anywhere(problem: Problem) -> I32:
    return np.full(problem.n_tasks, -1, np.int32)


def peft_rule(problem: Problem) -> Rule:
    """Return PEFT's rule: rank and bias from the optimistic cost table."""
    pointer, target, edge_s = mean_edge_s(problem)
    table, rank = _oct(
        pointer, target, edge_s, problem.cost_s, problem.task_class, problem.device_memory, problem.n_memories
    )
    return Rule(rank, table, _anywhere(problem))


def heft_rule(problem: Problem) -> Rule:
    """Return HEFT's rule: upward rank, earliest finish."""
    up, _ = _ranks(*mean_edge_s(problem), _mean_s(problem))
    return Rule(up, np.zeros((problem.n_tasks, problem.n_devices)), _anywhere(problem))


def cpop_rule(problem: Problem) -> Rule:
    """Return CPOP's rule: the critical path goes to the device that runs all of it fastest, if there is one."""
    pointer, target, edge_s = mean_edge_s(problem)
    up, down = _ranks(pointer, target, edge_s, _mean_s(problem))
    priority = up + down
    forced = _anywhere(problem)
    if problem.n_tasks:
        length = float(up[down == 0.0].max())
        t = int(np.flatnonzero((down == 0.0) & (up == length))[0])
        path = [t]
        while pointer[t] < pointer[t + 1]:
            following = target[pointer[t] : pointer[t + 1]]
            t = int(following[np.argmax(priority[following])])
            path.append(t)
        total = problem.cost_s[problem.task_class[path]].sum(axis=0)
        if np.isfinite(total.min()):
            forced[path] = int(total.argmin())
    return Rule(priority, np.zeros((problem.n_tasks, problem.n_devices)), forced)


def place(problem: Problem, view: Arrays, rule: Rule) -> Placed:
    """Run the core. Raises :class:`InfeasiblePlanError` naming the task that cannot be placed."""
    placed = Placed(*decode(view, rule.priority, rule.bias, rule.forced))
    if placed.failed >= 0:
        if placed.failed == problem.n_tasks:
            raise InfeasiblePlanError("a final version has no route to its memory; add links")
        task = problem.task_names[placed.failed]
        if not np.isfinite(problem.cost_s[problem.task_class[placed.failed]]).any():
            raise InfeasiblePlanError(f"task {task!r} can run on no device; add a variant or a device for it")
        raise InfeasiblePlanError(f"task {task!r}: its data have no route to any device that can run it; add links")
    return placed


def finish(problem: Problem, placed: Placed, *, planner: str, seed: int = 0, evaluations: int = 0) -> Schedule:
    """Turn a pass into a complete schedule: variants, lower bound, planned memory."""
    bare = Schedule(
        planner=planner,
        seed=seed,
        evaluations=evaluations,
        task_device=placed.device,
        task_variant=problem.cost_variant[problem.task_class, placed.device],
        task_start_s=placed.start_s,
        task_finish_s=placed.finish_s,
        transfer_version=placed.transfer_version,
        transfer_link=placed.transfer_link,
        transfer_start_s=placed.transfer_start_s,
        transfer_finish_s=placed.transfer_finish_s,
        makespan_s=float(placed.makespan_s),
        lower_bound_s=lower_bound(problem),
    )
    return fit_memory(problem, bare)


class ListPlanner:
    """A planner of one pass, for one rule; it ignores budget and warm start."""

    def __init__(self, name: str, rule: Callable[[Problem], Rule]) -> None:
        self.name = name
        self.rule = rule

    def plan(
        self,
        problem: Problem,
        *,
        budget: Budget,
        warm_start: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Schedule:
        """Return the list schedule."""
        placed = place(problem, arrays(problem), self.rule(problem))
        schedule = finish(problem, placed, planner=self.name, seed=budget.seed)
        if progress is not None:
            progress(0, schedule.makespan_s)
        return schedule
