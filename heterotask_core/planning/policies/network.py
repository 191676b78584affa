"""Two networks under the simulated runtime: one transfer at a time a lane, or shared bandwidth.

:class:`SerialNetwork` is the model of the exchange format, so what it does is a valid plan. :class:`FairNetwork`
is that of SimGrid as StarPU uses it: transfers of one pair of memories queue up, others share the links on their
routes max-min fairly. It makes no plan; it is there to compare simulated makespans with StarPU's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from heterotask_core.planning.policies.machine import Machine

NEVER = float("inf")


@dataclass(eq=False)
class Flow:
    """One transfer of a version over one link. ``left`` are bytes, ``delay_s`` the part of the latency to come."""

    version: int
    link: int
    urgency: int = 0
    start_s: float = NEVER
    finish_s: float = NEVER
    left: float = 0.0
    delay_s: float = 0.0
    rate: float = 0.0


class Network(Protocol):
    """Carries flows; the simulation advances it from event to event."""

    def submit(self, flow: Flow, now: float) -> None:
        """Accept a flow; it starts as soon as the network lets it."""
        ...

    def next_event_s(self) -> float:
        """Return when the next flow ends or the rates change; infinite when nothing moves."""
        ...

    def advance(self, now: float) -> list[Flow]:
        """Move on to ``now`` and return the flows that have ended, in order."""
        ...


class SerialNetwork:
    """Every flow holds all lanes of its link alone; waiting flows are tried in the order of their submission."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.contention = machine.problem.contention
        self.waiting: list[Flow] = []
        self.moving: list[Flow] = []
        self.busy: set[int] = set()

    def submit(self, flow: Flow, now: float) -> None:
        """Accept a flow."""
        self.waiting.append(flow)
        self._start(now)

    def next_event_s(self) -> float:
        """Return when the next flow ends."""
        return min((f.finish_s for f in self.moving), default=NEVER)

    def advance(self, now: float) -> list[Flow]:
        """Return the flows that have ended by ``now``; others take their lanes."""
        ended = sorted((f for f in self.moving if f.finish_s <= now), key=lambda f: f.finish_s)
        if ended:
            self.moving = [f for f in self.moving if f.finish_s > now]
            for flow in ended:
                self.busy.difference_update(self.machine.link_lanes[flow.link])
            self._start(now)
        return ended

    def _start(self, now: float) -> None:
        waiting: list[Flow] = []
        for flow in self.waiting:
            lanes = self.machine.link_lanes[flow.link] if self.contention else []
            if self.busy.isdisjoint(lanes):
                self.busy.update(lanes)
                flow.start_s = now
                flow.finish_s = now + self.machine.transfer_s(flow.link, self.machine.size[flow.version])
                self.moving.append(flow)
            else:
                waiting.append(flow)
        self.waiting = waiting


class FairNetwork:
    """Flows share lanes max-min fairly; a lane is as wide as the fastest link that goes over it.

    As in StarPU's simulator, flows wait for earlier ones of the same pair, of the opposite pair of
    accelerators, and, between accelerators, for those into either end.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.now = 0.0
        self.waiting: list[Flow] = []
        self.moving: list[Flow] = []
        self.width: dict[int, float] = {}
        for link, lanes in enumerate(machine.link_lanes):
            for lane in lanes:
                self.width[lane] = max(self.width.get(lane, 0.0), machine.bandwidth[link])
        accelerators = {machine.device_memory[d] for d in machine.workers if machine.is_accelerator[d]}
        self.between = [
            a in accelerators and b in accelerators
            for a, b in zip(machine.link_source, machine.link_target, strict=True)
        ]

    def submit(self, flow: Flow, now: float) -> None:
        """Accept a flow."""
        self._progress(now)
        self.waiting.append(flow)
        self._start(now)

    def next_event_s(self) -> float:
        """Return when a latency is over or a flow ends."""
        return min((self._event_s(f) for f in self.moving), default=NEVER)

    def advance(self, now: float) -> list[Flow]:
        """Return the flows that have ended by ``now``."""
        due = [f for f in self.moving if self._event_s(f) <= now]
        self._progress(now)
        if not due:
            return []
        ended = [f for f in due if f.delay_s <= 0.0 and f.rate > 0.0]
        for flow in due:
            # Rounding must not leave a rest that never ends.
            flow.left = 0.0 if flow in ended else flow.left
            flow.delay_s = 0.0
        for flow in ended:
            flow.finish_s = now
        self.moving = [f for f in self.moving if f not in ended]
        self._start(now)
        return ended

    def _event_s(self, flow: Flow) -> float:
        if flow.delay_s > 0.0:
            return self.now + flow.delay_s
        return self.now + flow.left / flow.rate

    def _progress(self, now: float) -> None:
        elapsed = now - self.now
        if elapsed > 0.0:
            for flow in self.moving:
                if flow.delay_s > 0.0:
                    flow.delay_s -= elapsed
                else:
                    flow.left -= flow.rate * elapsed
            self.now = now

    def _in_sequence(self, new: Flow, old: Flow) -> bool:
        source, target = self.machine.link_source, self.machine.link_target
        a, b, c, d = source[new.link], target[new.link], source[old.link], target[old.link]
        return (
            (a == c and b == d)
            or (self.between[new.link] and ((a == d and b == c) or d in (a, b)))
            or (self.between[old.link] and b in (c, d))
        )

    def _start(self, now: float) -> None:
        still: list[Flow] = []
        for flow in self.waiting:
            if any(self._in_sequence(flow, old) for old in [*self.moving, *still]):
                still.append(flow)
                continue
            flow.start_s = now
            flow.delay_s = self.machine.latency_s[flow.link]
            flow.left = max(self.machine.size[flow.version], 1.0)
            self.moving.append(flow)
        self.waiting = still
        self._share()

    def _share(self) -> None:
        """Max-min fairness: the narrowest lane fixes the rates of its flows, then the next one."""
        open_ = [f for f in self.moving if f.delay_s <= 0.0]
        left = dict(self.width)
        while open_:
            users: dict[int, int] = {}
            for flow in open_:
                for lane in self.machine.link_lanes[flow.link]:
                    users[lane] = users.get(lane, 0) + 1
            lane = min(users, key=lambda x: (left[x] / users[x], x))
            share = left[lane] / users[lane]
            capped = [f for f in open_ if self.machine.bandwidth[f.link] <= share]
            fixed = capped or [f for f in open_ if lane in self.machine.link_lanes[f.link]]
            for flow in fixed:
                flow.rate = min(share, self.machine.bandwidth[flow.link])
                for other in self.machine.link_lanes[flow.link]:
                    left[other] -= flow.rate
            open_ = [f for f in open_ if f not in fixed]
