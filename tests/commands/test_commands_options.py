"""Options that mean nothing together are refused in one line with exit code 2, before anything is done."""

import json

import pytest
from test_commands_planning import DOCUMENT

from heterotask_core.errors import InstanceError
from heterotask_core.planning.instance import read_instance
from heterotask_core.planning.plan_file import read_plan

SAMPLES = {
    "application": ["canny"],
    "again": ["--again"],
    "as_json": ["--json"],
    "check": ["--check"],
    "compare": ["--compare", "peft,heft"],
    "devices": ["--devices", "cpu:1"],
    "diff": ["--diff", "OLD", "NEW"],
    "dilate": ["--dilate", "2"],
    "evaluations": ["--evaluations", "1"],
    "file": ["--file", "prefect.yaml"],
    "gantt": ["--gantt"],
    "gpus": ["--gpus", "1"],
    "host": ["--host", "127.0.0.1"],
    "hosts": ["--hosts", "localhost"],
    "import_file": ["--import", "times.csv"],
    "instance": ["--instance", "fan.json"],
    "kernel_limit": ["--kernel-limit", "9"],
    "launcher": ["--launcher", "local"],
    "limit_memory": ["--limit-memory", "cuda=1GiB"],
    "nodes": ["--nodes", "1"],
    "out": ["--out", "plan.json"],
    "pace": ["--pace"],
    "param": ["-p", "size=64"],
    "planner": ["--planner", "heft"],
    "port": ["--port", "4200"],
    "predict": ["--predict", "size=64"],
    "profile_budget": ["--profile-budget", "1"],
    "repeats": ["--repeats", "1"],
    "seed": ["--seed", "1"],
    "show": ["--show"],
    "start": ["--start"],
    "stop": ["--stop"],
    "store": ["--store", "store"],
    "time_budget": ["--time-budget", "1"],
    "via_prefect": ["--via-prefect", "heat/run"],
}
"""An example of every option of the commands below; one that is added has to be added here and judged."""
TARGET = {"param", "devices", "nodes", "hosts", "launcher", "store"}
SEARCH = {"planner", "evaluations", "time_budget", "seed"}
USES = {
    "plan --instance": (
        ["plan", *SAMPLES["instance"]],
        SEARCH | {"out", "compare", "limit_memory", "gantt", "as_json"},
    ),
    "plan --compare": (
        ["plan", "canny", *SAMPLES["compare"]],
        TARGET | SEARCH - {"planner"} | {"out", "limit_memory", "profile_budget", "as_json", "instance"},
    ),
    "plan --json": (
        ["plan", "canny", "--json"],
        TARGET | SEARCH | {"out", "limit_memory", "compare", "profile_budget", "instance"},
    ),
    "whatif --instance": (["whatif", *SAMPLES["instance"]], SEARCH | {"as_json"}),
    "profile --diff": (["profile", "--diff", "OLD", "NEW"], {"as_json"}),
    "profile --show": (["profile", "--show"], {"store", "as_json", "application", "diff"}),
    "profile APP --show": (["profile", "canny", "--show"], TARGET | {"as_json", "diff"}),
    "profile APP --predict": (["profile", "canny", *SAMPLES["predict"]], TARGET | {"as_json", "diff"}),
    "profile APP --import": (["profile", "canny", *SAMPLES["import_file"]], TARGET | {"as_json", "diff"}),
    "run --via-prefect": (
        ["run", "canny", *SAMPLES["via_prefect"]],
        TARGET - {"hosts", "launcher"} | SEARCH - {"time_budget"} | {"repeats", "profile_budget", "check", "as_json"},
    ),
    "deploy --stop": (["deploy", "--stop"], set()),
}
"""Ways of using a command: the words for it, and the other options that have a meaning with them (or are refused
together with more of them)."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with an instance that needs 400 bytes on the GPU."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fan.json").write_text(json.dumps(DOCUMENT))
    return tmp_path


@pytest.mark.parametrize("use", USES)
def test_an_option_without_a_meaning_is_refused(heterotask, commands, folder, use):
    words, taken = USES[use]
    names = {p.name for p in commands[words[0]].params} - {"help"}
    assert taken <= names
    refused = 0
    for name in sorted(names - taken):
        sample = SAMPLES[name]
        if sample[0] in words:
            continue
        code, out, err = heterotask(*words, *sample)
        assert (code, out, err.count("\n")) == (2, "", 1), (sample, out, err)
        assert err.startswith("error: ")
        assert sample[0] in err
        assert "leave " in err
        refused += 1
    assert refused
    assert [p.name for p in folder.iterdir()] == ["fan.json"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["plan"], "there is nothing to plan; name an application, or give --instance FILE"),
        (["whatif"], "there is nothing to plan; name an application, or give --instance FILE"),
        (["profile"], "there is nothing to profile; name an application, or use --show or --diff OLD NEW"),
        (
            ["plan", "canny", "--instance", "fan.json", "-p", "a=1", "--no-gantt"],
            "--param, 'canny' mean nothing with --instance (the file holds tasks, devices and times); leave them out",
        ),
        (
            ["plan", "--instance", "fan.json", "--out", "./fan.json"],
            "--out fan.json would replace the instance; name another file",
        ),
        (
            ["plan", "--instance", "fan.json", "--compare", ""],
            "--compare '' leaves a name out; give names as in --compare peft,heft,portfolio",
        ),
        (
            ["plan", "--instance", "fan.json", "--compare", "peft,heft,"],
            "--compare 'peft,heft,' leaves a name out; give names as in --compare peft,heft,portfolio",
        ),
        (
            ["plan", "--instance", "fan.json", "--compare", "peft, heft,peft"],
            "--compare 'peft, heft,peft' names peft twice; give names as in --compare peft,heft,portfolio",
        ),
        (
            ["run", "canny", "--via-prefect", ""],
            "--via-prefect names no deployment; give one, e.g. pipeline/pipeline, or leave it out",
        ),
        (
            ["run", "canny", "--dilate", "2"],
            "--dilate says how fast --pace goes; give --pace too, or leave --dilate out",
        ),
        (
            ["execute", "canny", "--plan", "p", "--dilate", "2"],
            "--dilate says how fast --pace goes; give --pace too, or leave --dilate out",
        ),
        (
            ["platform", "--hosts", "a,b", "--devices", "here.yaml"],
            "--hosts means nothing with here.yaml, which says which hosts there are; leave one of them out",
        ),
        (
            ["calibrate", "canny", "--platform", "here.yaml", "--hosts", "a,b"],
            "--hosts means nothing with here.yaml, which says which hosts there are; leave one of them out",
        ),
        (["report", ".", "--store", "store"], "--store means nothing with the folder .; leave it out"),
    ],
)
def test_wrong_use_is_one_line(heterotask, folder, argv, said):
    assert heterotask(*argv) == (2, "", f"error: {said}\n")
    assert [p.name for p in folder.iterdir()] == ["fan.json"]


def test_what_the_environment_says_is_not_refused(heterotask, folder, monkeypatch):
    monkeypatch.setenv("HETEROTASK_STORE", "store")
    monkeypatch.setenv("HETEROTASK_LAUNCHER", "local")
    code, _, err = heterotask("plan", "--instance", "fan.json", "--planner", "heft", "--json", "--no-gantt")
    assert (code, err) == (0, "")


def test_compare_writes_the_shortest_plan(heterotask, folder):
    code, text, err = heterotask("plan", "--instance", "fan.json", "--compare", "eager,heft,dmda", "--out", "best.json")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: float(line.split()[1]) for line in text.splitlines()[2:5]}
    best = min(rows, key=rows.get)
    assert text.splitlines()[5:] == [f"plan of {best}: best.json"]
    written = read_plan(folder / "best.json", read_instance(folder / "fan.json"))
    assert written.planner == best
    assert written.makespan_s == pytest.approx(rows[best])
    code, text, _ = heterotask(
        "plan", "--instance", "fan.json", "--compare", "eager,heft,dmda", "--out", "again.json", "--json"
    )
    assert code == 0
    assert {row["planner"]: row["out"] for row in json.loads(text)} == dict.fromkeys(rows) | {best: "again.json"}
    assert (folder / "again.json").read_bytes() == (folder / "best.json").read_bytes()


def test_compare_without_any_plan_is_an_error_that_names_the_file(heterotask, folder):
    words = ["plan", "--instance", "fan.json", "--limit-memory", "n0=99B", "--limit-memory", "gpu=99B"]
    code, text, err = heterotask(*words, "--compare", "peft,heft", "--out", "best.json")
    assert code == 1
    assert [line.split()[:2] for line in text.splitlines()[2:]] == [["peft", "-"], ["heft", "-"]]
    assert err.startswith("error: fan.json: no plan by peft, heft: ")
    assert "99" in err
    assert err.count("\n") == 1
    assert not (folder / "best.json").exists()
    for command in (words, ["whatif", "--instance", "fan.json"]):
        document = DOCUMENT | {"memories": [m | {"capacity_bytes": 99} for m in DOCUMENT["memories"]]}
        (folder / "fan.json").write_text(json.dumps(document))
        code, text, err = heterotask(*command, "--planner", "heft")
        assert (code, text, err.count("\n")) == (1, "", 1)
        assert err.startswith("error: fan.json: ")


def test_a_plan_that_cannot_be_written_is_no_fault_of_the_instance(heterotask, folder, monkeypatch):
    def full(path, *_):
        raise InstanceError(f"{path}: cannot be written: No space left on device")

    monkeypatch.setattr("heterotask_core.planning.plan_file.write_plan", full)
    for words in (["--planner", "heft"], ["--compare", "heft,peft"]):
        code, _, err = heterotask("plan", "--instance", "fan.json", *words, "--out", "plan.json")
        assert (code, err) == (1, "error: plan.json: cannot be written: No space left on device\n")


def test_a_memory_is_limited_once(heterotask, folder):
    limits = ["--limit-memory", "cuda=1GiB", "--limit-memory", "cuda=2GiB"]
    code, _, err = heterotask("plan", "--instance", "fan.json", *limits)
    assert (code, err) == (1, "error: memory limit 'cuda=2GiB': 'cuda' is limited twice; give one limit of it\n")
