"""The calibration loop: measure, estimate, plan again, search, accept; each step on disk before the next.

It knows plans and measurements only through an :class:`Evaluator`, so it runs the same over MPI and over the
simulator. The same seed and the same measurements give the same steps; resuming replays what is on disk.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl

from calibration.accept import Comparison, choose, compare, pairs_needed
from calibration.drift import Band
from calibration.estimate import Estimate, estimate_overheads
from calibration.journal import Journal, as_floats, overheads_key, overheads_to_json, write_atomically
from calibration.search import Search, Space
from heterotask_core.errors import CalibrationError, HeteroTaskError
from heterotask_core.profiling.costs import Overheads
from heterotask_core.program.model import LaneKind, OpKind, Program

log = logging.getLogger(__name__)

MIN_PROGRAMS = 5
"""Overheads that reach fewer programs than this leave nothing to choose from."""
PROBES = 24
MAX_FAILURES = 3
MAX_FINALISTS = 3
REPEATS = 3
"""Runs of a program a measurement."""


class Evaluator(Protocol):
    """Plans and measures; ``plan`` is deterministic, ``measure`` raises a ``HeteroTaskError`` when a run fails.

    ``device_kinds`` maps device names to device kinds, ``link_kinds`` (source, target) memories to link kinds;
    ``name`` tells one application, platform and profile from another. The first run after loading a program
    is the evaluator's to discard.
    """

    name: str
    device_kinds: Mapping[str, str]
    link_kinds: Mapping[tuple[str, str], str]

    def plan(self, overheads: Overheads) -> tuple[Program, float]:
        """Return the program planned with ``overheads`` and its predicted makespan in seconds."""
        ...

    def measure(self, program: Program, repeats: int) -> tuple[Sequence[float], pl.DataFrame]:
        """Run ``program``; return the makespans in seconds, one a repeat, and the trace (``tables.TRACE``)."""
        ...


@dataclass(frozen=True)
class CalibrationResult:
    """What a calibration found.

    ``status`` is "promoted", "kept" (nothing was measurably better) or "nothing to calibrate".
    ``overheads`` are those to plan with from now on. ``predicted_s`` and ``measured_s`` belong to the program
    kept; ``band`` is None when nothing was measured often enough for one.
    """

    status: str
    text: str
    overheads: Overheads
    distinct_programs: int
    evaluations: int
    estimate: Estimate | None = None
    comparison: Comparison | None = None
    predicted_s: float | None = None
    measured_s: float | None = None
    band: Band | None = None


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


def calibrate(
    evaluator: Evaluator,
    *,
    record_dir: Path,
    seed: int = 0,
    max_evaluations: int = 20,
    resume: bool = False,
    incumbent: Overheads | None = None,
    progress: Callable[[str], None] = log.info,
) -> CalibrationResult:
    """Look for overheads whose plan runs faster than that of ``incumbent`` (default: no overheads).

    ``max_evaluations`` bounds the distinct programs measured before acceptance. ``progress`` is told what
    happens, a line a step. ``record_dir`` receives the journal, the traces and ``result.json``; with
    ``resume`` an interrupted calibration goes on there with nothing measured twice.

    Raises :class:`CalibrationError` after three failing evaluations in a row (the incumbent is intact, the
    message holds the last reason), and for a record made with other settings.
    """
    if max_evaluations < 2:
        raise CalibrationError(f"max_evaluations is {max_evaluations}; it takes at least 2 to compare anything")
    start = incumbent or Overheads()
    settings = {
        "evaluator": evaluator.name,
        "seed": seed,
        "max_evaluations": max_evaluations,
        "incumbent": overheads_to_json(start),
    }
    bench = _Bench(evaluator, Journal(record_dir, settings=settings, resume=resume))
    result = _calibrate(bench, start, seed=seed, max_evaluations=max_evaluations, progress=progress)
    write_atomically(record_dir / "result.json", json.dumps(_to_json(result), indent=1) + "\n")
    return result


def _calibrate(
    bench: _Bench, start: Overheads, *, seed: int, max_evaluations: int, progress: Callable[[str], None]
) -> CalibrationResult:
    evaluator = bench.evaluator
    space = Space.of(tuple(evaluator.device_kinds.values()), tuple(evaluator.link_kinds.values()))
    first = bench.plan(start)
    probes = [first, *(bench.plan(vector) for vector in _probe_vectors(space, start))]
    distinct = len(set(probes))
    progress(f"{len(probes)} overhead vectors reach {distinct} different programs")
    if distinct < MIN_PROGRAMS:
        text = f"nothing to calibrate: {len(probes)} overhead vectors reach only {distinct} different programs"
        return CalibrationResult("nothing to calibrate", text, start, distinct, 0, predicted_s=bench.predicted_s(first))

    bench.measure(first, required=True)
    progress(f"incumbent: {bench.median_s(first):.6g} s measured, {bench.predicted_s(first):.6g} s predicted")
    estimate = bench.estimate()
    estimated = bench.plan(estimate.overheads)
    if bench.measure(estimated):
        # The second program uses devices and links that the first may not have touched.
        estimate = bench.estimate()
        estimated = bench.plan(estimate.overheads)
        bench.measure(estimated)
        progress(f"estimate: {bench.predicted_s(estimated):.6g} s predicted")

    ranked = _search(bench, space, estimate.overheads, seed=seed, max_evaluations=max_evaluations, progress=progress)
    candidates = dict.fromkeys([*ranked[:1], estimated, *ranked[1:]])
    finalists = [key for key in candidates if key != first and bench.promising(key, than=first)][:MAX_FINALISTS]
    evaluations = bench.evaluations
    if not finalists:
        return _kept(bench, start, first, distinct, evaluations, estimate, None)
    noise = bench.noise()
    pairs = pairs_needed(noise, finalists=len(finalists))
    progress(f"acceptance: {len(finalists)} finalists, {pairs} pairs each (noise {noise:.2%})")
    fresh, base = _rounds(bench, finalists, first, pairs=pairs, rng=np.random.default_rng([seed, 1]))
    comparisons = [compare(runs, base) for runs in fresh.values()]
    winner = choose(comparisons, hypotheses=len(finalists))
    if winner is None:
        best = max(comparisons, key=lambda c: c.gain, default=None)
        return _kept(bench, start, first, distinct, evaluations, estimate, best, fresh=base)
    key, comparison = list(fresh)[winner], comparisons[winner]
    text = (
        f"promoted: {comparison.gain:.1%} shorter (95 % interval {comparison.gain_low:.1%} to "
        f"{comparison.gain_high:.1%}, p = {comparison.p_value:.2g}, {comparison.pairs} pairs)"
    )
    return CalibrationResult(
        "promoted",
        text,
        bench.overheads(key),
        distinct,
        evaluations,
        estimate,
        comparison,
        bench.predicted_s(key),
        float(np.median(fresh[key])),
        Band.of(fresh[key]),
    )


def _kept(
    bench: _Bench,
    start: Overheads,
    first: str,
    distinct: int,
    evaluations: int,
    estimate: Estimate,
    comparison: Comparison | None,
    *,
    fresh: Sequence[float] = (),
) -> CalibrationResult:
    text = "kept: no other program was measured faster"
    if comparison is not None:
        text = f"kept: the best finalist is {comparison.gain:+.1%} shorter, p = {comparison.p_value:.2g}"
    runs = list(fresh) or bench.samples_s(first)
    band = Band.of(runs) if len(runs) >= 3 else None
    measured, predicted = float(np.median(runs)), bench.predicted_s(first)
    return CalibrationResult(
        "kept", text, start, distinct, evaluations, estimate, comparison, predicted, measured, band
    )


def _probe_vectors(space: Space, start: Overheads) -> list[Overheads]:
    # One fixed sample for every calibration: the count must not depend on the seed.
    rng = np.random.default_rng(20)
    points = rng.uniform(-math.log(100.0), math.log(100.0), (PROBES, len(space.names)))
    return [space.apply(start, [float(v) for v in point]) for point in points]


def _search(
    bench: _Bench,
    space: Space,
    around: Overheads,
    *,
    seed: int,
    max_evaluations: int,
    progress: Callable[[str], None],
) -> list[str]:
    """Return the keys of the programs found, the best posterior mean first."""
    search = Search(space, seed=seed)
    keys: list[str] = []
    # Asking is cheap and may reach known programs over and over; it must still end.
    for _ in range(4 * max_evaluations):
        if bench.evaluations >= max_evaluations:
            break
        point = search.ask()
        expected = search.expected_improvement(point)
        if expected < bench.noise() / math.sqrt(REPEATS):
            progress(f"search ends: an improvement of {expected:.2%} is expected, below the noise")
            break
        key = bench.plan(space.apply(around, point))
        if not bench.known(key):
            bench.measure(key)
            if bench.usable(key):
                progress(f"evaluation {bench.evaluations}: {bench.median_s(key):.6g} s")
        keys.append(key)
        search.tell(point, bench.log_makespan(key))
    # Too few points for a model: acceptance measures afresh, so the means will do.
    best = [keys[i] for i in search.ranking()] or sorted(keys, key=bench.log_makespan)
    return list(dict.fromkeys(best))


def _rounds(
    bench: _Bench, finalists: Sequence[str], incumbent: str, *, pairs: int, rng: np.random.Generator
) -> tuple[dict[str, list[float]], list[float]]:
    """Return fresh makespans in seconds, one a round, of the finalists that never failed twice running, and of
    the incumbent.

    A round runs the incumbent and every finalist in random order, so that all pairs of a round are close in time;
    Holm's correction allows the pairs to share their incumbent. Raises :class:`CalibrationError` when the
    incumbent fails in three rounds.
    """
    found: dict[str, list[float]] = {key: [] for key in finalists}
    base: list[float] = []
    lost = 0
    while len(base) < pairs and found:
        this: dict[str, float] = {}
        for index in rng.permutation(len(found) + 1):
            key = [incumbent, *found][index]
            makespans = bench.run(key, 1) or bench.run(key, 1)
            if makespans:
                this[key] = makespans[0]
        found = {key: values for key, values in found.items() if key in this}
        if incumbent not in this:
            lost += 1
            if lost == MAX_FAILURES:
                raise CalibrationError(
                    f"the plan in use failed in {lost} of {len(base) + lost} rounds; it is unchanged: run it by itself "
                    "to see why"
                )
            continue
        base.append(this[incumbent])
        for key, values in found.items():
            values.append(this[key])
    return found, base


class _Bench:
    """Plans and measurements so far, each recorded or replayed."""

    def __init__(self, evaluator: Evaluator, journal: Journal) -> None:
        self.evaluator = evaluator
        self.evaluations = 0
        self._journal = journal
        self._failures = 0
        self._planned: dict[str, str] = {}
        self._overheads: dict[str, Overheads] = {}
        self._predicted: dict[str, float] = {}
        self._programs: dict[str, Program] = {}
        self._samples: dict[str, list[float]] = {}
        self._traces: list[tuple[str, str]] = []

    def plan(self, overheads: Overheads) -> str:
        """Return the key of the program planned with ``overheads``; raises what the planner raises."""
        vector = overheads_key(overheads)
        if vector in self._planned:
            return self._planned[vector]
        step = self._journal.replay("plan", vector)
        if step is None:
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
        if step is None:
            step, trace = self._run(key, repeats)
            step = self._journal.append("run", key, step, trace=trace if keep_trace else None)
        if "failure" in step:
            self._failures += 1
            if self._failures == MAX_FAILURES:
                raise CalibrationError(
                    f"{MAX_FAILURES} evaluations in a row failed, the last with: {step['failure']}; "
                    "the plan in use is unchanged"
                )
            return []
        self._failures = 0
        if "trace" in step:
            self._traces.append((key, step["trace"]))
        return list(step["makespans_s"])

    def _run(self, key: str, repeats: int) -> tuple[dict[str, Any], pl.DataFrame | None]:
        try:
            makespans, trace = self.evaluator.measure(self._program(key), repeats)
        except CalibrationError:
            raise
        except HeteroTaskError as error:
            log.warning("evaluation failed: %s", error)
            return {"failure": str(error)}, None
        values = as_floats(makespans)
        if not values or not all(math.isfinite(v) and v > 0 for v in values):
            return {"failure": f"the makespans {values} are not positive times"}, None
        return {"makespans_s": values}, trace

    def _program(self, key: str) -> Program:
        if key not in self._programs:
            # Only on resume: the record holds the key, the planner makes the program again.
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
        traces = [(self._journal.trace(name), self._overheads[key]) for key, name in self._traces]
        return estimate_overheads(
            traces, device_kinds=self.evaluator.device_kinds, link_kinds=self.evaluator.link_kinds
        )

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


def _to_json(result: CalibrationResult) -> dict[str, Any]:
    values = asdict(result)
    values["overheads"] = overheads_to_json(result.overheads)
    if result.estimate is not None:
        values["estimate"]["overheads"] = overheads_to_json(result.estimate.overheads)
    return values
