"""The planners by name."""

from __future__ import annotations

from heterotask_core.errors import HeteroTaskError
from heterotask_core.planning.base import Planner
from heterotask_core.planning.heft import Heft
from heterotask_core.planning.peft import Peft
from heterotask_core.planning.portfolio import Portfolio

PLANNERS: dict[str, Planner] = {p.name: p for p in (Portfolio(), Peft(), Heft())}


class UnknownPlannerError(HeteroTaskError, KeyError):
    """No planner has this name."""

    def __str__(self) -> str:
        return str(self.args[0])


def planner(name: str) -> Planner:
    """Return the planner called ``name``; raises :class:`UnknownPlannerError` with the known names."""
    try:
        return PLANNERS[name]
    except KeyError:
        raise UnknownPlannerError(f"no planner {name!r}; known: {', '.join(sorted(PLANNERS))}") from None
