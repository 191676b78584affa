"""The pipeline as Prefect runs it: real server, real MPI job, steps as task runs, artifacts."""

import json
import os

import flows_app
import numpy as np
import pytest
from prefect import State
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
    FlowRunFilter,
    FlowRunFilterId,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.client.schemas.sorting import ArtifactSort
from prefect.logging.handlers import APILogHandler
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, PREFECT_HOME, temporary_settings

from flows import flows, steps
from flows.flows import calibrate, execute, pipeline
from flows.params import CalibrateParams, ExecuteParams, PipelineParams
from heterotask_core.errors import ExecutionError, StoreError
from heterotask_core.stages import execute_stage
from heterotask_core.store import Store

pytestmark = [
    pytest.mark.prefect,
    pytest.mark.mpi,
    pytest.mark.timeout(900),
    # Prefect leaves connections to its server to the garbage collector; files of ours do not match.
    pytest.mark.filterwarnings("ignore:unclosed (<socket|event loop|transport|<ssl|database):ResourceWarning"),
]

APP = f"{flows_app.__name__}:TINY"


@pytest.fixture(scope="module")
def server(only_site):
    """Flows of this process talk to the site's server."""
    only_site.ensure()
    settings = {
        PREFECT_API_URL: f"http://127.0.0.1:{only_site.port}/api",
        PREFECT_API_AUTH_STRING: only_site.profile()["PREFECT_API_AUTH_STRING"],
        PREFECT_HOME: only_site.home,
    }
    with temporary_settings(settings):
        yield
        APILogHandler().flush()


@pytest.fixture(scope="module")
def ran(server, tmp_path_factory):
    """State of one pipeline run and the store it used."""
    store = tmp_path_factory.mktemp("flows") / "store"
    config = PipelineParams(
        app=APP, app_params=["n=8"], devices="cpu:1", store=str(store), planner="heft", profile_budget_s=0.2, repeats=2
    )
    return pipeline(config, return_state=True), store


def _records(state: State):
    run = FlowRunFilter(id=FlowRunFilterId(any_=[state.state_details.flow_run_id]))
    mine = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[state.state_details.flow_run_id]))
    with get_client(sync_client=True) as client:
        return client.read_task_runs(flow_run_filter=run), client.read_artifacts(artifact_filter=mine)


def test_every_step_is_a_task_run(ran):
    state, _ = ran
    assert state.is_completed(), state.message
    tasks, _ = _records(state)
    in_order = sorted(tasks, key=lambda t: t.start_time)
    assert [(t.name.rpartition("-")[0], t.state_name) for t in in_order] == [
        ("profile", "Completed"),
        ("plan", "Completed"),
        ("execute", "Completed"),
        ("report", "Completed"),
    ]


def test_the_run_is_in_the_store(ran):
    state, store = ran
    result = state.result()
    assert result["profile"]["measured"] == 1
    assert (store / "plans" / result["plan"]["plan"]).is_dir()
    folder = store / "runs" / result["execute"]["run"]
    assert np.load(folder / "s1.npy").tolist() == [i * i for i in range(8)]
    assert len(result["execute"]["makespan_s"]) == 2


def test_the_run_has_its_artifacts(ran):
    state, store = ran
    _, artifacts = _records(state)
    pages = {a.key.removeprefix("flows-app-tiny-"): a for a in artifacts}
    assert set(pages) == {"progress", "summary", "gantt", "timings", "history", "files"}
    assert (pages["progress"].data, pages["progress"].description) == (100.0, "4 of 4 ops")
    run = state.result()["execute"]["run"]
    assert "| planner | heft |" in pages["summary"].data
    assert str(store / "runs" / run / "trace.parquet") in pages["summary"].data
    assert "(data:image/svg+xml;base64," in pages["gantt"].data
    assert {row["what"] for row in json.loads(pages["timings"].data)} == {"s0", "s1"}
    (row,) = json.loads(pages["history"].data)
    assert (row["status"], row["planner"], row["repeats"], row["in_use"]) == ("complete", "heft", 2, "yes")


