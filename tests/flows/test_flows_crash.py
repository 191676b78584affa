"""Runs that are cancelled, killed, or left by their worker or server: what is left of them, and that the next starts.

A test ends a run that is under way. That the next one starts is what it asserts last; the next test takes that run.
"""

import os
import signal
from pathlib import Path

import pytest
from real_site import has_ended

pytestmark = [pytest.mark.prefect, pytest.mark.mpi, pytest.mark.timeout(900)]

GONE_S = 5.0
CONFIG = {"devices": "cpu:1", "planner": "heft", "profile_budget_s": 0.5}
# Longer than the tests; each ends it.
SLOW = CONFIG | {"app": "flows_app:SLOW", "app_params": ["tasks=5000", "seconds=0.2"]}
TINY = CONFIG | {"app": "flows_app:TINY"}


class Underway:
    """A slow run whose ranks work, and its files of shared memory."""

    def __init__(self, site):
        self.run = site.start("pipeline/pipeline", SLOW | {"store": str(site.store)})
        # Counters move: the ranks are past their start.
        site.until(lambda: progress(site, self.run) > 0, "progress of the run")
        assert site.state(self.run)[0] == "RUNNING"
        self.shared_memory = site.shared_memory()
        assert self.shared_memory


@pytest.fixture(scope="module")
def left(only_site):
    """What the test before has left under way: one run, or none. The last one goes: it holds the pool's only place."""
    runs = []
    yield runs
    if runs:
        only_site.ensure()
        for underway in runs:
            only_site.cancel(underway.run)


@pytest.fixture
def underway(site, left):
    """A run under way; a test that ends it says with ``next_starts`` that another can begin."""
    before = left.pop() if left else None
    return before if before is not None and site.ranks() else Underway(site)


@pytest.fixture
def next_starts(site, left):
    return lambda: left.append(Underway(site))


def progress(site, run):
    _, found = site.api("POST", "/artifacts/filter", {"flow_runs": {"id": {"any_": [run]}}})
    return max([float(a["data"]) for a in found if a["type"] == "progress"], default=0.0)


def assert_gone(site, underway):
    site.until(lambda: not site.ranks(), "end of the ranks", GONE_S)
    site.until(lambda: not any(Path(name).exists() for name in underway.shared_memory), "end of shared memory", GONE_S)
    # What is left of the run is kept first.
    site.until(lambda: not list(site.jobs.glob("heterotask-job-*")), "removal of the job's folder")


@pytest.mark.parametrize("way", [pytest.param("command", marks=pytest.mark.slow), "page"])
def test_a_cancelled_run_leaves_nothing(site, underway, next_starts, way):
    if way == "command":
        site.check("prefect", "flow-run", "cancel", underway.run)
    else:
        site.ask_to_cancel(underway.run)
    assert_gone(site, underway)
    assert site.ended(underway.run) == "CANCELLED"
    next_starts()


@pytest.mark.slow
def test_a_killed_flow_process_leaves_nothing_and_a_crashed_run(site, underway, next_starts):
    os.kill(site.flow_process(underway.run), signal.SIGKILL)
    assert_gone(site, underway)
    assert site.ended(underway.run) == "CRASHED"
    next_starts()


@pytest.mark.slow
@pytest.mark.parametrize(("how", "mend"), [(signal.SIGTERM, "deploy"), (signal.SIGKILL, "reconcile")])
def test_a_dead_worker_is_set_right(site, underway, next_starts, how, mend):
    flow, worker = site.flow_process(underway.run), site.pid("worker")
    os.kill(worker, how)
    site.until(lambda: has_ended(worker), "end of the worker")
    assert_gone(site, underway)
    site.until(lambda: has_ended(flow), "end of the flow process")
    if mend == "deploy":
        site.deploy()
    else:
        site.check("heterotask", "reconcile")
        site.restart("worker")
    assert site.state(underway.run)[0] in {"CRASHED", "CANCELLED"}
    assert site.check("heterotask", "reconcile").strip() == "nothing to set right"
    next_starts()


@pytest.fixture
def nothing_underway(site, left):
    """No run holds the only place of the pool."""
    while left:
        site.cancel(left.pop().run)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_underway")
def test_a_server_that_restarts_does_not_disturb_a_run(site):
    # As long as a server takes to come back, about; the run may also end without one.
    run = site.start("pipeline/pipeline", SLOW | {"store": str(site.store), "app_params": ["tasks=60", "seconds=0.2"]})
    site.until(site.ranks, "start of the ranks")
    server = site.pid("server")
    os.kill(server, signal.SIGKILL)
    site.until(lambda: has_ended(server), "end of the server")
    site.restart("server")
    assert site.ended(run) == "COMPLETED"
    assert site.ranks() == []


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_underway")
def test_a_stuck_slot_is_freed(site):
    _, found = site.api("GET", "/deployments/name/pipeline/pipeline")
    limit = found["global_concurrency_limit"]["name"]
    assert site.api("PATCH", f"/v2/concurrency_limits/{limit}", {"active_slots": 1})[0] == 204
    assert site.check("heterotask", "reconcile").strip() == "deployment pipeline: 1 slot(s) freed"
    assert site.ended(site.start("pipeline/pipeline", TINY | {"store": str(site.store)})) == "COMPLETED"
