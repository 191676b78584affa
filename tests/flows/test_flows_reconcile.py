"""What tells a live run from a dead one, and which failures are tried again; the rest is in test_flows_site.py."""

import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from prefect.client.schemas.objects import FlowRun, State, StateType

from flows.reconcile import Reconciled, _is_dead_here, host_tag, runs_with_process
from flows.steps import execute_step, nothing_ran
from heterotask_core.errors import ExecutionError, LaunchError


@pytest.mark.parametrize(("last", "counts"), [("prefect.engine", True), ("heterotask_core.runtime.worker", False)])
def test_a_run_lives_as_long_as_its_flow_process_whatever_its_ranks_do(last, counts):
    run = str(uuid.uuid4())
    command = [sys.executable, "-c", "print(flush=True); input()", last]
    process = subprocess.Popen(
        command, env={"PREFECT__FLOW_RUN_ID": run}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        process.stdout.readline()
        assert (run in runs_with_process()) is counts
        process.communicate(b"\n")
    assert run not in runs_with_process()


@pytest.mark.parametrize(
    ("tags", "age_s", "dead"),
    [
        ([host_tag()], 0, True),
        (["host:elsewhere"], 1e6, False),
        ([], 10, False),
        (["other"], 600, True),
    ],
)
def test_a_run_without_a_process_is_dead_only_where_it_was(tags, age_s, dead):
    state = State(type=StateType.RUNNING, timestamp=datetime.now(UTC) - timedelta(seconds=age_s))
    assert _is_dead_here(FlowRun(flow_id=uuid.uuid4(), tags=tags, state=state)) is dead


def test_what_was_set_right_is_told_a_line_each():
    found = Reconciled({"big-cat": "Crashed"}, {"pipeline": 2})
    assert found.lines() == ["run big-cat: Crashed (its process is gone)", "deployment pipeline: 2 slot(s) freed"]
    assert found.as_json() == {"runs": {"big-cat": "Crashed"}, "slots": {"pipeline": 2}}


@pytest.mark.parametrize(("error", "again"), [(LaunchError("no mpiexec"), True), (ExecutionError("rank 1"), False)])
def test_only_a_launch_in_which_no_rank_started_is_tried_again(error, again):
    state = SimpleNamespace(result=lambda raise_on_failure: error)
    assert nothing_ran(None, None, state) is again
    assert (execute_step.retries, execute_step.retry_condition_fn) == (1, nothing_ran)
