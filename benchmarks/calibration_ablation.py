"""The arms on drawn truths, the region of large gains, and the command line of ``benchmarks/calibration.py``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from calibration_arms import ARMS, Bed, compare_arms, list_plans
from calibration_machine import Setting, draw_case, make_case
from calibration_real import emulated_row, on_this_machine
from calibration_report import region_text, report

from calibration.prior import DEFAULT_PRIOR, FAMILIES, Family, Machine, Prior
from calibration.virtual import Truth
from heterotask_core.errors import HeteroTaskError
from heterotask_core.profiling.costs import Overheads
from heterotask_core.program import buffers

GPU, BOTH = "GPU", "CPU+GPU"
MODES = (GPU, BOTH)
CPUS = {"virtual": {GPU: 0, BOTH: 4}, "emulated": {GPU: 0, BOTH: 1}}
"""Backend → devices used → CPU groups a node. Of emulated devices each is a process."""
FRESH_RUNS = 25
RATIOS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SLOWNESSES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


def one(setting: Setting, draw: int, family: Family, devices: str) -> dict[str, Any]:
    """Run all arms on one drawn machine; return a row of JSON values."""
    loosen_packing()
    case = draw_case(setting, draw, family, devices)
    judge = case.virtual(1)
    row = compare_arms(
        case.virtual,
        judge,
        judge,
        list_plans(case.graph, case.platform, case.costs, count=setting.evaluations),
        seed=draw,
        evaluations=setting.evaluations,
        final_runs=FRESH_RUNS,
    )
    return {"draw": draw, "family": family, "devices": devices, "machine": vars(case.machine)} | row


def region(setting: Setting, ratio: float, slowness: float) -> dict[str, float]:
    """Return reductions of the makespan where only GPU launches are hidden, a fraction ``ratio`` of the median task."""
    loosen_packing()
    machine = Machine(1e-3, slowness, 0.4, 1e-5, 1.5e10, 1.5e10)
    truth = Truth(Overheads(dispatch_s={"cuda": min(1.0, ratio * machine.task_s)}))
    found: dict[str, float] = {"ratio": ratio, "slowness": slowness}
    made = {name: make_case(setting, machine, truth, name, cost_seed=1, noise_seed=1).virtual() for name in MODES}
    plain = {name: made[name].expected_s(made[name].plan(Overheads())[0]) for name in made}
    best_s = made[BOTH].oracle()[1]
    with Bed(made[BOTH], seed=1, evaluations=4) as bed:
        ours_s = made[BOTH].expected_s(bed.bench.program(ARMS["regression"](bed)))
    for against, name in (("same devices", BOTH), ("GPU only", GPU)):
        found[f"oracle, {against}"] = 1.0 - best_s / plain[name]
        found[f"ours, {against}"] = 1.0 - ours_s / plain[name]
    return found


def loosen_packing() -> None:
    """Host memory is unlimited here, so buffers need not be packed tightly, which takes most of a plan's time."""
    buffers.MOST_TRIES = 1


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, run and print."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        _run(parser, args)
    except HeteroTaskError as error:
        parser.error(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="calibration.py", description="What calibration gains, part by part, on drawn truths."
    )
    parser.add_argument("--backend", choices=("virtual", "emulated", "machine"), default="virtual")
    parser.add_argument("--prior", type=Path, default=DEFAULT_PRIOR, help="YAML file of ranges")
    parser.add_argument("--draws", type=_count, default=None, help="default: 20 virtual, 2 emulated")
    parser.add_argument("--first", type=int, default=0, help="number of the first draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--families", type=_names(FAMILIES), default=list(FAMILIES), help=",".join(FAMILIES))
    parser.add_argument("--modes", type=_names(MODES), help=f"devices used: {','.join(MODES)}; emulated: {BOTH}")
    parser.add_argument("--evaluations", type=_count, help="measurements an arm; default: 20, elsewhere 6")
    parser.add_argument("--planner-evaluations", type=_count, default=200)
    parser.add_argument("--tiles", type=_count, help="rows and columns of tiles; default: 6, emulated 3, machine 4")
    parser.add_argument("--nodes", type=_count, default=2)
    parser.add_argument("--gpus", type=_count, help="GPUs a node; default: 8, emulated 2")
    parser.add_argument("--devices", default="cpu:1,opencl:1", help="of --backend machine")
    parser.add_argument("--jobs", type=_count, default=1, help="processes (virtual)")
    parser.add_argument("--no-region", action="store_true")
    parser.add_argument("--read", type=Path, nargs="+", help="report what earlier runs wrote with --out")
    parser.add_argument("--out", type=Path, help="file to append a JSON line a draw, family and devices to")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _names(known: Sequence[str]) -> Any:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is unknown; there are {', '.join(known)}")
        return [name for name in known if name in names]

    return parse


def _run(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if args.read:
        print(report([row for path in args.read for row in _read(parser, path)]))
        return
    virtual = args.backend == "virtual"
    evaluations = args.evaluations or (20 if virtual else 6)
    if evaluations < 2:
        parser.error("--evaluations: it takes at least 2 to compare anything")
    if args.backend == "machine":
        for line in on_this_machine(args.devices, tiles=args.tiles or 4, seed=args.seed, evaluations=evaluations):
            print(line, flush=True)
        return
    if args.out:
        try:
            args.out.open("a").close()
        except OSError as error:
            parser.error(f"--out {args.out}: {error.strerror}")
    setting = Setting(
        args.prior,
        args.seed,
        evaluations,
        args.planner_evaluations,
        args.tiles or (6 if virtual else 3),
        1024 if virtual else 64,
        args.nodes,
        args.gpus or (8 if virtual else 2),
        CPUS[args.backend],
        here=not virtual,
    )
    Prior.read(args.prior)
    cases = [
        (draw, family, devices)
        for draw in range(args.first, args.first + (args.draws or (20 if virtual else 2)))
        for family in args.families
        for devices in args.modes or (MODES if virtual else (BOTH,))
    ]
    rows = []
    cells: list[dict[str, float]] = []
    for row in _virtual(setting, cases, cells, args) if virtual else (emulated_row(setting, *case) for case in cases):
        rows.append(row)
        print(f"draw {row['draw']}, {row['family']}, {row['devices']}: {row['status']}", flush=True)
        if args.out:
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    if not virtual:
        print("emulated: logical times, no measurements of a machine")
    print(report(rows))
    if cells:
        print(region_text(cells))


def _virtual(
    setting: Setting,
    cases: Sequence[tuple[int, Family, str]],
    cells: list[dict[str, float]],
    args: argparse.Namespace,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of all cases, in order; then fill ``cells`` with those of the region."""
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        rows = [pool.submit(one, setting, *case) for case in cases]
        regions = [pool.submit(region, setting, r, s) for r in RATIOS for s in SLOWNESSES if not args.no_region]
        for row in rows:
            yield row.result()
        cells += [cell.result() for cell in regions]


def _read(parser: argparse.ArgumentParser, path: Path) -> list[dict[str, Any]]:
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not rows or not all(isinstance(row, dict) and "makespan_s" in row for row in rows):
            raise ValueError("it holds no rows")
    except (OSError, ValueError) as error:
        parser.error(f"--read {path} was not written by --out: {error}")
    return rows
