"""The acceptance statistics against brute force and SciPy."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from calibration.accept import Comparison, choose, compare, hodges_lehmann, holm, pairs_needed, signed_rank_p_value


def brute_force_p(values):
    values = [v for v in values if v != 0]
    ranks = stats.rankdata(np.abs(values))
    observed = sum(r for r, v in zip(ranks, values, strict=True) if v > 0)
    signings = itertools.product([0, 1], repeat=len(values))
    sums = [float(np.dot(ranks, signs)) for signs in signings]
    return sum(s <= observed + 1e-9 for s in sums) / len(sums)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=9).filter(lambda v: any(v)))
def test_p_value_with_ties_and_zeros_is_the_brute_force_one(values):
    assert signed_rank_p_value(values) == pytest.approx(brute_force_p(values), abs=1e-12)


@given(st.integers(0, 10_000), st.integers(5, 40))
def test_p_value_without_ties_is_scipys(seed, n):
    values = np.random.default_rng(seed).normal(-0.2, 1, n)
    expected = stats.wilcoxon(values, alternative="less", method="exact").pvalue
    assert signed_rank_p_value(values) == pytest.approx(expected, rel=1e-9)


def test_no_difference_at_all_is_no_evidence():
    assert signed_rank_p_value([0.0] * 20) == 1.0


def test_hodges_lehmann_is_the_median_of_walsh_averages_with_the_tabulated_interval():
    # n = 10: the 95 % interval runs from the 9th smallest to the 9th largest average (critical value 8).
    values = np.array([-3.0, 1.0, 4.0, 4.5, 6.0, 7.25, 9.0, 10.0, 12.5, 20.0])
    means = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(values, 2))
    assert hodges_lehmann(values) == (float(np.median(means)), means[8], means[-9])


def test_interval_covers_the_centre_as_often_as_it_says():
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(600):
        _, low, high = hodges_lehmann(rng.normal(0.3, 1, 15))
        covered += low <= 0.3 <= high
    assert 0.93 <= covered / 600 <= 0.98


def test_compare_tells_the_fraction_saved():
    incumbent = np.exp(np.random.default_rng(1).normal(0, 0.01, 15))
    found = compare(0.75 * incumbent, incumbent)
    assert (found.pairs, found.p_value) == (15, 2.0**-15)
    assert [found.gain, found.gain_low, found.gain_high] == pytest.approx([0.25] * 3)


def test_holm_steps_down_and_stops():
    assert holm([0.004, 0.003, 0.02], alpha=0.01) == [True, True, False]
    assert holm([0.009, 0.006, 0.0001], alpha=0.01) == [False, False, True]
    assert holm([]) == []
    assert holm([0.004], alpha=0.01, hypotheses=3) == [False]


def test_choose_wants_significance_and_one_percent():
    small = Comparison(40, 1e-6, 0.005, 0.004, 0.006)
    weak = Comparison(40, 0.02, 0.2, -0.01, 0.3)
    good = Comparison(40, 1e-6, 0.02, 0.01, 0.03)
    better = Comparison(40, 1e-5, 0.03, 0.01, 0.05)
    assert choose([small, weak, good, better]) == 3
    assert choose([small, weak]) is None


def test_pairs_follow_the_noise_within_bounds():
    assert pairs_needed(0.001, finalists=1) == 15
    assert pairs_needed(0.5, finalists=3) == 40
    assert pairs_needed(0.015, finalists=3) > pairs_needed(0.015, finalists=1)


@pytest.mark.parametrize("straggling", [0.0, 0.3])
def test_null_is_promoted_at_most_as_often_as_alpha_allows(straggling):
    # Plans of equal distribution, all finalists against the same runs of the incumbent; a run that meets a straggler
    # is up to 30 % longer.
    rng = np.random.default_rng(11)

    def runs(count):
        late = rng.uniform(0, 0.3, count) * (rng.random(count) < straggling)
        return np.exp(rng.normal(0, 0.02, count)) * (1 + late)

    promoted = 0
    for _ in range(400):
        incumbent = runs(20)
        promoted += choose([compare(runs(20), incumbent) for _ in range(3)]) is not None
    # Family-wise 1 %: 4 of 400 expected, more than 12 has a chance below one in a thousand.
    assert promoted <= 12


def test_a_gain_of_twice_what_matters_is_found_nine_times_in_ten():
    rng = np.random.default_rng(12)
    noise, pairs = 0.012, pairs_needed(0.012, finalists=1)
    found = sum(
        choose([compare(0.98 * np.exp(rng.normal(0, noise, pairs)), np.exp(rng.normal(0, noise, pairs)))]) is not None
        for _ in range(200)
    )
    # 180 of 200 expected; fewer than 165 has a chance below one in a thousand.
    assert found >= 165
