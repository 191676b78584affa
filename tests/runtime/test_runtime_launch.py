"""Command lines and environments of launchers, without starting anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from heterotask_core.errors import ArenaTooSmallError, LaunchError
from heterotask_core.runtime.arena import Counters, NodeMemory, check_free
from heterotask_core.runtime.launch.base import clean_environment, host_counts
from heterotask_core.runtime.launch.choose import choose_launcher
from heterotask_core.runtime.launch.local import LocalLauncher
from heterotask_core.runtime.launch.mpiexec import MpiexecLauncher
from heterotask_core.runtime.launch.slurm import SlurmLauncher
from heterotask_core.runtime.launch.template import TemplateLauncher


def _tool(folder: Path, name: str, says: str = "HYDRA build details:") -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("guarded", [True, False])
def test_local_command_is_guarded_where_setpriv_exists(tmp_path, monkeypatch, guarded):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    mpiexec = _tool(tmp_path, "mpiexec")
    guard = [_tool(tmp_path, "setpriv"), "--pdeathsig", "KILL", "--"] if guarded else []
    command = LocalLauncher().command(n_ranks=3, argv=["python", "x"])
    options = ["-launcher", "fork", "-hosts", "localhost", "-disable-auto-cleanup"]
    assert command == [*guard, mpiexec, *options, "-n", "3", "python", "x"]


def test_mpiexec_beside_the_interpreter_wins_over_path(tmp_path, monkeypatch):
    for name in ("venv", "path"):
        (tmp_path / name).mkdir()
        _tool(tmp_path / name, "mpiexec")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert str(tmp_path / "venv" / "mpiexec") in LocalLauncher().command(n_ranks=1, argv=[])
    (tmp_path / "venv" / "mpiexec").unlink()
    assert str(tmp_path / "path" / "mpiexec") in LocalLauncher().command(n_ranks=1, argv=[])
    _tool(tmp_path / "path", "mpiexec", says="mpiexec (OpenRTE) 4.1.4")
    with pytest.raises(LaunchError, match=r"path/mpiexec is not MPICH's; run `.*python -m pip install mpich`$"):
        LocalLauncher().command(n_ranks=1, argv=[])
    (tmp_path / "path" / "mpiexec").unlink()
    with pytest.raises(LaunchError, match="neither beside"):
        LocalLauncher().command(n_ranks=1, argv=[])


HOSTS = ("a", "a", "b")


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A PATH with mpiexec and srun, and no guard; outside Slurm."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("SLURM_JOB_ID", "SLURMD_NODENAME", "HETEROTASK_LAUNCHER"):
        monkeypatch.delenv(variable, raising=False)
    return {name: _tool(tmp_path, name) for name in ("mpiexec", "srun")}


def test_local_launcher_refuses_other_hosts(tools):
    with pytest.raises(LaunchError, match="has a, b; use --launcher slurm"):
        LocalLauncher().command(n_ranks=3, argv=[], hosts=HOSTS)


@pytest.mark.parametrize(("job", "through"), [("", "ssh"), ("7", "slurm")])
def test_mpiexec_starts_its_proxies_through_what_is_there(tools, monkeypatch, job, through):
    monkeypatch.setenv("SLURM_JOB_ID", job)
    command = MpiexecLauncher().command(n_ranks=3, argv=["python", "x"], hosts=HOSTS)
    options = ["-launcher", through, "-hosts", "a:2,b:1", "-disable-auto-cleanup"]
    assert command == [tools["mpiexec"], *options, "-n", "3", "python", "x"]


def test_srun_places_every_rank(tools):
    command = SlurmLauncher().command(n_ranks=3, argv=["python", "x"], hosts=HOSTS)
    assert command == [
        tools["srun"],
        "--mpi=pmi2",
        "--nodes=2",
        "--ntasks=3",
        "--distribution=arbitrary",
        "--nodelist=a,a,b",
        "--cpu-bind=none",
        "--overcommit",
        "--overlap",
        "--kill-on-bad-exit=0",
        "--input=none",
        "python",
        "x",
    ]
    Path(tools["srun"]).unlink()
    with pytest.raises(LaunchError, match="srun is not in PATH"):
        SlurmLauncher().command(n_ranks=3, argv=[], hosts=HOSTS)


def test_template_is_filled_in(tools):
    template = TemplateLauncher("run -np {n} -H {hosts} --list={hostlist} 'a b' {command}")
    command = template.command(n_ranks=3, argv=["python", "x y"], hosts=HOSTS)
    assert command == ["run", "-np", "3", "-H", "a:2,b:1", "--list=a,a,b", "a b", "python", "x y"]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("run {n}", "no word {command}"),
        ("run {size} {command}", "unknown field {size}"),
        ("run 'a {command}", "closing quotation"),
    ],
)
def test_template_that_cannot_work_is_refused(template, words):
    with pytest.raises(LaunchError, match=words):
        TemplateLauncher(template)


def test_ranks_of_a_host_must_follow_each_other():
    with pytest.raises(LaunchError, match="host 'a' do not follow each other"):
        host_counts(["a", "b", "a"])


@pytest.mark.parametrize(
    ("name", "variable", "hosts", "job", "expected"),
    [
        ("", "", (), "", LocalLauncher),
        ("", "", ("localhost",), "7", LocalLauncher),
        ("", "", HOSTS, "7", SlurmLauncher),
        ("", "", HOSTS, "", MpiexecLauncher),
        ("", "mpiexec", HOSTS, "7", MpiexecLauncher),
        ("slurm", "mpiexec", HOSTS, "", SlurmLauncher),
        ("run {command}", "", HOSTS, "", TemplateLauncher),
    ],
)
def test_launcher_is_found_by_name_variable_hosts_and_allocation(
    tools, monkeypatch, name, variable, hosts, job, expected
):
    monkeypatch.setenv("HETEROTASK_LAUNCHER", variable)
    monkeypatch.setenv("SLURM_JOB_ID", job)
    assert type(choose_launcher(name, hosts=hosts)) is expected


def test_unknown_launcher_is_refused(tools):
    with pytest.raises(LaunchError, match="unknown launcher 'nosuch'; known: local, mpiexec, slurm"):
        choose_launcher("nosuch")


def test_variables_of_an_outer_job_are_dropped():
    outer = {"PMI_RANK": "1", "PMIX_ID": "2", "MPI_LOCALRANKID": "0", "HYDI_CONTROL_FD": "3", "OMPI_X": "4"}
    kept = {"HOME": "/h", "MPICH_ASYNC": "1", "MPI4PY_MPIABI": "mpich"}
    assert clean_environment({**outer, **kept}, python_path=["/a", "/b"]) == {
        **kept,
        "PYTHONPATH": "/a:/b",
        "HWLOC_XMLFILE": "",
    }


def test_mpi_does_not_get_ready_for_a_network_on_one_host_unless_it_is_told_to():
    environment = clean_environment({"UCX_TLS": "tcp"}, python_path=["/a"], one_host=True)
    assert environment == {
        "UCX_TLS": "tcp",
        "UCX_MEM_MMAP_HOOK_MODE": "none",
        "PYTHONPATH": "/a",
        "HWLOC_XMLFILE": "",
    }
    assert not any(name.startswith("UCX") for name in clean_environment({}, python_path=[]))


def test_shared_memory_may_be_filled_to_nine_tenths():
    check_free(900, free_bytes=1000)
    with pytest.raises(ArenaTooSmallError, match="MiB free"):
        check_free(901, free_bytes=1000)


def test_flags_are_seen_through_another_mapping_and_reset_by_no_one(tmp_path):
    writer = NodeMemory(tmp_path / "node", 5000, 3, create=True)
    reader = NodeMemory(tmp_path / "node", 5000, 3, create=False)
    writer.arena[4999] = 7
    writer.publish(2, 2)
    assert [[reader.seen(op, epoch) for op in range(3)] for epoch in (1, 2, 3)] == [
        [False, False, True],
        [False, False, True],
        [False, False, False],
    ]
    assert reader.arena[4999] == 7
    assert not reader.arena[:4999].any()


def test_counters_sum_up_every_lane(tmp_path):
    mine = Counters(tmp_path / "counters", 2, create=True)
    other = Counters(tmp_path / "counters", 2)
    mine.set(0, issued=5, done=3)
    other.set(1, issued=2, done=2)
    assert (mine.total(), mine.issued(1), other.done(0)) == (12, 2, 3)
