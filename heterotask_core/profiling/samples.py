"""Statistics of timing samples: outliers, robust summary, when to stop, and the fit of a link."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

OUTLIER_SIGMAS = 5.0
MAD_TO_SIGMA = 1.4826
CONFIDENCE = 0.95
PRECISE = 0.02
"""Half width of the median's confidence interval, relative to the median, at which measuring stops."""
DEVIANT = 0.05
"""Equal devices may differ by this much, or by three times their spread, before one is reported."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Median, median absolute deviation and 95th percentile in seconds of the samples that are no outliers."""

    median_s: float
    mad_s: float
    p95_s: float
    count: int


@dataclass(frozen=True, slots=True)
class LinkFit:
    """``latency_s + bytes / bandwidth_bytes_per_s``; ``residual`` is the relative RMS error over the sizes."""

    latency_s: float
    bandwidth_bytes_per_s: float
    residual: float


def outliers(durations_s: Sequence[float]) -> npt.NDArray[np.bool_]:
    """Return which samples lie more than five robust standard deviations above the median.

    Only slow ones: an interrupted run is slower, and nothing runs faster than it can. Spread below a thousandth
    of the median counts as that much, so that equal samples do not make their neighbours outliers.
    """
    values = np.asarray(durations_s, np.float64)
    median = np.median(values)
    sigma = MAD_TO_SIGMA * max(float(np.median(np.abs(values - median))), 1e-3 * float(median))
    return np.asarray(values > median + OUTLIER_SIGMAS * sigma)


def summarise(durations_s: Sequence[float]) -> Summary:
    """Summarise at least one sample."""
    values = np.asarray(durations_s, np.float64)
    kept = values[~outliers(values.tolist())]
    median = float(np.median(kept))
    return Summary(median, float(np.median(np.abs(kept - median))), float(np.percentile(kept, 95)), len(kept))


def median_interval(durations_s: Sequence[float]) -> tuple[float, float]:
    """Return a confidence interval of the median of at least one sample, without assuming a distribution.

    The ends are order statistics with at least 95 % coverage (binomial); with fewer than six samples that is more
    than there are, and the ends are the extremes.
    """
    values = sorted(durations_s)
    n = len(values)
    outside, rank = 0.0, 0
    # P(fewer than rank of n samples lie below the median), both sides.
    while rank < n // 2 and 2.0 * (outside + math.comb(n, rank) * 0.5**n) <= 1.0 - CONFIDENCE:
        outside += math.comb(n, rank) * 0.5**n
        rank += 1
    low = max(0, rank - 1)
    return values[low], values[n - 1 - low]


def settled(durations_s: Sequence[float]) -> bool:
    """Return whether the median of the samples that are no outliers is known to within ``PRECISE``; at least six."""
    values = np.asarray(durations_s, np.float64)
    if len(values) < 6:
        return False
    kept = values[~outliers(durations_s)]
    low, high = median_interval(kept.tolist())
    return len(kept) >= 6 and (high - low) / 2.0 <= PRECISE * float(np.median(kept))


def deviants(samples_s: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return which of several equal devices is off, and by what factor of the median of them all.

    ``samples_s``: device → its times of one kernel. Off is a device whose median differs from the devices' median
    by more than three times the typical spread of a device, and by more than ``DEVIANT``. Of two devices that
    differ only the slower one is named: a device is slowed down by something, never sped up.
    """
    summaries = {name: summarise(values) for name, values in samples_s.items() if values}
    if len(summaries) < 2:
        return {}
    medians = [x.median_s for x in summaries.values()]
    middle = min(medians) if len(medians) == 2 else float(np.median(medians))
    spread = MAD_TO_SIGMA * float(np.median([x.mad_s for x in summaries.values()]))
    limit = max(3.0 * spread, DEVIANT * middle)
    return {name: x.median_s / middle for name, x in summaries.items() if abs(x.median_s - middle) > limit}


def fit_link(sizes_bytes: Sequence[int], durations_s: Sequence[float]) -> LinkFit:
    """Fit latency and bandwidth to the medians by size, minimising *relative* errors; neither is negative.

    Relative, since a least-squares fit of seconds would let the largest size decide alone.
    """
    sizes = np.unique(np.asarray(sizes_bytes, np.int64))
    all_sizes, all_durations = np.asarray(sizes_bytes), np.asarray(durations_s, np.float64)
    medians = np.array([np.median(all_durations[all_sizes == size]) for size in sizes])
    design = np.stack([1.0 / medians, sizes / medians], axis=1)
    latency, per_byte = np.linalg.lstsq(design, np.ones(len(sizes)), rcond=None)[0]
    if per_byte <= 0.0:
        per_byte, latency = 0.0, 1.0 / np.mean(1.0 / medians)
    elif latency < 0.0:
        latency, per_byte = 0.0, float(design[:, 1].sum() / (design[:, 1] ** 2).sum())
    errors = (latency + per_byte * sizes) / medians - 1.0
    bandwidth = 1.0 / per_byte if per_byte > 0.0 else 1e15
    return LinkFit(float(latency), float(bandwidth), float(np.sqrt(np.mean(errors**2))))
