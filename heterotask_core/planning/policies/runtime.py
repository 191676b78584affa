"""A task-based runtime system, simulated event by event.

What is simulated is StarPU's execution model (Augonnet et al. 2011; Stanisic et al., "Faithful performance
prediction of a dynamic task-based runtime system", 2015): ready tasks are pushed to a policy; a worker pops a task,
fetches its inputs and runs it; accelerators hold two tasks, so that inputs of the next one travel while one runs;
prefetches wait behind fetches. Deciding, submitting and launching cost nothing.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from dataclasses import dataclass, field

from heterotask_core.planning.policies.base import MakePolicy, Policy
from heterotask_core.planning.policies.machine import Machine
from heterotask_core.planning.policies.network import NEVER, Flow, Network

DEPTH = 2
"""Tasks that an accelerator holds: one running, one whose inputs travel."""
MAX_FETCHES, MAX_PREFETCHES, MAX_IDLE = 20, 10, 1
"""Most requests under way from one memory to another, by urgency: beyond them, later ones may still overtake."""
FETCH, PREFETCH, IDLE = 0, 1, 2


@dataclass(eq=False)
class _Request:
    """A copy on its way to ``memory`` over ``links``, the next one first; ``order`` is (−priority, number)."""

    version: int
    memory: int
    links: tuple[int, ...]
    urgency: int
    order: tuple[float, int]
    departed: bool = False


@dataclass
class _Worker:
    """Tasks in the order they were popped: the last one may wait for its inputs, those before are launched."""

    held: deque[int] = field(default_factory=deque)
    running: bool = False
    waiting: bool = False
    """Whether the last task held waits for its inputs."""


@dataclass
class Record:
    """What happened: times of tasks by index, flows in the order of their ends."""

    device: list[int]
    start_s: list[float]
    finish_s: list[float]
    flows: list[Flow]
    delivered_s: float = 0.0
    """When the last final version had reached its memory."""

    @property
    def makespan_s(self) -> float:
        """The last end of a task or final copy; what is written back afterwards does not count."""
        return max([*self.finish_s, self.delivered_s])


class Simulation:
    """One run of a policy. ``write_back``: last versions go home when the links have nothing else to do.

    ``task_factor`` (T,): real over predicted duration of each task, which the policy does not know beforehand.
    """

    def __init__(
        self,
        machine: Machine,
        network: Network,
        make: MakePolicy,
        *,
        priority: list[float],
        write_back: bool = False,
        task_factor: list[float] | None = None,
    ) -> None:
        self.machine = machine
        self._factor = task_factor or [1.0] * machine.n_tasks
        self.network = network
        self.priority = priority
        self.now = 0.0
        problem = machine.problem
        n = machine.n_tasks
        homes = [
            problem.home_memories[problem.home_ptr[v] : problem.home_ptr[v + 1]].tolist()
            for v in range(problem.n_versions)
        ]
        self._valid: list[set[int]] = [set(memories) for memories in homes]
        self._destination = _destinations(machine, homes) if write_back else {}
        self._readers = [0] * problem.n_versions
        for taken in machine.inputs:
            for v in taken:
                self._readers[v] += 1
        self._final: list[int] = problem.version_final_memory.tolist()
        self._requested: dict[tuple[int, int], _Request] = {}
        self._queues: dict[tuple[int, int], tuple[list[_Request], list[_Request], list[_Request]]] = {}
        self._outstanding: dict[tuple[int, int], list[int]] = {}
        self._flows: dict[Flow, _Request] = {}
        self._numbers = 0
        self._workers = [_Worker() for _ in machine.device_memory]
        users: dict[int, list[int]] = {}
        for d, lanes in enumerate(machine.device_lanes):
            for lane in lanes:
                users.setdefault(lane, []).append(d)
        self._sharers = [
            sorted({e for lane in lanes for e in users[lane]} - {d}) for d, lanes in enumerate(machine.device_lanes)
        ]
        self._ends: list[tuple[float, int, int]] = []
        self._open = list(machine.n_predecessors)
        self._record = Record([-1] * n, [0.0] * n, [0.0] * n, [])
        self._policy: Policy = make(self)

    # what a policy may ask

    def transfer_penalty_s(self, task: int, memory: int) -> float:
        """See :class:`~heterotask_core.planning.policies.base.View`."""
        total = 0.0
        for v in self.machine.inputs[task]:
            if memory not in self._valid[v] and (v, memory) not in self._requested:
                found = self._source(v, memory)
                total += NEVER if found is None else found[0]
        return total

    def able(self, task: int, worker: int) -> bool:
        """See :class:`~heterotask_core.planning.policies.base.View`."""
        if not self.machine.feasible(task, worker):
            return False
        return self.transfer_penalty_s(task, self.machine.device_memory[worker]) < NEVER

    def missing(self, task: int, memory: int) -> int:
        """See :class:`~heterotask_core.planning.policies.base.View`."""
        return sum(memory not in self._valid[v] for v in self.machine.inputs[task])

    def prefetch(self, task: int, memory: int) -> None:
        """See :class:`~heterotask_core.planning.policies.base.View`."""
        for v in self.machine.inputs[task]:
            self._request(v, memory, PREFETCH, self.priority[task])

    # the run

    def run(self) -> Record:
        """Run all tasks. A task whose data cannot reach the worker that popped it never ends: see ``Record``."""
        for v, memory in enumerate(self._final):
            if memory >= 0 and self._valid[v]:
                self._request(v, memory, PREFETCH, -NEVER)
        for t in range(self.machine.n_tasks):
            if not self._open[t]:
                self._policy.push(t, None)
        self._settle()
        while self._ends or self.network.next_event_s() < NEVER:
            self.now = min(self._ends[0][0] if self._ends else NEVER, self.network.next_event_s())
            for flow in self.network.advance(self.now):
                self._arrived(flow)
            while self._ends and self._ends[0][0] <= self.now:
                _, task, worker = heapq.heappop(self._ends)
                self._ended(task, worker)
            self._settle()
        return self._record

    def _settle(self) -> None:
        """Let workers pop and start, and requests depart, until nothing moves any more."""
        moved = True
        while moved:
            moved = False
            for worker in self.machine.workers:
                while self._step(worker):
                    moved = True
        self._depart()

    def _step(self, worker: int) -> bool:
        """Do the next thing that a worker can do now; return whether there was one."""
        w = self._workers[worker]
        if w.waiting and self.missing(w.held[-1], self.machine.device_memory[worker]) == 0:
            w.waiting = False
            return True
        if w.held and not w.running and not (w.waiting and len(w.held) == 1):
            if any(self._workers[other].running for other in self._sharers[worker]):
                return False
            self._launch(worker)
            return True
        depth = DEPTH if self.machine.is_accelerator[worker] else 1
        if w.waiting or len(w.held) >= depth or any(self._claims(other) for other in self._sharers[worker]):
            return False
        task = self._policy.pop(worker)
        if task is None:
            return False
        w.held.append(task)
        w.waiting = True
        for v in self.machine.inputs[task]:
            self._request(v, self.machine.device_memory[worker], FETCH, self.priority[task])
        return True

    def _claims(self, worker: int) -> bool:
        """Whether a worker holds a task that it has not launched: those that share its lanes let it go first."""
        w = self._workers[worker]
        return bool(w.held) and not w.running

    def _launch(self, worker: int) -> None:
        w = self._workers[worker]
        task = w.held[0]
        w.running = True
        self._policy.started(task, worker)
        end = self.now + self.machine.cost_s[self.machine.task_class[task]][worker] * self._factor[task]
        record = self._record
        record.device[task], record.start_s[task], record.finish_s[task] = worker, self.now, end
        heapq.heappush(self._ends, (end, task, worker))

    def _ended(self, task: int, worker: int) -> None:
        w = self._workers[worker]
        w.held.popleft()
        w.running = False
        for v in self.machine.outputs[task]:
            self._valid[v].add(self.machine.device_memory[worker])
            if self._final[v] >= 0:
                self._request(v, self._final[v], PREFETCH, -NEVER)
            if not self._readers[v]:
                self._send_home(v)
        for v in self.machine.inputs[task]:
            self._readers[v] -= 1
            if not self._readers[v]:
                self._send_home(v)
        self._policy.finished(task, worker)
        for t in self.machine.successors[task]:
            self._open[t] -= 1
            if not self._open[t]:
                self._policy.push(t, worker)

    def undelivered(self) -> bool:
        """Return whether, after the run, a final version has not reached its memory."""
        return any(m >= 0 and m not in self._valid[v] for v, m in enumerate(self._final))

    # data

    def _source(self, version: int, memory: int) -> tuple[float, tuple[int, ...]] | None:
        """The cheapest route by prediction from a valid copy; the first memory of equals."""
        best: tuple[float, tuple[int, ...]] | None = None
        for source in sorted(self._valid[version]):
            found = self.machine.route(source, memory, self.machine.size[version])
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        return best

    def _send_home(self, version: int) -> None:
        memory = self._destination.get(version)
        if memory is not None:
            self._request(version, memory, IDLE, 0.0)

    def _request(self, version: int, memory: int, urgency: int, priority: float) -> None:
        if memory in self._valid[version]:
            return
        present = self._requested.get((version, memory))
        if present is None:
            found = self._source(version, memory)
            if found is not None:
                self._numbers += 1
                request = _Request(version, memory, found[1], urgency, (-priority, self._numbers))
                self._requested[version, memory] = request
                for link in found[1][:-1]:
                    self._requested.setdefault((version, self.machine.link_target[link]), request)
                self._enqueue(request)
        elif urgency < present.urgency and not present.departed:
            queues = self._queues[self._pair(present)]
            queues[present.urgency].remove(present)
            present.urgency = urgency
            insort(queues[urgency], present, key=_order)
        else:
            present.urgency = min(present.urgency, urgency)

    def _pair(self, request: _Request) -> tuple[int, int]:
        return self.machine.link_source[request.links[0]], self.machine.link_target[request.links[0]]

    def _enqueue(self, request: _Request) -> None:
        pair = self._pair(request)
        if pair not in self._queues:
            self._queues[pair] = ([], [], [])
            self._outstanding[pair] = [0, 0, 0]
        insort(self._queues[pair][request.urgency], request, key=_order)

    def _depart(self) -> None:
        """Hand requests to the network: fetches first, prefetches when none is left, the rest when all is quiet."""
        for pair, queues in self._queues.items():
            outstanding = self._outstanding[pair]
            for urgency, limit in ((FETCH, MAX_FETCHES), (PREFETCH, MAX_PREFETCHES)):
                while queues[urgency] and outstanding[urgency] < limit:
                    self._send(pair, queues[urgency].pop(0))
                if queues[urgency]:
                    break
        for pair, queues in self._queues.items():
            if queues[IDLE] and self._quiet(pair[0]):
                self._send(pair, queues[IDLE].pop(0))

    def _quiet(self, source: int) -> bool:
        return all(
            not (queues[FETCH] or queues[PREFETCH] or any(self._outstanding[pair]))
            for pair, queues in self._queues.items()
            if pair[0] == source
        )

    def _send(self, pair: tuple[int, int], request: _Request) -> None:
        request.departed = True
        self._outstanding[pair][request.urgency] += 1
        flow = Flow(request.version, request.links[0], urgency=request.urgency)
        self._flows[flow] = request
        self.network.submit(flow, self.now)

    def _arrived(self, flow: Flow) -> None:
        request = self._flows.pop(flow)
        pair = self._pair(request)
        self._outstanding[pair][flow.urgency] -= 1
        self._record.flows.append(flow)
        request.links = request.links[1:]
        request.departed = False
        if pair[1] == self._final[request.version] and pair[1] not in self._valid[request.version]:
            self._record.delivered_s = self.now
        self._valid[request.version].add(pair[1])
        if self._requested.get((request.version, pair[1])) is request:
            del self._requested[request.version, pair[1]]
        if request.links and request.memory not in self._valid[request.version]:
            self._enqueue(request)


def _order(request: _Request) -> tuple[float, int]:
    return request.order


def _destinations(machine: Machine, homes: list[list[int]]) -> dict[int, int]:
    """Return where the last version of every item with a home goes when nobody needs it any more."""
    problem = machine.problem
    home: dict[int, int] = {}
    last: dict[int, int] = {}
    for v, item in enumerate(problem.version_data.tolist()):
        if homes[v]:
            home[item] = homes[v][0]
        if item not in last or problem.version_number[v] > problem.version_number[last[item]]:
            last[item] = v
    return {v: home[item] for item, v in last.items() if item in home}
