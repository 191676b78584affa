"""The list schedulers: priorities and device biases for :func:`~heterotask_core.planning.core.decode`.

PEFT: Arabnejad & Barbosa, TPDS 2014. HEFT, CPOP: Topcuoglu, Hariri & Wu, TPDS 2002.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numba as nb
import numpy as np

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning.base import Budget, Progress
from heterotask_core.planning.blocking import plans_blocking
from heterotask_core.planning.bounds import lower_bound
from heterotask_core.planning.core import MAX_HOPS, Arrays, Placed, arrays, decode, edges
from heterotask_core.planning.memory import fit_memory
from heterotask_core.planning.once import once
from heterotask_core.planning.problem import F64, I32, I64, Problem
from heterotask_core.planning.room import restrict_to_room
from heterotask_core.planning.schedule import Schedule
from heterotask_core.planning.view import NETWORK, PRECEDENCE, memory_classes

FITTED = 4
"""How many passes are fitted into limited memories before the shortest is taken."""


class Rule(NamedTuple):
    """A list scheduler: task priorities (T,), bias, forced device (T,) or −1.

    The bias, added to the finish, has a column a device, or a class of devices
    (:func:`~heterotask_core.planning.view.memory_classes`), or none. ``beta`` times the seconds that a task's inputs
    spend on links are added too, whether they are waited for or not.
    """

    priority: F64
    bias: F64
    forced: I32
    beta: float = 0.0


class Routes(NamedTuple):
    """Cheapest uncontended routes of at most ``MAX_HOPS`` links between memories, for every size that occurs.

    Which route is cheapest depends on the size, in few steps: ``regime`` (one a distinct size) is an index into
    the tables ``latency_s`` and ``seconds_per_byte`` (regimes, M, M); the latency is infinite where no route leads.
    """

    sizes: F64
    regime: I64
    latency_s: F64
    seconds_per_byte: F64


@once(*NETWORK)
def cheapest_routes(problem: Problem) -> Routes:
    """Return the cheapest routes for the sizes of all versions.

    A pair's cost is a minimum of straight lines in the size, thus concave: tables that are equal at two sizes are
    equal between them, and only the steps are searched for.
    """
    sizes = np.unique(problem.version_size_bytes.astype(np.float64))
    regime = np.zeros(len(sizes), np.int64)
    latency_s: list[F64] = []
    seconds_per_byte: list[F64] = []
    known: dict[int, tuple[F64, F64]] = {}

    def table(i: int) -> tuple[F64, F64]:
        if i not in known:
            known[i] = _route_table(problem, float(sizes[i]))
        return known[i]

    def equal(one: tuple[F64, F64], other: tuple[F64, F64]) -> bool:
        return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))

    open_ = [(0, len(sizes) - 1)] if len(sizes) else []
    while open_:
        low, high = open_.pop()
        if low < high and not equal(table(low), table(high)):
            middle = (low + high) // 2
            open_ += [(middle + 1, high), (low, middle)]
            continue
        if not latency_s or not equal(table(low), (latency_s[-1], seconds_per_byte[-1])):
            latency_s.append(table(low)[0])
            seconds_per_byte.append(table(low)[1])
        regime[low : high + 1] = len(latency_s) - 1
    m = problem.n_memories
    return Routes(sizes, regime, np.array(latency_s).reshape(-1, m, m), np.array(seconds_per_byte).reshape(-1, m, m))


def _route_table(problem: Problem, size: float) -> tuple[F64, F64]:
    m = problem.n_memories
    latency, per_byte = np.full((m, m), np.inf), np.zeros((m, m))
    latency[problem.link_source, problem.link_target] = problem.link_latency_s
    per_byte[problem.link_source, problem.link_target] = 1.0 / problem.link_bandwidth_bytes_per_s
    np.fill_diagonal(latency, 0.0)
    np.fill_diagonal(per_byte, 0.0)
    one_latency, one_per_byte = latency.copy(), per_byte.copy()

    for _ in range(MAX_HOPS - 1):
        # The routes of the last round only: a longer one would have more hops than allowed.
        before_latency, before_per_byte = latency.copy(), per_byte.copy()
        for k in range(m):
            new_latency = before_latency[:, k, None] + one_latency[None, k, :]
            new_per_byte = before_per_byte[:, k, None] + one_per_byte[None, k, :]
            shorter = new_latency + size * new_per_byte < latency + size * per_byte
            latency = np.where(shorter, new_latency, latency)
            per_byte = np.where(shorter, new_per_byte, per_byte)
    return latency, per_byte


@once(*NETWORK, *PRECEDENCE, "device_memory")
def mean_edge_s(problem: Problem) -> tuple[I64, I32, F64]:
    """Return the successors (CSR) and the mean transfer time c̄ of each pair, 0 for plain precedence."""
    pointer, target, _, edge_of_input = edges(problem)
    routes = cheapest_routes(problem)
    used = np.unique(problem.device_memory)
    mean_latency, mean_per_byte = np.zeros(len(routes.latency_s)), np.zeros(len(routes.latency_s))
    for k in range(len(routes.latency_s)):
        pairs = [(a, b) for a in used for b in used if a != b and np.isfinite(routes.latency_s[k, a, b])]
        if pairs:
            # Exact sums: the mean does not depend on the order in which memories are listed.
            mean_latency[k] = math.fsum(routes.latency_s[k, a, b] for a, b in pairs) / len(pairs)
            mean_per_byte[k] = math.fsum(routes.seconds_per_byte[k, a, b] for a, b in pairs) / len(pairs)
    edge_s = np.zeros(len(target))
    known = edge_of_input >= 0
    if known.any():
        size = problem.version_size_bytes[problem.input_versions[known]].astype(np.float64)
        regime = routes.regime[np.searchsorted(routes.sizes, size)]
        np.add.at(edge_s, edge_of_input[known], mean_latency[regime] + size * mean_per_byte[regime])
    return pointer, target, edge_s


@nb.njit(cache=True)
def _oct(pointer, target, edge_s, cost_s, task_class, device_class, n_classes, scout):  # type: ignore[no-untyped-def]
    """Devices of a class have the same column; ``scout`` are the devices of one memory of each class."""
    n, n_devices = len(task_class), len(device_class)
    table = np.zeros((n, n_classes))
    rank = np.zeros(n)
    near = np.empty(n_classes)
    for t in range(n - 1, -1, -1):
        for k in range(pointer[t], pointer[t + 1]):
            j = target[k]
            near[:] = np.inf
            for q in scout:
                c = device_class[q]
                near[c] = min(near[c], table[j, c] + cost_s[task_class[j], q])
            far = near.min() + edge_s[k]
            for c in range(n_classes):
                table[t, c] = max(table[t, c], min(near[c], far))
        total, count = 0.0, 0
        for p in range(n_devices):
            if cost_s[task_class[t], p] < np.inf:
                total += table[t, device_class[p]]
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


@nb.njit(cache=True)
def _mean_cost(cost_s):  # type: ignore[no-untyped-def]
    mean = np.zeros(len(cost_s))
    for c in range(len(cost_s)):
        total, count = 0.0, 0
        for w in cost_s[c]:
            if w < np.inf:
                total += w
                count += 1
        mean[c] = total / max(count, 1)
    return mean


def _mean_s(problem: Problem) -> F64:
    mean: F64 = _mean_cost(problem.cost_s)[problem.task_class]
    return mean


def anywhere(problem: Problem) -> I32:
    """Return the forced devices (T,) of a rule that forces none."""
    return np.full(problem.n_tasks, -1, np.int32)


def unbiased(problem: Problem) -> F64:
    """Return the bias of a rule that takes the earliest finish, (T, 0)."""
    return np.zeros((problem.n_tasks, 0))


def wide(problem: Problem, bias: F64) -> F64:
    """Return a rule's bias with a column a device, (T, D)."""
    if bias.shape[1] == problem.n_devices:
        return bias
    return bias[:, memory_classes(problem)] if bias.shape[1] else np.zeros((problem.n_tasks, problem.n_devices))


