"""The arms on drawn truths, the region of large gains, and the command line of ``benchmarks/calibration.py``."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

from arguments import (
    Parser,
    RefusedError,
    Row,
    among,
    file_to_read,
    file_to_write,
    listed,
    read_rows,
    whole,
)
from calibration_arms import ARMS, Bed, compare_arms, list_plans
from calibration_machine import Setting, draw_case, make_case
from calibration_real import emulated_row, on_this_machine
from calibration_report import region_text, report
from pydantic import model_validator

from calibration.prior import DEFAULT_PRIOR, FAMILIES, Family, Machine, Prior
from calibration.virtual import Truth
from heterotask_core.errors import CalibrationError
from heterotask_core.profiling.costs import Overheads
from heterotask_core.program import buffers

GPU, BOTH = "GPU", "CPU+GPU"
MODES = (GPU, BOTH)
CPUS = {"virtual": {GPU: 0, BOTH: 4}, "emulated": {GPU: 0, BOTH: 1}}
"""Backend → devices used → CPU groups a node. Of emulated devices each is a process."""
FRESH_RUNS = 25
RATIOS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SLOWNESSES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
COMPARED = ("uncalibrated", "regression + BO", "accepted", "oracle")
"""Arms without which there is nothing to report."""


class Measured(Row):
    """A line that ``--out`` keeps; see ``compare_arms``."""

    draw: int
    family: str
    devices: str
    makespan_s: dict[str, float]
    true_s: dict[str, float]
    half: dict[str, float]
    seconds: dict[str, float]
    spent: dict[str, float]
    status: str
    evaluations: int
    runs: int
    makespan_before: float = math.nan
    makespan_after: float = math.nan
    op_before: float = math.nan
    op_after: float = math.nan

    @model_validator(mode="after")
    def _arms(self) -> Self:
        if missing := [arm for arm in COMPARED if arm not in self.makespan_s]:
            raise ValueError(f"makespan_s lacks {missing[0]!r}")
        if self.makespan_s.keys() != self.true_s.keys():
            raise ValueError("makespan_s and true_s are of different arms")
        if self.spent and not {"own", "planning", "optimising"} <= self.spent.keys():
            raise ValueError("spent lacks own, planning or optimising")
        return self


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


def main() -> None:
    """Parse the command line, run and print."""
    _run(_parser().parse_args())


def _parser() -> Parser:
    parser = Parser(prog="calibration.py", description="What calibration gains, part by part, on drawn truths.")
    parser.add_argument("--backend", choices=("virtual", "emulated", "machine"), default="virtual")
    parser.add_argument("--prior", type=file_to_read, default=DEFAULT_PRIOR, help="YAML file of ranges")
    parser.add_argument("--draws", type=whole(), default=None, help="default: 20 virtual, 2 emulated")
    parser.add_argument("--first", type=whole(0), default=0, help="number of the first draw")
    parser.add_argument("--seed", type=whole(0), default=0)
    parser.add_argument("--families", type=listed(among(FAMILIES)), default=list(FAMILIES), help=",".join(FAMILIES))
    parser.add_argument("--modes", type=listed(among(MODES)), help=f"devices used: {','.join(MODES)}; emulated: {BOTH}")
    parser.add_argument("--evaluations", type=whole(2), help="measurements an arm; default: 20, elsewhere 6")
    parser.add_argument("--planner-evaluations", type=whole(), default=200)
    parser.add_argument("--tiles", type=whole(), help="rows and columns of tiles; default: 6, emulated 3, machine 4")
    parser.add_argument("--nodes", type=whole(), default=2)
    parser.add_argument("--gpus", type=whole(), help="GPUs a node; default: 8, emulated 2")
    parser.add_argument("--devices", default="cpu:1,opencl:1", help="of --backend machine")
    parser.add_argument("--jobs", type=whole(), default=1, help="processes (virtual)")
    parser.add_argument("--no-region", action="store_true")
    parser.add_argument("--read", type=file_to_read, nargs="+", help="report what earlier runs wrote with --out")
    parser.add_argument("--out", type=file_to_write, help="file to append a JSON line a draw, family and devices to")
    return parser


def _run(args: argparse.Namespace) -> None:
    if args.read:
        print(report(_read(args.read)))
        return
    virtual = args.backend == "virtual"
    evaluations = args.evaluations or (20 if virtual else 6)
    if args.backend == "machine":
        for line in on_this_machine(args.devices, tiles=args.tiles or 4, seed=args.seed, evaluations=evaluations):
            print(line, flush=True)
        return
    try:
        Prior.read(args.prior)
    except CalibrationError as error:
        raise RefusedError(str(error)) from None
    if args.out and args.out.exists():
        # What is appended to must be of this kind.
        read_rows(args.out, Measured)
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
            args.out.parent.mkdir(parents=True, exist_ok=True)
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


def _read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the rows of all files, which are of the same arms and errors."""
    rows: list[dict[str, Any]] = []
    for path in paths:
        found = read_rows(path, Measured)
        if not found:
            raise RefusedError(f"{path} holds no rows; name a file that --out has written")
        rows += found
        for k, row in enumerate(found, 1):
            if _columns(row) != _columns(rows[0]):
                raise RefusedError(
                    f"{path}, line {k}: its arms or errors are not those of the first line; read it alone"
                )
    return rows


def _columns(row: dict[str, Any]) -> tuple[list[str], list[str]]:
    return sorted(row["makespan_s"]), sorted(name for name in row if name.endswith(("_before", "_after")))
