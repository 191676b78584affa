"""One application and size on one device set: both sides made ready, then run job by job."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import baseline
from build import build
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


class WrongResultError(RuntimeError):
    """A side's results do not pass the application's check."""


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
    """Measured runs of our calibration, and of the tuning of StarPU."""

    @property
    def key(self) -> str:
        """What a row of this case is found by."""
        told = " ".join(f"{name}={value}" for name, value in self.params.items())
        return f"{self.application} {told} on {self.devices}" + (f", {self.tune} runs of tuning" if self.tune else "")

    def prepare(self, progress: Callable[[str], None]) -> None:
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
            self.settings.append(
                baseline.tuned(self.starpu, self.folder / "tuning", measurements=self.tune, progress=progress)
            )

    @property
    def sides(self) -> list[str]:
        """Ours, and StarPU's configurations."""
        return [OURS, *(setting.label for setting in self.settings)]

    def once(self, label: str) -> dict[str, float]:
        """Run a job that runs the graph once; return its ``completion_s``, of StarPU also what it consists of."""
        answer = self._run(label, 1)
        window_s = answer["makespan_s"][0]
        parts = {"completion_s": answer["completion_s"], "once_s": window_s}
        return parts | {name: answer[name] for name in ("native_s", "python_s", "start_s") if name in answer}

    def several(self, label: str) -> tuple[float, dict[str, float]]:
        """Run a job that runs the graph a few times; return medians of all but the first run, which touches all once.

        They are the makespan in seconds, and kernel → seconds of all its tasks together.
        """
        answer = self._run(label, 1 + REPEATS)
        kernels = answer["kernels_s"][1:]
        sums = {name: statistics.median(each.get(name, 0.0) for each in kernels) for name in kernels[0]}
        return statistics.median(answer["makespan_s"][1:]), sums

    def _run(self, label: str, repeats: int) -> dict[str, Any]:
        if label == OURS:
            return self.ours.run(repeats=repeats)
        setting = next(s for s in self.settings if s.label == label)
        # Our runs write into new folders too.
        shutil.rmtree(self.folder / "results", ignore_errors=True)
        return self.starpu.run(setting, self.folder / "results", repeats=repeats)

    def check(self) -> None:
        """Check the results that both sides wrote last; raises :class:`WrongResultError`."""
        app = find_application(self.application)
        for side, passed in (
            (OURS, self.ours.check()),
            ("StarPU", app.check(app.Params(**self.params), self.folder / "results").passed),
        ):
            if not passed:
                raise WrongResultError(f"{self.key}: {side} computed wrong results")
