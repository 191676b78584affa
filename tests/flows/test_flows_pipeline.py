"""The pipeline as Prefect runs it: real server, real MPI job, steps as task runs, artifacts."""

import json
import logging

import flows_app
import numpy as np
import pytest
from prefect import State
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowRunFilter,
    FlowRunFilterId,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.testing.utilities import prefect_test_harness

from flows.flows import calibrate, execute, pipeline
from flows.params import CalibrateParams, ExecuteParams, PipelineParams
from heterotask_core.errors import StoreError

pytestmark = [
    pytest.mark.prefect,
    pytest.mark.mpi,
    # Prefect leaves connections to its temporary server to the garbage collector; files of ours do not match.
    pytest.mark.filterwarnings("ignore:unclosed (<socket|event loop|transport|<ssl|database):ResourceWarning"),
]

APP = f"{flows_app.__name__}:TINY"


@pytest.fixture(scope="session")
def server():
    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture(scope="session")
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
    for handler in logging.getLogger("prefect.flow_runs").handlers:
        handler.flush()
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[ran[0].state_details.flow_run_id]))
    with get_client(sync_client=True) as client:
        messages = [line.message for line in client.read_logs(wanted, limit=200)]
    said = [message for message in messages if message.startswith("rank ")]
    assert said == ["rank 1, node n0: squares of 8"] * 4


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
