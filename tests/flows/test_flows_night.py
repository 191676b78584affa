"""Real nights: a drift that is found and told, a fresh calibration that is left alone, one still under way."""

import base64
import json
from xml.etree import ElementTree

import pytest

from flows.charts import measured_medians

pytestmark = [pytest.mark.prefect, pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(900)]

NIGHTLY = "nightly/nightly-calibration"
# The smallest workflow that has something to calibrate.
CHOLESKY = {"app": "cholesky", "app_params": ["size=128", "tile=32"], "devices": "cpu:2"}


def pages(site, run, key):
    """Return what the run published under ``key``, the oldest first."""
    wanted = {"flow_runs": {"id": {"any_": [run]}}, "artifacts": {"key": {"any_": [key]}}}
    _, found = site.api("POST", "/artifacts/filter", wanted)
    return [artifact["data"] for artifact in sorted(found, key=lambda a: a["created"])]


def curve(page):
    """Return the drawing in the page of a calibration."""
    return ElementTree.fromstring(base64.b64decode(page.partition("svg+xml;base64,")[2].partition(")")[0]))


def test_a_drift_is_found_at_night_told_and_calibrated_away(site, tmp_path):
    store = tmp_path / "store"
    workflow = CHOLESKY | {"store": str(store)}
    calibration = site.start("calibrate/calibrate", workflow | {"evaluations": 2})
    assert site.ended(calibration) == "COMPLETED"
    (journal,) = store.glob("calibrations/*/journal/journal.jsonl")
    (page,) = pages(site, calibration, "cholesky-calibration")
    assert "| outcome | " in page
    # A dot a measurement; the line is the shortest so far.
    measured = measured_medians(journal)
    assert measured
    assert len(curve(page).findall("{http://www.w3.org/2000/svg}circle")) == len(measured)
    # The machine that was calibrated took a nanosecond. (How wide the band was depends on what else ran here.)
    result = journal.with_name("result.json")
    known = json.loads(result.read_text())
    known["band"] |= {"centre_s": 1e-9, "low_s": 0.9e-9, "high_s": 1.1e-9}
    result.write_text(json.dumps(known))
    assert site.ended(site.start("pipeline/pipeline", workflow | {"repeats": 3})) == "COMPLETED"

    night = {"evaluations": 2, "fresh_h": 20.0, "max_load": 64.0}
    first = site.start(NIGHTLY, workflow | night)
    assert site.ended(first) == "COMPLETED"
    assert site.state(first)[1] == "Completed"
    # What runs of the store say, then what the night's own runs do, and what came of it.
    of_store, of_night = pages(site, first, "cholesky-drift")
    assert of_store.startswith("## Drift of cholesky\n\ndrift: the last 3 runs are ")
    assert " slower than calibrated" in of_store
    assert of_night.startswith("## Drift of cholesky\n\ndrift: the last 3 runs are ")
    (page,) = pages(site, first, "cholesky-calibration")
    assert of_night.removeprefix("## Drift of cholesky\n\n").strip() in page
    assert curve(page).find("{http://www.w3.org/2000/svg}polyline") is not None
    # In the next one there is nothing left to do.
    second = site.start(NIGHTLY, workflow | night)
    assert site.ended(second) == "COMPLETED"
    _, told = site.api("GET", f"/flow_runs/{second}")
    assert (told["state"]["name"], told["state"]["message"]) == (
        "Skipped",
        "the last calibration is 0.0 h old and still holds",
    )
    assert pages(site, second, "cholesky-drift") == ["## Drift of cholesky\n\nstill calibrated: no run to compare\n"]


def test_a_night_that_finds_the_one_before_under_way_is_cancelled(site, tmp_path):
    # Its profile alone takes a minute; a run that waits is late after 15 s, and then cancelled.
    slow = {"app": "flows_app:SLOW", "app_params": ["tasks=500", "seconds=10"], "devices": "cpu:1", "max_load": 64.0}
    first = site.start(NIGHTLY, slow | {"store": str(tmp_path / "store")})
    site.until(lambda: site.state(first)[0] == "RUNNING", "start of the night")
    second = site.start(NIGHTLY, slow | {"store": str(tmp_path / "store")})
    assert site.ended(second) == "CANCELLED"
    assert site.state(first)[0] == "RUNNING"
    site.cancel(first)
