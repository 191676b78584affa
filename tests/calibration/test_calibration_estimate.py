"""Estimation from traces with known overheads."""

import numpy as np
import polars as pl
import pytest
from calibration_toy import KINDS, ToyEvaluator

from calibration.estimate import estimate_overheads
from heterotask_core.errors import CalibrationError, StoreError
from heterotask_core.profiling.costs import Overheads
from heterotask_core.tables import TRACE

TRUTH = Overheads(
    dispatch_s={"cpu": 2e-4, "opencl": 3e-3},
    kernel_scale={"blur|cpu": 1.4, "sobel|opencl": 0.8},
    compute_scale={"opencl": 1.25},
)
LINK = {("n0", "ocl0"): "host_to_device"}


def estimate(evaluator, planned_with):
    program, _ = evaluator.plan(planned_with)
    _, trace = evaluator.measure(program, 40)
    return estimate_overheads([(trace, planned_with)], device_kinds=KINDS, link_kinds={})


@pytest.mark.parametrize("planned_with", [Overheads(), Overheads(dispatch_s={"opencl": 1e-3}, contention=0.5)])
def test_the_truth_comes_back_whatever_the_trace_was_planned_with(planned_with):
    found = estimate(ToyEvaluator(TRUTH, noise=0.01), planned_with).overheads
    assert found.dispatch_s == pytest.approx(TRUTH.dispatch_s, rel=1e-6)
    expected = {
        f"{kernel}|{kind}": TRUTH.kernel_scale.get(f"{kernel}|{kind}", 1.0) * TRUTH.compute_scale.get(kind, 1.0)
        for kernel in ("blur", "sobel", "merge")
        for kind in ("cpu", "opencl")
    }
    assert {k: expected[k] for k in found.kernel_scale} == pytest.approx(found.kernel_scale, rel=0.02)
    assert set(found.kernel_scale) >= {"blur|opencl", "sobel|opencl", "merge|cpu"}


def test_nothing_hidden_is_estimated_as_nothing_and_said_to_be_unidentified():
    found = estimate(ToyEvaluator(), Overheads())
    assert found.overheads.dispatch_s == {}
    assert found.unidentified == ("dispatch_s[cpu]", "dispatch_s[opencl]")
    assert set(found.overheads.kernel_scale.values()) == {1.0}


def test_few_noisy_samples_are_shrunk_towards_one():
    evaluator = ToyEvaluator(Overheads(kernel_scale={"blur|opencl": 2.0}), noise=0.3, tasks=4)
    program, _ = evaluator.plan(Overheads())
    _, trace = evaluator.measure(program, 1)
    found = estimate_overheads([(trace, Overheads())], device_kinds=KINDS, link_kinds={})
    rows = trace.with_columns(
        ratio=(pl.col("finish_s") - pl.col("start_s")) / (pl.col("planned_finish_s") - pl.col("planned_start_s"))
    )
    for key, value in found.overheads.kernel_scale.items():
        kernel, kind = key.split("|")
        device = next(d for d, k in KINDS.items() if k == kind)
        raw = rows.filter((pl.col("kernel") == kernel) & (pl.col("device") == device))["ratio"].log().median()
        assert abs(np.log(value)) < abs(raw)
        assert np.log(value) * raw > 0


def transfers(sizes, *, setup_s, scale, noise=0.0):
    """A trace of copies whose profile says 10 µs + size / 1 GB/s, with a kernel beside them."""
    rng = np.random.default_rng(3)
    size = np.repeat(np.asarray(sizes, np.int64), 10)
    planned = 1e-5 + size / 1e9
    taken = (setup_s + scale * planned) * np.exp(noise * rng.standard_normal(len(size)))
    kernel = ToyEvaluator(tasks=1)
    base = kernel.measure(kernel.plan(Overheads())[0], 1)[1]
    copy = base.with_columns(pl.lit("copy").alias("kind"), pl.lit("n0").alias("source"), pl.lit("ocl0").alias("target"))
    copies = pl.concat([copy] * len(size)).with_columns(
        pl.Series("size_bytes", size),
        pl.lit(0.0).alias("planned_start_s"),
        pl.Series("planned_finish_s", planned),
        pl.lit(0.0).alias("start_s"),
        pl.Series("finish_s", taken),
    )
    return pl.concat([base, copies]).cast(dict(TRACE))


