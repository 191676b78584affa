"""Drift: has the machine changed since the accepted runs? A 99 % prediction interval, three runs outside.

Which op classes changed is judged by the same prediction interval a class, with the false discoveries among them
bounded (Benjamini and Hochberg 1995).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy import stats

from heterotask_core.errors import CalibrationError
from heterotask_core.tables import TRACE, check_table

CONFIDENCE = 0.99
RUNS_OUTSIDE = 3
"""One run in a hundred lies outside by chance, three in a row one in a million."""


@dataclass(frozen=True, slots=True)
class Band:
    """Where the makespan of one further run lies with 99 % probability, in seconds."""

    centre_s: float
    low_s: float
    high_s: float
    samples: int

    @staticmethod
    def of(makespans_s: Sequence[float]) -> Band:
        """Return the band of accepted runs (Student's t on log makespans).

        Raises :class:`CalibrationError` for fewer than three runs.
        """
        if len(makespans_s) < 3:
            raise CalibrationError(f"a drift band needs at least 3 runs, there are {len(makespans_s)}; run more")
        logs = np.log(np.asarray(makespans_s, np.float64))
        n, centre = len(logs), float(logs.mean())
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * float(logs.std(ddof=1)) * math.sqrt(1 + 1 / n)
        return Band(math.exp(centre), math.exp(centre - half), math.exp(centre + half), n)


@dataclass(frozen=True, slots=True)
class Drift:
    """``change`` is the relative change of the median of the latest runs against the band's centre."""

    drifted: bool
    change: float
    text: str


def check_drift(band: Band, makespans_s: Sequence[float]) -> Drift:
    """Judge runs in the order they were made: drift when the last three all lie outside, on one side."""
    if not makespans_s:
        return Drift(False, 0.0, "still calibrated: no run to compare")
    latest = list(makespans_s)[-RUNS_OUTSIDE:]
    change = float(np.median(latest)) / band.centre_s - 1.0
    slower = len(latest) == RUNS_OUTSIDE and all(m > band.high_s for m in latest)
    faster = len(latest) == RUNS_OUTSIDE and all(m < band.low_s for m in latest)
    if slower or faster:
        word = "slower" if slower else "faster"
        return Drift(True, change, f"drift: the last {RUNS_OUTSIDE} runs are {abs(change):.1%} {word} than calibrated")
    return Drift(False, change, f"still calibrated: the latest runs differ by {change:+.1%}, inside the band")


def class_durations(trace: pl.DataFrame) -> dict[str, list[float]]:
    """Return the median duration in seconds of each op class in each repeat of an executed trace.

    A class is ``kernel on device`` or ``source → target``. Raises
    :class:`~heterotask_core.errors.StoreError` for a table that is no trace.
    """
    check_table(trace, TRACE, what="trace to look for drift in")
    kernels = pl.concat_str(["kernel", "device"], separator=" on ")
    name = pl.when(pl.col("kind") == "kernel").then(kernels)
    medians = (
        trace.with_columns(name.otherwise(pl.concat_str(["source", "target"], separator=" → ")).alias("class"))
        .group_by("class", "repeat")
        .agg((pl.col("finish_s") - pl.col("start_s")).median().alias("median_s"))
        .sort("class", "repeat")
    )
    found: dict[str, list[float]] = {}
    for row in medians.iter_rows(named=True):
        found.setdefault(row["class"], []).append(row["median_s"])
    return found


def drifted_classes(
    accepted_s: Mapping[str, Sequence[float]], latest_s: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Return the relative change of the op classes whose duration changed, the largest first.

    Both map classes to durations in seconds, one a run (see :func:`class_durations`). A class is tested by the
    mean of its latest log durations against the prediction interval of as many further runs; classes that either
    side has too rarely (fewer than three accepted runs) are left out. False discovery rate: 1 %.
    """
    names = [n for n in accepted_s if len(accepted_s[n]) >= 3 and latest_s.get(n)]
    p_values, changes = [], []
    for name in names:
        before, after = np.log(accepted_s[name]), np.log(latest_s[name])
        change = float(after.mean() - before.mean())
        spread = float(before.std(ddof=1)) * math.sqrt(1 / len(before) + 1 / len(after))
        # A spread of zero (a simulated run) would make any rounding error a change.
        p_values.append(2 * float(stats.t.sf(abs(change) / max(spread, 1e-9), len(before) - 1)))
        changes.append(math.expm1(change))
    if not names:
        return {}
    kept = stats.false_discovery_control(p_values, method="bh") <= 1 - CONFIDENCE
    changed = {name: change for name, change, drifts in zip(names, changes, kept, strict=True) if drifts}
    return dict(sorted(changed.items(), key=lambda entry: -abs(entry[1])))
