"""``eager`` and ``prio``: one queue for all workers, in order of arrival or of priority; no prediction, no prefetch."""

from __future__ import annotations

from bisect import insort

from heterotask_core.planning.policies.base import View


class Central:
    """The queue; whoever has room takes the first task that it can run."""

    def __init__(self, view: View, *, sort: bool) -> None:
        self.view = view
        self.sort = sort
        self.queue: list[int] = []

    def push(self, task: int, released_by: int | None) -> None:
        """Queue a task: last, or behind those of its priority."""
        if self.sort:
            insort(self.queue, task, key=lambda t: -self.view.priority[t])
        else:
            self.queue.append(task)

    def pop(self, worker: int) -> int | None:
        """Return the first task that the worker can run."""
        for i, task in enumerate(self.queue):
            if self.view.able(task, worker):
                return self.queue.pop(i)
        return None

    def started(self, task: int, worker: int) -> None:
        """Nothing is predicted."""

    def finished(self, task: int, worker: int) -> None:
        """Nothing is predicted."""


def eager(view: View) -> Central:
    """Return the policy ``eager``: first come, first served."""
    return Central(view, sort=False)


def prio(view: View) -> Central:
    """Return the policy ``prio``: highest priority first."""
    return Central(view, sort=True)
