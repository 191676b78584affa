"""When a scheduled calibration has nothing to do, or would measure other people's work."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from statistics import median

from calibration.drift import Band, Drift, check_drift
from flows.artifacts import publish_drift
from flows.params import NightlyParams
from heterotask_core.errors import StoreError
from heterotask_core.store import Store


def reason_to_skip(config: NightlyParams) -> str | None:
    """Return why this night is skipped, or None; what the last runs say of drift is published either way."""
    workflow, store = config.workflow(), config.open_store()
    drift = drift_since_calibration(store, workflow.key)
    if drift is not None:
        publish_drift(config.app, drift.text)
    age_h = calibration_age_h(store, workflow.key)
    if age_h is not None and age_h < config.fresh_h and not (drift is not None and drift.drifted):
        return f"the last calibration is {age_h:.1f} h old and still holds"
    load = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    if load > config.max_load:
        return f"the host is busy: {load:.2f} runnable processes a core, more than {config.max_load:g}"
    return None


def calibration_age_h(store: Store, key: str) -> float | None:
    """Return how many hours ago the workflow's calibration ended; None if there is none."""
    if store.find("calibrations", key) is None:
        return None
    ended = datetime.fromisoformat(store.manifest("calibrations", key)["finished"])
    return (datetime.now(UTC) - ended).total_seconds() / 3600


def drift_since_calibration(store: Store, key: str) -> Drift | None:
    """Judge the runs of a workflow since its calibration; None without a band to judge by.

    Raises :class:`~heterotask_core.errors.StoreError` for a damaged record.
    """
    folder = store.find("calibrations", key)
    if folder is None:
        return None
    path = folder / "journal" / "result.json"
    try:
        band = json.loads(path.read_text())["band"]
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(f"{path} is damaged ({error}); delete {folder} and calibrate again") from error
    if band is None:
        return None
    since = store.manifest("calibrations", key)["finished"]
    return check_drift(Band(**band), _makespans_since(store, key, since))


def _makespans_since(store: Store, key: str, since: str) -> list[float]:
    found = []
    for run in store.list("runs"):
        if run.rsplit("-", 2)[0] == key and store.manifest("runs", run)["started"] > since:
            folder = store.find("runs", run)
            if folder is not None:
                found.append(float(median(json.loads((folder / "summary.json").read_text())["makespan_s"])))
    return found
