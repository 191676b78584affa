"""prefect.yaml: entrypoints exist, parameters are valid, nothing in it belongs to one machine."""

import importlib
import inspect
import re
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import yaml
from pydantic import ValidationError

from flows.params import CalibrateParams, ExecuteParams, PipelineParams

FILE = Path(__file__).parents[2] / "prefect.yaml"
DEPLOYMENTS = {d["name"]: d for d in yaml.safe_load(FILE.read_text())["deployments"]}


def test_there_is_a_deployment_for_each_stage_and_the_night():
    assert list(DEPLOYMENTS) == ["profile", "plan", "execute", "pipeline", "calibrate", "nightly-calibration"]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_deployment_names_a_flow_and_gives_it_valid_parameters(name):
    path, _, attribute = DEPLOYMENTS[name]["entrypoint"].partition(":")
    flow = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), attribute)
    model = inspect.signature(flow.fn).parameters["config"].annotation
    given = DEPLOYMENTS[name].get("parameters")
    assert given is not None or name == "execute"
    if given is not None:
        assert model.model_validate(given["config"]).app == "canny"


def test_the_night_has_one_run_at_a_time_and_a_time_zone():
    nightly = DEPLOYMENTS["nightly-calibration"]
    assert nightly["concurrency_limit"]["limit"] == 1
    (schedule,) = nightly["schedules"]
    assert schedule["cron"] == "0 2 * * *"
    assert ZoneInfo(schedule["timezone"]).key == schedule["timezone"]


def test_no_path_of_a_machine():
    assert not re.search(r"(^|[\s'\"])[/~]", FILE.read_text())


@pytest.mark.parametrize(
    ("model", "values", "field"),
    [
        (PipelineParams, {"app": "canny", "nodes": 0}, "nodes"),
        (PipelineParams, {"app": "canny", "repeats": 0}, "repeats"),
        (PipelineParams, {"app": "canny", "planner": "best"}, "planner"),
        (PipelineParams, {"app": "canny", "plannner": "heft"}, "plannner"),
        (CalibrateParams, {"app": "canny", "evaluations": 1}, "evaluations"),
        (ExecuteParams, {"app": "canny"}, "plan"),
        (PipelineParams, {}, "app"),
    ],
)
def test_a_wrong_value_is_refused_by_name(model, values, field):
    with pytest.raises(ValidationError) as refused:
        model.model_validate(values)
    assert [e["loc"] for e in refused.value.errors()] == [(field,)]
