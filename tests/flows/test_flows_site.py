"""Prefect for real, as `heterotask deploy` makes it: who gets in, what is refused, what is shown."""

import json
import stat
from pathlib import Path

import httpx
import pytest
from real_site import REPOSITORY

from heterotask_core.apps import list_applications

pytestmark = [pytest.mark.prefect, pytest.mark.mpi, pytest.mark.timeout(900)]


def test_access_is_private(site):
    mode = stat.S_IMODE((site.home / "profiles.toml").stat().st_mode)
    assert mode == 0o600
    secret = site.profile()["PREFECT_API_AUTH_STRING"].partition(":")[2]
    assert len(secret) >= 32
    assert site.api("GET", "/admin/version", auth=False)[0] == 401
    # With the secret, but without a token against forged requests.
    url = f"http://127.0.0.1:{site.port}/api/flow_runs/filter"
    assert httpx.post(url, json={}, auth=("heterotask", secret), timeout=60).status_code == 403
    assert site.api("GET", "/admin/settings")[1]["server"]["analytics_enabled"] is False
    for path in (*site.home.glob("*.log"), REPOSITORY / "prefect.yaml"):
        assert secret not in path.read_text()
    for process in ("server", "worker"):
        assert b"DO_NOT_TRACK=1" in Path(f"/proc/{site.pid(process)}/environ").read_bytes().split(b"\0")
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


def test_every_deployment_is_there_with_its_limits_and_its_form(site):
    _, found = site.api("POST", "/deployments/filter", {})
    limits = {d["name"]: (d["global_concurrency_limit"] or {}).get("limit") for d in found if d["name"] != "run"}
    assert limits == {
        "profile": None,
        "plan": None,
        "execute": 1,
        "pipeline": 1,
        "calibrate": 1,
        "nightly-calibration": 1,
    }
    forms = {d["entrypoint"].partition(":")[2]: d for d in found if d["name"] == "run"}
    assert set(forms) == {app.name for app in list_applications()}
    for app in list_applications():
        (form,) = forms[app.name]["parameter_openapi_schema"]["definitions"].values()
        own = app.Params.model_json_schema()["properties"]
        assert {name: form["properties"][name].get("description") for name in own} == {
            name: field.get("description") for name, field in own.items()
        }
    (nightly,) = [d for d in found if d["name"] == "nightly-calibration"]
    (schedule,) = nightly["schedules"]
    assert (schedule["active"], schedule["schedule"]["timezone"]) == (True, "Europe/Berlin")
    assert nightly["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
    _, pool = site.api("GET", "/work_pools/heterotask")
    assert (pool["type"], pool["concurrency_limit"]) == ("process", 1)


def test_a_run_through_prefect_shows_progress_and_result(site, finished):
    assert "100 %:" in finished.stderr
    assert "check passed" in finished.stderr
    assert "| planner | portfolio |" in finished.stdout
    refused = site.run("heterotask", "run", "heat", "--via-prefect", "canny/run")
    assert refused.returncode == 1
    assert "is not one of heat" in refused.stderr
    (row,) = json.loads(site.check("heterotask", "history", "canny", "--json"))
    assert (row["status"], row["repeats"], row["in_use"]) == ("complete", 1, "yes")


def test_nothing_secret_in_what_a_run_shows(site, finished):
    secret = site.profile()["PREFECT_API_AUTH_STRING"].partition(":")[2]
    wanted = {"flow_runs": {"id": {"any_": [finished.run]}}}
    _, artifacts = site.api("POST", "/artifacts/filter", wanted)
    _, log = site.api("POST", "/logs/filter", {"logs": {"flow_run_id": {"any_": [finished.run]}}})
    assert len(artifacts) >= 6
    assert any("check passed" in line["message"] for line in log)
    assert secret not in json.dumps([artifacts, log])
    assert secret not in finished.stdout + finished.stderr


def test_a_failed_run_has_our_message_and_exit_code_and_no_shell(site, tmp_path):
    made = tmp_path / "made"
    text = f"flows_app:NONE;touch {made};$(touch {made})`touch {made}`"
    options = ["-p", f"n=1;touch {made}", "--devices", f"cpu:1;touch {made}"]
    failed = site.run("heterotask", "run", text, *options, "--via-prefect", "pipeline/pipeline")
    assert failed.returncode == 1
    assert "Failed" in failed.stderr
    assert "flows_app:NONE" in failed.stderr
    # One line of ours, and the state's message; no traceback.
    assert failed.stderr.count("\n  error: ") == 1
    assert "Traceback" not in failed.stderr
    assert failed.stderr.splitlines()[-1].startswith("Failed: Flow run encountered an exception: ApplicationError: ")
    assert not made.exists()
