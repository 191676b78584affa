"""A virtual machine to calibrate on: the simulator with a hidden truth in place of real runs.

Profiled costs are known to the planner; launch overheads, other speeds, contention and noise are not. What the
calibration sees of it is what it would see of a real run: makespans and a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from calibration.loop import program_key
from heterotask_core.graph import TaskGraph
from heterotask_core.planning.base import Budget, Planner
from heterotask_core.planning.from_graph import build_problem
from heterotask_core.platform.model import Platform
from heterotask_core.profiling.costs import CostModel, Overheads
from heterotask_core.program.lower import lower
from heterotask_core.program.model import OpKind, Program
from heterotask_core.simulate import simulate
from heterotask_core.trace import trace_table

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Truth:
    """What profiling did not see.

    ``overheads`` act as the estimated ones do (``overheads.contention`` is not used). ``interference`` slows a
    kernel by that fraction when all other devices are busy while it runs, and in proportion to the busy share
    otherwise. Noise is log-normal: ``op_noise`` an op, ``run_noise`` a run; a straggler takes
    ``straggler_factor`` times as long.
    """

    overheads: Overheads = field(default_factory=Overheads)
    interference: float = 0.0
    op_noise: float = 0.03
    run_noise: float = 0.01
    straggler_share: float = 0.001
    straggler_factor: float = 5.0


class VirtualEvaluator:
    """Evaluator (see :mod:`calibration.loop`) that plans for real and runs in the simulator.

    The noise of the n-th run of a program depends on ``seed``, program and n alone, so that two calibrations
    that measure the same programs see the same machine.
    """

    def __init__(
        self,
        graph: TaskGraph,
        platform: Platform,
        costs: CostModel,
        *,
        planner: Planner,
        truth: Truth,
        evaluations: int = 200,
        seed: int = 0,
    ) -> None:
        self.name = f"virtual {graph.fingerprint()} {platform.fingerprint()} {costs.fingerprint} seed {seed}"
        self.device_kinds: Mapping[str, str] = {d.name: d.variant_kind for d in platform.devices}
        self.link_kinds: Mapping[tuple[str, str], str] = {(x.source, x.target): x.kind for x in platform.links}
        self._plan = _planning(graph, platform, costs, planner, Budget(evaluations=evaluations))
        self._truth = truth
        self._seed = seed
        self._planned_with: dict[int, tuple[Program, Overheads]] = {}
        self._runs: dict[str, int] = {}

    def plan(self, overheads: Overheads) -> tuple[Program, float]:
        """Return the program planned with ``overheads`` and its simulated makespan in seconds."""
        program = self._plan(overheads)
        # Keyed by identity: the durations in a program depend on the overheads, its key does not.
        self._planned_with[id(program)] = (program, overheads)
        return program, simulate(program).makespan_s

    def measure(self, program: Program, repeats: int) -> tuple[Sequence[float], pl.DataFrame]:
        """Run a program of :meth:`plan` with the truth and fresh noise."""
        durations, waits = self._true_times(program, self._planned_with[id(program)][1])
        key = program_key(program)
        makespans, tables = [], []
        for repeat in range(repeats):
            rng = np.random.default_rng([self._seed, int(key, 16), self._runs.get(key, 0)])
            self._runs[key] = self._runs.get(key, 0) + 1
            taken = durations * self._noise(rng, len(durations))
            # Twice: contention depends on who runs beside whom, and that on contention.
            found = simulate(program, waits + taken)
            found = simulate(program, waits + taken * self._slowdown(program, found.start_s, found.finish_s))
            start = found.start_s + waits
            makespans.append(found.makespan_s)
            tables.append(trace_table(program, start, found.finish_s, origin="virtual", repeat=repeat))
        return makespans, pl.concat(tables)

    def expected_s(self, program: Program) -> float:
        """Return the makespan in seconds of a program of :meth:`plan` under the truth, without noise."""
        durations, waits = self._true_times(program, self._planned_with[id(program)][1])
        found = simulate(program, waits + durations)
        return simulate(program, waits + durations * self._slowdown(program, found.start_s, found.finish_s)).makespan_s

    def _true_times(self, program: Program, planned_with: Overheads) -> tuple[F64, F64]:
        """Return (N,) durations and (N,) waits before them, in seconds."""
        truth = self._truth.overheads
        durations, waits = program.op_duration_s.astype(np.float64), np.zeros(program.n_ops)
        for n in range(program.n_ops):
            planned = float(program.op_duration_s[n])
            if program.op_kind[n] == OpKind.KERNEL:
                task = int(program.op_task[n])
                kernel = program.calls[program.task_call[task]].kernel
                kind = self.device_kinds[program.device_names[program.task_device[task]]]
                constant = planned_with.task_s(kernel, kind, 0.0)
                profiled = (planned - constant) / (planned_with.task_s(kernel, kind, 1.0) - constant)
                waits[n] = truth.dispatch_s.get(kind, 0.0)
                durations[n] = truth.task_s(kernel, kind, profiled) - waits[n]
                continue
            ends = (program.residency_memory[program.op_source[n]], program.residency_memory[program.op_target[n]])
            if ends[0] != ends[1]:
                link = self.link_kinds[(program.memory_names[ends[0]], program.memory_names[ends[1]])]
                profiled = planned - planned_with.link_setup_s.get(link, 0.0)
                profiled /= planned_with.link_scale.get(link, 1.0)
                durations[n] = profiled * truth.link_scale.get(link, 1.0) + truth.link_setup_s.get(link, 0.0)
        return durations, waits

    def _noise(self, rng: np.random.Generator, n: int) -> F64:
        noise = np.exp(self._truth.op_noise * rng.standard_normal(n) + self._truth.run_noise * rng.standard_normal())
        straggles = rng.random(n) < self._truth.straggler_share
        return np.where(straggles, noise * self._truth.straggler_factor, noise)

    def _slowdown(self, program: Program, start_s: F64, finish_s: F64) -> F64:
        """Return (N,) factors: 1 + interference × the share of the other devices' time that was busy meanwhile."""
        factor = np.ones(program.n_ops)
        devices = len(program.device_names)
        if self._truth.interference == 0 or devices == 1:
            return factor
        ops = np.flatnonzero(program.op_kind == OpKind.KERNEL)
        device = program.task_device[program.op_task[ops]]
        for n, own in zip(ops, device, strict=True):
            others = ops[device != own]
            shared = np.minimum(finish_s[others], finish_s[n]) - np.maximum(start_s[others], start_s[n])
            length = max(finish_s[n] - start_s[n], 1e-12)
            busy = float(np.clip(shared, 0.0, None).sum()) / ((devices - 1) * length)
            factor[n] = 1.0 + self._truth.interference * busy
        return factor


def _planning(
    graph: TaskGraph, platform: Platform, costs: CostModel, planner: Planner, budget: Budget
) -> Callable[[Overheads], Program]:
    def plan(overheads: Overheads) -> Program:
        problem = build_problem(graph, platform, costs, overheads=overheads)
        return lower(graph, platform, problem, planner.plan(problem, budget=budget))

    return plan
