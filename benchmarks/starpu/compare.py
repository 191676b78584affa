"""HeteroTask and StarPU side by side: the same kernels, the same machine, one run.

    python benchmarks/starpu/compare.py [--quick] [--apps heat cholesky ...] [--devices cpu:2 ...] [--rounds 15]

For every application, size and device set: our plan is profiled, calibrated and planned; StarPU's models are
calibrated, ``STARPU_SCHED_BETA`` is tuned with as many measured runs; then both run by turns, every StarPU scheduler in
its own process. Printed are medians of the task-window makespan (first task's start to last task's end) and of the
completion time (launch of the job to its end, results on disk), and the ratio ours / StarPU with its 95 % interval
(bootstrap). Where we lose, our decomposition of the last run says where the time went. ``--quick`` takes the small
sizes, three rounds, and neither calibration nor tuning.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import baseline
import numpy as np
from build import build, install
from job import Devices, Setting, Starpu
from ours import Ours

from heterotask_core.apps import find_application

SIZES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "canny": ({"size": 2048, "tile": 512}, {"size": 4096, "tile": 1024}),
    "cholesky": ({"size": 2048, "tile": 256}, {"size": 4096, "tile": 512}),
    "heat": ({"size": 1024, "tile": 256, "steps": 50}, {"size": 2048, "tile": 512, "steps": 50}),
    "kmeans": (
        {"picture": "china", "block": 32_768, "iterations": 10},
        {"picture": "retina", "block": 262_144, "iterations": 10},
    ),
    "mosaic": ({"size": 512, "count": 24, "tile": 256}, {"size": 1024, "count": 24, "tile": 512}),
}
"""Application → a small and a large problem."""
DEVICES = ("cpu:2", "cpu:1,opencl:1", "2xcpu:1")
"""``2x``: two virtual nodes, StarPU-MPI against our MPI."""
REPEATS = 3
"""Runs in a job whose makespans count; one before them does not."""
OURS = "HeteroTask"
SAMPLES = 2000
"""Of the bootstrap."""
PAPER = 0.197
"""The smallest reduction of completion time that the paper reports."""


@dataclass
class Times:
    """Seconds of one side."""

    makespan_s: list[float] = field(default_factory=list)
    """Median of each job's runs."""
    completion_s: list[float] = field(default_factory=list)
    """Of jobs that run the graph once."""
    native_s: list[float] = field(default_factory=list)
    """The same of StarPU without its driver's Python: from starpu_init to the end of starpu_shutdown."""


def ratio(ours: list[float], other: list[float]) -> tuple[float, float, float]:
    """Return ours / other of the medians, and the ends of its 95 % bootstrap interval over rounds."""
    rng = np.random.default_rng(0)
    a, b = np.asarray(ours), np.asarray(other)
    picks = rng.integers(0, len(a), (SAMPLES, len(a)))
    drawn = np.median(a[picks], axis=1) / np.median(b[picks], axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.median(a) / np.median(b)), float(low), float(high)


def parse_nodes(text: str) -> tuple[int, str]:
    """Read ``2xcpu:1`` as two nodes of ``cpu:1``; one node without a number."""
    count, x, each = text.partition("x")
    return (int(count), each) if x and count.isdigit() else (1, text)


@dataclass
class Case:
    """One application and size on one device set."""

    application: str
    params: dict[str, Any]
    devices: str
    folder: Path
    tune: int

    def prepare(self) -> None:
        """Profile, calibrate and plan ours; calibrate and tune StarPU."""
        nodes, each = parse_nodes(self.devices)
        self.ours = Ours.prepare(
            self.application, self.params, each, self.folder / "store", nodes=nodes, calibrate=self.tune
        )
        devices = Devices.parse(each)
        starpu = Starpu(
            self.application,
            self.params,
            devices,
            build(mpi=nodes > 1),
            # One home for all: the bus is measured once, models are kept by application.
            self.folder.parent / "starpu",
            fastest=self.ours.fastest,
            # StarPU-MPI leaves the distribution to the application: it gets the one that our planner has found.
            ranks=self.ours.node_of_tasks() if nodes > 1 else [],
        )
        self.starpu = baseline.calibrate(starpu, self.folder / "calibration")
        self.settings = [Setting(p) for p in baseline.POLICIES if p != "heteroprio" or devices.opencls]
        if self.tune:
            found = baseline.tuned(
                self.starpu, self.folder / "tuning", measurements=self.tune, progress=lambda line: _say(f"  {line}")
            )
            self.settings.append(found)

    def measure(self, rounds: int, *, completion: bool = True) -> dict[str, Times]:
        """Run both sides by turns, starting with another one each round; ``completion``: also jobs of one run."""
        labels = [OURS, *(s.label for s in self.settings)]
        times = {label: Times() for label in labels}
        for k in range(rounds):
            for label in labels[k % len(labels) :] + labels[: k % len(labels)]:
                if completion:
                    once = self._run(label, 1)
                    times[label].completion_s.append(once["completion_s"])
                    times[label].native_s.append(once.get("native_s", once["completion_s"]))
                more = self._run(label, REPEATS)
                times[label].makespan_s.append(statistics.median(more["makespan_s"][-REPEATS:]))
        return times

    def _run(self, label: str, repeats: int) -> dict[str, Any]:
        if label == OURS:
            return self.ours.run(repeats=repeats)
        setting = next(s for s in self.settings if s.label == label)
        # As on our side, a run before those that count touches everything once.
        return self.starpu.run(setting, self.folder / "results", repeats=repeats + (repeats > 1))

    def check(self) -> None:
        """Check the results that both sides wrote last; raises :class:`SystemExit` where they are wrong."""
        app = find_application(self.application)
        for side, passed in (
            (OURS, self.ours.check()),
            ("StarPU", app.check(app.Params(**self.params), self.folder / "results").passed),
        ):
            if not passed:
                raise SystemExit(f"{self.application} on {self.devices}: {side} computed wrong results")


