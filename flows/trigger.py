"""``heterotask run APP --via-prefect DEPLOYMENT``: starts the deployed flow, follows it, returns its outcome."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import LogSort
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL

from flows.access import DeployError
from heterotask_core.apps import find_application, parse_params

EVERY_S = 1.0
_LOG_BATCH_S = 2.5
_WAITS = {
    "Late": "waits for a worker; the pool takes one run at a time: `prefect flow-run ls` shows which is under way",
    "AwaitingConcurrencySlot": "waits for its deployment's run before; if that is long dead: `heterotask reconcile`",
}
"""What a person is told in states of Prefect that a run can stay in without a log line."""
_UNREACHABLE_S = 120.0
"""A server that restarts is waited for so long."""


def trigger(deployment: str, application: str, param: list[str], options: dict[str, Any], *, as_json: bool) -> int:
    """Start ``deployment`` for an application, show its log and progress on stderr, and return the exit code.

    ``options`` are fields of the pipeline's parameters; None or "" leaves the deployment's default. 0: completed;
    1: failed, crashed or cancelled; 130 or 143: interrupted or ended here, while the run goes on.
    Raises :class:`~flows.access.DeployError` when server or deployment do not answer or refuse the parameters, and
    :class:`~heterotask_core.errors.ApplicationError` for wrong parameters.
    """
    if not PREFECT_API_URL.value():
        raise DeployError("no Prefect server is set; run `heterotask deploy`, or set PREFECT_API_URL")
    given = {name: value for name, value in options.items() if value not in (None, "")}
    try:
        with get_client(sync_client=True) as client:
            found = client.read_deployment_by_name(deployment)
            config = _config(found, application, param, given)
            run = client.create_flow_run_from_deployment(found.id, parameters={"config": config})
            print(f"run {run.name}: {_page(run)}", file=sys.stderr)
            try:
                run = _follow(client, run)
            except (KeyboardInterrupt, SystemExit) as end:
                print(f"the run goes on; end it with `prefect flow-run cancel {run.id}`", file=sys.stderr)
                return 128 + (signal.SIGINT if isinstance(end, KeyboardInterrupt) else signal.SIGTERM)
            return _outcome(client, run, as_json=as_json)
    except ObjectNotFound as error:
        raise DeployError(f"there is no deployment {deployment!r}; see `prefect deployment ls`") from error
    except PrefectHTTPStatusError as error:
        said = error.response.json().get("detail", error.response.text) if error.response.content else error
        raise DeployError(f"the server refuses: {said}") from error
    except httpx.HTTPError as error:
        raise DeployError(f"the server at {PREFECT_API_URL.value()} does not answer ({error})") from error


def _config(
    deployment: DeploymentResponse, application: str, param: list[str], given: dict[str, Any]
) -> dict[str, Any]:
    """Return the parameters as the deployment wants them: of any application, or a form of one."""
    fields = _fields(deployment)
    if "app" in fields:
        refused = sorted(name for name in given if name not in fields and name != "check")
        values = {"app": application, "app_params": param, **given}
        if refused or (given.get("check") and "check" not in fields):
            raise DeployError(f"deployment {deployment.name!r} does not take {', '.join(refused) or 'check'}")
        return {name: value for name, value in values.items() if name in fields}
    app = find_application(application)
    missing = sorted(set(app.Params.model_fields) - fields)
    if missing:
        raise DeployError(f"deployment {deployment.name!r} is not one of {application}: no {', '.join(missing)} there")
    values = parse_params(app, param).model_dump(mode="json", exclude_unset=True)
    return values | {f"run_{n}" if n in app.Params.model_fields else n: value for n, value in given.items()}


def _fields(deployment: DeploymentResponse) -> set[str]:
    """Return the names of the fields of the parameter ``config``."""
    schema = deployment.parameter_openapi_schema or {}
    config = schema.get("properties", {}).get("config", {})
    references = [config.get("$ref"), *(part.get("$ref") for part in config.get("allOf", ()))]
    names = [ref.rpartition("/")[2] for ref in references if ref]
    return set(schema.get("definitions", {}).get(names[0], {}).get("properties", {})) if names else set()


def _follow(client: SyncPrefectClient, run: FlowRun) -> FlowRun:
    """Show log lines and progress until the run has ended; a server that restarts is waited for."""
    seen, shown, reached_s = 0, "", time.monotonic()
    while True:
        try:
            run = client.read_flow_run(run.id)
            seen = _show_log(client, run.id, seen)
            waits = _WAITS.get((run.state and run.state.name) or "", "")
            progress = f"  {waits}" if waits else _progress(client, run.id)
            if progress != shown:
                shown = progress
                print(progress, file=sys.stderr)
            reached_s = time.monotonic()
        except (httpx.HTTPError, PrefectHTTPStatusError):
            if time.monotonic() - reached_s > _UNREACHABLE_S:
                raise
        else:
            if run.state is not None and run.state.is_final():
                # The last lines are on their way: flows send theirs in batches.
                time.sleep(_LOG_BATCH_S)
                _show_log(client, run.id, seen)
                return run
        time.sleep(EVERY_S)


def _show_log(client: SyncPrefectClient, run: UUID, seen: int) -> int:
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run]))
    while lines := client.read_logs(wanted, offset=seen, limit=200, sort=LogSort.TIMESTAMP_ASC):
        for line in lines:
            print(f"  {line.message}", file=sys.stderr)
        seen += len(lines)
    return seen


def _progress(client: SyncPrefectClient, run: UUID) -> str:
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run]))
    found = [a for a in client.read_artifacts(artifact_filter=wanted) if a.type == "progress"]
    return f"  {found[0].data:.0f} %: {found[0].description}" if found else ""


def _outcome(client: SyncPrefectClient, run: FlowRun, *, as_json: bool) -> int:
    state = run.state
    ended = state is not None and state.type == StateType.COMPLETED
    if as_json:
        told = {"run": run.name, "id": str(run.id), "state": state.name if state else None, "page": _page(run)}
        print(json.dumps(told | {"message": state.message if state else None}, indent=1))
        return 0 if ended else 1
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run.id]))
    for artifact in client.read_artifacts(artifact_filter=wanted):
        if ended and (artifact.key or "").endswith("-summary"):
            print(str(artifact.data).partition("\n## Files")[0])
    print(f"{state.name if state else 'unknown'}: {(state.message if state else None) or run.name}", file=sys.stderr)
    return 0 if ended else 1


def _page(run: FlowRun) -> str:
    return f"{(PREFECT_API_URL.value() or '').removesuffix('/api')}/runs/flow-run/{run.id}"