def peft_rule(problem: Problem) -> Rule:
    """Return PEFT's rule: rank and bias from the optimistic cost table."""
    pointer, target, edge_s = mean_edge_s(problem)
    device_class = memory_classes(problem)
    _, first = np.unique(device_class, return_index=True)
    scout = np.flatnonzero(np.isin(problem.device_memory, problem.device_memory[first]))
    table, rank = _oct(pointer, target, edge_s, problem.cost_s, problem.task_class, device_class, len(first), scout)
    return Rule(rank, table, anywhere(problem))


def heft_rule(problem: Problem) -> Rule:
    """Return HEFT's rule: upward rank, earliest finish."""
    up, _ = _ranks(*mean_edge_s(problem), _mean_s(problem))
    return Rule(up, unbiased(problem), anywhere(problem))


def cpop_rule(problem: Problem) -> Rule:
    """Return CPOP's rule: the critical path goes to the device that runs all of it fastest, if there is one."""
    pointer, target, edge_s = mean_edge_s(problem)
    up, down = _ranks(pointer, target, edge_s, _mean_s(problem))
    forced = anywhere(problem)
    if problem.n_tasks:
        length = float(up[down == 0.0].max())
        t = int(np.flatnonzero((down == 0.0) & (up == length))[0])
        path = [t]
        while pointer[t] < pointer[t + 1]:
            # Up + down is equal along the path only up to rounding, and a shortcut may win: what made up large decides.
            span = slice(pointer[t], pointer[t + 1])
            t = int(target[span][np.argmax(edge_s[span] + up[target[span]])])
            path.append(t)
        total = problem.cost_s[problem.task_class[path]].sum(axis=0)
        if np.isfinite(total.min()):
            forced[path] = int(total.argmin())
    return Rule(up + down, unbiased(problem), forced)


