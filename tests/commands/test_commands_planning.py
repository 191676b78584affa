"""The commands plan, whatif and instance on small files and on a small application."""

import gzip
import json
import os
import subprocess

import pytest

from heterotask_core.planning.instance import instance_to_problem, read_instance
from heterotask_core.planning.plan_file import read_plan

DOCUMENT = {
    "format": "heterotask-instance/1",
    "name": "fan",
    "memories": [{"name": "n0", "node": "n0"}, {"name": "gpu", "node": "n0"}],
    "devices": [{"name": "cpu0", "kind": "cpu", "memory": "n0"}, {"name": "gpu", "kind": "cuda", "memory": "gpu"}],
    "links": [
        {"from": "n0", "to": "gpu", "latency_s": 0.5, "bandwidth_bytes_per_s": 100.0},
        {"from": "gpu", "to": "n0", "latency_s": 0.5, "bandwidth_bytes_per_s": 100.0},
    ],
    "kernels": {"work": {"seconds": {"cpu": 4.0, "cuda": 1.0}}, "join": {"seconds": {"cpu": 1.0}}},
    "data": [{"name": f"d{i}", "size_bytes": 100, "home": "n0"} for i in range(4)],
    "tasks": [
        *({"name": f"t{i}", "kernel": "work", "updates": [f"d{i}"]} for i in range(4)),
        {"name": "end", "kernel": "join", "reads": [f"d{i}" for i in range(4)]},
    ],
}
SMALL = ["-p", "size=128", "-p", "tile=64", "--devices", "cpu:1", "--profile-budget", "1"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "fan.json"
    path.write_text(json.dumps(DOCUMENT))
    return path


def test_summary_and_chart(heterotask, file, tmp_path):
    out = tmp_path / "plan.json.gz"
    code, text, err = heterotask("plan", "--instance", file, "--planner", "heft", "--out", out)
    assert (code, err) == (0, "")
    schedule = read_plan(out, read_instance(file))
    lines = text.splitlines()
    assert lines[0].startswith(f"fan: heft makespan {schedule.makespan_s:.6g} s, at most")
    assert "lower bounds: critical path 2 s, area" in lines[1]
    assert any(line.startswith("  n0 → gpu: ") and "moved, busy" in line for line in lines)
    assert [line.split("|")[0].strip() for line in lines if line.count("|") == 2] == [
        "cpu0",
        "gpu",
        "n0 → gpu",
        "gpu → n0",
    ]
    assert lines[-2] == "A join  B work  = transfer"
    assert lines[-1] == f"plan: {out}"


def test_json_has_the_bytes_of_every_link(heterotask, file):
    code, text, _ = heterotask("plan", "--instance", file, "--planner", "heft", "--json")
    facts = json.loads(text)
    assert code == 0
    assert facts["moved_bytes"] == sum(facts["link_bytes"].values())
    assert facts["above_optimal"] == facts["makespan_s"] / facts["lower_bound_s"] - 1


def test_compare(heterotask, file):
    code, text, _ = heterotask("plan", "--instance", file, "--compare", "peft,heft,cpop", "--evaluations", "0")
    assert code == 0
    assert [line.split()[0] for line in text.splitlines()[2:]] == ["peft", "heft", "cpop"]
    code, _, err = heterotask("plan", "--instance", file, "--compare", "peft,nosuch")
    assert code == 1
    assert "nosuch" in err


def test_limited_memory(heterotask, file):
    options = ["plan", "--instance", file, "--planner", "heft", "--json", "--limit-memory"]
    free = json.loads(heterotask(*options[:-1])[1])
    tight = json.loads(heterotask(*options, "cuda=100B")[1])
    assert tight["makespan_s"] >= free["makespan_s"]
    for bad, words in (
        ("cuda", "NAME=SIZE"),
        ("tpu=1GiB", "'tpu'; there are cpu, cuda, gpu, n0"),
        ("cuda=x", "cuda=x"),
    ):
        code, _, err = heterotask(*options, bad)
        assert code == 1
        assert words in err


def test_whatif_says_what_limits(heterotask, file):
    code, text, err = heterotask("whatif", "--instance", file, "--planner", "heft")
    assert (code, err) == (0, "")
    assert "with twice the devices" in text
    assert "with free transfers" in text
    assert "infinite memory" not in text
    assert text.splitlines()[-1] == "what limits it: data movement"


def test_sort(heterotask, file, tmp_path):
    mixed = DOCUMENT | {
        "data": [{"name": f"d{i}", "size_bytes": 100} for i in range(4)],
        "tasks": [DOCUMENT["tasks"][4], *({"name": f"t{i}", "kernel": "work", "writes": [f"d{i}"]} for i in range(4))],
    }
    path, out = tmp_path / "mixed.json.gz", tmp_path / "sorted.json.gz"
    path.write_bytes(gzip.compress(json.dumps(mixed).encode()))
    code, _, err = heterotask("plan", "--instance", path)
    assert code == 1
    assert "heterotask instance sort" in err
    code, text, _ = heterotask("instance", "sort", path, "--out", out)
    assert (code, text) == (0, f"fan: 5 tasks in program order in {out}\n")
    assert read_instance(out).task_names == ("t0", "t1", "t2", "t3", "end")
    code, _, err = heterotask("instance", "sort", file, "--out", tmp_path / "none.json")
    assert code == 1
    assert "'d0' has more than one version" in err
    assert not (tmp_path / "none.json").exists()


@pytest.mark.parametrize(
    "argv",
    [
        ("plan", "--instance", "fan.json"),
        ("plan", "nosuchapp"),
        ("instance", "export", "nosuchapp"),
        ("instance", "sort", "fan.json"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_any_work(heterotask, file, monkeypatch, argv):
    monkeypatch.chdir(file.parent)
    os.mkfifo("fifo")
    for out, reason in (
        ("nodir/x", "the folder nodir does not exist; make it (mkdir -p), or name another"),
        ("fan.json/x", "fan.json is not a folder; name another"),
        ("fifo", "it is a FIFO, not a file; remove it, or name another"),
        (".", "it is a folder, not a file; remove it, or name another"),
    ):
        code, text, err = heterotask(*argv, "--out", out)
        assert (code, text, err) == (2, "", f"error: --out {out}: {reason}\n")
    assert sorted(p.name for p in file.parent.iterdir()) == ["fan.json", "fifo"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small tmpfs")
def test_on_a_full_disk_the_plans_file_is_named_and_nothing_else(heterotask, file, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(disk)], check=True)
    try:
        (disk / "fill").write_bytes(bytes(4096))
        code, text, err = heterotask("plan", "--instance", file, "--evaluations", 10, "--out", disk / "plan.json")
        assert (code, text) == (1, "")
        assert err == f"error: {disk / 'plan.json'}: cannot be written: No space left on device\n"
        assert [p.name for p in disk.iterdir()] == ["fill"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_application_exported_planned_and_scaled(heterotask, tmp_path):
    store = ["--store", tmp_path / "store"]
    out = tmp_path / "canny.json"
    code, text, _ = heterotask("instance", "export", "canny", *SMALL, *store, "--out", out)
    assert code == 0
    problem = instance_to_problem(json.loads(out.read_text()))
    assert f"{problem.n_tasks} tasks, 1 devices in {out}" in text
    code, text, _ = heterotask("plan", "canny", *SMALL, *store, "--planner", "heft")
    assert code == 0
    assert "predicted makespan" in text
    assert "n0.cpu0" in text
    code, text, _ = heterotask("plan", "canny", *SMALL, *store, "--planner", "heft", "--json", "--out", tmp_path / "p")
    assert code == 0
    assert read_plan(tmp_path / "p", problem).makespan_s == json.loads(text)["makespan_s"]
    code, text, _ = heterotask(
        "whatif", "canny", *SMALL, *store, "--planner", "heft", "--nodes", "1..3", "--json", "--evaluations", "0"
    )
    found = json.loads(text)
    assert code == 0
    assert [row["nodes"] for row in found["scaling"]] == [1, 2, 3]
    assert [row["devices"] for row in found["scaling"]] == [1, 2, 3]
    assert {g["what"] for g in found["gains"]} == {"free transfers", "twice the devices", "zero overhead"}
    code, _, err = heterotask("whatif", "canny", *SMALL, *store, "--gpus", "8")
    assert code == 1
    assert "8 GPUs a node asked for, but node n0 has none to copy" in err
