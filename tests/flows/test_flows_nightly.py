"""When a night is skipped: a fresh calibration that holds, or a busy host; and what drift changes."""

import json
from dataclasses import asdict

import flows_app
import pytest

from calibration.drift import Band
from flows import nightly
from flows.params import NightlyParams

BAND = Band(centre_s=1.0, low_s=0.9, high_s=1.1, samples=20)


@pytest.fixture
def told(monkeypatch):
    """What was published of drift; the host is idle."""
    lines = []
    monkeypatch.setattr(nightly, "publish_drift", lambda app, text: lines.append(text))
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    return lines


@pytest.fixture
def config(tmp_path):
    return NightlyParams(
        app=f"{flows_app.__name__}:TINY", devices="cpu:1", store=str(tmp_path / "store"), fresh_h=20.0, max_load=0.5
    )


def _calibrated(config, band=BAND):
    key = config.workflow().key
    with config.open_store().new_record("calibrations", key) as folder:
        (folder / "journal").mkdir()
        (folder / "journal" / "result.json").write_text(json.dumps({"band": band and asdict(band)}))
    return key


def _ran(config, key, *makespans_s):
    store = config.open_store()
    for makespan_s in makespans_s:
        with store.new_record("runs", store.unique_key("runs", key), application="tiny") as folder:
            (folder / "summary.json").write_text(json.dumps({"makespan_s": [makespan_s]}))


def test_the_first_night_calibrates(told, config):
    assert nightly.reason_to_skip(config) is None
    assert told == []


def test_a_fresh_calibration_that_holds_is_kept(told, config):
    key = _calibrated(config)
    _ran(config, key, 1.5, 1.0, 1.05)
    assert nightly.reason_to_skip(config) == "the last calibration is 0.0 h old and still holds"
    assert told == ["still calibrated: the latest runs differ by +5.0%, inside the band"]


def test_drift_calibrates_again_however_fresh(told, config):
    key = _calibrated(config)
    _ran(config, key, 1.0, 1.2, 1.3, 1.2)
    assert nightly.reason_to_skip(config) is None
    assert told == ["drift: the last 3 runs are 20.0% slower than calibrated"]


def test_runs_of_another_workflow_are_no_drift(told, config):
    _calibrated(config)
    _ran(config, "tiny-other-platform", 9.0, 9.0, 9.0)
    assert nightly.reason_to_skip(config) is not None
    assert told == ["still calibrated: no run to compare"]


def test_an_old_calibration_is_done_again(told, config):
    _calibrated(config, band=None)
    assert nightly.reason_to_skip(config.model_copy(update={"fresh_h": 0.0})) is None
    assert told == []


def test_a_busy_host_is_left_alone(told, config, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (9.0, 0.0, 0.0))
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(4)))
    assert nightly.reason_to_skip(config) == "the host is busy: 2.25 runnable processes a core, more than 0.5"