def _say(line: str) -> None:
    print(line, flush=True)


def show(case: Case, times: dict[str, Times]) -> list[dict[str, Any]]:
    """Print a case's table and return its rows."""
    rows = []
    own = times[OURS]
    _say(
        f"  {'':18} {'makespan':>9} {'ours/it':>8} {'95 % interval':>15} "
        f"{'completion':>11} {'ours/it':>8} {'native':>8}"
    )
    for label, side in times.items():
        makespan, low, high = ratio(own.makespan_s, side.makespan_s)
        completion, _, _ = ratio(own.completion_s, side.completion_s)
        row = {
            "application": case.application,
            "devices": case.devices,
            "params": case.params,
            "side": label,
            "makespan_s": statistics.median(side.makespan_s),
            "makespan_ratio": makespan,
            "low": low,
            "high": high,
            "completion_s": statistics.median(side.completion_s),
            "completion_ratio": completion,
            "native_s": statistics.median(side.native_s),
        }
        rows.append(row)
        _say(
            f"  {label:18} {row['makespan_s'] * 1e3:9.1f} {makespan:8.3f} {low:7.3f}-{high:7.3f} "
            f"{row['completion_s'] * 1e3:11.0f} {completion:8.3f} {row['native_s'] * 1e3:8.0f}"
        )
    best = min((r for r in rows if r["side"] != OURS), key=lambda r: r["makespan_s"])
    _say(
        f"  best StarPU: {best['side']}; ours takes {best['makespan_ratio'] - 1:+.1%} makespan "
        f"({'at least' if 1 - best['makespan_ratio'] >= PAPER else 'not'} 19.7 % less)"
    )
    if best["makespan_ratio"] > 1:
        _say("  we lose; where our time went:\n" + "\n".join(f"    {x}" for x in case.ours.report().splitlines()))
    return rows


def main() -> int:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--apps", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--devices", nargs="+", default=list(DEVICES))
    parser.add_argument("--rounds", type=int, help="jobs of each kind and side (15; 3 with --quick)")
    parser.add_argument("--tune", type=int, help="measured runs of our calibration and of the tuning (12; --quick: 0)")
    parser.add_argument("--quick", action="store_true", help="small sizes, few runs")
    parser.add_argument("--out", type=Path, help="CSV file")
    arguments = parser.parse_args()
    install()
    if any(parse_nodes(devices)[0] > 1 for devices in arguments.devices):
        install(mpi=True)
    rounds = arguments.rounds or (3 if arguments.quick else 15)
    tune = arguments.tune if arguments.tune is not None else (0 if arguments.quick else 12)
    busy, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if busy > cores / 4:
        _say(
            f"the machine is busy (load {busy:.1f} on {cores} cores): these figures compare more than the two runtimes"
        )
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.apps:
            for size, params in enumerate(SIZES[name][: 1 if arguments.quick else 2]):
                for devices in arguments.devices:
                    start_s = time.monotonic()
                    _say(f"{name} {params} on {devices}")
                    case = Case(name, params, devices, Path(folder) / f"{name}-{size}-{devices}", tune)
                    case.prepare()
                    times = case.measure(rounds)
                    case.check()
                    rows += show(case, times)
                    _say(f"  {rounds} rounds, {time.monotonic() - start_s:.0f} s; milliseconds, medians")
    if arguments.out:
        with arguments.out.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
