"""A session's job takes program after program: results as separate launches give, every state and every refusal."""

from __future__ import annotations

import importlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hand_program import COUNT, Builder
from runtime_kernels import ADD, DIE, FAIL, FILL, HANG, STORE, TWICE

from heterotask_core.errors import ArenaTooSmallError, ExecutionError, ProgramError
from heterotask_core.program.model import OpKind
from heterotask_core.runtime.job import execute
from heterotask_core.runtime.partial import PARTIAL_FILE
from heterotask_core.runtime.serve import SOCKET_FILE, State
from heterotask_core.runtime.session import Session

pytestmark = pytest.mark.mpi
RUN = [State.LOADING, State.RUNNING, State.DRAINING, State.READY]


def _chain(value: float, *, nodes: int = 2, bad=None, wide: int = 4, name: str = "sum.npy") -> Builder:
    """``wide`` vectors filled on c0, doubled on c1 (on another node with ``nodes`` 2), added and stored on c0."""
    other = f"n{nodes - 1}"
    b = Builder([("c0", "cpu", "n0"), ("c1", "cpu", other)])
    back, made = [], 0
    for i in range(wide):
        x, version = b.slot("n0"), made
        made += 1
        ready = b.task("c0", FILL, {"output": x}, params={"value": value + i})
        source = x
        if nodes == 2:
            source = b.slot(other, version)
            ready = b.transfer(x, source, [ready])
        y, version = b.slot(other), made
        made += 1
        kernel = bad if bad is not None and i == wide // 2 else TWICE
        done = b.task("c1", kernel, {"input": source, "output": y}, [ready])
        if nodes == 2:
            here = b.slot("n0", version)
            done, y = b.transfer(y, here, [done]), here
        back.append((done, y))
    total = b.slot("n0")
    added = b.task("c0", ADD, {"parts": [y for _, y in back], "output": total}, [op for op, _ in back])
    b.task("c0", STORE, {"input": total}, [added], params={"path": {"output": name}})
    return b


def _expected(value: float, wide: int = 4) -> np.ndarray:
    return sum(2 * (np.arange(COUNT) + value + i) + 1 for i in range(wide))


def _other(kind: str, node: str):
    """A program of a platform with one device, which never runs."""
    b = Builder([("c0", kind, node)])
    b.slot(node)
    return b.build()


@pytest.fixture
def states():
    """States that a session went through."""
    return []


def _session(b: Builder, states=None, **options) -> Session:
    return Session(b.platform, on_state=None if states is None else states.append, **options)


def test_results_and_traces_are_those_of_separate_launches(tmp_path, states):
    programs = [_chain(value, wide=wide).build() for value, wide in ((1.0, 4), (2.0, 20))]
    platform = _chain(1.0).platform
    seen = []
    with Session(platform, largest=programs, on_state=states.append) as session:
        results = [
            session.run(
                program,
                output_dir=tmp_path / f"s{i}",
                repeats=2,
                warm_up=i == 1,
                progress=lambda done, total: seen.append((done, total)),
            )
            for i, program in enumerate(programs)
        ]
        assert session.restarts == []
        assert session.first_task_s is not None
    # One pass more, which is left out of the result.
    assert seen[-1] == (3 * len(programs[1].lane_ops), 3 * len(programs[1].lane_ops))
    assert states == [State.READY, *RUN, *RUN, State.DEAD]
    for i, (program, result) in enumerate(zip(programs, results, strict=True)):
        alone = execute(program, platform, output_dir=tmp_path / f"e{i}", repeats=2)
        np.testing.assert_array_equal(np.load(tmp_path / f"s{i}/sum.npy"), np.load(tmp_path / f"e{i}/sum.npy"))
        assert result.start_s.shape == alone.start_s.shape == (2, program.n_ops)
        assert np.isfinite(result.start_s).all()
        assert (result.start_s <= result.finish_s).all()
        assert result.arena_peak_bytes == alone.arena_peak_bytes
        assert len(result.makespan_s) == 2
        for op in range(program.n_ops):
            for dep in program.dep_ops[program.dep_ptr[op] : program.dep_ptr[op + 1]]:
                # A transfer's end is the later one of both sides; who waits for it sees one side.
                if OpKind.TRANSFER not in (program.op_kind[dep], program.op_kind[op]):
                    assert (result.finish_s[:, dep] <= result.start_s[:, op]).all()


def test_larger_program_restarts_the_job_and_says_so(tmp_path, states):
    small, large = _chain(1.0, wide=2), _chain(2.0, wide=20)
    with _session(small, states) as session:
        session.run(small.build(), output_dir=tmp_path)
        assert session._spec.memory_bytes == {"n0": int(1.25 * small.used["n0"]), "n1": int(1.25 * small.used["n1"])}
        session.run(large.build(), output_dir=tmp_path)
        assert [reason.split(" bytes in")[0] for reason in session.restarts] == [
            f"the program needs {large.used['n0']}"
        ]
        session.run(small.build(), output_dir=tmp_path)
    assert states == [State.READY, *RUN, State.DEAD, State.READY, *RUN, *RUN, State.DEAD]
    np.testing.assert_array_equal(np.load(tmp_path / "sum.npy"), _expected(1.0, 2))


