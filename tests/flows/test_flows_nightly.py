"""When a night is skipped: a fresh calibration that holds, or a busy host; and what drift changes."""

import flows_app
import pytest

from calibration.drift import Drift
from flows import nightly
from flows.params import NightlyParams


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


def _calibrated(config, monkeypatch, drift):
    monkeypatch.setattr("calibration.nightly.drift_of_runs", lambda workflow, store: drift)
    with config.open_store().new_record("calibrations", config.workflow().key):
        pass


def test_the_first_night_calibrates(told, config):
    assert nightly.reason_to_skip(config) is None
    assert told == []


def test_a_fresh_calibration_that_holds_is_kept(told, config, monkeypatch):
    _calibrated(config, monkeypatch, Drift(False, 0.05, "still calibrated"))
    assert nightly.reason_to_skip(config) == "the last calibration is 0.0 h old and still holds"
    assert told == ["still calibrated"]


def test_drift_calibrates_again_however_fresh(told, config, monkeypatch):
    _calibrated(config, monkeypatch, Drift(True, 0.2, "drift: 20 % slower"))
    assert nightly.reason_to_skip(config) is None
    assert told == ["drift: 20 % slower"]


def test_an_old_calibration_is_looked_at_again(told, config, monkeypatch):
    _calibrated(config, monkeypatch, None)
    assert nightly.reason_to_skip(config.model_copy(update={"fresh_h": 0.0})) is None
    assert told == []


def test_a_busy_host_is_left_alone(told, config, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (9.0, 0.0, 0.0))
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(4)))
    assert nightly.reason_to_skip(config) == "the host is busy: 2.25 runnable processes a core, more than 0.5"
