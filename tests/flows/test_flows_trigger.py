"""What a person is told who follows a run; the rest is in test_flows_site.py."""

import uuid
from types import SimpleNamespace

from prefect.client.schemas.objects import FlowRun, State, StateType

from flows import trigger


def test_a_run_that_waits_for_its_turn_says_so_once(capsys, monkeypatch):
    monkeypatch.setattr(trigger.time, "sleep", lambda seconds: None)
    late, ended = State(type=StateType.SCHEDULED, name="Late"), State(type=StateType.COMPLETED)
    runs = [FlowRun(flow_id=uuid.uuid4(), state=state) for state in (late, late, ended)]
    asked = iter(runs)
    client = SimpleNamespace(
        read_flow_run=lambda run: next(asked), read_logs=lambda *_, **__: [], read_artifacts=lambda **_: []
    )
    assert trigger._follow(client, runs[0]) is runs[-1]
    (told,) = [line for line in capsys.readouterr().err.splitlines() if line]
    assert told.startswith("  waits for a worker; the pool takes one run at a time")