@pytest.mark.parametrize(("nodes", "helper"), [(1, "1"), (2, "1"), (2, "0")])
def test_failed_program_ends_alone_and_the_next_one_runs(tmp_path, monkeypatch, states, nodes, helper):
    """Also with transfers posted on both sides when the task fails, and without the compiled helper."""
    monkeypatch.setenv("HETEROTASK_NATIVE", helper)
    good, bad = _chain(1.0, nodes=nodes), _chain(2.0, nodes=nodes, bad=FAIL)
    with _session(good, states, largest=[bad.build()]) as session:
        for round_ in range(3):
            with pytest.raises(ExecutionError) as caught:
                session.run(bad.build(), output_dir=tmp_path, repeats=2)
            rank = 1 if nodes == 1 else 3
            assert str(caught.value) == (
                f"task 'fail5' failed (variant 'plain' of kernel 'fail', rank {rank}, node 'n{nodes - 1}', device "
                "'c1'): ValueError: no such luck"
            )
            with np.load(tmp_path / PARTIAL_FILE) as kept:
                done = np.isfinite(kept["finish_s"])
            assert done.any()
            assert not done.all()
            value = float(round_)
            session.run(_chain(value, nodes=nodes).build(), output_dir=tmp_path, repeats=2)
            np.testing.assert_array_equal(np.load(tmp_path / "sum.npy"), _expected(value))
        assert session.restarts == []
    assert states == [State.READY, *RUN, *RUN, *RUN, *RUN, *RUN, *RUN, State.DEAD]


def test_program_that_cannot_be_loaded_is_refused_before_it_runs(tmp_path, states):
    good, bad = _chain(1.0), _chain(2.0)
    bad.calls[0] = type(bad.calls[0])("runtime_kernels", "fill", "missing", "", {"value": 1})
    with _session(good, states) as session:
        with pytest.raises(ExecutionError, match=r"task 'fill0' failed .*KernelError: kernel 'fill' has no variant"):
            session.run(bad.build(), output_dir=tmp_path)
        session.run(good.build(), output_dir=tmp_path)
        assert session.restarts == []
    assert states == [State.READY, State.LOADING, State.READY, *RUN, State.DEAD]


def test_changed_source_restarts_the_job_instead_of_reloading(tmp_path, monkeypatch, states):
    source = tmp_path / "changing_kernels.py"
    text = (
        "from heterotask_core.kernel import Kernel, Variant\n"
        "def change(*, output):\n    output[:] = {value}\n"
        "CHANGE = Kernel('change', __name__, writes=('output',),\n"
        "    variants=(Variant('plain', 'cpu', 'changing_kernels:change'),))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with Session(_chain(0.0).platform, on_state=states.append) as session:
        for value in (11, 2222):
            source.write_text(text.format(value=value))
            sys.modules.pop("changing_kernels", None)
            importlib.invalidate_caches()
            kernels = importlib.import_module("changing_kernels")
            b = Builder([("c0", "cpu", "n0"), ("c1", "cpu", "n1")])
            x = b.slot("n0")
            made = b.task("c0", kernels.CHANGE, {"output": x})
            b.task("c0", STORE, {"input": x}, [made], params={"path": {"output": "x.npy"}})
            session.run(b.build(), output_dir=tmp_path)
            assert (np.load(tmp_path / "x.npy") == value).all()
        assert len(session.restarts) == 1
        assert "its source has changed" in session.restarts[0]
        # A plan of a source that is nowhere any more is refused for good.
        b.calls[0] = type(b.calls[0])("changing_kernels", "change", "plain", "0123456789abcdef", {})
        with pytest.raises(ExecutionError, match="its source has changed since the plan was made; plan again"):
            session.run(b.build(), output_dir=tmp_path)
        assert len(session.restarts) == 2


def test_killed_rank_ends_the_job_and_the_next_program_gets_a_new_one(tmp_path, states):
    good, bad = _chain(1.0), _chain(2.0, bad=DIE)
    with _session(good, states, largest=[bad.build()]) as session:
        session.run(good.build(), output_dir=tmp_path)
        with pytest.raises(ExecutionError, match=r"rank 3 \(device 'c1', node 'n1'\)"):
            session.run(bad.build(), output_dir=tmp_path)
        assert session.state is State.DEAD
        session.run(good.build(), output_dir=tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "sum.npy"), _expected(1.0))


