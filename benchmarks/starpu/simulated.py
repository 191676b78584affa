"""At the size of the paper's machine, simulated: our plans against StarPU's policies, under the same truth.

    python benchmarks/starpu/simulated.py [INSTANCE ...] [--runs 10] [--noise 0.03] [--evaluations 3000]

Two nodes of eight GPUs. Both sides know the costs of the tables; really every task takes its cost times a log-normal
factor, the same for both. Our plan is made once and kept: its orders on devices and links are enforced, times move. A
policy decides while it runs and learns how long a task took when it ends. Deciding, submitting and launching cost
nothing on either side, memories have no limit. Without INSTANCE the problems are our applications on an emulated
platform (``--platform``), whose times are this host's divided by the platform's speed-ups. All figures are simulated.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from checks import run_case_program, shared

from heterotask_core.apps import find_application
from heterotask_core.errors import InstanceError
from heterotask_core.planning.base import Budget
from heterotask_core.planning.from_graph import build_problem
from heterotask_core.planning.instance import read_instance
from heterotask_core.planning.listing import heft_rule
from heterotask_core.planning.policies.network import FairNetwork
from heterotask_core.planning.policies.planner import POLICIES, simulate_policy
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.registry import planner
from heterotask_core.planning.schedule import Schedule
from heterotask_core.platform.describe import read_platform
from heterotask_core.profiling.costs import CostModel
from heterotask_core.stages import Workflow, profile_stage
from heterotask_core.store import Store

PLATFORM = Path(__file__).parents[2] / "examples" / "platforms" / "emulated-2x8.yaml"
APPS: dict[str, dict[str, Any]] = {
    "canny": {"size": 4096, "tile": 512},
    "cholesky": {"size": 8192, "tile": 512},
    "heat": {"size": 4096, "tile": 1024, "steps": 20},
    "kmeans": {"block": 65_536, "iterations": 10},
    "mosaic": {"size": 1024, "count": 24, "tile": 512},
}
POLICY_NAMES = ("lws", "dmda", "dmdas", "dmdar", "heteroprio")


class Replay:
    """A schedule whose orders are kept while its tasks take other times: the longest path, again and again."""

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        """Collect what every task and transfer waits for: data, and its predecessor on each of its lanes."""
        n, moves = problem.n_tasks, len(schedule.transfer_version)
        self._task_s = schedule.task_finish_s - schedule.task_start_s
        self._move_s = schedule.transfer_finish_s - schedule.transfer_start_s
        start_s = np.concatenate([schedule.task_start_s, schedule.transfer_start_s])
        finish_s = np.concatenate([schedule.task_finish_s, schedule.transfer_finish_s])
        self._before: list[set[int]] = [set() for _ in range(n + moves)]
        # Where a version comes to be: tasks and transfers by (version, memory).
        arrivals: dict[tuple[int, int], list[int]] = defaultdict(list)
        for t in range(n):
            memory = int(problem.device_memory[schedule.task_device[t]])
            for v in problem.output_versions[problem.output_ptr[t] : problem.output_ptr[t + 1]].tolist():
                arrivals[v, memory].append(t)
        for k in range(moves):
            link = schedule.transfer_link[k]
            arrivals[int(schedule.transfer_version[k]), int(problem.link_target[link])].append(n + k)

        def needs(op: int, version: int, memory: int) -> None:
            home = problem.home_memories[problem.home_ptr[version] : problem.home_ptr[version + 1]]
            if memory in home:
                return
            known = [a for a in arrivals[version, memory] if finish_s[a] <= start_s[op] + 1e-12]
            self._before[op].add(min(known, key=lambda a: (finish_s[a], a)))

        lanes: dict[int, list[int]] = defaultdict(list)
        for t in range(n):
            device = schedule.task_device[t]
            for v in problem.input_versions[problem.input_ptr[t] : problem.input_ptr[t + 1]].tolist():
                needs(t, v, int(problem.device_memory[device]))
            self._before[t].update(problem.after_tasks[problem.after_ptr[t] : problem.after_ptr[t + 1]].tolist())
            for lane in problem.device_lanes[problem.device_lane_ptr[device] : problem.device_lane_ptr[device + 1]]:
                lanes[int(lane)].append(t)
        for k in range(moves):
            link = schedule.transfer_link[k]
            needs(n + k, int(schedule.transfer_version[k]), int(problem.link_source[link]))
            if problem.contention:
                for lane in problem.link_lanes[problem.link_lane_ptr[link] : problem.link_lane_ptr[link + 1]]:
                    lanes[int(lane)].append(n + k)
        for ops in lanes.values():
            ops.sort(key=lambda op: (start_s[op], finish_s[op], op))
            for first, second in itertools.pairwise(ops):
                self._before[second].add(first)
        self._order = np.lexsort((np.arange(n + moves), finish_s, start_s)).tolist()

    def makespan_s(self, factor: Sequence[float]) -> float:
        """Return the last end in seconds when task t takes ``factor[t]`` times its cost."""
        duration = np.concatenate([self._task_s * np.asarray(factor), self._move_s])
        end = [0.0] * len(duration)
        for op in self._order:
            end[op] = max((end[b] for b in self._before[op]), default=0.0) + duration[op]
        return max(end)


def problems(files: Sequence[Path], platform: Path, apps: Sequence[str]) -> Iterator[Problem]:
    """Yield the problems: of files, or of our applications on the emulated platform."""
    if files:
        # All are read before the first is planned: what is no instance is refused at once.
        found = list(map(read_instance, files))
        for file, problem in zip(files, found, strict=True):
            if not problem.n_tasks:
                raise InstanceError(f"{file}: it has no tasks; name an instance that has some")
        yield from found
    else:
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder) / "store")
            for name in apps:
                app = find_application(name)
                workflow = Workflow.of(app, app.Params(**APPS[name]), read_platform(platform))
                costs = CostModel.from_profile(profile_stage(workflow, store))
                problem = build_problem(workflow.graph, workflow.platform, costs)
                yield replace(problem, name=f"{name} {APPS[name]}")


def main() -> int:
    """Print a table a problem."""
    parser = shared.Parser(description=__doc__.partition("\n")[0])
    parser.add_argument("instances", nargs="*", type=shared.file_to_read)
    parser.add_argument("--platform", type=shared.file_to_read, default=PLATFORM)
    parser.add_argument("--apps", nargs="+", default=list(APPS), choices=list(APPS))
    parser.add_argument("--runs", type=shared.whole(), default=10)
    parser.add_argument("--noise", type=shared.number(), default=0.03)
    parser.add_argument("--evaluations", type=shared.whole(0), default=3000)
    arguments = parser.parse_args()
    for given in problems(arguments.instances, arguments.platform, arguments.apps):
        # The simulated policies know no memory limits.
        problem = replace(given, memory_capacity_bytes=np.full(given.n_memories, -1, np.int64))
        print(f"{problem.name}: {problem.n_tasks} tasks on {problem.n_devices} devices, noise {arguments.noise:.0%}")
        schedule = planner("portfolio").plan(problem, budget=Budget(evaluations=arguments.evaluations))
        replay = Replay(problem, schedule)
        factors = [
            np.exp(arguments.noise * np.random.default_rng([7, k]).standard_normal(problem.n_tasks)).tolist()
            for k in range(arguments.runs)
        ]
        ours = [replay.makespan_s(f) for f in factors]
        print(f"  {'':12} {'median ms':>10} {'ours/it':>8} {'range of ratios':>17}")
        print(f"  {'HeteroTask':12} {statistics.median(ours) * 1e3:10.3f}")
        # Longest paths in seconds: the better priorities of the two that applications give.
        priority = heft_rule(problem).priority.tolist()
        medians: dict[str, float] = {}
        for name in POLICY_NAMES:
            for label, order in ((name, None), (f"{name} seconds", priority)):
                if order is not None and not POLICIES[name].sorts:
                    continue
                runs = [
                    simulate_policy(problem, name, network=FairNetwork, priority=order, task_factor=f).makespan_s
                    for f in factors
                ]
                ratios = [a / b for a, b in zip(ours, runs, strict=True)]
                medians[label] = statistics.median(ratios)
                print(
                    f"  {label:20} {statistics.median(runs) * 1e3:10.3f} {medians[label]:8.3f} "
                    f"{min(ratios):8.3f}-{max(ratios):8.3f}",
                    flush=True,
                )
        best = max(medians, key=lambda label: medians[label])
        print(f"  best policy: {best}; our makespan is {1 - medians[best]:.1%} shorter (simulated)")
    return 0


if __name__ == "__main__":
    run_case_program(main)
