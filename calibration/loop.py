"""The calibration loop: measure, estimate, plan again, search, accept; each step on disk before the next.

The same seed and the same measurements give the same steps; resuming replays what is on disk.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibration.accept import Comparison, choose, compare, pairs_needed
from calibration.bench import MAX_FAILURES, REPEATS, Bench, Evaluator
from calibration.drift import Band
from calibration.estimate import Estimate
from calibration.journal import Journal, overheads_to_json, write_atomically
from calibration.search import Search, Space
from heterotask_core.errors import CalibrationError
from heterotask_core.profiling.costs import Overheads

log = logging.getLogger(__name__)

MIN_PROGRAMS = 5
"""Overheads that reach fewer programs than this leave nothing to choose from."""
PROBES = 24
MAX_FINALISTS = 3


@dataclass(frozen=True)
class CalibrationResult:
    """What a calibration found.

    ``status`` is "promoted", "kept" (nothing was measurably better) or "nothing to calibrate".
    ``distinct_programs`` is how many different ones the first overhead vectors tried reached, ``MIN_PROGRAMS`` at most.
    ``overheads`` are those to plan with from now on. ``predicted_s`` and ``measured_s`` belong to the program
    kept, the prediction is made with the estimate; ``band`` is None when nothing was measured often enough for one.
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
    found: Overheads | None = None
    """What the search held best before acceptance."""
    program: str | None = None
    """Key of the program kept (see :func:`calibration.bench.program_key`)."""
    classes: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Op class → its median seconds in every accepted run, by which drift is told."""
    disturbed: Sequence[str] = ()
    """What else used the machine, a line a measurement."""
    runs: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)
    """Where the time of this process went: "planning", "running", "optimising", and "own" for all else."""


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
    began_s = time.perf_counter()
    bench = Bench(evaluator, Journal(record_dir, settings=settings, resume=resume))
    result = _calibrate(bench, start, seed=seed, max_evaluations=max_evaluations, progress=progress)
    own_s = time.perf_counter() - began_s - sum(bench.seconds.values())
    text = result.text
    if bench.disturbed:
        text += f"; {len(bench.disturbed)} of {bench.runs} measurements were disturbed: {bench.disturbed[-1]}"
    result = replace(
        result, text=text, disturbed=tuple(bench.disturbed), runs=bench.runs, seconds={**bench.seconds, "own": own_s}
    )
    write_atomically(record_dir / "result.json", json.dumps(_to_json(result), indent=1) + "\n")
    return result


def _calibrate(
    bench: Bench, start: Overheads, *, seed: int, max_evaluations: int, progress: Callable[[str], None]
) -> CalibrationResult:
    evaluator = bench.evaluator
    space = Space.of(tuple(evaluator.device_kinds.values()), tuple(evaluator.link_kinds.values()))
    first = bench.plan(start)
    probes = {first}
    for vector in _probe_vectors(space, start):
        if len(probes) == MIN_PROGRAMS:
            break
        probes.add(bench.plan(vector))
    distinct = len(probes)
    if distinct < MIN_PROGRAMS:
        text = f"nothing to calibrate: {PROBES + 1} overhead vectors reach only {distinct} different programs"
        return CalibrationResult("nothing to calibrate", text, start, distinct, 0, predicted_s=bench.predicted_s(first))

    bench.measure(first, required=True)
    progress(f"incumbent: {bench.median_s(first):.6g} s measured, {bench.predicted_s(first):.6g} s predicted")
    estimate, estimated = regress(bench, rounds=2)
    progress(f"estimate: {bench.predicted_s(estimated):.6g} s predicted")
    if estimate.unidentified:
        progress(f"not told from their prior by these runs: {', '.join(estimate.unidentified)}")

    ranked = explore(bench, space, estimate.overheads, seed=seed, max_evaluations=max_evaluations, progress=progress)
    # Of all that was measured; a search moves overheads to where plans are fast, not to where predictions are right.
    estimate = bench.estimate()
    candidates = dict.fromkeys([*ranked[:1], estimated, *ranked[1:]])
    finalists = [key for key in candidates if key != first and bench.promising(key, than=first)][:MAX_FINALISTS]
    evaluations = bench.evaluations
    found = bench.overheads(finalists[0] if finalists else first)
    if not finalists:
        return _kept(bench, start, first, distinct, evaluations, estimate, None, found=found)
    noise = bench.noise()
    pairs = pairs_needed(noise, finalists=len(finalists))
    progress(f"acceptance: {len(finalists)} finalists, {pairs} pairs each (noise {noise:.2%})")
    fresh, base = _rounds(bench, finalists, first, pairs=pairs, rng=np.random.default_rng([seed, 1]))
    comparisons = [compare(runs, base) for runs in fresh.values()]
    winner = choose(comparisons, hypotheses=len(finalists))
    if winner is None:
        best = max(comparisons, key=lambda c: c.gain, default=None)
        return _kept(bench, start, first, distinct, evaluations, estimate, best, fresh=base, found=found)
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
        bench.predicted_with_s(key, estimate.overheads),
        float(np.median(fresh[key])),
        Band.of(fresh[key]),
        found=found,
        program=key,
        classes=_classes(bench, key),
    )


def _kept(
    bench: Bench,
    start: Overheads,
    first: str,
    distinct: int,
    evaluations: int,
    estimate: Estimate,
    comparison: Comparison | None,
    *,
    fresh: Sequence[float] = (),
    found: Overheads,
) -> CalibrationResult:
    text = "kept: no other program was measured faster"
    if comparison is not None:
        text = f"kept: the best finalist is {comparison.gain:+.1%} shorter, p = {comparison.p_value:.2g}"
    runs = list(fresh) or bench.samples_s(first)
    band = Band.of(runs) if len(runs) >= 3 else None
    measured, predicted = float(np.median(runs)), bench.predicted_with_s(first, estimate.overheads)
    return CalibrationResult(
        "kept",
        text,
        start,
        distinct,
        evaluations,
        estimate,
        comparison,
        predicted,
        measured,
        band,
        found=found,
        program=first,
        classes=_classes(bench, first),
    )


def _classes(bench: Bench, key: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for run in bench.classes.get(key, []):
        for name, median_s in run.items():
            found.setdefault(name, []).append(median_s)
    return found


def regress(bench: Bench, *, rounds: int) -> tuple[Estimate, str]:
    """Estimate from all traces, plan with it and measure, at most ``rounds`` times, until no new program comes.

    A second program uses devices and links that the first may not have touched. Returns the last estimate and the key
    of the program planned with it.
    """
    for _ in range(rounds):
        estimate = bench.estimate()
        key = bench.plan(estimate.overheads)
        if bench.known(key) or not bench.measure(key):
            break
    return estimate, key


def _probe_vectors(space: Space, start: Overheads) -> list[Overheads]:
    # One fixed sample for every calibration: the count must not depend on the seed.
    rng = np.random.default_rng(20)
    points = rng.uniform(-math.log(100.0), math.log(100.0), (PROBES, len(space.names)))
    return [space.apply(start, [float(v) for v in point]) for point in points]


def explore(
    bench: Bench,
    space: Space,
    around: Overheads,
    *,
    seed: int,
    max_evaluations: int,
    progress: Callable[[str], None],
) -> list[str]:
    """Search around overheads; return the keys of the programs found, the best posterior mean first.

    ``max_evaluations`` counts those of ``bench``, what was measured before included. It ends earlier when the
    improvement expected is below the noise of a measurement.
    """
    with bench.timed("optimising"):
        search = Search(space, seed=seed)
    keys: list[str] = []
    origin = bench.plan(around)
    if bench.usable(origin):
        keys.append(origin)
        search.tell([0.0] * len(space.names), bench.log_makespan(origin), noise=bench.noise() / math.sqrt(REPEATS))
    # Asking is cheap and may reach known programs over and over; it must still end.
    for _ in range(4 * max_evaluations):
        if bench.evaluations >= max_evaluations:
            break
        with bench.timed("optimising"):
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
        with bench.timed("optimising"):
            search.tell(point, bench.log_makespan(key), noise=bench.noise() / math.sqrt(REPEATS))
    # Too few points for a model: acceptance measures afresh, so the means will do.
    best = [keys[i] for i in search.ranking()] or sorted(keys, key=bench.log_makespan)
    return list(dict.fromkeys(best))


def _rounds(
    bench: Bench, finalists: Sequence[str], incumbent: str, *, pairs: int, rng: np.random.Generator
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


def _to_json(result: CalibrationResult) -> dict[str, Any]:
    values = asdict(result)
    values["overheads"] = overheads_to_json(result.overheads)
    if result.estimate is not None:
        values["estimate"]["overheads"] = overheads_to_json(result.estimate.overheads)
    return values
