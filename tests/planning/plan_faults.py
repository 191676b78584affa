"""What is wrong with a plan, found by a plain reading of the exchange formats."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

TOLERANCE = 1e-9


def plan_faults(document: Any, plan: Any, blocking: frozenset[tuple[str, str]] = frozenset()) -> list[str]:
    """Return the faults of a plan (both parsed JSON): completeness, costs, data, lanes, links. Not the buffers.

    ``blocking``: (kernel, device) of tasks beside which nothing may be copied into or out of the device's memory.
    """
    slack = TOLERANCE * (1.0 + plan["makespan_s"])
    devices = {d["name"]: d for d in document["devices"]}
    node = {m["name"]: m["node"] for m in document["memories"]}
    size = {d["name"]: d["size_bytes"] for d in document["data"]}
    links = {(x["from"], x["to"]): x for x in document["links"]}
    placed = {p["task"]: p for p in plan["tasks"]}
    faults: list[str] = []
    if sorted(placed) != sorted(t["name"] for t in document["tasks"]):
        return ["tasks are missing, unknown or planned twice"]

    lanes: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    alone: list[tuple[float, float, str, str]] = []
    there: dict[tuple[str, int, str], float] = {}
    for d in document["data"]:
        for home in [d["home"]] if isinstance(d.get("home"), str) else d.get("home") or []:
            there[d["name"], 0, home] = 0.0
    number = dict.fromkeys(size, 0)
    needs: list[tuple[str, float, str, int, str]] = []
    for t in document["tasks"]:
        p = placed[t["name"]]
        device = devices[p["device"]]
        start, finish = p["start_s"], p["finish_s"]
        kernel = document.get("kernels", {}).get(t["kernel"], {})
        tables = {None: t.get("seconds") or kernel.get("seconds", {})}
        if not t.get("seconds") and "variants" in kernel:
            tables = {n: v["seconds"] for n, v in kernel["variants"].items()}
        table = tables.get(p.get("variant"), {})
        cost = table.get(device["name"], table.get(device["kind"]))
        if cost is None:
            faults.append(f"{t['name']}: no variant {p.get('variant')!r} for {device['name']}")
        elif finish - start < cost - slack:
            faults.append(f"{t['name']}: takes {finish - start}, costs {cost}")
        if t.get("on") and device["name"] not in t["on"] and node[device["memory"]] not in t["on"]:
            faults.append(f"{t['name']}: on {device['name']} although pinned to {t['on']}")
        if start < -slack:
            faults.append(f"{t['name']}: starts at {start}")
        faults += [
            f"{t['name']}: starts before {name} ends"
            for name in t.get("after", [])
            if placed[name]["finish_s"] > start + slack
        ]
        for lane in device.get("lanes") or [f"device {device['name']}"]:
            lanes[lane].append((start, finish, t["name"]))
        if (t["kernel"], device["name"]) in blocking and finish - start > slack:
            alone.append((start, finish, t["name"], device["memory"]))
        needs += [
            (t["name"], start, d, number[d], device["memory"]) for d in [*t.get("reads", []), *t.get("updates", [])]
        ]
        for d in [*t.get("writes", []), *t.get("updates", [])]:
            number[d] += 1
            there[d, number[d], device["memory"]] = finish

    def at_source(x: Any) -> bool:
        return there.get((x["data"], x["version"], x["from"]), float("inf")) <= x["start_s"] + slack

    # In the order in which copies appear; hops that take no time may stand in any order.
    pending = sorted(plan["transfers"], key=lambda x: (x["finish_s"], x["start_s"]))
    while pending:
        x = pending.pop(next((i for i, x in enumerate(pending) if at_source(x)), 0))
        what = f"{x['data']} v{x['version']} {x['from']} to {x['to']}"
        link = links.get((x["from"], x["to"]))
        if link is None:
            faults.append(f"{what}: no such link")
            continue
        duration = link.get("latency_s", 0.0) + size[x["data"]] / link["bandwidth_bytes_per_s"]
        if x["finish_s"] - x["start_s"] < duration - slack:
            faults.append(f"{what}: takes {x['finish_s'] - x['start_s']}, needs {duration}")
        if not at_source(x):
            faults.append(f"{what}: starts before it is at its source")
        key = x["data"], x["version"], x["to"]
        there[key] = min(there.get(key, float("inf")), x["finish_s"])
        if document["contention"]:
            for lane in link.get("lanes") or [f"link {x['from']} {x['to']}"]:
                lanes[lane].append((x["start_s"], x["finish_s"], what))

    faults += [
        f"{task}: {d} v{v} is not in {memory} at its start"
        for task, start, d, v, memory in needs
        if there.get((d, v, memory), float("inf")) > start + slack
    ]
    for lane, spans in lanes.items():
        busy = sorted(s for s in spans if s[1] - s[0] > slack)
        for (_, end, one), (start, _, other) in pairwise(busy):
            if start < end - slack:
                faults.append(f"lane {lane}: {one} and {other} overlap")
    faults += [
        f"{task}: beside the copy of {x['data']} from {x['from']} to {x['to']}"
        for start, finish, task, memory in alone
        for x in plan["transfers"]
        if document["contention"] and memory in (x["from"], x["to"])
        if x["start_s"] < finish - slack and x["finish_s"] > start + slack and x["finish_s"] - x["start_s"] > slack
    ]
    last = max([p["finish_s"] for p in plan["tasks"]], default=0.0)
    for d in document["data"]:
        if d.get("final"):
            last = max(last, there.get((d["name"], number[d["name"]], d["final"]), float("inf")))
    if abs(last - plan["makespan_s"]) > slack:
        faults.append(f"the makespan is {last}, the plan says {plan['makespan_s']}")
    return faults
