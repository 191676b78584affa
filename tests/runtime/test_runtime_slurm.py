"""Real Slurm with two nodes: the documented batch script through srun and mpiexec, and a rank that dies."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import slurm_cluster
from hand_program import Builder
from runtime_kernels import DIE, FILL, TWICE

from heterotask_core.errors import ExecutionError
from heterotask_core.runtime.job import execute

ROOT = Path(__file__).parents[2]
CANNY = ["-p", "size=128", "-p", "tile=64", "--devices", "cpu:1", "--profile-budget", "1", "--evaluations", "5"]

_MISSING = slurm_cluster.missing()
pytestmark = [pytest.mark.slurm, pytest.mark.mpi, pytest.mark.skipif(bool(_MISSING), reason=_MISSING)]


@pytest.fixture(scope="module")
def slurm():
    with slurm_cluster.cluster() as environment:
        yield environment


def test_documented_script_is_the_tested_one():
    assert (ROOT / "docs/canny.sbatch").read_text() in (ROOT / "docs/slurm.md").read_text()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("launcher", ["", "mpiexec"])
def test_batch_script_finds_edges_on_two_nodes(slurm, tmp_path, launcher):
    store = tmp_path / "store"
    asked = ["--launcher", launcher] if launcher else []
    argv = ["sbatch", "--parsable", f"--output={tmp_path}/out", f"--error={tmp_path}/err"]
    environment = slurm | {"HETEROTASK": str(Path(sys.executable).parent / "heterotask")}
    # A central queue gives every idle worker a task: both nodes compute, however slow the link between them is.
    options = [*CANNY, "--store", str(store), "--check", "--planner", "eager", *asked]
    number = _run([*argv, str(ROOT / "docs/canny.sbatch"), *options], environment, cwd=tmp_path).strip()
    # `sbatch --wait` looks after 2, 12, 42 s only.
    slurm_cluster.wait_until(lambda: "EndTime=Unknown" not in _job(number, slurm), "the job has not ended", 500)
    said = (tmp_path / "out").read_text() + (tmp_path / "err").read_text()
    assert "ExitCode=0:0" in _job(number, slurm), said
    assert "check: passed" in said
    assert "platform: 2 node(s), 2 device(s)" in said
    (run,) = (p for p in (store / "runs").iterdir())
    trace = pl.read_parquet(run / "trace.parquet")
    assert set(trace["node"].to_list()) == {"n0", "n1"}
    assert "transfer" in trace["kind"].to_list()
    assert not list(run.glob(".heterotask-job-*"))


def _run(argv: list[str], environment: dict[str, str], **options) -> str:
    return subprocess.run(
        argv, env=environment, capture_output=True, text=True, timeout=120, check=True, **options
    ).stdout


def _job(number: str, environment: dict[str, str]) -> str:
    """What Slurm says of a job; one that runs has a planned end only."""
    said = _run(["scontrol", "show", "job", number], environment)
    return "EndTime=Unknown" if "JobState=RUNNING" in said or "JobState=PENDING" in said else said


def die_on_the_second_node(folder: Path) -> None:
    """Run in an allocation: the second task kills its rank on the other node; print the error."""
    b = Builder([("c0", "cpu", "n0"), ("c1", "cpu", "n1")], hosts={"n0": "n0", "n1": "n1"})
    x, there, y, back, z = b.slot("n0"), b.slot("n1", 0), b.slot("n1"), b.slot("n0", 1), b.slot("n0")
    first = b.task("c0", FILL, {"output": x}, params={"value": 0})
    bad = b.task("c1", DIE, {"input": there, "output": y}, [b.transfer(x, there, [first])])
    b.task("c0", TWICE, {"input": back, "output": z}, [b.transfer(y, back, [bad])])
    try:
        execute(b.build(), b.platform, output_dir=folder)
    except ExecutionError as error:
        print(error)


def test_rank_that_dies_on_another_node_is_named_and_leaves_no_step(slurm, tmp_path):
    code = (
        f"import test_runtime_slurm as t; from pathlib import Path; t.die_on_the_second_node(Path({str(tmp_path)!r}))"
    )
    environment = slurm | {"PYTHONPATH": ":".join(p for p in sys.path if p)}
    # In an allocation, salloc's shell is on the submitting host: SLURMD_NODENAME is not set, so both nodes are remote.
    argv = ["salloc", "--nodes=2", "--quiet", "sh", "-c", f"exec {shlex.join([sys.executable, '-c', code])}"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "rank 3 (device 'c1', node 'n1') running task 'die1' (variant 'plain' of kernel 'die')" in done.stdout
    assert "the job was ended" in done.stdout
    assert list(tmp_path.glob(".heterotask-job-*")) == []
    assert _run(["squeue", "--noheader", "--steps"], slurm) == ""
