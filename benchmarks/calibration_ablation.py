"""The arms on drawn truths, the region of large gains, and the command line of ``benchmarks/calibration.py``."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from calibration_arms import ARMS, Bed, Watched, evaluations_to_half
from calibration_machine import canny, costs, platform
from calibration_report import region_text, report

from calibration.bench import program_key
from calibration.loop import CalibrationResult, calibrate
from calibration.prior import DEFAULT_PRIOR, FAMILIES, Family, Machine, Prior
from calibration.retime import retimed
from calibration.virtual import Truth, VirtualEvaluator
from heterotask_core.planning.core import arrays
from heterotask_core.planning.from_graph import build_problem
from heterotask_core.planning.listing import finish
from heterotask_core.planning.portfolio import list_passes
from heterotask_core.planning.registry import planner
from heterotask_core.profiling.costs import Overheads
from heterotask_core.program import buffers
from heterotask_core.program.lower import lower
from heterotask_core.program.model import Program

DEVICES = {"GPU": 0, "CPU+GPU": 4}
"""CPU groups a node."""
FRESH_RUNS = 25
RATIOS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SLOWNESSES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


@dataclass(frozen=True)
class Setting:
    """What is the same for all draws."""

    prior: Path
    seed: int
    evaluations: int
    planner_evaluations: int
    tiles: int
    nodes: int
    gpus: int


def virtual(
    setting: Setting, machine: Machine, truth: Truth, cpus: int, *, cost_seed: int, noise_seed: int
) -> VirtualEvaluator:
    """Return a machine whose noise depends on ``noise_seed``."""
    graph = canny(setting.tiles, 1024)
    made = platform(machine, nodes=setting.nodes, gpus=setting.gpus, cpus=cpus)
    return VirtualEvaluator(
        graph,
        made,
        costs(graph, made, machine, seed=cost_seed),
        planner=planner("portfolio"),
        truth=truth,
        evaluations=setting.planner_evaluations,
        seed=noise_seed,
    )


def list_plans(setting: Setting, machine: Machine, cpus: int, *, cost_seed: int, count: int) -> list[Program]:
    """Return the different programs of the ``count`` shortest list schedules."""
    graph = canny(setting.tiles, 1024)
    made = platform(machine, nodes=setting.nodes, gpus=setting.gpus, cpus=cpus)
    problem = build_problem(graph, made, costs(graph, made, machine, seed=cost_seed))
    passes = sorted(list_passes(problem, arrays(problem)), key=lambda p: p.makespan_s)[:count]
    programs = [lower(graph, made, problem, finish(problem, p, planner="list")) for p in passes]
    return list({program_key(p): p for p in programs}.values())


def one(setting: Setting, draw: int, family: Family, devices: str) -> dict[str, Any]:
    """Run all arms on one drawn machine; return a row of JSON values."""
    loosen_packing()
    began_s = time.perf_counter()
    prior = Prior.read(setting.prior)
    rng = np.random.default_rng([setting.seed, draw, FAMILIES.index(family)])
    machine = prior.draw_machine(rng)
    # Of the whole machine also where only GPUs are used, so that both have the same truth.
    whole = platform(machine, nodes=setting.nodes, gpus=setting.gpus, cpus=max(DEVICES.values()))
    truth = prior.draw_truth(family, whole, rng)
    cost_seed, noise_seed = (int(rng.integers(1 << 31)) for _ in range(2))
    cpus = DEVICES[devices]

    def evaluator(extra: int) -> VirtualEvaluator:
        return virtual(setting, machine, truth, cpus, cost_seed=cost_seed, noise_seed=noise_seed + extra)

    judge = evaluator(1)
    first, predicted_s = judge.plan(Overheads())
    oracle, oracle_s = judge.oracle()
    first_s = judge.expected_s(first)
    finals: dict[str, Program] = {"uncalibrated": first, "oracle": oracle}
    seconds: dict[str, float] = {}
    half: dict[str, float] = {}

    fresh = evaluator(0)
    lists = list_plans(setting, machine, cpus, cost_seed=cost_seed, count=setting.evaluations)
    finals["list plans"] = min(lists, key=lambda p: float(np.mean(np.log(fresh.measure(p, 3)[0]))))
    for name, arm in ARMS.items():
        arm_s = time.perf_counter()
        with Bed(evaluator(0), seed=draw, evaluations=setting.evaluations) as bed:
            finals[name] = bed.bench.program(arm(bed))
            half[name] = evaluations_to_half(bed.watched.log, judge.expected_s, start_s=first_s, oracle_s=oracle_s)
        seconds[name] = time.perf_counter() - arm_s
    arm_s = time.perf_counter()
    watched = Watched(evaluator(0))
    with TemporaryDirectory() as folder:
        result = calibrate(
            watched, record_dir=Path(folder), seed=draw, max_evaluations=setting.evaluations, progress=lambda _: None
        )
    seconds["regression + BO"] = time.perf_counter() - arm_s
    half["regression + BO"] = evaluations_to_half(watched.log, judge.expected_s, start_s=first_s, oracle_s=oracle_s)
    finals["regression + BO"] = judge.plan(result.found or Overheads())[0]
    finals["accepted"] = judge.plan(result.overheads)[0]
    makespan_s = {name: float(np.median(judge.measure(p, FRESH_RUNS)[0])) for name, p in finals.items()}
    return {
        "draw": draw,
        "family": family,
        "devices": devices,
        "machine": vars(machine),
        "makespan_s": makespan_s,
        "true_s": {name: judge.expected_s(program) for name, program in finals.items()},
        "half": half,
        "seconds": seconds | {"all": time.perf_counter() - began_s},
        "spent": dict(result.seconds),
        "status": result.status,
        "evaluations": result.evaluations,
        "runs": result.runs,
        **errors(judge, result, finals["accepted"], predicted_s, makespan_s),
    }


def errors(
    judge: VirtualEvaluator, result: CalibrationResult, kept: Program, predicted_s: float, makespan_s: dict[str, float]
) -> dict[str, float]:
    """Return relative errors of predictions before and after, of the makespan and (median) of the kernels."""
    kinds = {"device_kinds": judge.device_kinds, "link_kinds": judge.link_kinds}
    true_s = judge.expected_ops_s(kept)
    kernels = kept.op_task >= 0
    after = result.estimate.overheads if result.estimate else Overheads()
    found = {"makespan_before": abs(predicted_s / makespan_s["uncalibrated"] - 1.0)}
    found["makespan_after"] = abs((result.predicted_s or predicted_s) / makespan_s["accepted"] - 1.0)
    for name, overheads in (("op_before", Overheads()), ("op_after", after)):
        seconds = retimed(kept, result.overheads, overheads, **kinds)
        found[name] = float(np.median(np.abs(seconds[kernels] / true_s[kernels] - 1.0)))
    return found


def region(setting: Setting, ratio: float, slowness: float) -> dict[str, float]:
    """Return reductions of the makespan where only GPU launches are hidden, a fraction ``ratio`` of the median task."""
    loosen_packing()
    machine = Machine(1e-3, slowness, 0.4, 1e-5, 1.5e10, 1.5e10)
    truth = Truth(Overheads(dispatch_s={"cuda": min(1.0, ratio * machine.task_s)}))
    found: dict[str, float] = {"ratio": ratio, "slowness": slowness}
    made = {name: virtual(setting, machine, truth, n, cost_seed=1, noise_seed=1) for name, n in DEVICES.items()}
    plain = {name: made[name].expected_s(made[name].plan(Overheads())[0]) for name in made}
    best_s = made["CPU+GPU"].oracle()[1]
    with Bed(made["CPU+GPU"], seed=1, evaluations=4) as bed:
        ours_s = made["CPU+GPU"].expected_s(bed.bench.program(ARMS["regression"](bed)))
    for against, name in (("same devices", "CPU+GPU"), ("GPU only", "GPU")):
        found[f"oracle, {against}"] = 1.0 - best_s / plain[name]
        found[f"ours, {against}"] = 1.0 - ours_s / plain[name]
    return found


def loosen_packing() -> None:
    """Host memory is unlimited here, so buffers need not be packed tightly, which takes most of a plan's time."""
    buffers.MOST_TRIES = 1


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, run and print."""
    parser = argparse.ArgumentParser(description="What calibration gains, part by part, on drawn truths.")
    parser.add_argument("--backend", choices=("virtual", "emulated", "machine"), default="virtual")
    parser.add_argument("--prior", type=Path, default=DEFAULT_PRIOR)
    parser.add_argument("--draws", type=int, default=None, help="default: 20 virtual, 2 emulated")
    parser.add_argument("--first", type=int, default=0, help="number of the first draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--modes", default=",".join(DEVICES), help="devices used")
    parser.add_argument("--evaluations", type=int, default=None, help="measurements an arm; default: 20, elsewhere 6")
    parser.add_argument("--planner-evaluations", type=int, default=200)
    parser.add_argument("--tiles", type=int, default=6, help="rows and columns of tiles")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=8, help="GPUs a node")
    parser.add_argument("--devices", default="cpu:1,opencl:1", help="of --backend machine")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--no-region", action="store_true")
    parser.add_argument("--read", type=Path, nargs="*", help="report what earlier runs wrote with --out")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    if args.read:
        print(report([json.loads(line) for path in args.read for line in path.read_text().splitlines()]))
        return
    if args.backend != "virtual":
        import calibration_real

        calibration_real.run(args)
        return
    setting = Setting(
        args.prior, args.seed, args.evaluations or 20, args.planner_evaluations, args.tiles, args.nodes, args.gpus
    )
    Prior.read(args.prior)
    cases = [
        (draw, family, devices)
        for draw in range(args.first, args.first + (args.draws or 20))
        for family in FAMILIES
        if family in args.families.split(",")
        for devices in args.modes.split(",")
    ]
    rows = []
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(one, setting, *case) for case in cases]
        cells = [pool.submit(region, setting, r, s) for r in RATIOS for s in SLOWNESSES] if not args.no_region else []
        for future in futures:
            rows.append(future.result())
            if args.out:
                with args.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
        print(report(rows))
        if cells:
            print(region_text([cell.result() for cell in cells]))
