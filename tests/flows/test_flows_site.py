"""Prefect for real: one server and one worker, made by `heterotask deploy`; runs cancelled, killed, reconciled."""

import os
import re
import shlex
import signal
import stat
import time
from pathlib import Path

import pytest
from real_site import REPOSITORY, until

pytestmark = [pytest.mark.prefect, pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(1500)]

GONE_S = 5.0
SLOW = {"app": "flows_app:SLOW", "devices": "cpu:1", "planner": "heft", "profile_budget_s": 0.5}
TINY = {"app": "flows_app:TINY", "devices": "cpu:1", "planner": "heft", "profile_budget_s": 0.5}


def _running(site):
    """A slow run whose ranks work; returns (run, shared memory that it had)."""
    run = site.start("pipeline/pipeline", SLOW | {"store": str(site.store)})
    # Counters move: the ranks are past their start.
    until(lambda: _progress(site, run) > 0, "progress of the run")
    assert site.state(run)[0] == "RUNNING"
    return run, site.shared_memory()


def _progress(site, run):
    _, found = site.api("POST", "/artifacts/filter", {"flow_runs": {"id": {"any_": [run]}}})
    return max([float(a["data"]) for a in found if a["type"] == "progress"], default=0.0)


def _assert_gone(site, names):
    until(lambda: not site.ranks(), "end of the ranks", GONE_S)
    until(lambda: not list(site.jobs.glob("heterotask-job-*")), "removal of the job's folder", GONE_S)
    assert [name for name in names if Path(name).exists()] == []


def _assert_next_run_completes(site):
    assert site.ended(site.start("pipeline/pipeline", TINY | {"store": str(site.store)})) == "COMPLETED"


