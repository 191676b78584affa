"""Makespans of all planners on a folder of instances, as a table with ratios to PEFT and to the lower bound.

python benchmarks/planner.py FOLDER [--evaluations N] [--seed N] [--match PATTERN]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning.base import Budget
from heterotask_core.planning.instance import read_instance
from heterotask_core.planning.registry import PLANNERS, planner


def main() -> None:
    """Print a line an instance and planner."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--evaluations", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--match", default="*.json*")
    options = parser.parse_args()
    budget = Budget(evaluations=options.evaluations, seed=options.seed)
    print(f"{'instance':45} {'planner':10} {'makespan_s':>13} {'/ PEFT':>7} {'/ bound':>8} {'planning_s':>10}")
    for path in sorted(options.folder.glob(options.match)):
        problem = read_instance(path)
        reference = None
        for name in sorted(PLANNERS, key=lambda n: n != "peft"):
            began = time.perf_counter()
            try:
                schedule = planner(name).plan(problem, budget=budget)
            except InfeasiblePlanError as error:
                print(f"{path.name:45} {name:10} {error}")
                continue
            spent_s = time.perf_counter() - began
            reference = schedule.makespan_s if name == "peft" else reference
            ratio = f"{schedule.makespan_s / reference:7.3f}" if reference else f"{'-':>7}"
            bound = f"{schedule.makespan_s / schedule.lower_bound_s:8.3f}" if schedule.lower_bound_s else f"{'-':>8}"
            print(f"{path.name:45} {name:10} {schedule.makespan_s:13.6g} {ratio} {bound} {spent_s:10.3f}", flush=True)


if __name__ == "__main__":
    main()
