"""Drift: has the machine changed since the accepted runs? A 99 % prediction interval, three runs outside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from heterotask_core.errors import CalibrationError

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
