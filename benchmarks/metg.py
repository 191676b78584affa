"""METG(50 %): the smallest task granularity at which half of the cores' time is useful work, by Task Bench's method.

python benchmarks/metg.py [--pattern NAME …] [--width N …] [--output-bytes N …] [--nodes 1 2] [--repeats N]

For every pattern the kernel's iteration count goes down; efficiency is the kernel's time on cores that all compute over
the cores' time, granularity the cores' time a task. HeteroTask on two CPU ranks (in one node, and in two virtual nodes
with agents between them), and a plain mpi4py loop on two ranks, in the same run; median and quartiles over repeats.
Dask, Ray (both on the first pattern, 30 steps) or StarPU (its stencil) are skipped by name where not installed.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import platform as machine
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from arguments import Parser, file_to_write, run_program, whole
from taskbench_graphs import KERNELS, PATTERNS, dependencies, future_task, points, seconds_per_iteration

from heterotask_core.graph import DataItem, TaskGraph
from heterotask_core.planning.from_graph import build_problem
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.schedule import Schedule
from heterotask_core.platform.model import Device, Link, Memory, Node, Platform
from heterotask_core.profiling.costs import CostModel
from heterotask_core.program.lower import lower
from heterotask_core.program.model import Program
from heterotask_core.program.verify import verify
from heterotask_core.runtime.launch.base import clean_environment
from heterotask_core.runtime.launch.local import LocalLauncher
from heterotask_core.runtime.session import Session

RANKS = 2
TASK_S = (400e-6, 200e-6, 100e-6, 50e-6, 25e-6, 12e-6, 8e-6, 6e-6, 4e-6, 3e-6, 2e-6, 1.5e-6, 1e-6, 0.5e-6, 0.0)
"""Kernel times tried."""


class UnitCosts(CostModel):
    """Costs for a schedule that is given: they only order ops."""

    def task_s(self, *_: object, **__: object) -> float:
        """Return one unit."""
        return 1.0

    def link(self, link: Link) -> tuple[float, float]:
        """Return one unit for any size."""
        return 1.0, 1e18


def make_platform(nodes: int) -> Platform:
    """Return two CPU devices in one node or in two virtual ones."""
    names = [f"n{i}" for i in range(nodes)]
    cores = sorted(os.sched_getaffinity(0))
    node_of = [names[i * nodes // RANKS] for i in range(RANKS)]
    return Platform(
        nodes=tuple(Node(n, "localhost") for n in names),
        memories=tuple(Memory(n, n) for n in names),
        devices=tuple(
            Device(f"{node}.cpu{i}", "cpu", node, node, "cpu", core_ids=(cores[i % len(cores)],))
            for i, node in enumerate(node_of)
        ),
        links=tuple(Link(a, b, "network", 1.0, 1e18) for a in names for b in names if a != b),
    )


def make_program(pattern: str, width: int, steps: int, doubles: int, platform: Platform) -> Program:
    """Return the pattern as a program: blocks of points on devices, row after row, transfers between the rows."""
    graph = TaskGraph(f"{pattern}-{width}x{steps}")
    rows: list[dict[int, DataItem]] = []
    device, start = [], []
    for step in range(steps):
        row = {}
        for point in points(pattern, step, width):
            inputs = dependencies(pattern, step, point, width)
            made = graph.data(f"d{step}.{point}", shape=(doubles,), dtype="float64")
            graph.add(
                KERNELS[len(inputs)],
                name=f"t{step}.{point}",
                reads={f"in{i}": rows[-1][p] for i, p in enumerate(inputs)},
                writes={"output": made},
                params={"iterations": 0},
            )
            row[point] = made
            device.append(point * RANKS // width)
            # Points of different devices run at the same time, so they never share a buffer.
            start.append(step * (width + 2) + point - device[-1] * width // RANKS)
        rows.append(row)
    problem = build_problem(graph, platform, UnitCosts({}, {}))
    program = lower(graph, platform, problem, _schedule(graph, platform, problem, device, start))
    verify(program)
    return program


def _schedule(graph: TaskGraph, platform: Platform, problem: Problem, device: list[int], start: list[int]) -> Schedule:
    """Return the schedule with tasks at given devices and starts, each transfer right after its producer."""
    moves: dict[tuple[int, int], float] = {}
    ends = {(int(s), int(t)): i for i, (s, t) in enumerate(zip(problem.link_source, problem.link_target, strict=True))}
    for task in graph:
        target = int(problem.device_memory[device[task.index]])
        for version in task.inputs:
            source = int(problem.device_memory[device[version.producer]])
            if source != target:
                moves[version.index, ends[source, target]] = start[version.producer] + 1.0
    ordered = sorted((at, version, link) for (version, link), at in moves.items())
    starts = np.array(start, np.float64)
    times = np.array([at for at, _, _ in ordered], np.float64)
    return Schedule(
        planner="fixed",
        seed=0,
        evaluations=0,
        task_device=np.array(device, np.int32),
        task_variant=np.zeros(len(device), np.int32),
        task_start_s=starts,
        task_finish_s=starts + 1.0,
        transfer_version=np.array([v for _, v, _ in ordered], np.int32),
        transfer_link=np.array([x for _, _, x in ordered], np.int32),
        transfer_start_s=times,
        transfer_finish_s=times + 1.0,
        makespan_s=float(starts.max() + 1.0),
        lower_bound_s=0.0,
    )


@dataclass(frozen=True)
class Point:
    """One granularity of one system: cores' seconds a task, and the share of them that is kernel time."""

    granularity_s: float
    efficiency: float
    quartiles_s: tuple[float, float]


