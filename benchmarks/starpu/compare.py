"""HeteroTask and StarPU side by side: the same kernels, the same machine, one run.

    python benchmarks/starpu/compare.py [--sizes small] [--apps heat cholesky ...] [--devices cpu:2 ...] [--rounds 15]
    python benchmarks/starpu/compare.py --time-limit 40 --tune 0 --out starpu.jsonl
    python benchmarks/starpu/compare.py --read starpu.jsonl

For every application, size and device set: our plan is profiled, calibrated and planned; StarPU's models are
calibrated, ``STARPU_SCHED_BETA`` is tuned with as many measured runs; then both run by turns, every StarPU scheduler in
its own process. Printed are medians of the task-window makespan (first task's start to last task's end) and of the
completion time (launch of the job to its end, results on disk), and the ratios ours / StarPU with their 95 % intervals
(bootstrap). Where we lose, our decomposition of the last run says where the time went. Every round is in ``--out``
before the next begins; the same command again goes on with the cases that are missing there.

``--time-limit`` shares the minutes out among the cases, large ones twice: as many rounds as fit, at least two. A job of
each StarPU configuration comes before; the two with the shortest makespans and ``dmdas`` take part in the rounds.
``--quick`` takes the small sizes, three rounds, and neither calibration nor tuning.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from build import install
from cases import DEVICES, OURS, SIZES, Case, WrongResultError, parse_nodes
from checks import devices_of_both, run_case_program, shared
from layer import StarPuError
from rows import PLAIN, Rows, lost, overview, table

from heterotask_core.errors import HeteroTaskError

ROUNDS = 15
LEAST_ROUNDS = 2
TUNING = 12
"""Measured runs that our calibration and StarPU's tuning may take."""
KEPT = 2
"""Configurations that a limited time leaves beside the plain one, if that is not among them."""


@dataclass
class Clock:
    """What is left of a limited time, for the cases that are left."""

    end_s: float
    weights: list[int]

    @staticmethod
    def of(minutes: float | None, weights: Sequence[int]) -> Clock | None:
        """Return a clock that starts now; None without a limit."""
        return None if minutes is None else Clock(time.monotonic() + 60 * minutes, list(weights))

    def share(self) -> float:
        """Return when the next case should end."""
        now_s = time.monotonic()
        weight, total = self.weights[0], sum(self.weights)
        del self.weights[0]
        return now_s + (self.end_s - now_s) * weight / total


def measure(case: Case, rows: Rows, *, rounds: int, end_s: float | None) -> None:
    """Run both sides by turns, starting with another one each round, for so many rounds or until ``end_s``."""
    labels = case.sides if end_s is None else screened(case, rows)
    longest_s = 0.0
    for k in range(rounds):
        start_s = time.monotonic()
        if end_s is not None and k >= LEAST_ROUNDS and start_s + longest_s > end_s:
            break
        for label in labels[k % len(labels) :] + labels[: k % len(labels)]:
            once = case.once(label)
            makespan_s, kernels = case.several(label)
            rows.add(case=case.key, side=label, round=k, makespan_s=makespan_s, **once, kernels=kernels)
        longest_s = max(longest_s, time.monotonic() - start_s)


def screened(case: Case, rows: Rows) -> list[str]:
    """Run a job of each StarPU configuration; return ours, the plain one and the best, and keep what it took."""
    taken = {label: case.several(label)[0] for label in case.sides if label != OURS}
    keep = {OURS, PLAIN, *sorted(taken, key=lambda label: taken[label])[:KEPT]}
    rows.add(case=case.key, left_out={label: value for label, value in taken.items() if label not in keep})
    return [label for label in case.sides if label in keep]


def run(case: Case, rows: Rows, *, rounds: int, end_s: float | None) -> str:
    """Prepare, measure and check a case; return how long that took, in words."""
    start_s = time.monotonic()
    case.prepare(lambda line: _say(f"  {line}"))
    ready_s = time.monotonic()
    measure(case, rows, rounds=rounds, end_s=end_s)
    case.check()
    rows.add(case=case.key, done=True, report=case.ours.report() if lost(rows.sides(case.key)) else "")
    return f"{ready_s - start_s:.0f} s to get ready, {time.monotonic() - ready_s:.0f} s to measure"


def _say(line: str) -> None:
    print(line, flush=True)


def _arguments() -> argparse.Namespace:
    parser = shared.Parser(description=__doc__.partition("\n")[0])
    parser.add_argument("--apps", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--sizes", nargs="+", default=["small", "large"], choices=["small", "large"])
    parser.add_argument("--devices", nargs="+", type=devices_of_both, default=list(DEVICES))
    parser.add_argument("--rounds", type=shared.whole(), help=f"jobs of each kind and side ({ROUNDS}; 3 with --quick)")
    parser.add_argument("--time-limit", type=shared.number(positive=True), metavar="MIN", help="for all cases together")
    parser.add_argument(
        "--tune",
        type=shared.whole(0),
        help=f"measured runs of our calibration and of the tuning ({TUNING}; --quick: 0)",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, few runs")
    parser.add_argument(
        "--out", type=shared.file_to_write, help="file of all rounds (JSON lines); a case that is complete there stays"
    )
    parser.add_argument("--read", type=shared.file_to_read, help="print the tables of such a file, run nothing")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sizes = ["small"]
    arguments.rounds = arguments.rounds or (3 if arguments.quick else ROUNDS)
    if arguments.tune is None:
        arguments.tune = 0 if arguments.quick else TUNING
    return arguments


def show(rows: Rows) -> None:
    """Print all tables, and the overview."""
    for case in rows.cases():
        for line in table(rows, case):
            _say(line)
    for line in overview(rows):
        _say(line)


def main() -> int:
    """Run all cases."""
    arguments = _arguments()
    if arguments.read:
        rows = Rows.read(arguments.read)
        if not rows.rows:
            raise shared.RefusedError(f"{arguments.read} holds no rounds; give what --out has written")
        show(rows)
        return 0
    rows = Rows.read(arguments.out) if arguments.out else Rows()
    install()
    if any(parse_nodes(devices)[0] > 1 for devices in arguments.devices):
        install(mpi=True)
    busy, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if busy > cores / 4:
        _say(
            f"the machine is busy (load {busy:.1f} on {cores} cores): these figures compare more than the two runtimes"
        )
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        cases = [
            Case(name, params, devices, Path(folder) / f"{name}-{size}-{devices}", arguments.tune)
            # Small ones first, so that a run that is killed has something of every application.
            for size in arguments.sizes
            for name in arguments.apps
            for params in [SIZES[name][size == "large"]]
            for devices in arguments.devices
        ]
        cases = [case for case in cases if rows.done(case.key) is None]
        clock = Clock.of(arguments.time_limit, [1 + (case.params in [x[1] for x in SIZES.values()]) for case in cases])
        for case in cases:
            rows.forget(case.key)
            end_s = None if clock is None else clock.share()
            try:
                told = run(case, rows, rounds=arguments.rounds, end_s=end_s)
            except (HeteroTaskError, StarPuError, WrongResultError, subprocess.TimeoutExpired) as error:
                failed, told = True, "not complete"
                rows.add(case=case.key, failed=str(error))
            for line in table(rows, case.key):
                _say(line)
            _say(f"  {told}")
    for line in overview(rows):
        _say(line)
    return int(failed)


if __name__ == "__main__":
    run_case_program(main)
