"""The planner's benchmarks at their smallest: every program runs, stores its tables and judges plans as told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from test_planning_search import cholesky

ROOT = Path(__file__).parents[2]
CHECKER = "import sys, json\nplan = json.load(open(sys.argv[2]))\nprint('judged', plan['planner'])\nsys.exit(%s)\n"


def run(program: str, *arguments: str | Path) -> str:
    """What a program of ``benchmarks/`` prints."""
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / program, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two factorisations with what StarPU is said to make of one of them."""
    path = tmp_path / "instances"
    path.mkdir()
    for tiles, meta in ((3, {}), (4, {"starpu_makespan_s": {"nocost": {"dmda": 60.0, "dmdas": 50.0}}})):
        document = {**cholesky(tiles), "name": f"starpu-x-chol-nb{tiles}", "meta": meta}
        document["kernels"] = {name.upper(): kernel for name, kernel in document["kernels"].items()}
        document["tasks"] = [task | {"kernel": task["kernel"].upper()} for task in document["tasks"]]
        (path / f"starpu-x-chol-nb{tiles}.json").write_text(json.dumps(document))
    (path / "broken.json").write_text("{")
    return path


def test_planners_are_compared_and_stored(folder: Path, tmp_path: Path) -> None:
    checker = tmp_path / "checker.py"
    checker.write_text(CHECKER % "plan['planner'] == 'heft'")
    out = tmp_path / "out"
    printed = run(
        "planner.py", folder, "--planners", "peft,heft,portfolio", "--evaluations", "40", "--seeds", "2",
        "--out", out, "--checker", checker,
    )  # fmt: skip
    runs = pl.read_parquet(out / "runs.parquet")
    assert sorted(runs.select("instance", "planner", "seed").rows()) == sorted(
        (f"starpu-x-chol-nb{n}", *who)
        for n in (3, 4)
        for who in (("peft", 0), ("heft", 0), ("portfolio", 0), ("portfolio", 1))
    )
    assert runs.filter(pl.col("fault") != "")["planner"].unique().to_list() == ["heft"]
    table = pl.read_csv(out / "planner.csv")
    best = table.filter((pl.col("planner") == "portfolio") & (pl.col("instance") == "starpu-x-chol-nb4")).to_dicts()[0]
    assert best["/ starpu"] == pytest.approx(best["makespan_s"] / 50.0)
    assert best["/ peft"] <= 1.0
    assert (out / "planner.txt").read_text().strip() in printed
    assert (pl.read_csv(out / "bounds.csv")["area"] > 0).all()


def test_larger_factorisations_are_made_of_small_ones(folder: Path, tmp_path: Path) -> None:
    (folder / "broken.json").unlink()
    out = tmp_path / "out"
    run("planner.py", folder, "--planners", "peft,dmdas", "--evaluations", "1", "--tiles", "5,6", "--out", out)
    table = pl.read_csv(out / "planner.csv")
    sizes = {(r["instance"], r["tasks"]) for r in table.to_dicts()}
    assert sizes == {("starpu-x-chol-nb5", 35), ("starpu-x-chol-nb6", 56)}
    simulated = table.filter(pl.col("planner") == "dmdas")
    assert simulated["/ dmdas"].to_list() == [1.0, 1.0]
    assert (simulated["/ starpu"] >= 1.0).all()


def test_speed_is_measured_with_lanes_and_without(tmp_path: Path) -> None:
    out = tmp_path / "speed.json"
    run("planner_speed.py", "--sizes", "40", "--repeats", "1", "--evaluations", "2", "--json", out)
    rows = json.loads(out.read_text())
    assert [(r["tasks"], r["contention"], sorted(r["pass_s"])) for r in rows] == [
        (40, False, ["heft", "peft"]),
        (40, True, ["heft", "peft"]),
    ]


def test_arenas_are_near_the_live_bytes(folder: Path) -> None:
    (folder / "broken.json").unlink()
    head, *lines, summary = run("buffers.py", folder, "--planner", "heft").splitlines()
    assert head.split()[:2] == ["instance", "slots"]
    losses = {line.split()[0]: float(line.split()[3]) for line in lines}
    assert sorted(losses) == ["starpu-x-chol-nb3", "starpu-x-chol-nb4"]
    assert all(0.0 <= loss <= 10.0 for loss in losses.values())
    assert summary.startswith("2 plans: loss median ")
