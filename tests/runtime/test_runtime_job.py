"""Programs executed by real ranks: results, traces, and every way in which a job fails."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hand_program import COUNT, SLOT_BYTES, Builder, there_and_back
from overlap_kernels import COMPUTE
from runtime_kernels import ADD, BUMP, DIE, FAIL, FILL, HANG, STORE, TWICE

from heterotask_core.errors import ArenaTooSmallError, ExecutionError, LaunchError, ProgramError
from heterotask_core.program.model import LaneKind
from heterotask_core.runtime import job
from heterotask_core.runtime.job import execute
from heterotask_core.runtime.partial import PARTIAL_FILE

pytestmark = pytest.mark.mpi
SHM = Path("/dev/shm")


def _shared() -> set[str]:
    return {p.name for pattern in ("heterotask-*", "mpich_shm_*") for p in SHM.glob(pattern)}


@pytest.fixture(autouse=True)
def _nothing_left():
    """No shared memory of this test's job remains, however it ended (others' jobs come and go)."""
    before = _shared()
    yield
    left = _shared() - before
    _wait_until(lambda: not left & _shared(), f"shared memory is left, of {left}", 30)


def _diamond(left: str, right: str) -> Builder:
    """fill → twice on two devices of node n0 → add → bump → store."""
    b = Builder([("c0", "cpu", "n0"), ("c1", "cpu", "n0")])
    x, y, z, total = (b.slot("n0") for _ in range(4))
    scratch = (b.used["n0"], SLOT_BYTES)
    b.used["n0"] += SLOT_BYTES
    first = b.task("c0", FILL, {"output": x}, params={"value": 3})
    one = b.task(left, TWICE, {"input": x, "output": y}, [first])
    two = b.task(right, TWICE, {"input": x, "output": z}, [first])
    added = b.task("c0", ADD, {"parts": [y, z], "output": total}, [one, two])
    bumped = b.task("c1", BUMP, {"data": total}, [added], scratch=scratch)
    b.task("c0", STORE, {"input": total}, [bumped], params={"path": {"output": "sum.npy"}})
    return b


def _expected() -> np.ndarray:
    return 2 * (2 * (np.arange(COUNT) + 3.0) + 1) + 1


@pytest.mark.parametrize(("left", "right"), [("c0", "c0"), ("c0", "c1")])
def test_one_node_computes_and_traces(tmp_path, left, right):
    b = _diamond(left, right)
    program = b.build()
    seen = []
    result = execute(
        program, b.platform, output_dir=tmp_path, repeats=3, progress=lambda done, total: seen.append((done, total))
    )
    np.testing.assert_array_equal(np.load(tmp_path / "sum.npy"), _expected())
    assert result.start_s.shape == result.finish_s.shape == (3, 6)
    assert np.isfinite(result.start_s).all()
    assert (result.start_s <= result.finish_s).all()
    for op in range(6):
        for dep in program.dep_ops[program.dep_ptr[op] : program.dep_ptr[op + 1]]:
            assert (result.finish_s[:, dep] <= result.start_s[:, op]).all()
    assert (result.start_s.min(axis=1) == 0).all()
    assert result.makespan_s == tuple(result.finish_s.max(axis=1))
    assert result.arena_peak_bytes == {"n0": 5 * SLOT_BYTES}
    assert seen[-1] == (18, 18)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_two_virtual_nodes_exchange_over_mpi(tmp_path):
    b = Builder([("c0", "cpu", "n0"), ("c1", "cpu", "n1")])
    expected = there_and_back(b)
    result = execute(b.build(), b.platform, output_dir=tmp_path, repeats=2, warm_up=False)
    assert result.start_s.shape[0] == 2
    np.testing.assert_array_equal(np.load(tmp_path / "sum.npy"), expected)
    assert np.isfinite(result.start_s).all()
    assert set(result.arena_peak_bytes) == {"n0", "n1"}


def test_opencl_beside_cpu(tmp_path):
    pytest.importorskip("pyopencl")
    b = Builder([("c0", "cpu", "n0"), ("g0", "opencl", "n0")])
    x, y_cpu, total = (b.slot("n0") for _ in range(3))
    x_dev = b.slot("g0", 0)
    y_dev = b.slot("g0")
    z_dev = b.slot("g0", 3)
    y_back = b.slot("n0", 3)
    first = b.task("c0", FILL, {"output": x}, params={"value": 3})
    h2d = b.copy("g0", x, x_dev, LaneKind.HOST_TO_DEVICE, [first])
    one = b.task("g0", TWICE, {"input": x_dev, "output": y_dev}, [h2d])
    within = b.copy("g0", y_dev, z_dev, LaneKind.COMPUTE, [one])
    d2h = b.copy("g0", z_dev, y_back, LaneKind.DEVICE_TO_HOST, [within])
    two = b.task("c0", TWICE, {"input": x, "output": y_cpu}, [first])
    added = b.task("c0", ADD, {"parts": [y_back, y_cpu], "output": total}, [two, d2h])
    b.task("c0", STORE, {"input": total}, [added], params={"path": {"output": "sum.npy"}})
    result = execute(b.build(), b.platform, output_dir=tmp_path, repeats=2)
    np.testing.assert_array_equal(np.load(tmp_path / "sum.npy"), _expected() - 1)
    # Device clocks are anchored with an error below a queue's round trip.
    assert (result.start_s[:, one] >= result.finish_s[:, h2d] - 1e-3).all()
    assert (result.finish_s[:, d2h] <= result.start_s[:, added] + 1e-3).all()
    assert result.arena_peak_bytes["g0"] == 2 * SLOT_BYTES + 8 * COUNT


def _failing(kernel) -> Builder:
    b = Builder([("c0", "cpu", "n0"), ("c1", "cpu", "n0")])
    x, y, z = (b.slot("n0") for _ in range(3))
    first = b.task("c0", FILL, {"output": x}, params={"value": 0})
    bad = b.task("c1", kernel, {"input": x, "output": y}, [first])
    b.task("c0", TWICE, {"input": y, "output": z}, [bad])
    return b


def test_exception_names_task_variant_rank_and_node(tmp_path):
    b = _failing(FAIL)
    with pytest.raises(ExecutionError) as caught:
        execute(b.build(), b.platform, output_dir=tmp_path)
    assert str(caught.value) == (
        "task 'fail1' failed (variant 'plain' of kernel 'fail', rank 1, node 'n0', device 'c1'): "
        "ValueError: no such luck"
    )


def test_killed_rank_ends_the_job_and_is_named(tmp_path):
    b = _failing(DIE)
    message = (
        r"rank 1 \(device 'c1', node 'n0'\) running task 'die1' \(variant 'plain' of kernel 'die'\) "
        r"was (ended by signal 9 \(Killed\)|killed or crashed); the job was ended"
    )
    with pytest.raises(ExecutionError, match=message):
        execute(b.build(), b.platform, output_dir=tmp_path, timeout_s=60)


def test_deadlock_is_reported_with_what_lanes_wait_for(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "STALL_MIN_S", 0.5)
    b = Builder([("c0", "cpu", "n0"), ("c1", "cpu", "n0")])
    x, y = b.slot("n0"), b.slot("n0")
    b.task("c0", FILL, {"output": x}, [1], params={"value": 0})
    b.task("c1", FILL, {"output": y}, [0], params={"value": 0})
    with pytest.raises(
        ExecutionError,
        match=r"lane '1:COMPUTE' of rank 0, node 'n0': task 'fill0' waits for task 'fill1' \(rank 1\), since",
    ):
        execute(b.build(), b.platform, output_dir=tmp_path, timeout_s=60)


_PTRACE_SEIZE = 0x4206


def test_no_alarm_while_a_debugger_holds_a_rank(tmp_path, monkeypatch):
    """A rank that never moves is traced for four times the limit, and what ends it then is no watchdog."""
    monkeypatch.setattr(job, "STALL_MIN_S", 0.7)
    given_up = threading.Event()

    def debug() -> None:
        _wait_until((tmp_path / "pid").exists, "the task has not started", 60)
        rank = int((tmp_path / "pid").read_text())
        assert ctypes.CDLL(None, use_errno=True).ptrace(_PTRACE_SEIZE, rank, None, None) == 0
        if not given_up.wait(3.0):
            os.kill(rank, signal.SIGKILL)

    b = Builder([("c0", "cpu", "n0")])
    b.task("c0", HANG, {"output": b.slot("n0")}, params={"path": {"output": "pid"}})
    # What a thread traces is let go when it ends.
    debugger = threading.Thread(target=debug)
    debugger.start()
    try:
        with pytest.raises(ExecutionError, match=r"rank 0 \(device 'c0', node 'n0'\) running task 'hang0' .* was "):
            execute(b.build(), b.platform, output_dir=tmp_path, timeout_s=60)
    finally:
        given_up.set()
        debugger.join()


def test_a_rank_that_computes_may_take_longer_in_the_first_pass_only(tmp_path, monkeypatch):
    """It may compile. One that hangs without using its core is told at once, as the tests before show."""
    monkeypatch.setattr(job, "STALL_MIN_S", 0.5)
    b = Builder([("c0", "cpu", "n0")])
    b.task("c0", COMPUTE, {"output": b.slot("n0")}, params={"seconds": 3.0})
    with pytest.raises(ExecutionError, match=r"no progress for [0-9]+ s.*\n.*task 'compute0' .* runs, since"):
        execute(b.build(), b.platform, output_dir=tmp_path, repeats=2, timeout_s=60)
    with np.load(tmp_path / PARTIAL_FILE) as stored:
        assert np.isfinite(stored["finish_s"][:, 0]).tolist() == [True, False]


def test_timeout_ends_the_job(tmp_path):
    b = _diamond("c0", "c1")
    with pytest.raises(ExecutionError, match="did not end within 0 s"):
        execute(b.build(), b.platform, output_dir=tmp_path, timeout_s=0.0)


def _alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _wait_until(condition, what: str, limit_s: float = 10) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, what
        os.sched_yield()


def _hang(folder: Path) -> None:
    """A job whose only task never ends; run by a process that is killed, however late on a busy machine."""
    job.STALL_MIN_S = 600.0
    b = Builder([("c0", "cpu", "n0")])
    b.task("c0", HANG, {"output": b.slot("n0")}, params={"path": {"output": "pid"}})
    execute(b.build(), b.platform, output_dir=folder)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
def test_killed_caller_takes_its_job_along(tmp_path):
    code = f"import test_runtime_job as t; from pathlib import Path; t._hang(Path({str(tmp_path)!r}))"
    environment = {**os.environ, "PYTHONPATH": ":".join(p for p in sys.path if p), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as caller:
        _wait_until((tmp_path / "pid").exists, "the task has not started")
        pid = int((tmp_path / "pid").read_text())
        caller.kill()
    _wait_until(lambda: not _alive(pid), "the rank outlives its caller")


def test_missing_mpiexec_is_one_clear_line(tmp_path, monkeypatch):
    b = _diamond("c0", "c1")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="pip install mpich"):
        execute(b.build(), b.platform, output_dir=tmp_path)


def test_arena_larger_than_shared_memory_is_refused(tmp_path):
    b = _diamond("c0", "c1")
    b.used["n0"] = 1 << 50
    with pytest.raises(ArenaTooSmallError, match=r"1073741824\.0 MiB"):
        execute(b.build(), b.platform, output_dir=tmp_path)


def test_program_of_another_platform_is_refused(tmp_path):
    other = Builder([("c0", "cpu", "elsewhere")])
    with pytest.raises(ProgramError, match="another platform"):
        execute(_diamond("c0", "c1").build(), other.platform, output_dir=tmp_path)
