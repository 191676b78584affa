"""PEFT (Arabnejad & Barbosa, TPDS 2014) over devices and variants, with transfers on lanes."""

from __future__ import annotations

from heterotask_core.planning.base import Budget, Progress
from heterotask_core.planning.bounds import lower_bound_s
from heterotask_core.planning.listing import Analysis, list_schedule, to_schedule
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.schedule import Schedule


class Peft:
    """Rank by mean OCT; the device with the smallest EFT + OCT. Ignores the budget."""

    name = "peft"

    def plan(
        self,
        problem: Problem,
        *,
        budget: Budget,
        warm_start: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Schedule:
        """Return PEFT's schedule; raises :class:`~heterotask_core.errors.InfeasiblePlanError`."""
        analysis = Analysis(problem)
        table = analysis.oct()
        placer = list_schedule(analysis, analysis.rank_oct(table), lambda t, d, eft: eft + float(table[t, d]))
        return to_schedule(
            placer, planner=self.name, seed=budget.seed, evaluations=0, lower_bound_s=lower_bound_s(problem)
        )
