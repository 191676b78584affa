"""Are the simulated online policies honest? Their makespans against those that StarPU's own simulation gave.

    python benchmarks/policies.py FOLDER [--out build/policies.csv]

reads the instances that hold StarPU's makespans (``starpu-*``, without memory limit) and prints, per instance and
policy, our makespan over StarPU's ``nocost`` one:

- ``serial``: lanes serve one transfer at a time, as plans must (what ``heterotask plan --planner dmdas`` gives);
- ``fair``: transfers share links max-min fairly and finished tiles are written back, as in StarPU's simulator;
- ``free``: transfers take no time, against StarPU's ``notransfer``: the decisions alone;
- ``seconds``: as ``serial``, tasks ordered by the longest path in seconds instead of in tasks. The files do not hold
  the priorities that the applications gave: where the two columns differ, the answer depends on them;
- ``noise``: as ``fair``, smallest and largest ratio of 20 runs with 1 % noise in the task times.

The last lines say how many ratios of ``dmda`` and ``dmdas`` are within 10 % of 1. FOLDER may be left out where
HETEROTASK_INSTANCES names it.
"""

from __future__ import annotations

import csv
import math
import os
import sys
from dataclasses import replace

import numpy as np
from arguments import Parser, RefusedError, file_to_write, folder_to_read, run_program
from planner import files, makespans_s

from heterotask_core.errors import InstanceError
from heterotask_core.planning.instance import read_instance
from heterotask_core.planning.listing import heft_rule
from heterotask_core.planning.policies.machine import Machine, task_levels
from heterotask_core.planning.policies.network import FairNetwork, SerialNetwork
from heterotask_core.planning.policies.planner import POLICIES, simulate_policy
from heterotask_core.planning.policies.runtime import Simulation
from heterotask_core.planning.problem import Problem

COLUMNS = ("serial", "fair", "free", "seconds", "noise_low", "noise_high")
SEEDS = 20
NOISE = 0.01


class FreeTransfers(Machine):
    """A machine whose transfers take no time although it predicts that they do."""

    def transfer_s(self, link: int, size: float) -> float:
        """Return 0."""
        return 0.0


def free_s(problem: Problem, name: str) -> float:
    """Return the makespan with free transfers."""
    machine = FreeTransfers(problem)
    spec = POLICIES[name]
    levels = [float(x) if spec.sorts else 0.0 for x in task_levels(machine)]
    return Simulation(machine, SerialNetwork(machine), spec.make, priority=levels).run().makespan_s


def noisy_s(problem: Problem, name: str) -> list[float]:
    """Return makespans with noise in the costs of task classes."""
    found = []
    for seed in range(SEEDS):
        factor = 1.0 + NOISE * np.random.default_rng(seed).standard_normal(problem.cost_s.shape)
        noisy = replace(problem, cost_s=problem.cost_s * factor)
        found.append(simulate_policy(noisy, name, network=FairNetwork, write_back=True).makespan_s)
    return found


def ratios(problem: Problem, name: str) -> dict[str, float]:
    """Return the columns of one instance and policy; NaN where StarPU's makespan is not in the file."""
    nocost, notransfer = (makespans_s(problem, how).get(name, math.nan) for how in ("nocost", "notransfer"))
    noisy = noisy_s(problem, name)
    return {
        "serial": simulate_policy(problem, name).makespan_s / nocost,
        "fair": simulate_policy(problem, name, network=FairNetwork, write_back=True).makespan_s / nocost,
        "free": free_s(problem, name) / notransfer,
        "seconds": simulate_policy(problem, name, priority=heft_rule(problem).priority.tolist()).makespan_s / nocost,
        "noise_low": min(noisy) / nocost,
        "noise_high": max(noisy) / nocost,
    }


def main() -> int:
    """Print the table."""
    parser = Parser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "folder", nargs="?", type=folder_to_read, default=os.environ.get("HETEROTASK_INSTANCES") or None
    )
    parser.add_argument("--out", type=file_to_write, help="CSV file")
    arguments = parser.parse_args()
    if arguments.folder is None:
        parser.error("name a folder of instances, or set HETEROTASK_INSTANCES")
    paths = files(arguments.folder, "starpu-*.json*")
    rows: list[dict[str, object]] = []
    near: dict[str, list[float]] = {"dmda": [], "dmdas": []}
    print(f"{'instance':26s} {'policy':10s} {'StarPU s':>9s} " + " ".join(f"{c:>10s}" for c in COLUMNS))
    for path in paths:
        if "-mem" in path.name:
            continue
        try:
            problem = read_instance(path)
        except InstanceError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        known = makespans_s(problem, "nocost")
        for name in POLICIES:
            if name not in known:
                continue
            row = ratios(problem, name)
            rows.append({"instance": problem.name, "policy": name, "starpu_s": known[name], **row})
            print(f"{problem.name:26s} {name:10s} {known[name]:9.4f} " + " ".join(f"{row[c]:10.3f}" for c in COLUMNS))
            sys.stdout.flush()
            if name in near:
                near[name].append(min(row["serial"], row["fair"], key=lambda r: abs(math.log(r))))
    if not rows:
        raise RefusedError(f"{arguments.folder}: no file holds StarPU's makespans of an instance without memory limit")
    for name, values in near.items():
        within = sum(abs(v - 1.0) <= 0.1 for v in values)
        mean = math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan
        print(f"{name}: {within} of {len(values)} within 10 %, nearer of serial and fair; geometric mean {mean:.3f}")
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with arguments.out.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, ["instance", "policy", "starpu_s", *COLUMNS])
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    run_program(main)
