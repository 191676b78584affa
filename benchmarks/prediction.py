"""How well the profile predicts the makespan, without any calibration.

python benchmarks/prediction.py [APP] [-p NAME=VALUE] [--devices cpu:2 --devices cpu:1,opencl:1] [--rounds 3]

Every round profiles into an empty store, plans, and executes the plan ``--repeats`` times in one job. Two profiles
are compared in the same round: "bare" times each kernel alone on one set of arrays and takes copies to run beside
kernels; "full" rotates through as much memory as the graph does, times kernels again while all devices compute, and
measures which copies take turns with kernels. Each plans and runs its own plan, as a user would. Printed: predicted
and measured makespan (median over the repeats after the first), the prediction's relative error with its spread over
rounds, the ratio of measured to predicted kernel time, and how much of the cores others used meanwhile: above a few
per cent the figures say little.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
import psutil
from arguments import Parser, number, run_program, whole

from heterotask_core.apps import find_application, parse_params
from heterotask_core.platform.discover import discover
from heterotask_core.profiling import footprint
from heterotask_core.profiling.measure import Profile
from heterotask_core.stages import Workflow, execute_stage, plan_stage, profile_stage
from heterotask_core.store import Store


@dataclass(frozen=True)
class Outcome:
    """One round of one profile."""

    predicted_s: float
    measured_s: list[float]
    kernel_ratio: float
    other_load: float

    @property
    def error(self) -> float:
        """Relative error of the prediction; negative: too optimistic."""
        return self.predicted_s / self.settled_s - 1.0

    @property
    def settled_s(self) -> float:
        """Median makespan after the first repeat."""
        return median(self.measured_s[1:] or self.measured_s)


def run_round(workflow: Workflow, store: Store, *, bare: bool, repeats: int, budget_s: float) -> Outcome:
    """Profile (about ``budget_s`` seconds, twice that beside other load), plan and execute."""
    with _largest_footprint(0 if bare else footprint.LARGEST_BYTES):
        profiled = profile_stage(workflow, store, budget_s=budget_s)
    if bare:
        profiled = _bare(profiled)
    plan = plan_stage(workflow, profiled, store)
    with _other_load() as load:
        run = execute_stage(workflow, plan, store, repeats=repeats)
    kernels = run.trace.filter((pl.col("kind") == "kernel") & (pl.col("repeat") > 0))
    took = (kernels["finish_s"] - kernels["start_s"]).sum()
    planned = (kernels["planned_finish_s"] - kernels["planned_start_s"]).sum()
    return Outcome(plan.predicted_s, list(run.result.makespan_s), took / planned, load[0])


def _bare(profiled: Profile) -> Profile:
    return replace(
        profiled, busy=profiled.busy.clear(), pairs=profiled.pairs.clear(), fingerprint=f"bare-{profiled.fingerprint}"
    )


@contextmanager
def _largest_footprint(size_bytes: int) -> Iterator[None]:
    before = footprint.LARGEST_BYTES
    footprint.LARGEST_BYTES = size_bytes
    try:
        yield
    finally:
        footprint.LARGEST_BYTES = before


@contextmanager
def _other_load() -> Iterator[list[float]]:
    """Yield a list that holds afterwards the share of all cores that other processes used."""
    found = [0.0]
    before, own = psutil.cpu_times(), _own_s()
    yield found
    after = psutil.cpu_times()
    passed = sum(after) - sum(before)
    idle = after.idle + after.iowait - before.idle - before.iowait
    found[0] = max(0.0, (passed - idle - (_own_s() - own)) / passed)


def _own_s() -> float:
    return sum(
        u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def main() -> None:
    """Run all rounds and print a line for each device set and profile."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("app", nargs="?", default="canny")
    parser.add_argument("-p", "--param", action="append", default=[])
    parser.add_argument("--devices", action="append")
    parser.add_argument("--rounds", type=whole(), default=3)
    parser.add_argument("--repeats", type=whole(), default=7)
    parser.add_argument(
        "--profile-budget", type=number(positive=True), default=20.0, help="seconds of profiling, a round and profile"
    )
    _run(parser.parse_args())


def _run(options: argparse.Namespace) -> None:
    app = find_application(options.app)
    params = parse_params(app, options.param)
    platforms = {devices: discover(devices) for devices in options.devices or ["cpu:2", "cpu:1,opencl:1"]}
    print(f"{options.app} {' '.join(options.param)}, {os.cpu_count()} cores, {options.rounds} rounds")
    for devices, platform in platforms.items():
        workflow = Workflow.of(app, params, platform)
        outcomes: dict[str, list[Outcome]] = {"bare": [], "full": []}
        for _ in range(options.rounds):
            for name, found in outcomes.items():
                with tempfile.TemporaryDirectory() as folder:
                    store = Store(Path(folder) / "store")
                    found.append(
                        run_round(
                            workflow,
                            store,
                            bare=name == "bare",
                            repeats=options.repeats,
                            budget_s=options.profile_budget,
                        )
                    )
        for name, found in outcomes.items():
            print(_line(devices, name, found), flush=True)


def _line(devices: str, name: str, found: list[Outcome]) -> str:
    def middle(value: Any) -> float:
        return median(value(o) for o in found)

    errors = sorted(o.error for o in found)
    first_s = middle(lambda o: o.measured_s[0])
    return (
        f"{devices:16} {name:5} predicted {1e3 * middle(lambda o: o.predicted_s):7.1f} ms, "
        f"measured {1e3 * middle(lambda o: o.settled_s):7.1f} ms (first {1e3 * first_s:.1f}), "
        f"error {100 * median(errors):+6.1f} % ({100 * errors[0]:+.1f} to {100 * errors[-1]:+.1f}), "
        f"kernels in a run / profile {middle(lambda o: o.kernel_ratio):.3f}, "
        f"other load {100 * middle(lambda o: o.other_load):.0f} %"
    )


if __name__ == "__main__":
    run_program(main)