def place(problem: Problem, view: Arrays, rule: Rule) -> Placed:
    """Run the core. Raises :class:`InfeasiblePlanError` naming the task that cannot be placed."""
    placed = Placed(*decode(view, rule.priority, rule.bias, rule.forced, rule.beta))
    if placed.failed >= 0:
        if placed.failed == problem.n_tasks:
            raise InfeasiblePlanError(_stranded_final(problem, placed))
        task = problem.task_names[placed.failed]
        if not np.isfinite(problem.cost_s[problem.task_class[placed.failed]]).any():
            raise InfeasiblePlanError(f"task {task!r} can run on no device; add a variant or a device for it")
        raise InfeasiblePlanError(_stranded(problem, placed))
    return placed


def _holders(problem: Problem, placed: Placed, version: int) -> list[int]:
    """Return the memories that hold a version in a pass that failed: its home or its producer's, and where it moved."""
    producer = int(problem.version_producer[version])
    first = problem.home_memories[slice(*problem.home_ptr[version : version + 2])].tolist()
    if producer >= 0:
        first = [int(problem.device_memory[placed.device[producer]])]
    moved = problem.link_target[placed.transfer_link[placed.transfer_version == version]].tolist()
    return sorted({*first, *moved})


def _no_way(problem: Problem, placed: Placed, version: int, to: int) -> str | None:
    """Return that no route leads a version to a memory, None if one does."""
    latency_s = cheapest_routes(problem).latency_s
    held = _holders(problem, placed, version)
    if any(np.isfinite(latency_s[0, m, to]) for m in held):
        return None
    item = problem.data_names[problem.version_data[version]]
    at = " or ".join(repr(problem.memory_names[m]) for m in held)
    return f"{item!r} has no route of at most {MAX_HOPS} links from memory {at} to {problem.memory_names[to]!r}"


def _stranded(problem: Problem, placed: Placed) -> str:
    """Return why a task's inputs do not get to any device that can run it, by the first such device."""
    t = placed.failed
    inputs = problem.input_versions[slice(*problem.input_ptr[t : t + 2])].tolist()
    devices = np.flatnonzero(np.isfinite(problem.cost_s[problem.task_class[t]])).tolist()
    reasons = (_no_way(problem, placed, v, int(problem.device_memory[d])) for d in devices for v in inputs)
    reason = next((r for r in reasons if r is not None), "its data have no route")
    others = ", and its data get to no other device that can run it" if len(devices) > 1 else ""
    return f"task {problem.task_names[t]!r} on {problem.device_names[devices[0]]!r}: {reason}{others}; add links"


def _stranded_final(problem: Problem, placed: Placed) -> str:
    """Return which final version does not get to its memory."""
    final = np.flatnonzero(problem.version_final_memory >= 0).tolist()
    reasons = (_no_way(problem, placed, v, int(problem.version_final_memory[v])) for v in final)
    reason = next((r for r in reasons if r is not None), "a final version has no route to its memory")
    return f"{reason}, where it must end; add links"


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


def finish_shortest(problem: Problem, passes: Sequence[Placed], *, planner: str, seed: int = 0) -> Schedule:
    """Complete the shortest of several passes.

    Where memories have a capacity, planned memory may turn the order around or make a plan impossible: then the
    ``FITTED`` shortest passes are completed, more if none of them fits. Raises
    :class:`InfeasiblePlanError`, the shortest one's, if none fits at all.
    """
    order = sorted(passes, key=lambda p: p.makespan_s)
    if not (problem.memory_capacity_bytes >= 0).any():
        return finish(problem, order[0], planner=planner, seed=seed)
    fitted: list[Schedule] = []
    failure: InfeasiblePlanError | None = None
    for i, placed in enumerate(order):
        if i >= FITTED and fitted:
            break
        try:
            fitted.append(finish(problem, placed, planner=planner, seed=seed))
        except InfeasiblePlanError as error:
            failure = failure or error
    if not fitted and failure is not None:
        raise failure
    return min(fitted, key=lambda s: s.makespan_s)


class ListPlanner:
    """A planner of one pass or some, the shortest of which counts; it ignores budget and warm start."""

    def __init__(self, name: str, passes: Callable[[Problem], Sequence[Placed]]) -> None:
        self.name = name
        self.passes = passes

    @staticmethod
    def of_rule(name: str, rule: Callable[[Problem], Rule]) -> ListPlanner:
        """Return the planner of one pass, for one rule."""
        return ListPlanner(name, lambda problem: [place(problem, arrays(problem), rule(problem))])

    @plans_blocking
    def plan(
        self,
        problem: Problem,
        *,
        budget: Budget,
        warm_start: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Schedule:
        """Return the list schedule."""
        problem = restrict_to_room(problem)
        schedule = finish_shortest(problem, self.passes(problem), planner=self.name, seed=budget.seed)
        if progress is not None:
            progress(0, schedule.makespan_s)
        return schedule
