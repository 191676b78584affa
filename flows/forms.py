"""A form for every application: its own parameters and those of the pipeline in one flat model.

The attributes of this module that are named like installed applications are flows, so that ``flows/forms.py:canny``
is an entrypoint; nothing here has to be changed for a new application.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import Flow, flow
from prefect.client.orchestration import get_client
from prefect.utilities.callables import parameter_schema
from pydantic import BaseModel, ConfigDict, create_model

from flows.flows import run_pipeline
from flows.params import PipelineParams
from heterotask_core.app import Application
from heterotask_core.apps import find_application, list_applications, param_text
from heterotask_core.errors import ApplicationError

DEPLOYMENT = "run"
"""Name of the deployment of every application's flow: ``canny/run``."""
_OWN = ("app", "app_params")


def form_of(app: Application) -> type[BaseModel]:
    """Return the flat model: first the fields of the application, then those of the pipeline.

    A field of the pipeline that the application has too is called ``run_NAME``.
    """
    fields: dict[str, Any] = {name: (info.annotation, info) for name, info in app.Params.model_fields.items()}
    for name, info in PipelineParams.model_fields.items():
        if name not in _OWN:
            fields[_ours(app, name)] = (info.annotation, info)
    return create_model(
        f"{app.name.title().replace('_', '')}Run", __config__=ConfigDict(extra="forbid"), __doc__=app.summary, **fields
    )


def pipeline_params(app: Application, form: BaseModel) -> PipelineParams:
    """Return what the pipeline takes for a filled-in form; the application's own rules are checked there."""
    values = form.model_dump(mode="json")
    texts = [param_text(app, name, values[name]) for name in app.Params.model_fields]
    rest = {name: values[_ours(app, name)] for name in PipelineParams.model_fields if name not in _OWN}
    return PipelineParams(app=app.name, app_params=texts, **rest)


def form_flow(app: Application) -> Flow[..., Any]:
    """Return the flow of an application: the pipeline behind its form."""
    model = form_of(app)

    def run(config: BaseModel) -> dict[str, Any]:
        return run_pipeline(pipeline_params(app, config))

    run.__annotations__["config"] = model
    run.__doc__ = f"{app.summary}: profile what is missing, plan, execute, and publish what happened."
    return flow(name=app.name)(run)


def deploy_forms(*, pool: str, folder: Path) -> list[str]:
    """Make or renew the deployment ``APP/run`` of every installed application; return their names.

    ``folder``: where runs work, and where a relative store lies.
    """
    names = []
    with get_client(sync_client=True) as client:
        for app in list_applications():
            made = form_flow(app)
            client.create_deployment(
                flow_id=client.create_flow(made),
                name=DEPLOYMENT,
                description=f"{app.summary}: profile what is missing, plan, execute.",
                entrypoint=f"{__name__}:{app.name}",
                parameter_openapi_schema=parameter_schema(made.fn).model_dump_for_openapi(),
                enforce_parameter_schema=True,
                # All fields have defaults where the application's have, so that the form comes filled in.
                parameters={"config": {}},
                pull_steps=[
                    {"prefect.deployments.steps.set_working_directory": {"directory": str(folder)}},
                ],
                path=str(folder),
                work_pool_name=pool,
                tags=["heterotask"],
            )
            names.append(f"{app.name}/{DEPLOYMENT}")
    return names


def _ours(app: Application, name: str) -> str:
    return f"run_{name}" if name in app.Params.model_fields else name


def __getattr__(name: str) -> Flow[..., Any]:
    """Return the flow of the application called ``name``."""
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        return form_flow(find_application(name))
    except ApplicationError as error:
        raise AttributeError(str(error)) from error
