"""The protocol of an online policy: what a runtime asks it, and what it may ask the runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from heterotask_core.planning.policies.machine import Machine


class View(Protocol):
    """What a policy sees while the program runs: the clock and where copies are, no future."""

    machine: Machine
    now: float
    priority: list[float]
    """Priority of every task, given by the application before the start."""

    def transfer_penalty_s(self, task: int, memory: int) -> float:
        """Return the predicted seconds of the transfers that the task needs to run in ``memory``.

        Copies that are there or requested cost nothing.
        """
        ...

    def able(self, task: int, worker: int) -> bool:
        """Return whether the worker can run the task and its inputs can get there."""
        ...

    def missing(self, task: int, memory: int) -> int:
        """Return how many inputs have no valid copy in ``memory``."""
        ...

    def prefetch(self, task: int, memory: int) -> None:
        """Ask for the task's inputs in ``memory``, behind what running tasks wait for."""
        ...


class Policy(Protocol):
    """Decides which worker runs which ready task. Workers are device indices."""

    def push(self, task: int, released_by: int | None) -> None:
        """Take a task that has become ready; ``released_by`` is the worker that ended its last predecessor."""
        ...

    def pop(self, worker: int) -> int | None:
        """Return the task that ``worker``, which has room for one, is to run next; None for nothing."""
        ...

    def started(self, task: int, worker: int) -> None:
        """Note that the task starts: its inputs are there and the worker has ended the one before."""
        ...

    def finished(self, task: int, worker: int) -> None:
        """Note that the task has ended."""
        ...


MakePolicy = Callable[[View], Policy]
"""Makes the policy of one run."""
