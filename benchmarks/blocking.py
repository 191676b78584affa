"""How well plans with blocking tasks predict the run, with and without knowing that these hold up copies.

python benchmarks/blocking.py [--graphs 12] [--tasks 24] [--repeats 5] [--planners peft heft portfolio]

Random graphs of tasks that wait (5 to 40 ms; on two CPU devices, or blocking on an OpenCL device) and short OpenCL
kernels, copies being short. Every graph is planned twice, once with ``class_blocking`` taken from the problem, and both
plans are run in one session. Printed: sums over the graphs of predicted and measured makespan (median of the repeats),
and of measured / predicted the median, the smallest, the largest, and the mean distance from 1.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
from arguments import Parser, among, run_program, whole

from heterotask_core.graph import TaskGraph
from heterotask_core.planning.base import Budget
from heterotask_core.planning.from_graph import build_problem
from heterotask_core.planning.registry import PLANNERS, planner
from heterotask_core.platform.model import Device, Link, Memory, Node, Platform
from heterotask_core.profiling.costs import CostModel
from heterotask_core.program.lower import lower
from heterotask_core.runtime.session import Session
from heterotask_core.simulate import simulate

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / "runtime")]

from blocking_kernels import PAUSE  # noqa: E402
from runtime_kernels import FILL, TWICE  # noqa: E402

GPU = "n0.gpu"
EVALUATIONS = 1000
LENGTH = 1000


class Costs(CostModel):
    """What a task waits and what a call takes, in place of a profile."""

    def task_s(self, key, variant, device, **_):  # type: ignore[no-untyped-def]
        return json.loads(key)[3].get("seconds", 1e-3) + 3e-4

    def link(self, link):  # type: ignore[no-untyped-def]
        return link.latency_s, link.bandwidth_bytes_per_s


def platform() -> Platform:
    """Return one node of two CPU devices and an OpenCL device."""
    cpus = tuple(Device(f"n0.cpu{i}", "cpu", "n0", "n0", "cpu", (0,)) for i in range(2))
    links = (Link("n0", GPU, "host_to_device", 1e-4, 1e9), Link(GPU, "n0", "device_to_host", 1e-4, 1e9))
    gpu = Device(GPU, "opencl", "n0", GPU, "gpu", (1,))
    return Platform((Node("n0", "localhost"),), (Memory("n0", "n0"), Memory(GPU, "n0")), (*cpus, gpu), links)


def graph(seed: int, n_tasks: int) -> TaskGraph:
    """Return a random graph; half of the tasks that wait have to be on the OpenCL device or may be."""
    rng, made, items = random.Random(seed), TaskGraph("blocking"), []
    for i in range(n_tasks):
        item = made.data(f"d{i}", shape=(LENGTH,), dtype="float64")
        kind = rng.choice("pppt") if i > 2 else "f"
        if kind == "f":
            made.add(FILL, writes={"output": item}, params={"value": 1.0})
        elif kind == "t":
            made.add(TWICE, reads={"input": rng.choice(items)}, writes={"output": item}, on=(GPU,))
        else:
            seconds, on = rng.choice((0.005, 0.01, 0.02, 0.04)), rng.choice(((), (), (GPU,)))
            parts = rng.sample(items[-6:], 2)
            made.add(PAUSE, reads={"parts": parts}, writes={"output": item}, params={"seconds": seconds}, on=on)
        items.append(item)
    return made


def main() -> None:
    """Plan, run, print."""
    parser = Parser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--graphs", type=whole(), default=12)
    parser.add_argument("--tasks", type=whole(), default=24)
    parser.add_argument("--repeats", type=whole(), default=5)
    parser.add_argument("--planners", nargs="+", type=among(PLANNERS), default=["peft", "heft", "portfolio"])
    options = parser.parse_args()
    machine = platform()
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    with Session(machine) as session, tempfile.TemporaryDirectory() as folder:
        for seed in range(options.graphs):
            tasks = graph(seed, options.tasks)
            problem = build_problem(tasks, machine, Costs({}, {}))
            for name in options.planners:
                for how, known in (("ignored", replace(problem, class_blocking=None)), ("known", problem)):
                    schedule = planner(name).plan(known, budget=Budget(evaluations=EVALUATIONS))
                    program = lower(tasks, machine, known, schedule)
                    result = session.run(program, output_dir=Path(folder), repeats=options.repeats, warm_up=True)
                    found[name, how].append((simulate(program).makespan_s, float(np.median(result.makespan_s))))
    print(
        f"{'planner':10} {'blocking':8} predicted s  measured s  measured / predicted: median, least, most, mean error"
    )
    for (name, how), rows in found.items():
        predicted, measured = np.array(rows).T
        ratio = measured / predicted
        print(
            f"{name:10} {how:8} {predicted.sum():11.3f} {measured.sum():11.3f}  {np.median(ratio):.3f} "
            f"{ratio.min():.3f} {ratio.max():.3f} {100 * abs(ratio - 1).mean():.1f} %"
        )


if __name__ == "__main__":
    run_program(main)
