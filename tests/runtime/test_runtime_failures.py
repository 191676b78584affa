"""The failure matrix, done for real: one clear error, nothing left behind, a consistent store, and the next run works.

``benchmarks/failure_matrix.py`` runs the same cases many times with the watchdogs' real limits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest
from failure_cases import CASES, launcher_files, run_case

from heterotask_core.program.model import RankRole
from heterotask_core.runtime import failure
from heterotask_core.runtime.watch import RankWatch

QUICK = (
    "crashes",
    "agent_stopped",
    "caller_killed",
    "trace_fills_disk",
    "alone_worker_killed",
    "alone_caller_and_reaper_killed",
)


@pytest.mark.mpi
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_failure_is_told_and_leaves_nothing(tmp_path, name):
    case = CASES[name]
    if case.small_disk_bytes and os.geteuid() != 0:
        pytest.skip("needs root to mount a small tmpfs")
    before = launcher_files()
    assert run_case(case, tmp_path / "case", quick=True) == []
    # Those of another process's jobs are among them, and go when that job ends.
    until_s = time.monotonic() + 30.0
    left = launcher_files() - before
    while left := {path for path in left if path.exists()}:
        assert time.monotonic() < until_s, f"left: {left}"
        time.sleep(0.05)


RANKS = (RankRole("n0", None), RankRole("n0", "c0"))


def test_tail_leaves_tracebacks_out_and_shortens_crashes():
    assert failure.tail("one\n\n two \nTraceback (most recent call last):\n  File x\nValueError: y\n") == "one | two"
    crash = (
        "before\nFatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
        '  File "a.py", line 1 in f\n  File "b.py", line 2 in g\n\nExtension modules: numpy\n'
    )
    assert failure.tail(crash) == (
        'before | Fatal Python error: Segmentation fault | File "a.py", line 1 in f | File "b.py", line 2 in g'
    )


def test_several_ranks_that_died_between_two_looks_are_all_named(tmp_path):
    (tmp_path / "output-1.txt").write_text("last words\n")
    lanes = [{"rank": 1, "lane": "1:COMPUTE", "op": "task 'a'", "state": "runs", "since_s": 1.0, "running": True}]
    assert failure.died(RANKS, (0, 1), lanes, tmp_path, "", {}) == (
        "rank 0 (agent, node 'n0') or rank 1 (device 'c0', node 'n0') running task 'a' was killed or crashed; the job "
        "was ended (if it was killed for lack of memory, dmesg tells); rank 1 printed: last words"
    )


def test_rank_that_starts_and_dies_while_others_are_waited_for_is_seen(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    (tmp_path / "rank-0.json").write_text(json.dumps({"pid": other.pid}))
    watch = RankWatch(tmp_path, [0, 1])
    waits = threading.Thread(target=watch.wait, args=(60.0,))
    waits.start()
    short = subprocess.Popen([sys.executable, "-c", ""])
    short.wait()
    (tmp_path / "part").write_text(json.dumps({"pid": short.pid}))
    (tmp_path / "part").replace(tmp_path / "rank-1.json")
    waits.join(30.0)
    assert not waits.is_alive()
    assert watch.first_dead == (1,)
    watch.end(0.0)
    other.communicate()


def test_signal_that_ended_a_rank_is_seen_before_its_launcher_collects_it(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    (tmp_path / "rank-1.json").write_text(json.dumps({"pid": child.pid}))
    watch = RankWatch(tmp_path, [1])
    watch.wait(0.0)
    child.kill()
    watch.wait(60.0)
    assert (watch.first_dead, watch.signals) == ((1,), {1: 9})
    child.communicate()
    message = failure.died(RANKS, watch.first_dead, [], tmp_path, "", watch.signals)
    assert message.startswith("rank 1 (device 'c0', node 'n0') was ended by signal 9 (Killed); the job was ended")
