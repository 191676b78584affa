"""Offset and drift of synthetic clocks are found within the error that is stated."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heterotask_core.runtime.clock import ROUNDS, NodeClock, fit_clock


def _trips(clock, at_s, delays):
    """Round trips that begin at ``at_s`` on the reference clock; ``delays``: (there, back) seconds of each."""
    rows = []
    for there, back in delays:
        rows.append((at_s, clock(at_s + there), at_s + there + back))
        at_s += there + back + 1e-6
    return np.array(rows)


def _delays(rng):
    """Delays of a path that is slow at times, 1 µs to 5 ms."""
    return rng.choice([1e-6, 2e-5, 3e-4, 5e-3], size=(ROUNDS, 2)) * rng.uniform(1.0, 1.5, size=(ROUNDS, 2))


seeds = st.integers(0, 2**32 - 1)


@given(offset_s=st.floats(-1e6, 1e6), drift=st.floats(-1e-4, 1e-4), span_s=st.floats(0.5, 1000.0), seed=seeds)
def test_times_between_the_pingpongs_are_right_within_the_stated_error(offset_s, drift, span_s, seed):
    rng = np.random.default_rng(seed)

    def clock(reference_s):
        return reference_s + offset_s + drift * (reference_s - 100.0)

    before, after = (_trips(clock, at_s, _delays(rng)) for at_s in (100.0, 100.0 + span_s))
    fit = fit_clock(before, after)
    # Within one group of trips the offset moves by the drift over their length; a double has 1e-10 s at 1e6 s.
    length_s = max(trips[-1, 2] - trips[0, 0] for trips in (before, after))
    slack_s = 3 * abs(drift) * length_s + 2e-9
    true_s = np.linspace(before[0, 0], after[-1, 2], 11)
    assert np.abs(fit.to_reference(clock(true_s)) - true_s).max() <= fit.error_s + slack_s
    shortest_s = max(float((trips[:, 2] - trips[:, 0]).min()) for trips in (before, after))
    assert fit.error_s <= shortest_s / 2 + slack_s


@given(seed=seeds)
def test_nodes_of_one_host_are_left_alone(seed):
    rng = np.random.default_rng(seed)
    fit = fit_clock(*(_trips(lambda t: t, at_s, _delays(rng)) for at_s in (5.0, 50.0)))
    assert (fit.offset_s, fit.drift) == (0.0, 0.0)
    np.testing.assert_array_equal(fit.to_reference(np.array([7.0])), [7.0])


def test_unmeasured_times_stay_unmeasured():
    assert NodeClock(5.0, 1e-5, 10.0, 1e-6).to_reference(np.array([-np.inf]))[0] == -np.inf
