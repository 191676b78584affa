"""Acceptance: is a candidate program really faster than the incumbent, by at least as much as matters?

Pairs of fresh runs, the order within a pair random; a one-sided exact Wilcoxon signed-rank test on the log
ratios (Wilcoxon 1945), Holm's correction over the finalists (Holm 1979), and the Hodges–Lehmann estimate of
the gain with the interval that inverts the same test (Hodges and Lehmann 1963).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

F64 = npt.NDArray[np.float64]

MIN_PAIRS, MAX_PAIRS = 15, 40
ALPHA = 0.01
"""A nightly repetition asks the question often; 5 % would promote noise every third week."""
MIN_GAIN = 0.01
"""A promotion must shorten the makespan by at least this fraction."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One finalist against the incumbent; ``gain`` is the fraction by which the makespan is shorter."""

    pairs: int
    p_value: float
    gain: float
    gain_low: float
    gain_high: float
    """Ends of the 95 % interval."""


def pairs_needed(noise: float, *, finalists: int) -> int:
    """Return the number of pairs that shows a gain of twice :data:`MIN_GAIN` with 90 % power.

    ``noise`` is the standard deviation of the log makespan of one run. The normal approximation of the
    Wilcoxon test needs π/3 times the pairs of the t test. The result lies in 15 to 40.
    """
    z = stats.norm.ppf(1 - ALPHA / max(1, finalists)) + stats.norm.ppf(0.9)
    pairs = math.pi / 3 * 2 * (z * noise / (2 * MIN_GAIN)) ** 2
    return int(np.clip(math.ceil(pairs), MIN_PAIRS, MAX_PAIRS))


def signed_rank_p_value(differences: Sequence[float] | F64) -> float:
    """Return P(W+ ≤ observed) under symmetry around 0: small when the differences are mostly negative.

    Exact also with ties: the distribution is that of the mid-ranks found. Zeros are left out (Wilcoxon's rule);
    without any other value the answer is 1.
    """
    values = np.asarray(differences, np.float64)
    values = values[values != 0]
    if not len(values):
        return 1.0
    # Mid-ranks are multiples of one half, so twice a rank is an integer and the sums can be counted.
    ranks = np.rint(2 * stats.rankdata(np.abs(values))).astype(np.int64)
    return float(_rank_sum_distribution(ranks)[: int(ranks[values > 0].sum()) + 1].sum())


def _rank_sum_distribution(ranks: npt.NDArray[np.int64]) -> F64:
    probability = np.zeros(int(ranks.sum()) + 1)
    probability[0] = 1.0
    for rank in ranks:
        shifted = np.zeros_like(probability)
        shifted[rank:] = probability[: len(probability) - rank]
        probability = 0.5 * (probability + shifted)
    return probability


def hodges_lehmann(differences: Sequence[float] | F64, *, confidence: float = 0.95) -> tuple[float, float, float]:
    """Return (estimate, low, high) of the centre of ``differences``: the median of the pairwise means.

    The interval is exact and two-sided; with too few values for ``confidence`` it is the whole range.
    """
    values = np.asarray(differences, np.float64)
    i, j = np.triu_indices(len(values))
    means = np.sort((values[i] + values[j]) / 2)
    cumulative = np.cumsum(_rank_sum_distribution(np.arange(1, len(values) + 1)))
    skip = int(np.searchsorted(cumulative, (1 - confidence) / 2, side="right"))
    skip = max(0, min(skip - 1, (len(means) - 1) // 2))
    return float(np.median(means)), float(means[skip]), float(means[-1 - skip])


def compare(candidate_s: Sequence[float], incumbent_s: Sequence[float]) -> Comparison:
    """Compare paired makespans in seconds (parallel, one a pair)."""
    ratios = np.log(np.asarray(candidate_s, np.float64)) - np.log(np.asarray(incumbent_s, np.float64))
    centre, low, high = hodges_lehmann(ratios)
    return Comparison(
        pairs=len(ratios),
        p_value=signed_rank_p_value(ratios),
        gain=-math.expm1(centre),
        gain_low=-math.expm1(high),
        gain_high=-math.expm1(low),
    )


def holm(p_values: Sequence[float], *, alpha: float = ALPHA, hypotheses: int | None = None) -> list[bool]:
    """Return which hypotheses Holm's step-down procedure rejects, in the order given.

    ``hypotheses`` counts those with p = 1 that are not listed too (default: none).
    """
    count = len(p_values) if hypotheses is None else hypotheses
    rejected = [False] * len(p_values)
    for position, index in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[index] > alpha / (count - position):
            break
        rejected[index] = True
    return rejected


def choose(comparisons: Sequence[Comparison], *, hypotheses: int | None = None) -> int | None:
    """Return the index of the finalist to promote, the one with the largest gain, or None.

    ``hypotheses`` is the number of finalists fixed beforehand, those that dropped out included.
    """
    passed = holm([c.p_value for c in comparisons], hypotheses=hypotheses)
    able = [i for i, c in enumerate(comparisons) if passed[i] and c.gain >= MIN_GAIN]
    return max(able, key=lambda i: comparisons[i].gain) if able else None
