"""The online policies as planners: what a runtime would have done, written down as a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning.base import Budget, Progress
from heterotask_core.planning.blocking import split, split_schedule
from heterotask_core.planning.bounds import lower_bound
from heterotask_core.planning.core import arrays
from heterotask_core.planning.listing import Rule, finish, place, unbiased
from heterotask_core.planning.memory import fit_memory
from heterotask_core.planning.policies.base import MakePolicy
from heterotask_core.planning.policies.central import eager, prio
from heterotask_core.planning.policies.dmda import dm, dmda, dmdar, dmdas
from heterotask_core.planning.policies.heteroprio import heteroprio
from heterotask_core.planning.policies.machine import Machine, task_levels
from heterotask_core.planning.policies.network import Network, SerialNetwork
from heterotask_core.planning.policies.runtime import Record, Simulation
from heterotask_core.planning.policies.stealing import lws
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.room import restrict_to_room
from heterotask_core.planning.schedule import Schedule


class PolicySpec(NamedTuple):
    """A policy, and whether it looks at the application's priorities (otherwise all tasks are equal)."""

    make: MakePolicy
    sorts: bool


POLICIES: dict[str, PolicySpec] = {
    "eager": PolicySpec(eager, False),
    "prio": PolicySpec(prio, True),
    "lws": PolicySpec(lws, True),
    "dm": PolicySpec(dm, False),
    "dmda": PolicySpec(dmda, False),
    "dmdar": PolicySpec(dmdar, False),
    "dmdas": PolicySpec(dmdas, True),
    "heteroprio": PolicySpec(heteroprio, True),
}
"""By StarPU's names."""


def simulate_policy(
    problem: Problem,
    name: str,
    *,
    network: Callable[[Machine], Network] = SerialNetwork,
    priority: list[float] | None = None,
    write_back: bool = False,
    task_factor: list[float] | None = None,
) -> Record:
    """Run a policy on a problem.

    ``priority`` (T,) is what the application gives its tasks, by default the number of tasks on the longest path
    to an exit, as StarPU's applications do; policies that do not sort never see it. ``task_factor`` (T,) is each
    task's real over predicted duration, which no policy knows beforehand. Raises
    :class:`InfeasiblePlanError` when a task or a final copy cannot get its data where the policy went.
    """
    machine = Machine(problem)
    spec = POLICIES[name]
    levels = priority or [float(level) for level in task_levels(machine)]
    equal = [0.0] * machine.n_tasks
    run = Simulation(
        machine,
        network(machine),
        spec.make,
        priority=levels if spec.sorts else equal,
        write_back=write_back,
        task_factor=task_factor,
    )
    record = run.run()
    if -1 in record.device:
        task = record.device.index(-1)
        raise InfeasiblePlanError(
            f"task {problem.task_names[task]!r}: {name} found no device that can run it and that its data can reach; "
            "add a variant or links, or use another planner"
        )
    if run.undelivered():
        raise InfeasiblePlanError("a final version has no route to its memory; add links")
    return record


class PolicyPlanner:
    """A simulated policy as a planner; it ignores budget and warm start."""

    def __init__(self, name: str) -> None:
        self.name = name

    def plan(
        self,
        problem: Problem,
        *,
        budget: Budget,
        warm_start: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Schedule:
        """Return what the policy does when lanes serve one transfer at a time."""
        problem = restrict_to_room(problem)
        record = simulate_policy(problem, self.name)
        flows = sorted(record.flows, key=lambda f: (f.start_s, f.finish_s))
        device = np.array(record.device, np.int32)
        bare = Schedule(
            planner=self.name,
            seed=budget.seed,
            evaluations=0,
            task_device=device,
            task_variant=problem.cost_variant[problem.task_class, device],
            task_start_s=np.array(record.start_s, np.float64),
            task_finish_s=np.array(record.finish_s, np.float64),
            transfer_version=np.array([f.version for f in flows], np.int32),
            transfer_link=np.array([f.link for f in flows], np.int32),
            transfer_start_s=np.array([f.start_s for f in flows], np.float64),
            transfer_finish_s=np.array([f.finish_s for f in flows], np.float64),
            makespan_s=record.makespan_s,
            lower_bound_s=lower_bound(problem),
        )
        schedule = _timed(problem, bare)
        if progress is not None:
            progress(0, schedule.makespan_s)
        return schedule


def _timed(problem: Problem, bare: Schedule) -> Schedule:
    """Fit into memories; where variants block, which no policy knows, time the tasks anew in the policy's order."""
    parts, origin = split(problem)
    if parts is problem:
        return fit_memory(problem, bare)
    start = split_schedule(problem, origin, bare)
    placed = place(parts, arrays(parts), Rule(-start.task_start_s, unbiased(parts), start.task_device))
    timed = finish(parts, placed, planner=bare.planner, seed=bare.seed)
    return replace(timed, task_device=origin[timed.task_device])


POLICY_PLANNERS = tuple(PolicyPlanner(name) for name in POLICIES)
