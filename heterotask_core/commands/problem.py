"""The problem that a planning command is about: an instance file, or an application with its profile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from heterotask_core.cli import _progress, open_workflow
from heterotask_core.commands.options import Setting
from heterotask_core.errors import InfeasiblePlanError, InstanceError, UsageError
from heterotask_core.planning.problem import Problem
from heterotask_core.platform.model import Platform
from heterotask_core.profiling.costs import CostModel, Overheads
from heterotask_core.profiling.measure import Profile
from heterotask_core.stages import Workflow, incumbent_overheads, profile_stage
from heterotask_core.store import Store


@dataclass(frozen=True)
class Profiled:
    """An application whose variants and links have been timed."""

    workflow: Workflow
    store: Store
    profile: Profile

    def problem(self, platform: Platform | None = None, overheads: Overheads | None = None) -> Problem:
        """Return the problem on ``platform`` (default: its own) with ``overheads`` (default: the calibrated ones)."""
        from heterotask_core.planning.from_graph import build_problem

        if overheads is None:
            overheads = incumbent_overheads(self.workflow, self.store)
        costs = CostModel.from_profile(self.profile)
        return build_problem(self.workflow.graph, platform or self.workflow.platform, costs, overheads=overheads)


@contextmanager
def about(file: Path | None) -> Iterator[None]:
    """Let errors of what a file holds name it; those that do already, and all without a file, stay as they are."""
    try:
        yield
    except (InstanceError, InfeasiblePlanError) as error:
        if file is None or str(error).startswith(str(file)):
            raise
        raise type(error)(f"{file}: {error}") from error


def profiled(application: str | None, setting: Setting, nodes: int, budget_s: float, *, quiet: bool) -> Profiled:
    """Profile what the store lacks of an application."""
    if application is None:
        raise UsageError("there is nothing to plan; name an application, or give --instance FILE")
    workflow, opened = open_workflow(application, setting, nodes)
    with _progress("profiling", quiet=quiet) as advance:
        return Profiled(workflow, opened, profile_stage(workflow, opened, budget_s=budget_s, progress=advance))
