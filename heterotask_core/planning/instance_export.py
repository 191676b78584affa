"""A problem as a ``heterotask-instance/1`` document, and instances whose tasks stand in no order put into one."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from heterotask_core.errors import InstanceError
from heterotask_core.planning.instance import INSTANCE_FORMAT, KEYS, ROW_KEYS
from heterotask_core.planning.json_file import find, names, object_of, rows_of, shown, strings
from heterotask_core.planning.problem import Problem


def problem_to_instance(problem: Problem) -> dict[str, Any]:
    """Return the instance of ``problem``; reading it back gives an equal problem.

    The format has no alignment, no scratch bytes and no blocking variants: a plan of the problem keeps to them and is
    valid for the instance.
    """
    p = problem
    named = len(set(p.class_names)) == len(p.class_names)
    kernel = [n if named else f"{n}#{c}" for c, n in enumerate(p.class_names)]

    def seconds(row: np.ndarray[Any, Any]) -> dict[str, float]:
        return {name: float(s) for name, s in zip(p.device_names, row, strict=True) if np.isfinite(s)}

    def costs(c: int) -> dict[str, Any]:
        if not p.class_variants[c]:
            return {"seconds": seconds(p.variant_cost_s[c][0])}
        rows = zip(p.class_variants[c], p.variant_cost_s[c], strict=True)
        return {"variants": {name: {"seconds": seconds(row)} for name, row in rows}}

    def lanes(pointer: np.ndarray[Any, Any], flat: np.ndarray[Any, Any], i: int) -> list[str]:
        return [p.lane_names[x] for x in flat[pointer[i] : pointer[i + 1]]]

    data: list[dict[str, Any]] = [{"name": name, "size_bytes": 0} for name in p.data_names]
    for v in range(p.n_versions):
        item = data[p.version_data[v]]
        item["size_bytes"] = p.version_size_bytes[v].item()
        homes = p.home_memories[p.home_ptr[v] : p.home_ptr[v + 1]]
        if len(homes):
            item["home"] = [p.memory_names[m] for m in homes]
        if p.version_final_memory[v] >= 0:
            item["final"] = p.memory_names[p.version_final_memory[v]]
    tasks = []
    for t in range(p.n_tasks):
        made = p.output_versions[p.output_ptr[t] : p.output_ptr[t + 1]]
        old = p.output_takes_over[p.output_ptr[t] : p.output_ptr[t + 1]]
        replaced = set(old[old >= 0].tolist())
        taken = p.input_versions[p.input_ptr[t] : p.input_ptr[t + 1]].tolist()
        row: dict[str, Any] = {"name": p.task_names[t], "kernel": kernel[p.task_class[t]]}
        for key, versions in (
            ("reads", [v for v in taken if v not in replaced]),
            ("updates", made[old >= 0]),
            ("writes", made[old < 0]),
        ):
            if len(versions):
                row[key] = [p.data_names[p.version_data[v]] for v in versions]
        after = p.after_tasks[p.after_ptr[t] : p.after_ptr[t + 1]]
        if len(after):
            row["after"] = [p.task_names[a] for a in after]
        tasks.append(row)
    return {
        "format": INSTANCE_FORMAT,
        "name": p.name,
        "contention": p.contention,
        "memories": [
            {"name": name, "node": node} | ({"capacity_bytes": int(c)} if c >= 0 else {})
            for name, node, c in zip(p.memory_names, p.memory_nodes, p.memory_capacity_bytes, strict=True)
        ],
        "devices": [
            {
                "name": name,
                "kind": p.device_kinds[d],
                "memory": p.memory_names[p.device_memory[d]],
                "lanes": lanes(p.device_lane_ptr, p.device_lanes, d),
            }
            for d, name in enumerate(p.device_names)
        ],
        "links": [
            {
                "from": p.memory_names[p.link_source[x]],
                "to": p.memory_names[p.link_target[x]],
                "latency_s": float(p.link_latency_s[x]),
                "bandwidth_bytes_per_s": float(p.link_bandwidth_bytes_per_s[x]),
                "lanes": lanes(p.link_lane_ptr, p.link_lanes, x),
            }
            for x in range(len(p.link_source))
        ],
        "kernels": {kernel[c]: costs(c) for c in range(len(kernel))},
        "data": data,
        "tasks": tasks,
        "meta": p.meta,
    }


def sort_tasks(document: Any) -> dict[str, Any]:
    """Return the instance with its tasks in program order: each after what it reads and names in ``after``.

    The order is clear only where every item has one version, a home or one task that writes it (traces of workflows
    are so). Among tasks that could be next, the one that stands first is. Raises :class:`InstanceError` naming an item
    with more versions, or the tasks of a cycle.
    """
    document = object_of(document, "$", KEYS)
    tasks = rows_of(document, "tasks", ROW_KEYS["tasks"])
    index = names(tasks, "tasks")
    homes = {d.get("name") for d in rows_of(document, "data", ROW_KEYS["data"]) if d.get("home")}
    writer: dict[str, int] = {}
    for t, task in enumerate(tasks):
        where = f"$.tasks[{t}]"
        unclear = strings(task, "updates", where)
        for item in strings(task, "writes", where):
            if item in writer or item in homes:
                unclear = [item]
            writer[item] = t
        if unclear:
            raise InstanceError(
                f"{where} ({task['name']}): {shown(unclear[0])} has more than one version; "
                "which task reads which cannot be told without the order"
            )
    before: list[set[int]] = []
    for t, task in enumerate(tasks):
        where = f"$.tasks[{t}]"
        needs = {find(index, name, f"{where}.after", "task") for name in strings(task, "after", where)}
        before.append(needs | {writer[d] for d in strings(task, "reads", where) if d in writer})
    after: list[list[int]] = [[] for _ in tasks]
    open_ = [len(needs) for needs in before]
    for t, needs in enumerate(before):
        for b in needs:
            after[b].append(t)
    ready = [t for t, n in enumerate(open_) if n == 0]
    order = []
    while ready:
        order.append(heapq.heappop(ready))
        for t in after[order[-1]]:
            open_[t] -= 1
            if open_[t] == 0:
                heapq.heappush(ready, t)
    if len(order) < len(tasks):
        cycle = _cycle(before, set(range(len(tasks))) - set(order))
        raise InstanceError(
            f"$.tasks[{cycle[0]}]: a cycle: {' waits for '.join(shown(tasks[t]['name']) for t in cycle)}"
        )
    result: dict[str, Any] = document | {"tasks": [tasks[t] for t in order]}
    return result


def _cycle(before: list[set[int]], rest: set[int]) -> list[int]:
    """Return tasks each of which waits for the next, the last of them the first again."""
    path = [min(rest)]
    while True:
        following = min(t for t in before[path[-1]] if t in rest)
        if following in path:
            return [*path[path.index(following) :], following]
        path.append(following)
