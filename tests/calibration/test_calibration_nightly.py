"""Drift of a calibrated workflow: inside the band nothing is searched, outside it what changed is named."""

import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
from calibration_toy import ToyEvaluator

from calibration import nightly as nights
from calibration.bench import program_key
from calibration.drift import Band
from calibration.loop import CalibrationResult, calibrate
from heterotask_core.errors import StoreError
from heterotask_core.profiling.costs import Overheads
from heterotask_core.store import Store

HIDDEN = Overheads(dispatch_s={"opencl": 3e-3})
SLOW = replace(HIDDEN, kernel_scale={"blur|opencl": 3.0})


class Toy(ToyEvaluator):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """A calibrated toy workflow: call with the machine's truth to run its night; tells whether it calibrated."""
    workflow = SimpleNamespace(key="toy-w-p", app=SimpleNamespace(name="toy"))
    store = Store(tmp_path / "store")
    result = calibrate(ToyEvaluator(HIDDEN, noise=0.02), record_dir=tmp_path / "journal", seed=1, max_evaluations=6)
    with store.new_record("calibrations", workflow.key) as record:
        (record / "journal").mkdir()
        (record / "incumbent.json").write_text(json.dumps(asdict(result.overheads), default=dict))
        (record / "journal" / "result.json").write_text((tmp_path / "journal" / "result.json").read_text())
    calibrated = []

    def whole(*_, **__):
        calibrated.append(True)
        return CalibrationResult("kept", "kept: as it was", result.overheads, 5, 6)

    def night(truth, *, noise=0.02, seed=9):
        machine = Toy(truth, noise=noise, seed=seed)
        program, predicted_s = machine.plan(result.overheads)
        monkeypatch.setattr(nights, "profile_stage", lambda *_, **__: None)
        monkeypatch.setattr(
            nights, "plan_stage", lambda *_, **__: SimpleNamespace(program=program, predicted_s=predicted_s)
        )
        monkeypatch.setattr(nights, "MachineEvaluator", lambda *_, **__: machine)
        monkeypatch.setattr(nights, "calibrate_workflow", whole)
        calibrated.clear()
        found = nights.nightly(workflow, store)
        return found, bool(calibrated), machine

    night.workflow, night.store, night.result = workflow, store, result
    return night


def test_inside_the_band_three_runs_say_still_calibrated(toy):
    found, calibrated, machine = toy(HIDDEN)
    assert (found.status, calibrated, [repeats for _, repeats in machine.measured]) == ("still calibrated", False, [3])
    assert found.text.startswith("still calibrated: the latest runs differ by ")
    assert found.overheads == toy.result.overheads


def test_outside_the_band_it_says_what_changed_by_how_much_and_calibrates(toy):
    found, calibrated, _ = toy(SLOW)
    assert calibrated
    assert "% slower than calibrated: blur on ocl0 +" in found.text
    assert found.text.endswith("; kept: as it was")
    change = float(found.text.partition("blur on ocl0 +")[2].partition("%")[0])
    assert change == pytest.approx(200, abs=20)


def test_an_unfinished_calibration_is_gone_on_with(toy):
    nights.journal_folder(toy.workflow, toy.store).mkdir()
    _, calibrated, machine = toy(HIDDEN)
    assert (calibrated, machine.measured) == (True, [])


def test_runs_in_the_store_tell_drift_too(toy, monkeypatch):
    machine = ToyEvaluator(SLOW, noise=0.02, seed=3)
    program, _ = machine.plan(toy.result.overheads)
    assert program_key(program) == toy.result.program
    monkeypatch.setattr(nights, "load_program", lambda _: program)
    with toy.store.new_record("plans", "toy-w-p-plan"):
        """Only its name counts here."""
    assert nights.drift_of_runs(toy.workflow, toy.store).text == "still calibrated: no run to compare"
    for _ in range(3):
        makespans, trace = machine.measure(program, 1)
        with toy.store.new_record("runs", toy.store.unique_key("runs", "toy-w-p"), plan="toy-w-p-plan") as folder:
            (folder / "summary.json").write_text(json.dumps({"makespan_s": makespans}))
            trace.write_parquet(folder / "trace.parquet")
    found = nights.drift_of_runs(toy.workflow, toy.store)
    assert found.drifted
    assert "blur on ocl0 +" in found.text


def test_without_a_calibration_there_is_nothing_to_compare_with(toy, tmp_path):
    assert nights.drift_of_runs(toy.workflow, Store(tmp_path / "other")) is None
    path = toy.store.find("calibrations", "toy-w-p") / "journal" / "result.json"
    for text in ("{", "[]", '{"band": {"x": 1}}', '{"classes": 3}'):
        path.write_text(text)
        with pytest.raises(StoreError, match=r"result\.json is damaged .*; delete .* and calibrate again"):
            nights.accepted(toy.workflow, toy.store)
    path.write_text("{}")
    assert nights.accepted(toy.workflow, toy.store) is None


def test_three_of_a_thousand_quiet_nights_at_most_are_outside():
    rng = np.random.default_rng(1)
    known = nights.Accepted(Overheads(), "p", Band.of(np.exp(rng.normal(0, 0.02, 20))), {})
    alarms = sum(nights.judge(known, np.exp(rng.normal(0, 0.02, 3)).tolist(), None).drifted for _ in range(1000))
    assert alarms <= 3
