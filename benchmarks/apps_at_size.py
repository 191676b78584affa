"""Build, plan and simulate every application for 6 nodes of 8 GPUs with at least 20,000 tasks.

    python benchmarks/apps_at_size.py [--apps canny cholesky ...]

The machine is emulated and the costs are made up (bytes over a rate of the device and kernel, plus a launch): nothing
is profiled or run. Prints tasks, seconds of each step and the peak memory of the process that did them; the goal is
under a minute and 4 GiB. The mosaic's input files are made before the clock starts.
"""

import itertools
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from arguments import Parser, run_program

from heterotask_core.apps import find_application, parse_params
from heterotask_core.planning.base import Budget
from heterotask_core.planning.from_graph import build_problem
from heterotask_core.planning.registry import planner
from heterotask_core.platform.model import Device, Link, Memory, Node, Platform
from heterotask_core.profiling.costs import CostModel
from heterotask_core.program.lower import lower
from heterotask_core.simulate import simulate

NODES, GPUS, CORES = 6, 8, 4
GIB = 1 << 30
LEAST_TASKS = 20_000

PARAMS: dict[str, list[str]] = {
    "canny": ["size=16384", "tile=320"],
    "cholesky": ["size=25600", "tile=512"],
    "mosaic": ["size=64", "count=2700", "tile=64"],
    "heat": ["size=8192", "tile=512", "steps=80"],
    "kmeans": ["block=8192", "iterations=75"],
    "fft2d": ["size=16384", "band=114"],
    "wf": ["time_scale=1", "size_scale=1"],
}


class RateCosts(CostModel):
    """A task takes its bytes over its device's rate, which differs by kernel, plus a launch."""

    def task_s(self, class_key: str, variant: str, device: Device, *, what: str, neighbours: float = 0.0) -> float:
        """Return made-up seconds; a GPU is 20 times a core, its host's work for it is a core's."""
        _, kernel, arrays, params = json.loads(class_key)
        size = sum(4 * math.prod(shape) for _, shape, _ in arrays)
        host = kernel.startswith(("load", "store", "solve", "encode", "seed"))
        rate = 2e9 * (20.0 if device.variant_kind == "cuda" and not host else 1.0) / (1 + sum(map(ord, kernel)) % 7)
        return float(params.get("seconds", 0.0)) + 5e-6 + size / rate


def platform() -> Platform:
    """Return nodes of emulated GPUs and cores; each GPU has a link each way to its node, nodes have one each way."""
    names = [f"n{i}" for i in range(NODES)]
    gpus = [(node, f"{node}.gpu{k}") for node in names for k in range(GPUS)]
    links = []
    for node, gpu in gpus:
        links.append(Link(node, gpu, "host_to_device", 1e-5, 2e10))
        links.append(Link(gpu, node, "device_to_host", 1e-5, 2e10))
    for a in names:
        links += [Link(a, b, "network", 5e-6, 1.2e10, (f"{a}.out", f"{b}.in")) for b in names if a != b]
    return Platform(
        nodes=tuple(Node(n, "localhost", (0,)) for n in names),
        memories=(*(Memory(n, n) for n in names), *(Memory(g, n, 80 * GIB, 512) for n, g in gpus)),
        devices=(
            *(
                Device(f"{n}.cpu{k}", "emulated", n, n, "emulated core", core_ids=(k,), emulates="cpu")
                for n in names
                for k in range(CORES)
            ),
            *(Device(g, "emulated", n, g, "emulated gpu", core_ids=(CORES,), emulates="cuda") for n, g in gpus),
        ),
        links=tuple(links),
    )


