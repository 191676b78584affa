"""Statistics: outliers, medians, and the fit of links."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotask_core.profiling.samples import fit_link, outliers, summarise

SIZES = [4096 * 4**i for i in range(7)]


def test_only_slow_samples_are_outliers():
    assert outliers([1.0, 1.01, 0.99, 1.0, 5.0, 0.1]).tolist() == [False, False, False, False, True, False]
    assert outliers([1.0, 1.0, 1.0, 1.001]).tolist() == [False] * 4


def test_summary_leaves_outliers_out():
    found = summarise([1.0, 1.1, 0.9, 1.0, 50.0])
    assert (found.median_s, found.count) == (1.0, 4)
    assert found.mad_s == pytest.approx(0.05)
    assert found.p95_s == pytest.approx(1.085)
    assert summarise([2.0]).median_s == 2.0


@given(st.floats(1e-7, 1e-2), st.floats(1e6, 1e11))
def test_a_link_without_noise_is_found_exactly(latency_s, bandwidth):
    durations = [latency_s + size / bandwidth for size in SIZES]
    fit = fit_link(SIZES, durations)
    assert fit.residual < 1e-6
    for size, duration in zip(SIZES, durations, strict=True):
        assert fit.latency_s + size / fit.bandwidth_bytes_per_s == pytest.approx(duration, rel=1e-5)


@given(st.lists(st.floats(1e-7, 1.0), min_size=7, max_size=7))
def test_a_fit_is_never_negative(durations):
    fit = fit_link(SIZES, durations)
    assert fit.latency_s >= 0
    assert fit.bandwidth_bytes_per_s > 0


def test_the_median_of_each_size_counts():
    sizes = [s for s in SIZES for _ in range(3)]
    durations = [d for s in SIZES for d in (1e-5 + s / 1e9, 1e-5 + s / 1e9, 9.0)]
    fit = fit_link(sizes, durations)
    assert fit.latency_s == pytest.approx(1e-5)
    assert fit.bandwidth_bytes_per_s == pytest.approx(1e9)
