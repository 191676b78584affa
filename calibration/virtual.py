"""A virtual machine to calibrate on: the simulator with a hidden truth in place of real runs.

Profiled costs are known to the planner; launch overheads, other speeds, contention and noise are not. What the
calibration sees of it is what it would see of a real run: makespans and a trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from calibration.bench import program_key
from heterotask_core.emulation import OpTimes
from heterotask_core.graph import TaskGraph, class_key
from heterotask_core.planning.base import Budget, Planner
from heterotask_core.planning.from_graph import build_problem
from heterotask_core.platform.model import Platform
from heterotask_core.profiling.costs import CostModel, Overheads
from heterotask_core.program.lower import lower
from heterotask_core.program.model import OpKind, Program
from heterotask_core.simulate import Simulator, simulate
from heterotask_core.trace import trace_table

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Truth:
    """What profiling did not see.

    ``overheads`` act as the estimated ones do (``overheads.contention`` is not used). ``interference`` (device kind →
    fraction) slows a kernel by that fraction when all other devices of its node are busy while it runs, and in
    proportion to the busy share otherwise. ``shared_links`` (link ends → name of a switch) and ``link_sharing``: a copy
    takes 1 + ``link_sharing`` × (number of other copies through its switch meanwhile) times as long. Noise is
    log-normal: ``op_noise`` an op, ``run_noise`` a run; a straggler takes ``straggler_factor`` times as long.
    """

    overheads: Overheads = field(default_factory=Overheads)
    interference: Mapping[str, float] = field(default_factory=dict)
    shared_links: Mapping[tuple[str, str], str] = field(default_factory=dict)
    link_sharing: float = 0.0
    op_noise: float = 0.03
    run_noise: float = 0.01
    straggler_share: float = 0.001
    straggler_factor: float = 5.0


@dataclass(frozen=True)
class _True:
    """Of one program: (N,) noiseless seconds of every op alone, and of the wait before it; who slows whom."""

    duration_s: F64
    wait_s: F64
    simulator: Simulator
    crowds: tuple[tuple[I64, F64], ...]
    """Ops that slow each other, and (len,) by what fraction each of the others that run meanwhile slows each op."""


class VirtualEvaluator:
    """Evaluator (see :mod:`calibration.bench`) that plans for real and runs in the simulator.

    The noise of the n-th run of a program depends on ``seed``, program and n alone, so that two calibrations
    that measure the same programs see the same machine.
    """

    disturbance = ""

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
        self._graph, self._platform, self._costs, self._planner = graph, platform, costs, planner
        self._budget = Budget(evaluations=evaluations)
        self._truth = truth
        self._seed = seed
        self._runs: dict[str, int] = {}
        self._known: dict[int, tuple[Program, _True]] = {}

    def plan(self, overheads: Overheads, costs: CostModel | None = None) -> tuple[Program, float]:
        """Return the program planned with ``overheads`` (and other ``costs``) and its predicted makespan in seconds."""
        problem = build_problem(self._graph, self._platform, costs or self._costs, overheads=overheads)
        schedule = self._planner.plan(problem, budget=self._budget)
        program = lower(self._graph, self._platform, problem, schedule)
        return program, simulate(program).makespan_s

    def measure(self, program: Program, repeats: int) -> tuple[Sequence[float], pl.DataFrame]:
        """Run a program with the truth and fresh noise."""
        times = self.times(program, repeats)
        simulator = self._true(program).simulator
        makespans, tables = [], []
        for repeat in range(repeats):
            found = simulator.run(times.total_s[repeat])
            start_s = found.start_s + times.wait_s[repeat]
            makespans.append(found.makespan_s)
            tables.append(trace_table(program, start_s, found.finish_s, origin="virtual", repeat=repeat))
        return makespans, pl.concat(tables)

    def times(self, program: Program, runs: int) -> OpTimes:
        """Return what every op takes in the next ``runs`` runs: what an emulated device is told too."""
        true = self._true(program)
        key = program_key(program)
        totals = []
        for _ in range(runs):
            rng = np.random.default_rng([self._seed, int(key, 16), self._runs.get(key, 0)])
            self._runs[key] = self._runs.get(key, 0) + 1
            totals.append(true.wait_s + self._crowded(true, true.duration_s * self._noise(rng, program.n_ops)))
        return OpTimes(np.array(totals), np.tile(true.wait_s, (runs, 1)))

    def expected_s(self, program: Program) -> float:
        """Return the makespan in seconds of a program under the truth, without noise."""
        true = self._true(program)
        return true.simulator.run(true.wait_s + self._crowded(true, true.duration_s)).makespan_s

    def expected_ops_s(self, program: Program) -> F64:
        """Return (N,) seconds that every op takes under the truth from when it is ready, without noise."""
        true = self._true(program)
        return true.wait_s + self._crowded(true, true.duration_s)

    def oracle(self) -> tuple[Program, float]:
        """Return the best program, and its true makespan in seconds, planned by one who knows the truth.

        The same planner and budget; what costs can say of the truth is said: overheads, slow devices, slow-down while
        the node is half or wholly busy, links that share a switch. Of these plans the truly shortest.
        """
        truth = self._truth
        plans = [
            self.plan(truth.overheads, self._true_costs(busy, shared))[0]
            for busy in ((0.0, 0.5, 1.0) if any(truth.interference.values()) else (0.0,))
            for shared in ((False, True) if truth.link_sharing else (False,))
        ]
        best = min(plans, key=self.expected_s)
        return best, self.expected_s(best)

    def _true_costs(self, busy: float, shared: bool) -> CostModel:
        truth = self._truth
        slow_down = {
            (key, variant, device.name): 1.0 + busy * truth.interference.get(device.variant_kind, 0.0)
            for key, variant, kind, _, _ in self._costs.timings
            for device in self._platform.devices
            if device.variant_kind == kind
        }
        engines = {ends: (switch,) for ends, switch in truth.shared_links.items()} if shared else {}
        return replace(self._costs, slow_down=slow_down, engines=engines)

    def _true(self, program: Program) -> _True:
        if id(program) not in self._known:
            durations, waits = self._alone(program)
            self._known[id(program)] = (
                program,
                _True(durations, waits, Simulator(program), tuple(self._crowds(program))),
            )
        return self._known[id(program)][1]

    def _alone(self, program: Program) -> tuple[F64, F64]:
        """Return (N,) durations and (N,) waits before them, in seconds."""
        truth = self._truth
        devices = {d.name: d for d in self._platform.devices}
        links = {(x.source, x.target): x for x in self._platform.links}
        keys = [class_key(task) for task in self._graph]
        durations, waits = program.op_duration_s.astype(np.float64), np.zeros(program.n_ops)
        for n in range(program.n_ops):
            if program.op_kind[n] == OpKind.KERNEL:
                task = int(program.op_task[n])
                call = program.calls[program.task_call[task]]
                device = devices[program.device_names[program.task_device[task]]]
                kind = device.variant_kind
                profiled_s = self._costs.task_s(keys[task], call.variant, device, what=program.task_names[task])
                waits[n] = truth.overheads.dispatch_s.get(kind, 0.0)
                durations[n] = truth.overheads.task_s(call.kernel, kind, profiled_s, device=device.name) - waits[n]
                continue
            ends = self._ends(program, n)
            if ends[0] != ends[1]:
                link = links[ends]
                latency_s, bandwidth = truth.overheads.link(link.kind, *self._costs.link(link))
                durations[n] = latency_s + float(program.residency_size_bytes[program.op_target[n]]) / bandwidth
        return durations, waits

    def _crowds(self, program: Program) -> list[tuple[I64, F64]]:
        truth = self._truth
        node_of = {d.name: d.node for d in self._platform.devices}
        device = np.array([program.device_names[d] for d in program.task_device])
        kernels = np.flatnonzero(program.op_kind == OpKind.KERNEL)
        names = device[program.op_task[kernels]]
        crowds: list[tuple[I64, F64]] = []
        for node in dict.fromkeys(node_of.values()):
            others = sum(n == node for n in node_of.values()) - 1
            mine = np.array([node_of[name] == node for name in names], np.bool_)
            share = np.array([truth.interference.get(self.device_kinds[name], 0.0) for name in names[mine]])
            if others and share.any():
                crowds.append((kernels[mine], share / others))
        for switch in dict.fromkeys(truth.shared_links.values()) if truth.link_sharing else ():
            copies = np.array(
                [
                    n
                    for n in np.flatnonzero(program.op_kind != OpKind.KERNEL).tolist()
                    if truth.shared_links.get(self._ends(program, n)) == switch
                ],
                np.int64,
            )
            if len(copies):
                crowds.append((copies, np.full(len(copies), truth.link_sharing)))
        return crowds

    def _crowded(self, true: _True, alone_s: F64) -> F64:
        """Return (N,) seconds with what runs meanwhile; twice over, as who runs beside whom depends on it."""
        duration_s = alone_s
        for _ in range(2 if true.crowds else 0):
            found = true.simulator.run(true.wait_s + duration_s)
            factor = np.ones(len(alone_s))
            for ops, share in true.crowds:
                factor[ops] += share * _others(found.start_s[ops] + true.wait_s[ops], found.finish_s[ops])
            duration_s = alone_s * factor
        return duration_s

    def _ends(self, program: Program, op: int) -> tuple[str, str]:
        memories = program.residency_memory
        return (
            program.memory_names[memories[program.op_source[op]]],
            program.memory_names[memories[program.op_target[op]]],
        )

    def _noise(self, rng: np.random.Generator, n: int) -> F64:
        noise = np.exp(self._truth.op_noise * rng.standard_normal(n) + self._truth.run_noise * rng.standard_normal())
        straggles = rng.random(n) < self._truth.straggler_share
        return np.where(straggles, noise * self._truth.straggler_factor, noise)


def _others(start_s: F64, finish_s: F64) -> F64:
    """Return (n,) the mean number of the other intervals that are open during each of n intervals."""
    starts, finishes = np.sort(start_s), np.sort(finish_s)
    started, finished = (np.concatenate([[0.0], np.cumsum(times)]) for times in (starts, finishes))

    def open_until(time_s: F64) -> F64:
        """Total length of all intervals up to a time."""
        i, j = np.searchsorted(starts, time_s), np.searchsorted(finishes, time_s)
        length_s: F64 = (i * time_s - started[i]) - (j * time_s - finished[j])
        return length_s

    length = np.maximum(finish_s - start_s, 1e-12)
    mean: F64 = np.clip((open_until(finish_s) - open_until(start_s)) / length - 1.0, 0.0, None)
    return mean