def measured_points(times_s: dict[int, list[float]], n_tasks: int, per_iteration_s: float) -> list[Point]:
    """Return points from iteration count → wall times of repeats, finest last."""
    result = []
    for iterations, walls in times_s.items():
        low, median, high = (w * RANKS / n_tasks for w in statistics.quantiles(walls, n=4))
        result.append(Point(median, iterations * per_iteration_s / median, (low, high)))
    return result


def metg_s(measured: list[Point], efficiency: float = 0.5) -> float:
    """Return the granularity at which efficiency falls below 50 %, interpolated; NaN if it never gets there."""
    ordered = sorted(measured, key=lambda p: -p.efficiency)
    for above, below in pairwise(ordered):
        if above.efficiency >= efficiency > below.efficiency:
            share = (above.efficiency - efficiency) / (above.efficiency - below.efficiency)
            return above.granularity_s + share * (below.granularity_s - above.granularity_s)
    return float("nan")


def with_iterations(program: Program, iterations: int) -> Program:
    """Return the program with another size of its tasks."""
    return replace(program, calls=tuple(replace(c, params={"iterations": iterations}) for c in program.calls))


def run_heterotask(program: Program, platform: Platform, iterations: list[int], repeats: int) -> dict[int, list[float]]:
    """Return iteration count → makespans, all in one session."""
    with tempfile.TemporaryDirectory() as folder, Session(platform) as session:
        return {
            n: list(
                session.run(
                    with_iterations(program, n), output_dir=Path(folder), repeats=repeats, warm_up=True
                ).makespan_s
            )
            for n in iterations
        }


def run_mpi(request: dict[str, Any]) -> dict[int, list[float]]:
    """Return the plain loop's times."""
    script = Path(__file__).with_name("metg_mpi.py")
    command = LocalLauncher().command(n_ranks=RANKS, argv=[sys.executable, str(script), json.dumps(request)])
    environment = clean_environment(os.environ, python_path=[p for p in sys.path if p])
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return {int(n): times for n, times in json.loads(done.stdout).items()}


