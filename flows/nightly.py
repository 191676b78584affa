"""When a scheduled calibration has nothing to do, or would measure other people's work."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from flows.artifacts import publish_drift
from flows.params import NightlyParams
from heterotask_core.store import Store


def reason_to_skip(config: NightlyParams) -> str | None:
    """Return why this night is skipped, or None; what the last runs say of drift is published either way."""
    # Imported here: scikit-optimize takes seconds, and the other flows do without it.
    from calibration.nightly import drift_of_runs

    workflow, store = config.workflow(), config.open_store()
    drift = drift_of_runs(workflow, store)
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
