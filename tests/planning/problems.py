"""Random instances with everything that a planner has to cope with, for hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st


@st.composite
def instances(draw: st.DrawFn, *, max_tasks: int = 12, contention: bool | None = None) -> Any:
    """Up to three nodes in a chain, each with core lanes, a device of four cores and devices with own memory.

    Costs are small integers, so that equal scores occur; link speeds are not, so that two routes never tie.
    """
    nodes = [f"n{i}" for i in range(draw(st.integers(1, 3)))]
    memories, devices, links = [], [], []

    def connect(a: str, b: str, lanes: list[str]) -> None:
        link: dict[str, Any] = {
            "from": a,
            "to": b,
            "latency_s": draw(st.integers(0, 3)) * 0.1234567,
            "bandwidth_bytes_per_s": draw(st.integers(1, 5)) + 0.0131713 * (len(links) + 1) ** 0.5,
        }
        if lanes:
            link["lanes"] = lanes
        links.append(link)

    for i, node in enumerate(nodes):
        memories.append({"name": node, "node": node})
        cores = [f"{node} core{k}" for k in range(draw(st.integers(1, 3)))]
        devices += [
            {"name": f"{node} cpu{k}", "kind": "cpu", "memory": node, "lanes": [core]} for k, core in enumerate(cores)
        ]
        if draw(st.booleans()):
            devices.append({"name": f"{node} cpus", "kind": "cpus", "memory": node, "lanes": cores})
        for k in range(draw(st.integers(0, 2))):
            name = f"{node} cuda{k}"
            memories.append({"name": name, "node": node})
            devices.append({"name": name, "kind": "cuda", "memory": name})
            bus = [f"{node} bus"] if draw(st.booleans()) else []
            connect(node, name, [*bus, f"{name} in"] if bus else [])
            connect(name, node, [*bus, f"{name} out"] if bus else [])
        if i:
            nic = draw(st.booleans())
            connect(nodes[i - 1], node, [f"{nodes[i - 1]} send", f"{node} receive"] if nic else [])
            connect(node, nodes[i - 1], [f"{node} send", f"{nodes[i - 1]} receive"] if nic else [])

    cost = st.integers(1, 9).map(float)
    kinds = sorted({d["kind"] for d in devices})
    host = [k for k in kinds if k != "cuda"]
    kernels: dict[str, Any] = {
        "any": {"seconds": {k: draw(cost) for k in kinds}},
        "host": {"variants": {v: {"seconds": {k: draw(cost) for k in host}} for v in ("one", "two")}},
        "own": {"seconds": {d["name"]: draw(cost) for d in devices}},
    }
    data: list[dict[str, Any]] = []
    for i in range(draw(st.integers(1, 5))):
        homes = draw(st.lists(st.sampled_from(nodes), max_size=2, unique=True))
        data.append({"name": f"d{i}", "size_bytes": draw(st.integers(0, 20))} | ({"home": homes} if homes else {}))
    written = {d["name"] for d in data if d.get("home")}
    tasks: list[dict[str, Any]] = []
    for i in range(draw(st.integers(1, max_tasks))):
        task: dict[str, Any] = {"name": f"t{i}", "kernel": draw(st.sampled_from(sorted(kernels)))}
        for d in data:
            modes = (
                ["none", "none", "writes", "reads", "reads", "updates"] if d["name"] in written else ["none", "writes"]
            )
            mode = draw(st.sampled_from(modes))
            if mode != "none":
                task.setdefault(mode, []).append(d["name"])
        written |= set(task.get("writes", []))
        if i and draw(st.integers(0, 4)) == 0:
            task["after"] = [f"t{draw(st.integers(0, i - 1))}"]
        if draw(st.integers(0, 3)) == 0:
            where = [d["name"] for d in devices if d["kind"] == "cpu"] + nodes
            task["on"] = [draw(st.sampled_from(where))]
        tasks.append(task)
    return {
        "format": "heterotask-instance/1",
        "name": "random",
        "contention": draw(st.booleans()) if contention is None else contention,
        "memories": memories,
        "devices": devices,
        "links": links,
        "kernels": kernels,
        "data": data,
        "tasks": tasks,
    }
