"""Statistics of timing samples: outliers, robust summary, and the fit of a link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

OUTLIER_SIGMAS = 5.0
MAD_TO_SIGMA = 1.4826


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
