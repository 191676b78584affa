"""PEFT, HEFT, CPOP and look-ahead once more, plain and slow: from a parsed instance to when each task runs where.

Nothing is shared with the library: costs, versions and routes are read from the document itself, routes are
enumerated instead of searched, and lanes are lists of intervals. PEFT: Arabnejad & Barbosa, TPDS 2014.
HEFT, CPOP: Topcuoglu, Hariri & Wu, TPDS 2002. Look-ahead: Bittencourt, Sakellariou & Madeira, PDP 2010.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

MAX_HOPS = 4
INFINITE = float("inf")

Placement = tuple[str, float, float]
"""Device name, start and finish in seconds."""
Version = tuple[str, int]
Hop = tuple[Any, float, float]


@dataclass
class World:
    """What is booked so far: where versions are from when on, and when lanes are busy."""

    there: dict[tuple[Version, str], float]
    busy: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


class Reference:
    """The problem of one instance document, read naively."""

    def __init__(
        self, document: Any, *, max_hops: int = MAX_HOPS, blocking: frozenset[tuple[str, str]] = frozenset()
    ) -> None:
        """``blocking``: (kernel, device) where a task holds the copies' lanes too."""
        self.document = document
        self.blocking = blocking
        self.max_hops = max_hops
        self.devices = document["devices"]
        self.memories = [m["name"] for m in document["memories"]]
        self.tasks = document["tasks"]
        self.size = {d["name"]: d["size_bytes"] for d in document["data"]}
        self.inputs: list[list[Version]] = []
        self.outputs: list[list[Version]] = []
        self.sent: list[dict[int, list[Version]]] = []
        """For every task: predecessor → versions taken from it (none for plain precedence)."""
        number = dict.fromkeys(self.size, 0)
        producer: dict[Version, int] = {}
        index = {t["name"]: i for i, t in enumerate(self.tasks)}
        for i, t in enumerate(self.tasks):
            reads = [(d, number[d]) for d in [*t.get("reads", []), *t.get("updates", [])]]
            made = []
            for d in [*t.get("writes", []), *t.get("updates", [])]:
                number[d] += 1
                made.append((d, number[d]))
            sent: dict[int, list[Version]] = {}
            for v in reads:
                if v in producer:
                    sent.setdefault(producer[v], []).append(v)
            for name in t.get("after", []):
                sent.setdefault(index[name], [])
            producer.update(dict.fromkeys(made, i))
            self.inputs.append(reads)
            self.outputs.append(made)
            self.sent.append(sent)
        n = range(len(self.tasks))
        self.successors = [[j for j in n if i in self.sent[j]] for i in n]
        self.cost = [[self.cost_of(t, d) for d in self.devices] for t in self.tasks]

    def cost_of(self, task: Any, device: Any) -> float:
        """Smallest cost of a variant; infinite where there is none or the task is pinned elsewhere."""
        node = next(m["node"] for m in self.document["memories"] if m["name"] == device["memory"])
        if task.get("on") and device["name"] not in task["on"] and node not in task["on"]:
            return INFINITE
        kernel = self.document.get("kernels", {}).get(task["kernel"], {})
        tables = [task["seconds"]] if task.get("seconds") else [kernel.get("seconds", {})]
        if not task.get("seconds") and "variants" in kernel:
            tables = [v["seconds"] for v in kernel["variants"].values()]
        return min((s.get(device["name"], s.get(device["kind"], INFINITE)) for s in tables), default=INFINITE)

    # transfers

    def routes(self, source: str, target: str) -> list[list[Any]]:
        """All loop-free routes of at most ``max_hops`` links."""
        found: list[list[Any]] = []

        def extend(at: str, seen: set[str], route: list[Any]) -> None:
            for link in self.document["links"]:
                if link["from"] == at and link["to"] not in seen:
                    if link["to"] == target:
                        found.append([*route, link])
                    elif len(route) + 1 < self.max_hops:
                        extend(link["to"], seen | {link["to"]}, [*route, link])

        extend(source, {source}, [])
        return found

    def mean_transfer_s(self, size: float) -> float:
        """Mean latency plus size times mean inverse bandwidth over all ordered pairs of device memories."""
        used = sorted({d["memory"] for d in self.devices}, key=self.memories.index)
        best = []
        for a in used:
            for b in used:
                lines = [
                    (
                        math.fsum(x.get("latency_s", 0.0) for x in r),
                        math.fsum(1 / x["bandwidth_bytes_per_s"] for x in r),
                    )
                    for r in sorted(self.routes(a, b), key=len)
                ]
                if a != b and lines:
                    best.append(min(lines, key=lambda line: line[0] + size * line[1]))
        if not best:
            return 0.0
        return math.fsum(x[0] for x in best) / len(best) + size * (math.fsum(x[1] for x in best) / len(best))

    def mean_edge_s(self, i: int, j: int) -> float:
        """c̄ of a pair."""
        return float(sum(self.mean_transfer_s(self.size[d]) for d, _ in self.sent[j][i]))

    # priorities

    def oct(self) -> list[list[float]]:
        """The optimistic cost table, tasks × devices."""
        devices = range(len(self.devices))
        table = [[0.0 for _ in devices] for _ in self.tasks]
        for t in reversed(range(len(self.tasks))):
            mean = {j: self.mean_edge_s(t, j) for j in self.successors[t]}
            for p in devices:
                for j in self.successors[t]:
                    least = min(
                        table[j][q] + self.cost[j][q] + (0.0 if self.memory(p) == self.memory(q) else mean[j])
                        for q in devices
                        if self.cost[j][q] < INFINITE
                    )
                    table[t][p] = max(table[t][p], least)
        return table

    def mean_cost_s(self, t: int) -> float:
        """Mean of the finite costs."""
        finite = [w for w in self.cost[t] if w < INFINITE]
        return sum(finite) / len(finite)

    def ranks(self) -> tuple[list[float], list[float]]:
        """Upward and downward ranks."""
        n = len(self.tasks)
        up, down = [0.0] * n, [0.0] * n
        for t in reversed(range(n)):
            up[t] = max(
                (self.mean_cost_s(t) + (self.mean_edge_s(t, j) + up[j]) for j in self.successors[t]),
                default=self.mean_cost_s(t),
            )
        for t in range(n):
            for j in self.successors[t]:
                down[j] = max(down[j], down[t] + self.mean_cost_s(t) + self.mean_edge_s(t, j))
        return up, down

    def memory(self, p: int) -> str:
        """Memory of a device."""
        return str(self.devices[p]["memory"])

    # placing

    def held_lanes(self, t: int, p: int) -> list[str]:
        """Lanes of a task on a device; the last lane of a link is its own."""
        device = self.devices[p]
        lanes = list(device.get("lanes") or [f"device {device['name']}"])
        if (self.tasks[t]["kernel"], device["name"]) in self.blocking:
            lanes += [
                (x.get("lanes") or [f"link {x['from']} {x['to']}"])[-1]
                for x in self.document["links"]
                if device["memory"] in (x["from"], x["to"])
            ]
        return lanes

    def link_lanes(self, link: Any) -> list[str]:
        """Lanes of a link; none without contention."""
        if not self.document["contention"]:
            return []
        return link.get("lanes") or [f"link {link['from']} {link['to']}"]

    def fetch(self, world: World, version: Version, target: str, held: list[tuple[str, float, float]]) -> list[Hop]:
        """The hops of the earliest route to ``target``; none if a copy is there or coming."""
        size = self.size[version[0]]
        best: tuple[tuple[float, int, int], list[Hop]] | None = None
        for source in self.memories:
            if (version, source) not in world.there:
                continue
            for route in self.routes(source, target):
                now, hops = world.there[version, source], []
                for link in route:
                    duration = link.get("latency_s", 0.0) + size / link["bandwidth_bytes_per_s"]
                    start = earliest(world.busy, self.link_lanes(link), now, duration, held)
                    now = start + duration
                    hops.append((link, start, now))
                key = (now, len(route), self.memories.index(source))
                if best is None or key < best[0]:
                    best = key, hops
        if best is None:
            raise ValueError(f"no route for {version} to {target}")
        return best[1]

    def try_device(self, world: World, t: int, p: int, after: float) -> tuple[float, list[tuple[Version, Hop]]] | None:
        """Start on a device and the hops that bring the inputs; None where they cannot get there."""
        ready, moves, held = after, list[tuple[Version, Hop]](), list[tuple[str, float, float]]()
        for version in self.inputs[t]:
            here = world.there.get((version, self.memory(p)))
            if here is None:
                try:
                    hops = self.fetch(world, version, self.memory(p), held)
                except ValueError:
                    return None
                moves += [(version, hop) for hop in hops]
                held += [(lane, s, f) for link, s, f in hops for lane in self.link_lanes(link)]
                here = hops[-1][2]
            ready = max(ready, here)
        return earliest(world.busy, self.held_lanes(t, p), ready, self.cost[t][p], held), moves

    def start(self) -> World:
        """Nothing booked, data at home."""
        world = World({})
        for d in self.document["data"]:
            homes = d.get("home") or []
            for m in [homes] if isinstance(homes, str) else homes:
                world.there[(d["name"], 0), m] = 0.0
        return world

    def place(
        self, priority: list[float], bias: list[list[float]], forced: dict[int, int], beta: float = 0.0
    ) -> list[Placement]:
        """The common core: highest priority first, then lowest index; smallest finish + bias + beta × transfers."""
        world = self.start()
        placed: dict[int, Placement] = {}
        while len(placed) < len(self.tasks):
            ready = [t for t in range(len(self.tasks)) if t not in placed and all(i in placed for i in self.sent[t])]
            t = min(ready, key=lambda t: (-priority[t], t))
            after = max((placed[i][2] for i, taken in self.sent[t].items() if not taken), default=0.0)
            names = [task["name"] for task in self.tasks]
            after = max([after, *(placed[names.index(name)][2] for name in self.tasks[t].get("after", []))])
            options = []
            for p in range(len(self.devices)):
                if self.cost[t][p] < INFINITE and forced.get(t, p) == p:
                    found = self.try_device(world, t, p, after)
                    if found is not None:
                        moving = sum(beta * (finish - start) for _, (_, start, finish) in found[1])
                        options.append((found[0] + self.cost[t][p] + (moving + bias[t][p]), p, *found))
            _, p, start, moves = min(options, key=lambda o: o[:2])
            placed[t] = self.book(world, t, p, start, moves)
        return [placed[t] for t in range(len(self.tasks))]

    def book(self, world: World, t: int, p: int, start: float, moves: list[tuple[Version, Hop]]) -> Placement:
        """Carry out what :meth:`try_device` has found."""
        finish = start + self.cost[t][p]
        for version, (link, s, f) in moves:
            for lane in self.link_lanes(link):
                world.busy.setdefault(lane, []).append((s, f))
            key = version, link["to"]
            world.there[key] = min(world.there.get(key, INFINITE), f)
        for lane in self.held_lanes(t, p):
            world.busy.setdefault(lane, []).append((start, finish))
        for version in self.outputs[t]:
            world.there[version, self.memory(p)] = finish
        return self.devices[p]["name"], start, finish

    # the schedulers

    def peft(self) -> list[Placement]:
        """PEFT: rank and bias from the optimistic cost table."""
        table = self.oct()
        rank = []
        for t, row in enumerate(table):
            finite = [row[p] for p in range(len(self.devices)) if self.cost[t][p] < INFINITE]
            rank.append(sum(finite) / len(finite))
        return self.place(rank, table, {})

    def heft(self, beta: float = 0.0) -> list[Placement]:
        """HEFT: upward rank, earliest finish, and ``beta`` times the seconds of a task's transfers."""
        return self.place(self.ranks()[0], self.zeros(), {}, beta)

    def cpop(self) -> list[Placement]:
        """CPOP: one device for the critical path."""
        up, down = self.ranks()
        priority = [u + d for u, d in zip(up, down, strict=True)]
        forced: dict[int, int] = {}
        entries = [t for t in range(len(self.tasks)) if down[t] == 0.0]
        if entries:
            path = [max(entries, key=lambda t: (up[t], -t))]
            while self.successors[path[-1]]:
                i = path[-1]
                path.append(max(self.successors[i], key=lambda j: (self.mean_edge_s(i, j) + up[j], -j)))
            totals = [math.fsum(self.cost[t][p] for t in path) for p in range(len(self.devices))]
            if min(totals) < INFINITE:
                forced = dict.fromkeys(path, totals.index(min(totals)))
        return self.place(priority, self.zeros(), forced)

    def lookahead(self) -> list[Placement]:
        """HEFT with look-ahead: a task goes where its successors, placed after it, end earliest."""
        up, _ = self.ranks()
        world = self.start()
        placed: dict[int, Placement] = {}
        names = [task["name"] for task in self.tasks]

        def after(t: int) -> float:
            before = [names.index(name) for name in self.tasks[t].get("after", [])]
            return max((placed[i][2] for i in before if i in placed), default=0.0)

        for t in sorted(range(len(self.tasks)), key=lambda t: (-up[t], t)):
            options = []
            for p in range(len(self.devices)):
                found = self.try_device(world, t, p, after(t)) if self.cost[t][p] < INFINITE else None
                if found is None:
                    continue
                latest = finish = found[0] + self.cost[t][p]
                trial = World(dict(world.there), {lane: list(spans) for lane, spans in world.busy.items()})
                trial.there.update({(version, self.memory(p)): finish for version in self.outputs[t]})
                for j in sorted(self.successors[t], key=lambda j: (-up[j], j)):
                    latest = max(latest, self.try_successor(trial, j, max(finish, after(j))))
                options.append((latest, finish, p, *found))
            _, _, p, start, moves = min(options, key=lambda o: o[:3])
            placed[t] = self.book(world, t, p, start, moves)
        return [placed[t] for t in range(len(self.tasks))]

    def try_successor(self, trial: World, j: int, ready: float) -> float:
        """Book a successor where it ends earliest if links are free; return its end."""
        ends: list[tuple[float, int, float]] = [(INFINITE, -1, INFINITE)]
        for q in range(len(self.devices)):
            arrival = ready
            for version in self.inputs[j]:
                known = {m: since for (v, m), since in trial.there.items() if v == version}
                if known and self.memory(q) not in known:
                    known[self.memory(q)] = min(
                        since + self.alone_s(m, self.memory(q), self.size[version[0]]) for m, since in known.items()
                    )
                arrival = max(arrival, known.get(self.memory(q), 0.0))
            if arrival + self.cost[j][q] < INFINITE:
                start = earliest(trial.busy, self.held_lanes(j, q), arrival, self.cost[j][q], [])
                ends.append((start + self.cost[j][q], q, start))
        finish, q, start = min(ends)
        for lane in self.held_lanes(j, q) if q >= 0 else []:
            trial.busy.setdefault(lane, []).append((start, finish))
        return finish

    def alone_s(self, source: str, target: str, size: float) -> float:
        """Seconds of the cheapest route when nothing else moves."""
        return min(
            (
                sum(x.get("latency_s", 0.0) for x in r) + size * sum(1.0 / x["bandwidth_bytes_per_s"] for x in r)
                for r in self.routes(source, target)
            ),
            default=INFINITE,
        )

    def zeros(self) -> list[list[float]]:
        """No bias."""
        return [[0.0] * len(self.devices) for _ in self.tasks]


def earliest(
    busy: dict[str, list[tuple[float, float]]],
    lanes: list[str],
    ready: float,
    duration: float,
    held: list[tuple[str, float, float]],
) -> float:
    """The earliest start from ``ready`` on at which all lanes are free for ``duration``."""
    if duration <= 0.0:
        return ready
    taken = [x for lane in lanes for x in busy.get(lane, [])] + [(s, f) for lane, s, f in held if lane in lanes]
    taken = [(s, f) for s, f in taken if f > s]
    for start in sorted({ready, *(f for _, f in taken if f > ready)}):
        if all(f <= start or s >= start + duration for s, f in taken):
            return start
    raise AssertionError("after the last interval everything is free")