def test_set_up_and_scale_of_a_link_come_apart_with_enough_sizes():
    trace = transfers([4096, 65536, 1 << 20], setup_s=5e-5, scale=1.3, noise=0.01)
    found = estimate_overheads([(trace, Overheads())], device_kinds=KINDS, link_kinds=LINK).overheads
    assert found.link_setup_s["host_to_device"] == pytest.approx(5e-5, rel=0.1)
    assert found.link_scale["host_to_device"] == pytest.approx(1.3, rel=0.05)


@pytest.mark.parametrize("sizes", [[65536, 1 << 20], [65536, 80000, 90000]])
def test_too_few_sizes_give_the_scale_only(sizes):
    trace = transfers(sizes, setup_s=0.0, scale=1.5)
    found = estimate_overheads([(trace, Overheads())], device_kinds=KINDS, link_kinds=LINK)
    assert found.overheads.link_setup_s == {"host_to_device": 0.0}
    assert found.overheads.link_scale["host_to_device"] == pytest.approx(1.5, rel=0.01)
    assert "link_setup_s[host_to_device]" in found.unidentified


def test_unusable_traces_are_refused():
    empty = pl.DataFrame(schema=TRACE)
    with pytest.raises(CalibrationError, match="no kernel run"):
        estimate_overheads([(empty, Overheads())], device_kinds=KINDS, link_kinds={})
    with pytest.raises(StoreError, match="columns differ"):
        estimate_overheads([(empty.drop("op"), Overheads())], device_kinds=KINDS, link_kinds={})
    evaluator = ToyEvaluator()
    _, trace = evaluator.measure(evaluator.plan(Overheads())[0], 1)
    with pytest.raises(CalibrationError, match="names device 'ocl0'"):
        estimate_overheads([(trace, Overheads())], device_kinds={}, link_kinds={})


def test_a_device_slower_than_its_like_is_told_and_equal_ones_stay_equal():
    rng = np.random.default_rng(0)
    kinds = {f"gpu{d}": "cuda" for d in range(6)}
    rows = []
    for device in kinds:
        for op in range(40):
            finish_s = (1.2 if device == "gpu3" else 1.0) * 1.5e-3 * float(np.exp(0.03 * rng.standard_normal()))
            rows.append(
                {
                    **{
                        "op": op,
                        "repeat": 0,
                        "kind": "kernel",
                        "task": "t",
                        "kernel": "blur",
                        "variant": "v",
                        "data": "",
                    },
                    **{"data": "", "rank": 1, "node": "n0", "device": device, "lane": device, "source": ""},
                    **{"target": "", "size_bytes": 0, "planned_start_s": 0.0, "planned_finish_s": 1e-3},
                    **{"ready_s": 0.0, "start_s": 0.0, "finish_s": finish_s, "origin": "virtual"},
                }
            )
    trace = pl.DataFrame(rows, schema=TRACE)
    found = estimate_overheads([(trace, Overheads())], device_kinds=kinds, link_kinds={}).overheads
    assert list(found.device_scale) == ["gpu3"]
    assert found.device_scale["gpu3"] == pytest.approx(1.2, rel=0.03)
    assert found.kernel_scale["blur|cuda"] == pytest.approx(1.5, rel=0.03)
    # Planned with that, the same trace says the same.
    planned = trace.with_columns(
        pl.when(pl.col("device") == "gpu3").then(1.8e-3).otherwise(1.5e-3).alias("planned_finish_s")
    )
    again = Overheads(kernel_scale={"blur|cuda": 1.5}, device_scale={"gpu3": 1.2})
    same = estimate_overheads([(planned, again)], device_kinds=kinds, link_kinds={}).overheads
    assert same.device_scale["gpu3"] == pytest.approx(found.device_scale["gpu3"])
