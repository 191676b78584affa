"""PEFT with transfer times per pair of memories instead of their mean.

The optimistic cost table of Arabnejad & Barbosa (TPDS 2014) charges every transfer the mean c̄ over all pairs of
devices. Here a transfer costs what the cheapest route between the two memories costs; where links are unequal
(two GPUs behind one switch, two nodes behind a network) the table then knows who is near. With equal links it
is PEFT's table.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from heterotask_core.planning.core import edges
from heterotask_core.planning.listing import ListPlanner, Rule, anywhere, cheapest_routes
from heterotask_core.planning.problem import F64, Problem


@nb.njit(cache=True)
def _link_oct(  # type: ignore[no-untyped-def]
    pointer, target, taken_ptr, taken_size, taken_regime, latency_s, seconds_per_byte,
    cost_s, task_class, device_memory,
):  # fmt: skip
    n, n_devices, m = len(task_class), len(device_memory), latency_s.shape[1]
    table = np.zeros((n, m))
    rank = np.zeros(n)
    near = np.empty(m)
    for t in range(n - 1, -1, -1):
        for k in range(pointer[t], pointer[t + 1]):
            j = target[k]
            near[:] = np.inf
            for q in range(n_devices):
                value = table[j, device_memory[q]] + cost_s[task_class[j], q]
                near[device_memory[q]] = min(near[device_memory[q]], value)
            for a in range(m):
                least = near[a]
                for b in range(m):
                    if b == a or not near[b] < least:
                        continue
                    value = near[b]
                    for i in range(taken_ptr[k], taken_ptr[k + 1]):
                        r = taken_regime[i]
                        value += latency_s[r, a, b] + taken_size[i] * seconds_per_byte[r, a, b]
                    least = min(least, value)
                table[t, a] = max(table[t, a], least)
        total, count = 0.0, 0
        for p in range(n_devices):
            if cost_s[task_class[t], p] < np.inf and table[t, device_memory[p]] < np.inf:
                total += table[t, device_memory[p]]
                count += 1
        rank[t] = total / max(count, 1)
    return table, rank


def link_oct(problem: Problem) -> tuple[F64, F64]:
    """Return the table (T, D) and its mean over the devices that can run the task (T,), in seconds.

    A value is infinite where a successor cannot get its data from there at all.
    """
    pointer, target, _, edge_of_input = edges(problem)
    routes = cheapest_routes(problem)
    known = np.flatnonzero(edge_of_input >= 0)
    order = known[np.argsort(edge_of_input[known], kind="stable")]
    taken_ptr = np.searchsorted(edge_of_input[order], np.arange(len(target) + 1))
    size = problem.version_size_bytes[problem.input_versions[order]].astype(np.float64)
    regime = routes.regime[np.searchsorted(routes.sizes, size)] if len(size) else np.zeros(0, np.int64)
    table, rank = _link_oct(
        pointer, target, taken_ptr, size, regime, routes.latency_s, routes.seconds_per_byte,
        problem.cost_s, problem.task_class, problem.device_memory,
    )  # fmt: skip
    # Laid out as other rules' biases are: the core is compiled once for each layout.
    return np.ascontiguousarray(table[:, problem.device_memory]), rank


def peft_link_rule(problem: Problem) -> Rule:
    """Return PEFT's rule with the link-aware table."""
    table, rank = link_oct(problem)
    return Rule(rank, table, anywhere(problem))


PEFT_LINK = ListPlanner.of_rule("peft-link", peft_link_rule)
