"""Folders that do not outlive their process: real processes, ended in every way, and what the next one finds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from heterotask_core import scratch
from heterotask_core.runtime.mpijob import make_folder

OWNER = """
import sys, time
from pathlib import Path
from heterotask_core.scratch import scratch_folder

with scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_text("x")
    print(folder, flush=True)
    while True:
        time.sleep(60)
"""
PROFILER = """
import os, sys
from pathlib import Path
from heterotask_core.profiling import measure
from heterotask_core.store import Store
import scratch_kernels as sk

measure._scratch_place = lambda graph: Path(sys.argv[1])
measure.profile(sk.hanging_graph(sys.argv[2]), sk.platform(), Store(Path(sys.argv[1]) / "store"))
"""


def _until(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < until_s, what
        time.sleep(0.01)


@contextmanager
def _owner(parent: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that owns a folder in ``parent``."""
    with subprocess.Popen([sys.executable, "-c", OWNER, str(parent)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def _children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def _abandon(parent: Path) -> Path:
    """Return a folder whose owner and guard were killed together."""
    with _owner(parent) as (process, folder):
        (guard,) = _children(process.pid)
        os.kill(guard, signal.SIGKILL)
        process.kill()
        process.wait()
    assert (folder / "deep" / "file").exists()
    return folder


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL, signal.SIGSEGV])
def test_a_folder_goes_with_its_process_however_that_ends(tmp_path: Path, number: signal.Signals) -> None:
    with _owner(tmp_path) as (process, folder):
        assert folder.is_dir()
        process.send_signal(number)
        process.wait()
        _until(lambda: not folder.exists(), f"{folder} is left")
    assert list(tmp_path.iterdir()) == []


def test_a_signal_to_the_whole_group_does_not_keep_the_folder(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        folder = Path(process.stdout.readline().strip())
        os.killpg(process.pid, signal.SIGHUP)
        process.wait()
        _until(lambda: not folder.exists(), f"{folder} is left")


def test_the_next_folder_removes_what_dead_owners_left_and_nothing_else(tmp_path: Path) -> None:
    with _owner(tmp_path) as (_, living):
        dead = _abandon(tmp_path)
        unlocked = tmp_path / f"{scratch.PREFIX}of-another-version"
        elsewhere = tmp_path / f"{scratch.PREFIX}of-another-host"
        others = tmp_path / "mine"
        for folder in (unlocked, elsewhere, others):
            folder.mkdir()
        for folder in (elsewhere, others):
            (folder / scratch.LOCK_FILE).write_text("another-host" if folder is elsewhere else os.uname().nodename)
        link = tmp_path / f"{scratch.PREFIX}link"
        link.symlink_to(others)
        kept = {living, unlocked, elsewhere, others, link}
        assert set(tmp_path.iterdir()) == {*kept, dead}
        with scratch.scratch_folder(tmp_path) as folder:
            assert set(tmp_path.iterdir()) == {*kept, folder}
            assert scratch.sweep(scratch.PREFIX, tmp_path) == []
        assert set(tmp_path.iterdir()) == kept
        assert (living / "deep" / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder away")
def test_another_users_folder_stays(tmp_path: Path) -> None:
    dead = _abandon(tmp_path)
    os.chown(dead, 12345, 12345)
    assert scratch.sweep(scratch.PREFIX, tmp_path) == []
    os.chown(dead, 0, 0)
    assert scratch.sweep(scratch.PREFIX, tmp_path) == [dead]


def test_a_folder_that_two_hold_stays_until_both_are_gone(tmp_path: Path) -> None:
    with _owner(tmp_path) as (process, folder):
        (guard,) = _children(process.pid)
        scratch.hold(folder)
        os.kill(guard, signal.SIGKILL)
        process.kill()
        process.wait()
        assert scratch.sweep(scratch.PREFIX, tmp_path) == []
        scratch.remove_folder(folder)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        scratch.hold(folder)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), scratch.scratch_folder(tmp_path / "nowhere"):
        """Not reached."""


def test_an_abandoned_job_takes_its_shared_memory_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead = _abandon(tmp_path)
    arena, other = tmp_path / "arena", tmp_path / "arena-of-another"
    for path in (arena, other):
        path.write_bytes(bytes(8))
    (dead / "job.json").write_text(json.dumps({"arenas": {"n0": str(arena)}}))
    job = dead.rename(tmp_path / "heterotask-job-dead")
    made = make_folder(tmp_path, ["localhost"])
    try:
        assert set(tmp_path.iterdir()) == {made, other}
    finally:
        scratch.remove_folder(made)
    assert not job.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_profile_that_is_ended_leaves_neither_files_nor_processes(tmp_path: Path, number: signal.Signals) -> None:
    """In a program that handles no signal, as benchmarks are."""
    started = tmp_path / "started"
    argv = [sys.executable, "-c", PROFILER, str(tmp_path), str(started)]
    environment = os.environ | {"PYTHONPATH": ":".join([str(Path(__file__).parent), *filter(None, sys.path)])}
    with subprocess.Popen(argv, env=environment) as process:
        try:
            _until(started.exists, "the kernel does not start")
            child = int(started.read_text())
            (folder,) = tmp_path.glob(f"{scratch.PREFIX}*")
            assert (folder / scratch.LOCK_FILE).exists()
            process.send_signal(number)
            process.wait()
            _until(lambda: not folder.exists(), f"{folder} is left")
            _until(lambda: not Path(f"/proc/{child}").exists(), "the timing child is left")
        finally:
            process.kill()
    assert {path.name for path in tmp_path.iterdir()} == {"started", "store"}