def test_access_is_private(site):
    mode = stat.S_IMODE((site.home / "profiles.toml").stat().st_mode)
    assert mode == 0o600
    secret = site.profile()["PREFECT_API_AUTH_STRING"].partition(":")[2]
    assert len(secret) >= 32
    assert site.api("GET", "/admin/version", auth=False)[0] == 401
    # With the secret, but without a token against forged requests.
    import httpx

    url = f"http://127.0.0.1:{site.port}/api/flow_runs/filter"
    assert httpx.post(url, json={}, auth=("heterotask", secret), timeout=60).status_code == 403
    assert site.profile()["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    for path in (*site.home.glob("*.log"), REPOSITORY / "prefect.yaml"):
        assert secret not in path.read_text()
    for process in ("server", "worker"):
        assert secret.encode() not in Path(f"/proc/{site.pid(process)}/cmdline").read_bytes()


@pytest.mark.parametrize(
    ("deployment", "config"),
    [
        ("pipeline/pipeline", {"app": "canny", "nodes": 0}),
        ("pipeline/pipeline", {"app": "canny", "planner": "best"}),
        ("pipeline/pipeline", {"app": "canny", "plannner": "heft"}),
        ("pipeline/pipeline", {}),
        ("execute/execute", {"app": "canny"}),
        ("nightly/nightly-calibration", {"app": "canny", "max_load": -1}),
        ("canny/run", {"size": 2}),
        ("canny/run", {"sigma": "wide"}),
        ("kmeans/run", {"dtype": "int8"}),
        ("kmeans/run", {"nosuch": 1}),
    ],
)
def test_the_server_refuses_a_wrong_value(site, deployment, config):
    flow, _, name = deployment.partition("/")
    _, found = site.api("GET", f"/deployments/name/{flow}/{name}")
    body = {"parameters": {"config": config}}
    status, answer = site.api("POST", f"/deployments/{found['id']}/create_flow_run", body)
    assert status in (409, 422), answer
    assert "alidation" in str(answer)


def test_a_run_through_prefect_shows_progress_and_result(site):
    command = ["heterotask", "run", "heat", "-p", "size=64", "-p", "tile=32", "-p", "steps=2", "--devices", "cpu:1"]
    command += ["--profile-budget", "1", "--evaluations", "5", "--check", "--store", str(site.store)]
    done = site.run(*command, "--via-prefect", "heat/run")
    assert done.returncode == 0, done.stderr
    assert "100 %:" in done.stderr
    assert "check passed" in done.stderr
    assert "| planner | portfolio |" in done.stdout
    refused = site.run(*command[:3], "--via-prefect", "canny/run")
    assert refused.returncode == 1
    assert "is not one of heat" in refused.stderr
    failed = site.run("heterotask", "run", "flows_app:NONE", "--via-prefect", "pipeline/pipeline")
    assert failed.returncode == 1
    assert "Failed" in failed.stderr
    assert "flows_app:NONE" in failed.stderr
    history = site.check("heterotask", "history", "heat", "--store", str(site.store)).splitlines()
    assert len(history) == 2
    assert history[1].endswith("yes")


@pytest.mark.parametrize("way", ["command", "page"])
def test_a_cancelled_run_leaves_nothing(site, way):
    run, names = _running(site)
    if way == "command":
        site.check("prefect", "flow-run", "cancel", run)
    else:
        state = {"type": "CANCELLING", "name": "Cancelling"}
        assert site.api("POST", f"/flow_runs/{run}/set_state", {"state": state})[0] == 201
    asked_s = time.monotonic()
    until(lambda: not site.ranks(), "end of the ranks", 30.0)
    print(f"ranks gone {time.monotonic() - asked_s:.1f} s after the request")
    _assert_gone(site, names)
    assert site.ended(run) == "CANCELLED"


def test_a_killed_flow_process_leaves_nothing_and_a_crashed_run(site):
    run, names = _running(site)
    os.kill(site.flow_process(run), signal.SIGKILL)
    _assert_gone(site, names)
    assert site.ended(run) == "CRASHED"
    _assert_next_run_completes(site)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_dead_worker_is_set_right(site, how):
    run, names = _running(site)
    flow, worker = site.flow_process(run), site.pid("worker")
    os.kill(worker, how)
    until(lambda: _ended(worker), "end of the worker")
    _assert_gone(site, names)
    until(lambda: _ended(flow), "end of the flow process")
    site.check("heterotask", "reconcile")
    assert site.state(run)[0] in {"CRASHED", "CANCELLED"}
    assert site.check("heterotask", "reconcile").strip() == "nothing to set right"
    site.deploy()
    _assert_next_run_completes(site)


def _ended(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_server_that_restarts_does_not_disturb_a_run(site):
    run = site.start("pipeline/pipeline", SLOW | {"store": str(site.store), "app_params": ["tasks=200"]})
    until(site.ranks, "start of the ranks")
    server = site.pid("server")
    os.kill(server, signal.SIGKILL)
    until(lambda: _ended(server), "end of the server")
    site.deploy()
    assert site.ended(run) == "COMPLETED"


def test_a_stuck_slot_is_freed(site):
    _, found = site.api("GET", "/deployments/name/pipeline/pipeline")
    limit = found["global_concurrency_limit"]["name"]
    assert site.api("PATCH", f"/v2/concurrency_limits/{limit}", {"active_slots": 1})[0] == 204
    assert site.check("heterotask", "reconcile").strip() == "deployment pipeline: 1 slot(s) freed"
    _assert_next_run_completes(site)


def test_the_documentation_is_true(site):
    """Every command of docs/prefect.md but the installation, as written except for port and time zone of the site."""
    text = (REPOSITORY / "docs" / "prefect.md").read_text().partition("## 2")[2]
    commands = re.findall(r"^    (\S.*)$", text, re.MULTILINE)
    assert len(commands) == 9
    for command in commands:
        site.check("bash", "-c", command.replace("heterotask deploy", f"heterotask deploy --port {site.port}", 1))
    assert shlex.split(commands[-1]) == ["heterotask", "deploy", "--stop"]
