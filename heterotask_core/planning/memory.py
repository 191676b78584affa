"""Planned memory."""

from heterotask_core.planning.problem import Problem
from heterotask_core.planning.schedule import Schedule


def fit_memory(problem: Problem, schedule: Schedule) -> Schedule:
    """Identity."""
    return schedule