OTHERS_TASK_S = (200e-3, 50e-3, 20e-3, 10e-3, 5e-3, 2e-3, 1e-3, 0.0)
OTHERS_STEPS = 30
"""Kernel times and steps for dynamic schedulers, whose tasks cost a thousand times as much."""


def run_futures(submit: Callable[..., Any], wait: Callable[[list[Any]], object], request: dict[str, Any]) -> float:
    """Return the seconds that a graph of futures takes: ``submit(function, *inputs)`` makes one."""
    pattern, width = request["pattern"], request["width"]
    start_s = time.perf_counter()
    row: dict[int, Any] = {}
    made = []
    for step in range(request["steps"]):
        before, row = row, {}
        for point in points(pattern, step, width):
            inputs = [before[p] for p in dependencies(pattern, step, point, width)]
            row[point] = submit(future_task, request["iterations"], request["doubles"], *inputs)
            made.append(row[point])
    wait(made)
    return time.perf_counter() - start_s


def run_dask(request: dict[str, Any], iterations: list[int], repeats: int) -> dict[int, list[float]]:
    """Return iteration count → times of Dask on two processes."""
    from distributed import Client, LocalCluster, wait

    with LocalCluster(n_workers=RANKS, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as one:
        submit = functools.partial(one.submit, pure=False)
        run_futures(submit, wait, {**request, "iterations": 1})
        return {
            n: [run_futures(submit, wait, {**request, "iterations": n}) for _ in range(repeats)] for n in iterations
        }


def run_ray(request: dict[str, Any], iterations: list[int], repeats: int) -> dict[int, list[float]]:
    """Return iteration count → times of Ray on two processes."""
    import ray

    ray.init(num_cpus=RANKS, include_dashboard=False, log_to_driver=False)
    task = ray.remote(future_task)

    def submit(_: object, *arguments: object) -> Any:
        return task.remote(*arguments)

    try:
        run_futures(submit, ray.get, {**request, "iterations": 1})
        return {
            n: [run_futures(submit, ray.get, {**request, "iterations": n}) for _ in range(repeats)] for n in iterations
        }
    finally:
        ray.shutdown()


OTHERS = {"distributed": ("dask", run_dask), "ray": ("ray", run_ray)}


def print_others(pattern: str, width: int, output_bytes: int, per_iteration_s: float, repeats: int) -> None:
    """Print a line for every other system that is installed, and name those that are not."""
    request = {"pattern": pattern, "width": width, "steps": OTHERS_STEPS, "doubles": output_bytes // 8}
    iterations = [round(s / per_iteration_s) for s in OTHERS_TASK_S]
    n_tasks = sum(len(points(pattern, s, width)) for s in range(OTHERS_STEPS))
    for module, (name, run) in OTHERS.items():
        if importlib.util.find_spec(module) is None:
            print(f"{name}: not installed, skipped")
            continue
        found = measured_points(run(request, iterations, repeats), n_tasks, per_iteration_s)
        print(f"{name}: {pattern}, width {width}, {output_bytes} B: METG(50 %) {metg_s(found) * 1e6:.0f} µs")
    # StarPU has no Python interface in Debian's package.
    if shutil.which("pkg-config") is None or subprocess.run(["pkg-config", "--exists", "starpu-1.3"]).returncode:
        print("starpu: not installed, skipped")
    else:
        print(f"starpu: {run_starpu(per_iteration_s, repeats)}")


def run_starpu(per_iteration_s: float, repeats: int) -> str:
    """Build and run the C program beside this one: a stencil of two points of 16 B on two CPU workers."""
    with tempfile.TemporaryDirectory() as folder:
        flags = subprocess.run(
            ["pkg-config", "--cflags", "--libs", "starpu-1.3"], capture_output=True, text=True, check=True
        ).stdout.split()
        binary = Path(folder) / "metg_starpu"
        source = Path(__file__).with_name("metg_starpu.c")
        subprocess.run(["cc", "-O2", str(source), "-o", str(binary), *flags], check=True)
        steps = 1000
        iterations = [round(s / per_iteration_s) for s in TASK_S]
        environment = {**os.environ, "STARPU_NCPU": str(RANKS), "STARPU_HOME": folder, "STARPU_SILENT": "1"}
        printed = subprocess.run(
            [str(binary), str(steps), str(repeats), *map(str, iterations)],
            env=environment, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    times = {int(line.split()[0]): [float(s) for s in line.split()[1:]] for line in printed.splitlines()}
    found = measured_points(times, RANKS * steps, per_iteration_s)
    empty_s = found[-1].granularity_s
    return (
        f"stencil_1d, width 2, 16 B: METG(50 %) {metg_s(found) * 1e6:.1f} µs, a step of empty tasks {empty_s * 1e6:.1f}"
    )


def _output_bytes(text: str) -> int:
    """Take the size of an output: doubles, of which a kernel writes the first two."""
    value = whole(16)(text)
    if value % 8:
        raise argparse.ArgumentTypeError(f"{value} bytes are no whole number of doubles; give a multiple of 8")
    return value


def main() -> None:
    """Print a table, and everything measured as JSON where asked."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pattern", nargs="+", default=list(PATTERNS), choices=PATTERNS)
    parser.add_argument("--width", nargs="+", type=whole(), default=[2])
    parser.add_argument("--steps", type=whole(), default=1000)
    parser.add_argument("--output-bytes", nargs="+", type=_output_bytes, default=[16, 65536])
    parser.add_argument("--nodes", nargs="+", type=int, default=[1, 2], choices=[1, 2])
    parser.add_argument("--repeats", type=whole(2), default=9, help="at least 2: quartiles are printed")
    parser.add_argument("--json", type=file_to_write)
    options = parser.parse_args()
    per_iteration_s = seconds_per_iteration(RANKS)
    iterations = [round(s / per_iteration_s) for s in TASK_S]
    cores = len(os.sched_getaffinity(0))
    print(f"{machine.machine()}, {cores} cores, {RANKS} ranks that compute, {options.steps} steps, kernel iteration "
          f"{per_iteration_s * 1e9:.3f} ns; METG(50 %) and, in brackets, a step of empty tasks, in µs")  # fmt: skip
    systems = [f"heterotask, {n} node(s)" for n in options.nodes] + ["mpi4py loop"]
    print(f"{'pattern':16} {'width':>5} {'bytes':>6} " + " ".join(f"{s:>22}" for s in systems))
    rows = []
    for pattern in options.pattern:
        for width in options.width:
            for output_bytes in options.output_bytes:
                doubles = output_bytes // 8
                n_tasks = sum(len(points(pattern, s, width)) for s in range(options.steps))
                times = {}
                for nodes in options.nodes:
                    platform = make_platform(nodes)
                    program = make_program(pattern, width, options.steps, doubles, platform)
                    times[f"heterotask, {nodes} node(s)"] = run_heterotask(
                        program, platform, iterations, options.repeats
                    )
                request = {"pattern": pattern, "width": width, "steps": options.steps, "doubles": doubles}
                times["mpi4py loop"] = run_mpi({**request, "iterations": iterations, "repeats": options.repeats})
                cells = []
                for system in systems:
                    found = measured_points(times[system], n_tasks, per_iteration_s)
                    metg = metg_s(found)
                    rows.append({**request, "system": system, "metg_s": metg, "points": [vars(p) for p in found]})
                    empty_s = found[-1].granularity_s * n_tasks / RANKS / options.steps
                    cells.append(f"{metg * 1e6:.2f} ({empty_s * 1e6:.2f})")
                print(f"{pattern:16} {width:5} {output_bytes:6} " + " ".join(f"{c:>22}" for c in cells), flush=True)
    print_others(options.pattern[0], options.width[0], options.output_bytes[0], per_iteration_s, 3)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    run_program(main)