def test_rank_killed_between_programs_is_noticed(tmp_path):
    b = _chain(1.0)
    with _session(b) as session:
        session.run(b.build(), output_dir=tmp_path)
        pid = json.loads((session._job.folder / "rank-1.json").read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        threading.Event().wait(0.1)
        session.run(b.build(), output_dir=tmp_path)
        assert len(session.restarts) == 1
        assert "rank 1" in session.restarts[0]


def test_job_without_programs_ends_by_itself(tmp_path):
    b = _chain(1.0)
    with _session(b, idle_s=0.05) as session:
        session.run(b.build(), output_dir=tmp_path)
        process = session._job.process
        process.wait(30)
        session.run(b.build(), output_dir=tmp_path)
        assert session.restarts == ["its job has ended for lack of programs"]


def test_program_that_meets_an_ending_job_is_run_by_a_new_one(tmp_path, monkeypatch):
    b = _chain(1.0)
    with _session(b, idle_s=0.05) as session:
        session.run(b.build(), output_dir=tmp_path)
        session._job.process.wait(30)
        # The look at the job came a moment before its end.
        looks, prepare = iter([lambda program: None]), session._prepare
        monkeypatch.setattr(session, "_prepare", lambda program: next(looks, prepare)(program))
        session.run(b.build(), output_dir=tmp_path)
        assert session.restarts == ["its job has ended for lack of programs"]


def test_socket_is_private_and_nothing_is_left(tmp_path):
    b = _chain(1.0, nodes=1)
    size = 2 * b.used["n0"]
    with _session(b, arena_bytes={"n0": size}) as session:
        session.run(b.build(), output_dir=tmp_path)
        folder = session._job.folder
        assert stat.S_IMODE((folder / SOCKET_FILE).stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert not list(folder.glob("program-*"))
        assert session._spec.memory_bytes == {"n0": size}
        arenas = session._spec.arenas.values()
    assert not folder.exists()
    assert not any(Path(arena).exists() for arena in arenas)
    session.close()
    assert session.state is State.DEAD


def test_limits_of_loading_and_running_end_the_job(tmp_path, monkeypatch):
    b = _chain(1.0)
    b.task("c0", HANG, {"output": b.slot("n0")}, params={"path": {"output": "pid"}})
    with _session(b) as session:
        with pytest.raises(ExecutionError, match="did not end within 0 s"):
            session.run(b.build(), output_dir=tmp_path, timeout_s=0.0)
        assert session.state is State.DEAD
        b = _sleeps_at_import(tmp_path, monkeypatch)
        monkeypatch.setattr("heterotask_core.runtime.session.LOADING_S", 0.1)
        monkeypatch.setattr(session, "_accept", partial(_patient, session._accept, monkeypatch))
        with pytest.raises(ExecutionError, match="loading program 'hand' took more than 0 s"):
            session.run(b.build(), output_dir=tmp_path)
        assert session.state is State.DEAD


def _patient(accept, monkeypatch, job, listener):
    """Accept with the usual limit, whatever the limit of loading is."""
    with monkeypatch.context() as patch:
        patch.setattr("heterotask_core.runtime.session.LOADING_S", 60.0)
        return accept(job, listener)


def _sleeps_at_import(folder: Path, monkeypatch) -> Builder:
    """A program whose kernel's module never gets imported by a rank."""
    (folder / "sleepy_kernels.py").write_text(
        "import os, time\nfrom heterotask_core.kernel import Kernel, Variant\n"
        "if 'PMI_RANK' in os.environ:\n    time.sleep(1000)\n"
        "def sleepy(*, output):\n    pass\n"
        "SLEEPY = Kernel('sleepy', __name__, writes=('output',),\n"
        "    variants=(Variant('plain', 'cpu', 'sleepy_kernels:sleepy'),))\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    b = Builder([("c0", "cpu", "n0"), ("c1", "cpu", "n1")])
    b.task("c0", importlib.import_module("sleepy_kernels").SLEEPY, {"output": b.slot("n0")})
    return b


def _hold(folder: Path) -> None:
    """A session that waits for its next program; run by a process that is killed."""
    b = _chain(1.0)
    session = _session(b)
    session.run(b.build(), output_dir=folder)
    pids = [json.loads(p.read_text())["pid"] for p in session._job.folder.glob("rank-*.json")]
    arenas = list(session._spec.arenas.values())
    (folder / "pids.part").write_text(json.dumps([str(session._job.folder), pids, arenas]))
    (folder / "pids.part").replace(folder / "pids")
    threading.Event().wait()


def test_killed_caller_takes_the_waiting_job_along(tmp_path):
    code = f"import test_runtime_session as t; from pathlib import Path; t._hold(Path({str(tmp_path)!r}))"
    environment = {**os.environ, "PYTHONPATH": ":".join(p for p in sys.path if p)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as caller:
        _wait_until((tmp_path / "pids").exists)
        folder, pids, arenas = json.loads((tmp_path / "pids").read_text())
        caller.kill()
    _wait_until(lambda: not any(_alive(pid) for pid in pids))
    _wait_until(lambda: not Path(folder).exists())
    assert not any(Path(arena).exists() for arena in arenas)


def _alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _wait_until(condition) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        os.sched_yield()


def test_programs_of_other_platforms_and_sizes_are_refused_before_anything_starts(tmp_path):
    b = _chain(1.0)
    with _session(b) as session:
        with pytest.raises(ProgramError, match="another platform"):
            session.run(_other("cpu", "elsewhere"), output_dir=tmp_path)
        b.used["n0"] = 1 << 50
        with pytest.raises(ArenaTooSmallError, match="MiB"):
            session.run(b.build(), output_dir=tmp_path)