def write_workflow(path: Path) -> None:
    """Write a recorded workflow in WfFormat: 200 samples of 100 tasks, each fanned out and in."""
    tasks: list[dict[str, Any]] = []
    files: dict[str, int] = {}

    def add(name: str, inputs: list[str], size: int) -> None:
        files.update({name: size}, **{f: files.get(f, 1 << 20) for f in inputs})
        parents = [f for f in inputs if not f.startswith("input")]
        tasks.append({"id": name, "name": name, "parents": parents, "inputFiles": inputs, "outputFiles": [name]})

    for sample in range(200):
        add(f"split{sample}", [f"input{sample}"], 1 << 22)
        for k in range(49):
            add(f"map{sample}.{k}", [f"split{sample}"], 1 << 18)
            add(f"sort{sample}.{k}", [f"map{sample}.{k}"], 1 << 18)
        add(f"merge{sample}", [f"sort{sample}.{k}" for k in range(49)], 1 << 20)
    add("report", [f"merge{sample}" for sample in range(200)], 1 << 16)
    workflow = {
        "specification": {
            "tasks": [{"children": [], **t} for t in tasks],
            "files": [{"id": name, "sizeInBytes": size} for name, size in files.items()],
        },
        "execution": {
            "tasks": [{"id": t["id"], "runtimeInSeconds": 0.1 + 0.01 * (k % 7)} for k, t in enumerate(tasks)]
        },
    }
    path.write_text(json.dumps({"name": "fan", "schemaVersion": "1.5", "workflow": workflow}))


def measure(name: str, folder: Path) -> dict[str, float]:
    """Return what one application took."""
    app = find_application(name)
    texts = list(PARAMS[name])
    if name == "wf":
        write_workflow(folder / "fan.json")
        texts.append(f"file={folder / 'fan.json'}")
    if name == "mosaic":
        texts.append(f"cache={folder}")
    params = parse_params(app, texts)
    if name == "mosaic":
        from kernels.mosaic.sky import Recipe, image_file

        recipe = Recipe(params.size, params.count, params.seed)  # type: ignore[attr-defined]
        for k in range(recipe.count):
            image_file(str(folder), recipe, k)
    marks = [time.perf_counter()]
    graph = app.build(params)
    marks.append(time.perf_counter())
    machine = platform()
    problem = build_problem(graph, machine, RateCosts({}, {}))
    schedule = planner("heft").plan(problem, budget=Budget(evaluations=1))
    marks.append(time.perf_counter())
    program = lower(graph, machine, problem, schedule)
    marks.append(time.perf_counter())
    makespan_s = simulate(program).makespan_s
    marks.append(time.perf_counter())
    build_s, plan_s, lower_s, simulate_s = (b - a for a, b in itertools.pairwise(marks))
    return {
        "tasks": len(graph),
        "build_s": build_s,
        "plan_s": plan_s,
        "lower_s": lower_s,
        "simulate_s": simulate_s,
        "total_s": marks[-1] - marks[0],
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB,
        "makespan_s": makespan_s,
    }


def main() -> None:
    """Print a line an application, each measured in a process of its own."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--apps", nargs="+", default=list(PARAMS), choices=list(PARAMS))
    parser.add_argument("--in-this-process", action="store_true", help="print one application's figures as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.in_this_process:
            print(json.dumps(measure(arguments.apps[0], Path(folder))))
            return
        print(
            f"{'app':9} {'tasks':>7}     build      plan     lower  simulate  total, s  peak GiB  simulated makespan, s"
        )
        for name in arguments.apps:
            command = [sys.executable, __file__, "--in-this-process", "--apps", name]
            found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            steps = "  ".join(f"{found[f'{step}_s']:8.1f}" for step in ("build", "plan", "lower", "simulate", "total"))
            within = found["total_s"] < 60 and found["peak_gib"] < 4 and found["tasks"] >= LEAST_TASKS
            print(
                f"{name:9} {found['tasks']:7}  {steps}  {found['peak_gib']:8.2f}  {found['makespan_s']:10.3f}"
                f"{'' if within else '   beyond the goal'}",
                flush=True,
            )


if __name__ == "__main__":
    run_program(main)
