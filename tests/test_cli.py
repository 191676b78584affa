"""The command: one line for every kind of bad input, JSON for scripts, and the whole demo at a small size."""

import json
import subprocess
import sys

import numpy as np
import pytest

from heterotask_core import cli

SMALL = ["-p", "size=128", "-p", "tile=64", "--devices", "cpu:1", "--profile-budget", "1", "--evaluations", "5"]


@pytest.fixture
def heterotask(monkeypatch, capsys):
    """Run the command in this process; returns (exit code, stdout, stderr)."""

    def run(*argv):
        monkeypatch.setattr(sys, "argv", ["heterotask", *map(str, argv)])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", "nosuch"], "nosuch"),
        (["run", "canny", "-p", "nosuch=1"], "nosuch"),
        (["run", "canny", "-p", "sigma=-1"], "sigma"),
        (["run", "canny", "-p", "image=missing.png"], "missing.png"),
        (["run", "canny", "--devices", "cpu:0"], "device"),
        (["run", "canny", "--devices", "tpu:1"], "tpu"),
        (["plan", "--instance", "missing.json"], "missing.json"),
        (["report", "nosuch"], "nosuch"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(heterotask, tmp_path, monkeypatch, argv, words):
    monkeypatch.chdir(tmp_path)
    code, _, err = heterotask(*argv)
    assert code == 1
    lines = err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert words in lines[0]
    assert [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "manifest.json"] == []


def test_image_too_small_or_unreadable(heterotask, tmp_path):
    from PIL import Image

    Image.fromarray(np.zeros((2, 5), np.uint8)).save(tmp_path / "tiny.png")
    (tmp_path / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n torn")
    for name in ("tiny.png", "torn.png"):
        code, _, err = heterotask("run", "canny", "-p", f"image={tmp_path / name}", "--store", tmp_path / "store")
        assert code == 1
        assert len(err.strip().splitlines()) == 1
        assert name in err


def test_foreign_store_is_refused(heterotask, tmp_path):
    (tmp_path / "thesis.tex").write_text("not ours")
    code, _, err = heterotask("run", "canny", *SMALL, "--store", tmp_path)
    assert code == 1
    assert str(tmp_path) in err
    assert (tmp_path / "thesis.tex").read_text() == "not ours"


@pytest.mark.mpi
def test_run_reuses_profile_and_plan_and_refuses_what_is_stale(heterotask, tmp_path, monkeypatch):
    store = tmp_path / "store"
    code, out, err = heterotask("run", "canny", *SMALL, "--store", store, "--check", "--json")
    assert code == 0, err
    first = json.loads(out)
    assert first["check"]["passed"]
    assert first["profile"]["measured"] > 0
    assert first["makespan_s"][0] >= first["lower_bound_s"] * 0
    run = store / "runs" / first["folder"].rsplit("/", 1)[1]
    names = {p.name for p in run.iterdir()}
    assert {"edges.png", "gantt.svg", "trace.parquet", "trace.perfetto.json", "summary.json"} <= names

    code, out, err = heterotask("run", "canny", *SMALL, "--store", store, "--json")
    assert code == 0, err
    second = json.loads(out)
    assert second["profile"] == {"measured": 0, "reused": first["profile"]["measured"]}
    assert second["plan"]["reused"]
    assert second["plan"]["folder"] == first["plan"]["folder"]

    code, out, err = heterotask("report", "--store", store)
    assert code == 0, err
    assert "makespan: predicted" in out

    other = ["-p", "size=128", "-p", "tile=32", "--devices", "cpu:1", "--store", store]
    code, _, err = heterotask("execute", "canny", "--plan", first["plan"]["folder"], *other)
    assert code == 1
    assert "another graph" in err
    other = ["-p", "size=128", "-p", "tile=64", "--devices", "cpu:2", "--store", store]
    code, _, err = heterotask("execute", "canny", "--plan", first["plan"]["folder"], *other)
    assert code == 1
    assert "another platform" in err

    for table in (store / "profiles").rglob("*.parquet"):
        table.write_bytes(table.read_bytes()[:100])
    code, _, err = heterotask("run", "canny", *SMALL, "--store", store)
    assert code == 1
    assert ".parquet" in err


def test_help_imports_nothing_heavy():
    probe = (
        "import sys; sys.argv=['heterotask','--help']\n"
        "from heterotask_core import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'prefect', 'polars', 'numba', 'skopt', 'mpi4py', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, timeout=60)
