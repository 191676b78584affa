"""``dm``, ``dmda``, ``dmdar``, ``dmdas``: a ready task goes at once to the worker where it is predicted to end best.

The decision follows StarPU's "deque model" family (Augonnet et al., "Data-aware task scheduling on
multi-accelerator based platforms", ICPADS 2010): every worker has a queue and a prediction of when it will have
worked through it; a task's fitness on a worker is by how much it would end later there than on the best, plus
β times the predicted transfers. The transfer model is fixed (``Machine.predicted_s``). The inputs are prefetched.
``dmdar`` takes first what has its data; ``dmdas`` also sorts queues by priority.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from heterotask_core.planning.policies.base import View

BETA = 1.0
"""Weight of transfers against lateness, StarPU's default."""


@dataclass
class _Queue:
    """What a worker has to do, and when it is predicted to have done it.

    ``length_s`` is the predicted work of the tasks queued, ``pipelined_s`` that of the tasks popped;
    ``start_s`` is when the first queued task is predicted to start.
    """

    tasks: list[int] = field(default_factory=list)
    start_s: float = 0.0
    length_s: float = 0.0
    pipelined_s: float = 0.0


class DequeModel:
    """The family: ``data_aware`` counts transfers, ``ready`` prefers tasks with their data, ``sort`` by priority."""

    def __init__(self, view: View, *, data_aware: bool, ready: bool, sort: bool, beta: float = BETA) -> None:
        self.view = view
        self.data_aware = data_aware
        self.ready = ready
        self.sort = sort
        self.beta = beta
        self.queues: dict[int, _Queue] = {w: _Queue() for w in view.machine.workers}
        self.predicted_s: dict[int, tuple[float, float]] = {}
        """Of every task queued or popped: transfer not hidden behind other work, and computation."""

    def push(self, task: int, released_by: int | None) -> None:
        """Choose the worker, predict, prefetch."""
        machine, now = self.view.machine, self.view.now
        cost_s = machine.cost_s[machine.task_class[task]]
        penalty_s: dict[int, float] = {}
        ends: list[tuple[int, float, float]] = []
        for w in machine.workers:
            if cost_s[w] == float("inf"):
                continue
            memory = machine.device_memory[w]
            if memory not in penalty_s:
                penalty_s[memory] = self.view.transfer_penalty_s(task, memory)
            queue = self.queues[w]
            start = max(queue.start_s, now) + queue.length_s
            if self.data_aware:
                start = max(start, now + penalty_s[memory])
            if penalty_s[memory] < float("inf"):
                ends.append((w, start + cost_s[w], penalty_s[memory] if self.data_aware else 0.0))
        if not ends:
            return
        best_end = min(end for _, end, _ in ends)
        worker, _, penalty = min(ends, key=lambda x: (x[1] - best_end) + self.beta * x[2])
        queue = self.queues[worker]
        queue.start_s = max(queue.start_s, now)
        rest = max(0.0, now + penalty - (queue.start_s + queue.length_s))
        self.predicted_s[task] = rest, cost_s[worker]
        queue.length_s += rest + cost_s[worker]
        self.view.prefetch(task, machine.device_memory[worker])
        if self.sort:
            insort(queue.tasks, task, key=lambda t: -self.view.priority[t])
        else:
            queue.tasks.append(task)

    def pop(self, worker: int) -> int | None:
        """Return the first task of the queue, or of those of its priority the one that lacks the fewest inputs."""
        queue = self.queues[worker]
        if not queue.tasks:
            return None
        at = 0
        if self.ready:
            memory, first = self.view.machine.device_memory[worker], self.view.priority[queue.tasks[0]]
            least = self.view.missing(queue.tasks[0], memory)
            for i, task in enumerate(queue.tasks):
                if least == 0 or (self.sort and self.view.priority[task] < first):
                    break
                missing = self.view.missing(task, memory)
                if missing < least:
                    at, least = i, missing
        task = queue.tasks.pop(at)
        transfer_s, _ = self.predicted_s[task]
        queue.length_s -= transfer_s
        queue.pipelined_s += transfer_s
        queue.start_s = self.view.now + queue.pipelined_s
        return task

    def started(self, task: int, worker: int) -> None:
        """Count the computation as begun."""
        queue = self.queues[worker]
        transfer_s, cost_s = self.predicted_s[task]
        queue.pipelined_s += cost_s - transfer_s
        queue.length_s -= cost_s
        queue.start_s = max(self.view.now + queue.pipelined_s, queue.start_s)

    def finished(self, task: int, worker: int) -> None:
        """Count the computation as done."""
        queue = self.queues[worker]
        queue.pipelined_s -= self.predicted_s.pop(task)[1]
        queue.start_s = max(self.view.now + queue.pipelined_s, queue.start_s)


def dm(view: View) -> DequeModel:
    """Return the policy ``dm``: predicted end, transfers not counted."""
    return DequeModel(view, data_aware=False, ready=False, sort=False)


def dmda(view: View) -> DequeModel:
    """Return the policy ``dmda``: predicted end and transfers."""
    return DequeModel(view, data_aware=True, ready=False, sort=False)


def dmdar(view: View) -> DequeModel:
    """Return the policy ``dmdar``: as ``dmda``; a worker takes first what has its data."""
    return DequeModel(view, data_aware=True, ready=True, sort=False)


def dmdas(view: View) -> DequeModel:
    """Return the policy ``dmdas``: as ``dmdar``, and queues are sorted by priority."""
    return DequeModel(view, data_aware=True, ready=True, sort=True)
