"""What a person sees: the form of an application, and a finished run with its artifacts, in both user interfaces."""

import json
import os
from pathlib import Path

import pytest
from browser import Browser, find_chromium
from made_chart import chart_page

from heterotask_core.apps import list_applications

pytestmark = [
    pytest.mark.browser,
    pytest.mark.prefect,
    pytest.mark.mpi,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed (apt-get install chromium)"),
]

CHART = "Array.from(document.images).some(i => i.src.startsWith('data:image/svg') && i.naturalWidth > 0)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory, only_site):
    with Browser(tmp_path_factory.mktemp("chromium"), environment=only_site.environment) as made:
        secret = json.dumps(only_site.profile()["PREFECT_API_AUTH_STRING"])
        made.before_pages(f"localStorage.setItem('prefect-password', btoa({secret}))")
        yield made


def _picture(browser, tmp_path, name):
    """Keep a picture where the environment asks for it (docs/ holds some), else in the test's folder."""
    folder = Path(os.environ.get("HETEROTASK_PICTURES", tmp_path))
    browser.picture(folder / name)
    assert (folder / name).stat().st_size > 10_000


def _artifact(site, run, what):
    _, found = site.api("POST", "/artifacts/filter", {"flow_runs": {"id": {"any_": [run]}}})
    (artifact,) = [a for a in found if a["key"] == f"canny-{what}"]
    return artifact["id"]


@pytest.mark.parametrize("base", ["", "/v2"])
def test_the_form_shows_help_and_defaults(browser, site, tmp_path, base):
    _, found = site.api("GET", "/deployments/name/heat/run")
    url = f"http://127.0.0.1:{site.port}{base}/deployments/deployment/{found['id']}/run"
    browser.open(url, "Steps", "time steps", "rows and columns of the grid", "Search budget of the planner")
    _picture(browser, tmp_path, f"prefect-form{base.replace('/', '-')}.png")


@pytest.mark.parametrize("base", ["", "/v2"])
def test_every_application_has_a_form_with_the_help_of_its_fields(browser, site, base):
    for app in list_applications():
        _, found = site.api("GET", f"/deployments/name/{app.name}/run")
        help_texts = [field.description for field in app.Params.model_fields.values()]
        url = f"http://127.0.0.1:{site.port}{base}/deployments/deployment/{found['id']}/run"
        browser.open(url, *help_texts, "Search budget of the planner")


@pytest.mark.parametrize("base", ["", "/v2"])
@pytest.mark.parametrize("n_ops", [100, 100_000])
def test_a_chart_of_any_size_is_shown(browser, site, tmp_path, base, n_ops):
    made = {"key": f"made-{n_ops}", "type": "markdown", "data": chart_page(n_ops)}
    status, artifact = site.api("POST", "/artifacts/", made)
    assert status == 201
    browser.open(f"http://127.0.0.1:{site.port}{base}/artifacts/artifact/{artifact['id']}", "Gantt chart of run")
    browser.wait_for(CHART, "the chart")
    _picture(browser, tmp_path, f"chart-{n_ops}{base.replace('/', '-')}.png")


@pytest.mark.parametrize("base", ["", "/v2"])
def test_a_finished_run_shows_stages_and_artifacts(browser, site, finished, tmp_path, base):
    run = finished.run
    root = f"http://127.0.0.1:{site.port}{base}"
    browser.open(f"{root}/runs/flow-run/{run}?tab=TaskRuns", "profile", "execute", "Completed")
    _picture(browser, tmp_path, f"prefect-run{base.replace('/', '-')}.png")
    browser.open(f"{root}/artifacts/artifact/{_artifact(site, run, 'summary')}", "predicted makespan")
    browser.open(f"{root}/artifacts/artifact/{_artifact(site, run, 'gantt')}", "Gantt chart of run")
    browser.wait_for(CHART, "the chart")
    _picture(browser, tmp_path, f"prefect-gantt{base.replace('/', '-')}.png")
    browser.open(f"{root}/artifacts/artifact/{_artifact(site, run, 'timings')}", "beyond_ms")
    browser.open(f"{root}/artifacts/key/canny-history", "canny-history")
