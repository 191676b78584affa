"""What a calibration plans and measures, each once and each on disk before the next, whatever it does with it.

It knows plans and measurements only through an :class:`Evaluator`, so it is the same over MPI and over the simulator.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import polars as pl

from calibration.drift import class_durations
from calibration.estimate import Estimate, estimate_overheads
from calibration.journal import Journal, as_floats, overheads_key
from calibration.retime import retimed
from heterotask_core.errors import CalibrationError, HeteroTaskError
from heterotask_core.profiling.costs import Overheads
from heterotask_core.program.model import LaneKind, OpKind, Program
from heterotask_core.simulate import simulate

log = logging.getLogger(__name__)

MAX_FAILURES = 3
REPEATS = 3
"""Runs of a program a measurement."""


class Evaluator(Protocol):
    """Plans and measures; ``plan`` is deterministic, ``measure`` raises a ``HeteroTaskError`` when a run fails.

    ``device_kinds`` maps device names to device kinds, ``link_kinds`` (source, target) memories to link kinds;
    ``name`` tells one application, platform and profile from another. The first run after loading a program
    is the evaluator's to discard. ``disturbance`` is what else used the machine during the last measurement, in words;
    empty if nothing did.
    """

    name: str
    disturbance: str
    device_kinds: Mapping[str, str]
    link_kinds: Mapping[tuple[str, str], str]

    def plan(self, overheads: Overheads) -> tuple[Program, float]:
        """Return the program planned with ``overheads`` and its predicted makespan in seconds."""
        ...

    def measure(self, program: Program, repeats: int) -> tuple[Sequence[float], pl.DataFrame]:
        """Run ``program``; return the makespans in seconds, one a repeat, and the trace (``tables.TRACE``)."""
        ...


def program_key(program: Program) -> str:
    """Return a hash of what a run of ``program`` depends on: placement, variants and the order in every lane.

    Ops are named by what they do, so numbering, planned times and buffer offsets do not count, nor do capacity
    lanes, which nothing enforces.
    """
    place = [
        (int(program.residency_version[r]), int(program.residency_memory[r]))
        for r in range(len(program.residency_version))
    ]
    ops: list[list[int]] = []
    for n in range(program.n_ops):
        if program.op_kind[n] == OpKind.KERNEL:
            task = int(program.op_task[n])
            ops.append([0, task, int(program.task_device[task])])
        else:
            source, target = place[program.op_source[n]], place[program.op_target[n]]
            ops.append([int(program.op_kind[n]), *source, *target])
    lanes = {
        name: [ops[n] for n in program.lane_ops[program.lane_ptr[k] : program.lane_ptr[k + 1]]]
        for k, name in enumerate(program.lane_names)
        if program.lane_kinds[k] != LaneKind.CAPACITY
    }
    calls = [program.calls[c].variant for c in program.task_call]
    text = json.dumps([program.graph_fingerprint, lanes, calls], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Bench:
    """Plans and measurements so far, each recorded or replayed.

    ``seconds`` is where the time of this process went: "planning", "running" and "optimising"; ``disturbed`` what else
    used the machine, a line a measurement.
    """

    def __init__(self, evaluator: Evaluator, journal: Journal) -> None:
        self.evaluator = evaluator
        self.evaluations = 0
        self.runs = 0
        self.disturbed: list[str] = []
        self.seconds = dict.fromkeys(("planning", "running", "optimising"), 0.0)
        self._journal = journal
        self._failures = 0
        self._planned: dict[str, str] = {}
        self._overheads: dict[str, Overheads] = {}
        self._predicted: dict[str, float] = {}
        self._programs: dict[str, Program] = {}
        self._samples: dict[str, list[float]] = {}
        self._traces: list[tuple[str, str]] = []
        self._read: dict[str, pl.DataFrame] = {}
        self.classes: dict[str, list[dict[str, float]]] = {}
        """Program → seconds of every op class, one mapping a run of the acceptance."""

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Count the time within as ``what``."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - began_s

    def plan(self, overheads: Overheads) -> str:
        """Return the key of the program planned with ``overheads``; raises what the planner raises."""
        vector = overheads_key(overheads)
        if vector in self._planned:
            return self._planned[vector]
        step = self._journal.replay("plan", vector)
        if step is None:
            with self.timed("planning"):
                program, predicted_s = self.evaluator.plan(overheads)
            step = {"program": program_key(program), "predicted_s": float(predicted_s)}
            # Kept with the overheads that reach it first (below): its planned times belong to them.
            if step["program"] not in self._overheads:
                self._programs[step["program"]] = program
            self._journal.append("plan", vector, step)
        key = str(step["program"])
        self._planned[vector] = key
        # The first overheads that reach a program stand for it: prediction and trace belong to them.
        self._overheads.setdefault(key, overheads)
        self._predicted.setdefault(key, float(step["predicted_s"]))
        return key

    def measure(self, key: str, *, required: bool = False) -> bool:
        """Measure a program once for all; return whether it worked (now or before)."""
        while key not in self._samples or (required and not self._samples[key]):
            self.evaluations += 1
            self._samples.setdefault(key, []).extend(self.run(key, REPEATS, keep_trace=True))
            if not required:
                break
        return self.usable(key)

    def run(self, key: str, repeats: int, *, keep_trace: bool = False) -> list[float]:
        """Run a program now; return makespans in seconds, none when it failed.

        Raises :class:`CalibrationError` at the third failure in a row.
        """
        step = self._journal.replay("run", key)
        self.runs += 1
        if step is None:
            step, trace = self._run(key, repeats)
            if trace is not None and not keep_trace:
                step["classes"] = {name: float(np.median(runs)) for name, runs in class_durations(trace).items()}
                trace = None
            step = self._journal.append("run", key, step, trace=trace)
            if trace is not None:
                self._read[step["trace"]] = trace
        if "failure" in step:
            self._failures += 1
            if self._failures == MAX_FAILURES:
                raise CalibrationError(
                    f"{MAX_FAILURES} evaluations in a row failed, the last with: {step['failure']}; "
                    "the plan in use is unchanged"
                )
            return []
        self._failures = 0
        if "disturbed" in step:
            self.disturbed.append(step["disturbed"])
        if "classes" in step:
            self.classes.setdefault(key, []).append(step["classes"])
        if "trace" in step:
            self._traces.append((key, step["trace"]))
        return list(step["makespans_s"])

    def _run(self, key: str, repeats: int) -> tuple[dict[str, Any], pl.DataFrame | None]:
        program = self._program(key)
        try:
            with self.timed("running"):
                makespans, trace = self.evaluator.measure(program, repeats)
        except CalibrationError:
            raise
        except HeteroTaskError as error:
            log.warning("evaluation failed: %s", error)
            return {"failure": str(error)}, None
        values = as_floats(makespans)
        if not values or not all(math.isfinite(v) and v > 0 for v in values):
            return {"failure": f"the makespans {values} are not positive times"}, None
        if self.evaluator.disturbance:
            return {"makespans_s": values, "disturbed": self.evaluator.disturbance}, trace
        return {"makespans_s": values}, trace

    def _program(self, key: str) -> Program:
        if key not in self._programs:
            # Only on resume: the record holds the key, the planner makes the program again.
            with self.timed("planning"):
                program, _ = self.evaluator.plan(self._overheads[key])
            if program_key(program) != key:
                raise CalibrationError(
                    "planning again gave another program than recorded: application, platform, profile or planner "
                    "changed; start the calibration again in another directory"
                )
            self._programs[key] = program
        return self._programs[key]

    def estimate(self) -> Estimate:
        """Estimate the overheads from all traces so far."""
        for _, name in self._traces:
            if name not in self._read:
                self._read[name] = self._journal.trace(name)
        traces = [(self._read[name], self._overheads[key]) for key, name in self._traces]
        return estimate_overheads(
            traces, device_kinds=self.evaluator.device_kinds, link_kinds=self.evaluator.link_kinds
        )

    def repeat(self, key: str) -> bool:
        """Measure a known program again and pool its samples; return whether it worked."""
        self.evaluations += 1
        self._samples.setdefault(key, []).extend(self.run(key, REPEATS, keep_trace=True))
        return self.usable(key)

    def best(self) -> str:
        """The key of the program with the smallest mean log makespan measured."""
        return min((key for key in self._samples if self.usable(key)), key=self.log_makespan)

    def program(self, key: str) -> Program:
        """The program itself."""
        return self._program(key)

    def predicted_with_s(self, key: str, overheads: Overheads) -> float:
        """Predicted makespan in seconds of a program under other overheads than those that reached it."""
        step = self._journal.replay("predict", key)
        if step is None:
            program = self._program(key)
            seconds = retimed(
                program,
                self._overheads[key],
                overheads,
                device_kinds=self.evaluator.device_kinds,
                link_kinds=self.evaluator.link_kinds,
            )
            step = self._journal.append("predict", key, {"predicted_s": simulate(program, seconds).makespan_s})
        return float(step["predicted_s"])

    def known(self, key: str) -> bool:
        """Whether the program was measured or tried."""
        return key in self._samples

    def usable(self, key: str) -> bool:
        """Whether there are makespans of the program."""
        return bool(self._samples.get(key))

    def promising(self, key: str, *, than: str) -> bool:
        """Whether a measured program is not plainly slower than another: what acceptance would only confirm."""
        slack = self.noise() * math.sqrt(2 / REPEATS)
        return self.usable(key) and self.log_makespan(key) < self.log_makespan(than) + slack

    def samples_s(self, key: str) -> list[float]:
        """All makespans of a program measured in the search, pooled."""
        return self._samples[key]

    def median_s(self, key: str) -> float:
        """Median makespan in seconds."""
        return float(np.median(self._samples[key]))

    def log_makespan(self, key: str) -> float:
        """Mean log makespan; of a program that failed, twice the worst makespan seen."""
        if self.usable(key):
            return float(np.mean(np.log(self._samples[key])))
        return math.log(2 * max(max(s) for s in self._samples.values() if s))

    def noise(self) -> float:
        """Standard deviation of the log makespan of one run, pooled within programs (at least 0.1 %)."""
        logs = [np.log(s) for s in self._samples.values() if len(s) > 1]
        squares = sum(float(((x - x.mean()) ** 2).sum()) for x in logs)
        freedom = sum(len(x) - 1 for x in logs)
        return max(math.sqrt(squares / freedom) if freedom else 0.0, 1e-3)

    def overheads(self, key: str) -> Overheads:
        """The overheads that reached a program first."""
        return self._overheads[key]

    def predicted_s(self, key: str) -> float:
        """Predicted makespan in seconds under those overheads."""
        return self._predicted[key]
