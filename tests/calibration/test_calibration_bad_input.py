"""What is refused before anything is measured, with what is wrong and where."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from calibration_toy import ToyEvaluator

from calibration.estimate import estimate_overheads
from calibration.journal import Journal, recorded_incumbent
from calibration.prior import DEFAULT_PRIOR, FAMILIES, Prior
from heterotask_core.errors import CalibrationError, StoreError
from heterotask_core.platform.model import Device, Link, Memory, Node, Platform
from heterotask_core.profiling.costs import Overheads
from heterotask_core.stages import incumbent_overheads
from heterotask_core.store import Store
from heterotask_core.tables import TRACE


@pytest.fixture
def incumbent(tmp_path):
    """Write an incumbent's file and read it."""
    store, workflow = Store(tmp_path / "store"), SimpleNamespace(key="w")

    def read(text):
        with store.new_record("calibrations", "w") as folder:
            (folder / "incumbent.json").write_text(text)
        return incumbent_overheads(workflow, store)

    return read


def test_overheads_out_of_bounds_in_a_file_are_refused_by_file_name_and_bounds(incumbent):
    assert incumbent(json.dumps({"dispatch_s": {"cpu": 0.5}})) == Overheads(dispatch_s={"cpu": 0.5})
    with pytest.raises(
        CalibrationError, match=r"incumbent\.json: overhead dispatch_s\['cpu'\] is 5.0; it must be between 0.0 and 1.0"
    ):
        incumbent(json.dumps({"dispatch_s": {"cpu": 5.0}}))
    with pytest.raises(CalibrationError, match=r"incumbent\.json: overhead link_scale\['network'\] is nan"):
        incumbent('{"link_scale": {"network": NaN}}')
    for text, what in (
        ('{"dispatch_s": 3}', "overheads dispatch_s are 3; they must be a mapping"),
        ('{"contention": "much"}', "overhead contention is 'much'"),
        ('{"link_scale": {"network": true}}', "is True"),
    ):
        with pytest.raises(CalibrationError, match=what):
            incumbent(text)
    for text in ('{"launch": 1}', "[]", "3", "{"):
        with pytest.raises(StoreError, match=r"incumbent\.json is damaged"):
            incumbent(text)


@pytest.mark.parametrize(
    "line", ["nonsense", '{"incumbent": {"launch": 1}}', '{"incumbent": {"dispatch_s": 3}}', "[1]"]
)
def test_a_damaged_record_of_an_unfinished_calibration_is_refused(tmp_path, line):
    assert recorded_incumbent(tmp_path) is None
    (tmp_path / "journal.jsonl").write_text(f"{line}\n")
    with pytest.raises(StoreError, match=r"journal\.jsonl is damaged .*; delete .* and calibrate again"):
        recorded_incumbent(tmp_path)
    with pytest.raises(StoreError, match=r"journal\.jsonl is"):
        Journal(tmp_path, settings={}, resume=True)


def test_traces_of_another_device_or_without_kernels_are_refused():
    evaluator = ToyEvaluator()
    trace = evaluator.measure(evaluator.plan(Overheads())[0], 1)[1]
    with pytest.raises(CalibrationError, match="names device 'ocl0', which this platform does not have"):
        estimate_overheads([(trace, Overheads())], device_kinds={"cpu0": "cpu"}, link_kinds={})
    with pytest.raises(CalibrationError, match="hold no kernel run"):
        estimate_overheads([(pl.DataFrame([], schema=TRACE), Overheads())], device_kinds={"cpu0": "cpu"}, link_kinds={})


def test_a_prior_needs_ranges_with_sources(tmp_path):
    path = tmp_path / "prior.yaml"
    text = DEFAULT_PRIOR.read_text()
    for wrong, what in (
        (text.replace("low: 5.0e-6, high: 5.0e-4", "low: 5.0e-3, high: 5.0e-4"), r"additive\.gpu_launch_s.*no range"),
        (text.replace('source: "set: one op in a thousand"', 'source: ""'), r"noise\.straggler_share\.source"),
        (text.replace("task_s:", "tasks_s:"), r"known\.task_s: Field required; known\.tasks_s: Extra inputs"),
        ("sections: {}", r"Field required; .*sections: Extra inputs"),
        (text.replace("low: 0.001, high: 0.001", "low: 2, high: 4"), r"straggler_share: 2.0 to 4.0 is not within 0"),
        (text.replace("low: 0.2, high: 0.8", "low: 0.2, high: .inf"), r"known\.kernel_spread\.high: .* finite"),
        (text.replace("high: 2.0e-4", "high: 20"), r"additive\.link_setup_s: .* is not within 0.0 to 1.0"),
        ("known: {", "is no prior"),
        ("3", "the file: Input should be a valid dictionary"),
    ):
        path.write_text(wrong)
        with pytest.raises(CalibrationError, match=what):
            Prior.read(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CalibrationError, match="is no prior"):
        Prior.read(path)
    for unreadable in (Path("nowhere.yaml"), tmp_path):
        with pytest.raises(CalibrationError, match="cannot be read"):
            Prior.read(unreadable)


def test_truths_are_seeded_and_null_hides_nothing():
    prior = Prior.read(DEFAULT_PRIOR)
    gpus = [f"n0.gpu{g}" for g in range(4)]
    platform = Platform(
        (Node("n0", "h"),),
        (Memory("n0", "n0"), *(Memory(g, "n0") for g in gpus)),
        tuple(Device(g, "emulated", "n0", g, "made", emulates="cuda") for g in gpus),
        tuple(Link("n0", g, "host_to_device", 1e-5, 1e10) for g in gpus),
    )
    first, again = ([prior.draw_truth(f, platform, np.random.default_rng(3)) for f in FAMILIES] for _ in range(2))
    assert first == again
    additive, interference, null = first
    assert (null.overheads, null.interference, null.link_sharing) == (Overheads(), {}, 0.0)
    assert 5e-6 <= additive.overheads.dispatch_s["cuda"] <= 5e-4
    assert len(set(interference.shared_links.values())) == 2
    assert null.op_noise == 0.03
