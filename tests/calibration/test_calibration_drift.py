"""The drift band of the makespan, and which op classes drifted."""

import numpy as np
import polars as pl
import pytest
from calibration_toy import ToyEvaluator

from calibration.drift import Band, check_drift, class_durations, drifted_classes
from heterotask_core.errors import CalibrationError, StoreError
from heterotask_core.profiling.costs import Overheads


def test_the_band_holds_99_of_100_further_runs():
    rng = np.random.default_rng(4)
    inside = 0
    for _ in range(2000):
        *runs, further = np.exp(rng.normal(0, 0.02, 16))
        band = Band.of(runs)
        inside += band.low_s <= further <= band.high_s
    assert 0.982 <= inside / 2000 <= 0.997


def test_three_runs_outside_on_one_side_are_drift():
    band = Band(1.0, 0.95, 1.05, 20)
    slower = check_drift(band, [1.0, 1.2, 1.3, 1.25])
    assert (slower.drifted, slower.text) == (True, "drift: the last 3 runs are 25.0% slower than calibrated")
    assert slower.change == pytest.approx(0.25)
    assert check_drift(band, [0.9, 0.8, 0.9]).text == "drift: the last 3 runs are 10.0% faster than calibrated"
    for runs in ([1.2, 1.2], [1.2, 1.0, 1.2], [1.2, 0.9, 1.2], [1.2, 1.2, 1.2, 1.0], []):
        assert not check_drift(band, runs).drifted


def test_a_band_needs_three_runs():
    with pytest.raises(CalibrationError, match="at least 3 runs"):
        Band.of([1.0, 1.1])


def traced(truth, seed):
    evaluator = ToyEvaluator(truth, noise=0.02, seed=seed)
    program = evaluator.plan(Overheads(dispatch_s={"opencl": 2e-3}))[0]
    return evaluator.measure(program, 20)[1]


def test_class_durations_are_medians_of_each_repeat():
    trace = traced(Overheads(), 0)
    found = class_durations(trace)
    assert {len(runs) for runs in found.values()} == {20}
    runs = trace.filter((pl.col("kernel") == "blur") & (pl.col("device") == "ocl0") & (pl.col("repeat") == 7))
    assert found["blur on ocl0"][7] == (runs["finish_s"] - runs["start_s"]).median()
    with pytest.raises(StoreError, match="columns differ"):
        class_durations(trace.drop("op"))


def test_the_class_that_changed_is_named_with_its_change_and_no_other():
    before = class_durations(traced(Overheads(), 1))
    after = class_durations(traced(Overheads(kernel_scale={"blur|opencl": 1.2}), 2))
    found = drifted_classes(before, {name: runs[:3] for name, runs in after.items()})
    assert list(found) == ["blur on ocl0"]
    assert found["blur on ocl0"] == pytest.approx(0.2, abs=0.03)


def test_nothing_is_found_where_nothing_changed():
    before = class_durations(traced(Overheads(), 3))
    assert drifted_classes(before, class_durations(traced(Overheads(), 4))) == {}
    assert drifted_classes({}, before) == {}
    assert drifted_classes({"new": [1.0, 1.0]}, {"new": [9.0]}) == {}
