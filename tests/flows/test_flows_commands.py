"""The commands that operate Prefect: what they import, and what they say where there is nothing to operate."""

import json
import os
import subprocess
import sys

import pytest

from flows.history import COLUMNS, history_text, run_history
from heterotask_core.store import Store

PROBE = """
import json, sys
sys.argv = ["heterotask", *json.loads(sys.argv[1])]
from heterotask_core import cli
try:
    cli.main()
except SystemExit as end:
    assert not end.code, end.code
print("HEAVY", sorted({"prefect", "skopt", "fastapi", "sqlalchemy"} & set(sys.modules)))
print("LIGHT", "numpy" not in sys.modules and "pydantic" not in sys.modules)
"""


def _heavy(*argv, cwd):
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(argv)], cwd=cwd, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-2]


def test_help_and_the_commands_that_it_lists_import_nothing_heavy(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROBE, '["--help"]'], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert done.stdout.splitlines()[-2:] == ["HEAVY []", "LIGHT True"]


@pytest.mark.mpi
def test_a_run_without_a_server_imports_no_prefect(tmp_path):
    argv = ["run", "heat", "-p", "size=32", "-p", "tile=32", "-p", "steps=1", "--devices", "cpu:1"]
    argv += ["--profile-budget", "0.2", "--evaluations", "1", "--store", str(tmp_path / "store"), "--planner", "heft"]
    assert _heavy(*argv, cwd=tmp_path) == "HEAVY []"
    assert _heavy("history", "heat", "--store", str(tmp_path / "store"), cwd=tmp_path) == "HEAVY []"


def test_deploy_without_a_file_says_so(tmp_path):
    done = _command("deploy", "--file", "nosuch.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        "error: no nosuch.yaml; run this in the folder that holds prefect.yaml, or give --file\n",
    )


def test_a_run_via_prefect_without_a_server_says_so(tmp_path):
    done = _command("run", "heat", "--via-prefect", "heat/run", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "error: no Prefect server is set; run `heterotask deploy`, or set PREFECT_API_URL"
    )


def test_a_time_budget_is_no_parameter_of_a_deployed_flow(tmp_path):
    done = _command("run", "heat", "--via-prefect", "heat/run", "--time-budget", "1", cwd=tmp_path)
    assert done.returncode == 2
    assert "--evaluations" in done.stderr


def _command(*argv, cwd):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {"PREFECT_HOME": str(cwd / "home"), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "heterotask_core.cli", *argv],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )


def _record(store, key, *, plan, makespan_s=None, application="tiny"):
    facts = {"planner": "heft", "predicted_makespan_s": 0.001, "lower_bound_s": 0.0005, "makespan_s": makespan_s}
    try:
        with store.new_record("runs", key, plan=plan, application=application) as folder:
            if makespan_s is None:
                raise RuntimeError("a rank died")
            (folder / "summary.json").write_text(json.dumps(facts))
    except RuntimeError:
        pass


def test_the_history_is_a_row_a_run_with_the_plan_in_use(tmp_path):
    store = Store(tmp_path / "store")
    _record(store, "tiny-g-p-1-a", plan="tiny-g-p-old", makespan_s=[0.004, 0.002, 0.003])
    _record(store, "other-g-p-1-a", plan="x", makespan_s=[1.0], application="other")
    _record(store, "tiny-g-p-2-b", plan="tiny-g-p-new", makespan_s=[0.002])
    _record(store, "tiny-g-p-3-c", plan="tiny-g-p-new")
    _record(store, "tiny-h-p-4-d", plan="tiny-h-p-old", makespan_s=[0.009])
    rows = run_history(store, "tiny")
    assert [tuple(row) for row in rows] == [COLUMNS] * 4
    told = [(r["workflow"], r["status"], r["plan"], r["measured_ms"], r["repeats"], r["in_use"]) for r in rows]
    assert told == [
        ("tiny-g-p", "complete", "old", 3.0, 3, ""),
        ("tiny-g-p", "complete", "new", 2.0, 1, "yes"),
        ("tiny-g-p", "failed", "new", None, 0, "yes"),
        ("tiny-h-p", "complete", "old", 9.0, 1, "yes"),
    ]
    lines = history_text("tiny", rows).splitlines()
    assert lines[0].split() == list(COLUMNS)
    assert len(lines) == 5
    assert "start one with `heterotask run nosuch`" in history_text("nosuch", run_history(store, "nosuch"))
