"""The protocol that every planner module implements, and the budget it plans within."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from heterotask_core.planning.problem import Problem
from heterotask_core.planning.schedule import Schedule

Progress = Callable[[int, float], None]
"""Called with (evaluations so far, best makespan in seconds)."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much to search: a number of evaluations (reproducible), or seconds (valid, not identical), or both."""

    evaluations: int | None = None
    time_s: float | None = None
    seed: int = 0


class Planner(Protocol):
    """Turns a problem into a schedule; deterministic for a seed and an evaluation count.

    Raises :class:`~heterotask_core.errors.InfeasiblePlanError` naming the task and the reason.
    """

    name: str

    def plan(
        self,
        problem: Problem,
        *,
        budget: Budget,
        warm_start: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Schedule:
        """Return the best schedule found within ``budget``."""
        ...
