"""``lws``: a queue a worker; who has nothing left steals from the nearest who has."""

from __future__ import annotations

from bisect import insort

from heterotask_core.planning.policies.base import View


class Stealing:
    """A task goes to the worker that made it ready, sorted by priority; thieves take the front of the victim's queue.

    Near is who works in the same memory, then who follows in the workers' order.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        machine = view.machine
        self.queues: dict[int, list[int]] = {w: [] for w in machine.workers}
        self.turn = 0
        self.victims: dict[int, list[int]] = {}
        for i, w in enumerate(machine.workers):
            others = [*machine.workers[i + 1 :], *machine.workers[:i]]
            memory = machine.device_memory
            self.victims[w] = sorted(others, key=lambda v, w=w: memory[v] != memory[w])  # type: ignore[misc]

    def push(self, task: int, released_by: int | None) -> None:
        """Queue a task where it became ready; at the start, deal tasks out in turn."""
        if released_by is None or not self.view.able(task, released_by):
            workers = [w for w in self.view.machine.workers if self.view.able(task, w)]
            released_by = (workers or self.view.machine.workers)[self.turn % max(len(workers), 1)]
            self.turn += 1
        insort(self.queues[released_by], task, key=lambda t: -self.view.priority[t])

    def pop(self, worker: int) -> int | None:
        """Return the worker's own first task, or a stolen one."""
        for victim in (worker, *self.victims[worker]):
            for i, task in enumerate(self.queues[victim]):
                if self.view.able(task, worker):
                    return self.queues[victim].pop(i)
        return None

    def started(self, task: int, worker: int) -> None:
        """Nothing is predicted."""

    def finished(self, task: int, worker: int) -> None:
        """Nothing is predicted."""


def lws(view: View) -> Stealing:
    """Return the policy ``lws``: locality work stealing."""
    return Stealing(view)
