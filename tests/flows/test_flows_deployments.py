"""prefect.yaml: entrypoints exist, parameters are valid, nothing in it belongs to one machine."""

import importlib
import inspect
import re
from pathlib import Path
from typing import get_args
from zoneinfo import ZoneInfo

import pytest
import yaml
from pydantic import ValidationError

from flows.forms import form_of, pipeline_params
from flows.params import CalibrateParams, ExecuteParams, PipelineParams, PlannerName
from heterotask_core.apps import find_application, list_applications, parse_params
from heterotask_core.planning.registry import PLANNERS

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


def test_the_form_offers_every_planner():
    assert get_args(PlannerName) == PLANNERS


@pytest.mark.parametrize("app", list_applications(), ids=lambda app: app.name)
def test_an_application_has_a_flat_form_with_help_and_bounds(app):
    schema = form_of(app).model_json_schema()
    assert "$defs" not in schema
    own = app.Params.model_json_schema()["properties"]
    assert {name: schema["properties"][name] for name in own} == own
    assert all(field.get("description") for field in schema["properties"].values())
    assert schema["additionalProperties"] is False
    # It can be sent as it opens.
    filled = pipeline_params(app, form_of(app)())
    assert parse_params(app, filled.app_params) == app.Params()


def test_a_form_keeps_its_values_on_the_way_to_the_pipeline():
    app = find_application("kmeans")
    form = form_of(app)(seed=7, run_seed=3, clusters=5, dtype="float32", devices="cpu:1", repeats=2)
    params = pipeline_params(app, form)
    assert (params.app, params.seed, params.devices, params.repeats) == ("kmeans", 3, "cpu:1", 2)
    chosen = parse_params(app, params.app_params)
    assert (chosen.seed, chosen.clusters, chosen.dtype) == (7, 5, "float32")
    with pytest.raises(ValidationError, match="clusters"):
        form_of(app)(clusters=0)