def test_what_ranks_print_is_in_the_log_with_rank_and_node(ran):
    APILogHandler().flush()
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[ran[0].state_details.flow_run_id]))
    with get_client(sync_client=True) as client:
        messages = [line.message for line in client.read_logs(wanted, limit=200)]
    said = [message for message in messages if message.startswith("rank ")]
    assert said == ["rank 0, node n0: squares of 8"] * 4


def test_a_failing_step_fails_the_run_with_our_message(ran):
    _, store = ran
    state = execute(ExecuteParams(app=APP, devices="cpu:1", store=str(store), plan="no plan"), return_state=True)
    assert state.is_failed()
    with pytest.raises(StoreError, match="'no plan' cannot name a record"):
        state.result()


def test_a_calibration_says_what_it_found(ran):
    _, store = ran
    state = calibrate(
        CalibrateParams(app=APP, app_params=["n=8"], devices="cpu:1", store=str(store), evaluations=2),
        return_state=True,
    )
    assert state.is_completed(), state.message
    assert state.result()["status"] == "nothing to calibrate"
    tasks, artifacts = _records(state)
    assert [t.name.rpartition("-")[0] for t in tasks] == ["calibrate"]
    (page,) = artifacts
    assert page.key == "flows-app-tiny-calibration"
    assert "| outcome | nothing to calibrate |" in page.data


@pytest.fixture(scope="module")
def again(ran):
    """State of another run of the same plan whose first launch fails; what was tried, and the records it left."""
    state, store = ran
    attempts, before = [], Store(store).list("runs")

    def stage(*args, **options):
        with pytest.MonkeyPatch.context() as patch:
            if not attempts:
                patch.setenv("HETEROTASK_LAUNCHER", "nosuch")
            attempts.append(os.environ.get("HETEROTASK_LAUNCHER"))
            return execute_stage(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "execute_stage", stage)
        patch.setattr(flows, "execute_step", steps.execute_step.with_options(retry_delay_seconds=0))
        done = execute(_config(state, store), return_state=True)
    return done, attempts, [key for key in Store(store).list("runs") if key not in before]


def test_a_launch_that_failed_is_tried_again_in_a_folder_of_its_own(ran, again):
    _, store = ran
    state, attempts, made = again
    assert state.is_completed(), state.message
    assert attempts == ["nosuch", None]
    assert [Store(store).manifest("runs", key)["status"] for key in made] == ["failed", "complete"]
    tasks, _ = _records(state)
    assert {t.name.rpartition("-")[0]: t.run_count for t in tasks} == {"execute": 2, "report": 1}


def test_the_history_has_a_version_a_run(again):
    assert again[0].is_completed()
    wanted = ArtifactFilter(key=ArtifactFilterKey(any_=["flows-app-tiny-history"]))
    with get_client(sync_client=True) as client:
        versions = client.read_artifacts(artifact_filter=wanted, sort=ArtifactSort.CREATED_DESC)
    told = [[(row["status"], row["in_use"]) for row in json.loads(version.data)] for version in versions]
    assert told[-1] == [("complete", "yes")]
    assert told[0] == [("complete", "yes"), ("failed", "yes"), ("complete", "yes")]


def test_a_rank_that_failed_is_not_tried_again(ran, monkeypatch):
    monkeypatch.setenv("FLOWS_APP_FAIL", "1")
    failed = execute(_config(*ran), return_state=True)
    assert failed.is_failed()
    with pytest.raises(ExecutionError, match="squares"):
        failed.result()
    tasks, _ = _records(failed)
    assert {t.name.rpartition("-")[0]: t.run_count for t in tasks} == {"execute": 1}


def _config(state, store):
    plan = state.result()["plan"]["plan"]
    return ExecuteParams(app=APP, app_params=["n=8"], devices="cpu:1", store=str(store), plan=plan)
