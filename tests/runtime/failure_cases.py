"""Every way in which a run can fail, done for real in a process of its own, and what must be true afterwards.

``python -m failure_cases CASE FOLDER`` is the caller: it runs the case through the execute stage, writes
``result.json``, and then runs a sound program. :func:`run_case` starts it, breaks what the case wants broken, and
returns a list of everything that is not as it should be.
"""

from __future__ import annotations

import glob
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import failure_kernels as k
import numpy as np
from hand_program import COUNT, Builder
from runtime_kernels import FILL, STORE, TWICE

from heterotask_core.kernel import Kernel

GONE_S = 10.0
"""How soon after the end no process of the job may be left."""
TOKEN = "HETEROTASK_TEST_TOKEN"
SHM = Path("/dev/shm")
PRINTED = "rank 3 printed: about to fail"
C1 = "rank 3 (device 'c1', node 'n1') running task"
WAS = "rank 3 (device 'c1', node 'n1') was running task"
FOREVER = "'forever1' (variant 'plain' of kernel 'forever')"
EXITS_ON = signal.SIGUSR2
"""A rank of a case leaves by ``os._exit`` when it hears this one (see ``exits_on_signal``); MPICH uses SIGUSR1."""


@dataclass(frozen=True)
class Case:
    """``words`` must all be in the error; ``breaks`` is called with the scene once the failing kernel runs."""

    name: str
    kernel: Kernel
    words: tuple[str, ...]
    breaks: Callable[[Scene], None] | None = None
    caller_dies: bool = False
    small_disk_bytes: int = 0
    starts: bool = True
    """Whether ranks get to run, so that a partial trace must be there."""
    trace: bool = True
    hangs: bool = False
    """Whether the end needs a watchdog's limit."""
    one_node: bool = False
    """Whether both devices are of one node, which has no agent: the kernel's rank is 1 then."""


@dataclass
class Scene:
    """A running case: its caller, and the ranks' processes as they say."""

    caller: subprocess.Popen[bytes]
    folder: Path

    def pid(self, rank: int) -> int:
        (path,) = (self.folder / "tmp").glob(f"heterotask-job-*/rank-{rank}.json")
        return json.loads(path.read_text())["pid"]

    def mpiexec(self) -> int:
        return self._child("mpiexec")

    def reaper(self) -> int:
        return self._child("heterotask_core.runtime.reaper")

    def _child(self, word: str) -> int:
        """Return the caller's child whose command line has this word."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words, parent = (process / "cmdline").read_text().split("\0"), _stat(process)[1]
            except OSError:
                continue
            if int(parent) == self.caller.pid and word in [*words, Path(words[0]).name]:
                return int(process.name)
        raise AssertionError(f"no {word}")


def _kill(rank: int, number: int) -> Callable[[Scene], None]:
    return lambda scene: os.kill(scene.pid(rank), number)


def _kill_caller_and_reaper(scene: Scene) -> None:
    os.kill(scene.reaper(), signal.SIGKILL)
    scene.caller.kill()


def _alone(case: Case) -> Case:
    """The same on one node, whose caller does without an agent."""

    def there(word: str) -> str:
        return word.replace("rank 3", "rank 1").replace("'n1'", "'n0'")

    words = tuple(there(word) for word in case.words if not word.startswith("rank 2"))
    return replace(case, name=f"alone_{case.name}", words=words, one_node=True)


def _kernel_case(kernel: Kernel, *words: str, **options) -> Case:
    return Case(kernel.name, kernel, (f"'{kernel.name}1'", "'plain'", "rank 3", "node 'n1'", *words), **options)


CASES = {
    case.name: case
    for case in (
        _kernel_case(k.RAISES, "failed (variant 'plain' of kernel 'raises'", "ValueError: no such luck", PRINTED),
        _kernel_case(k.EXITS, C1, "the job was ended", PRINTED),
        # Which signal it was is known only where the launcher has not yet collected the process, or says so itself.
        _kernel_case(k.KILLED, C1, "the job was ended", PRINTED),
        _kernel_case(k.CRASHES, C1, "the job was ended", "Segmentation fault", "failure_kernels.py"),
        _kernel_case(k.WRONG_SHAPE, "failed (variant", "could not broadcast", PRINTED),
        *(
            _kernel_case(kernel, "no progress for", "runs, since", "rank 2 should deliver", PRINTED, hangs=True)
            for kernel in (k.STOPS, k.HOLDS_GIL, k.FOREVER)
        ),
        _kernel_case(k.FILLS_DISK, "No space left on device", small_disk_bytes=16 << 20),
        Case(
            "trace_fills_disk",
            k.NEARLY_FILLS_DISK,
            ("trace.parquet", "No space left on device", "--store"),
            small_disk_bytes=16 << 20,
            trace=False,
        ),
        Case("worker_killed", k.FOREVER, (C1, FOREVER, "the job was ended", PRINTED), _kill(3, signal.SIGKILL)),
        # MPI may end its peers before anybody looks; then all that died are named.
        *(
            Case(f"agent_{what}", k.FOREVER, ("rank 2 (agent, node 'n1')", "was ", "rank 3", FOREVER, PRINTED), breaks)
            for what, breaks in (
                ("killed", _kill(2, signal.SIGKILL)),
                ("crashes", _kill(2, signal.SIGSEGV)),
                ("exits", _kill(2, EXITS_ON)),
            )
        ),
        Case(
            "agent_stopped",
            k.SPINS,
            ("rank 2 (agent, node 'n1') has been silent for", WAS, "'spins1' (variant 'plain'", PRINTED),
            _kill(2, signal.SIGSTOP),
            hangs=True,
        ),
        Case(
            "mpiexec_killed",
            k.FOREVER,
            ("mpiexec", "was ended by signal 9", WAS, FOREVER, PRINTED),
            lambda scene: os.kill(scene.mpiexec(), signal.SIGKILL),
        ),
        Case("caller_killed", k.FOREVER, (), lambda scene: scene.caller.kill(), caller_dies=True),
        Case("arena_too_large", k.RAISES, ("the arenas need 1073741824.", "MiB free", "remount"), starts=False),
        Case("corrupted_program", k.RAISES, ("plan again",), starts=False),
        Case("mpiexec_missing", k.RAISES, ("mpiexec is neither beside", "pip install mpich"), starts=False),
    )
}
ALONE = ("raises", "crashes", "stops", "holds_gil", "forever", "mpiexec_killed", "caller_killed")
CASES |= {
    case.name: case
    for case in (
        *(_alone(CASES[name]) for name in ALONE),
        _alone(replace(CASES["worker_killed"], breaks=_kill(1, signal.SIGKILL))),
        _alone(
            replace(
                CASES["caller_killed"], name="caller_and_reaper_killed", breaks=_kill_caller_and_reaper, trace=False
            )
        ),
    )
}
"""The same on one node."""


def chain(kernel: Kernel, *, one_node: bool = False) -> Builder:
    """fill on c0 → transfer → ``kernel`` on c1 of node n1 → transfer back → twice → store, on c0.

    On ``one_node`` both devices are of n0, and there are no transfers.
    """
    other = "n0" if one_node else "n1"
    b = Builder([("c0", "cpu", "n0"), ("c1", "cpu", other)])
    x, y, z = b.slot("n0"), b.slot(other), b.slot("n0")
    there, back = (x, y) if one_node else (b.slot("n1", 0), b.slot("n0", 1))
    first = b.task("c0", FILL, {"output": x}, params={"value": 3})
    params = {} if kernel is TWICE else {"started": {"output": "started"}}
    if kernel in (k.FILLS_DISK, k.NEARLY_FILLS_DISK):
        params["result"] = {"output": "result.bin"}
    arrived = first if one_node else b.transfer(x, there, [first])
    bad = b.task("c1", kernel, {"input": there, "output": y}, [arrived], params=params)
    returned = bad if one_node else b.transfer(y, back, [bad])
    last = b.task("c0", TWICE, {"input": back, "output": z}, [returned])
    b.task("c0", STORE, {"input": z}, [last], params={"path": {"output": "sum.npy"}})
    return b


def caller(case: Case, folder: Path) -> None:
    """Run the case, then a sound program, on the store in ``folder``."""
    from heterotask_core import stages
    from heterotask_core.errors import HeteroTaskError
    from heterotask_core.program.io import save_program
    from heterotask_core.runtime import job, mpijob
    from heterotask_core.store import Store

    if "HETEROTASK_TEST_QUICK" in os.environ:
        job.STALL_MIN_S, mpijob.SILENCE_S = 1.5, 2.5
    store = Store(folder / "disk" / "store")
    b = chain(case.kernel, one_node=case.one_node)
    executable, path = sys.executable, os.environ["PATH"]
    if case.name == "arena_too_large":
        b.used["n0"] = 1 << 50
    if case.name == "mpiexec_missing":
        sys.executable, os.environ["PATH"] = str(folder / "python"), ""
    program = b.build()
    graph = SimpleNamespace(fingerprint=lambda: program.graph_fingerprint or "hand")
    workflow = stages.Workflow(SimpleNamespace(name="hand"), None, graph, b.platform)
    plan = stages.Plan(program, folder / "plan", False, 1.0, 1.0)
    result = {}
    try:
        if case.name == "corrupted_program":
            program = replace(program, graph_fingerprint="hand", dep_ptr=np.zeros_like(program.dep_ptr))
            save_program(program, folder / "plan")
            plan = stages.load_plan(folder / "plan", workflow)
        stages.execute_stage(workflow, plan, store)
    except HeteroTaskError as error:
        result = {"type": type(error).__name__, "message": str(error), "ended_s": time.monotonic()}
    sys.executable, os.environ["PATH"] = executable, path
    # Whole or not at all: who looks after the case reads it as soon as it is there.
    (folder / "result.part").write_text(json.dumps(result))
    (folder / "result.part").replace(folder / "result.json")
    for path in folder.glob("disk/store/runs/*/result.bin"):
        # The person to whom the error said so has freed space.
        path.unlink()
    run_sound(folder)


def run_sound(folder: Path) -> None:
    """Run a program that does not fail, and write a record, which turns what a killed caller has left into one."""
    from heterotask_core.runtime.job import execute
    from heterotask_core.store import Store

    b = chain(TWICE)
    with Store(folder / "disk" / "store").new_record("runs", "next") as out:
        execute(b.build(), b.platform, output_dir=out)
        expected = 2 * (2 * (np.arange(COUNT) + 3.0) + 1) + 1
        np.testing.assert_array_equal(np.load(out / "sum.npy"), expected)
    (folder / "next-works").touch()


def launcher_files() -> set[Path]:
    """Return the files that MPICH's launcher keeps while it runs; they do not say whose they are."""
    return set(Path("/tmp").glob("hydra_hwloc_xmlfile_*"))


def run_case(case: Case, folder: Path, *, quick: bool) -> list[str]:
    """Run a case in ``folder``; return what was wrong (nothing, if all is well)."""
    (folder / "tmp").mkdir(parents=True)
    (folder / "disk").mkdir()
    if case.small_disk_bytes:
        argv = ["mount", "-t", "tmpfs", "-o", f"size={case.small_disk_bytes}", "tmpfs", str(folder / "disk")]
        subprocess.run(argv, check=True)
    try:
        return _run_case(case, folder, quick=quick)
    finally:
        if case.small_disk_bytes:
            subprocess.run(["umount", str(folder / "disk")], check=True)


def _run_case(case: Case, folder: Path, *, quick: bool) -> list[str]:
    token = uuid.uuid4().hex
    environment = os.environ | {
        TOKEN: token,
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": ":".join([str(Path(__file__).parent / "exits_on_signal"), *(p for p in sys.path if p)]),
    }
    if quick:
        environment["HETEROTASK_TEST_QUICK"] = "1"
    argv = [sys.executable, "-m", "failure_cases", case.name, str(folder)]
    wrong: list[str] = []
    with (folder / "caller.txt").open("wb") as said:
        process = subprocess.Popen(argv, env=environment, stdout=said, stderr=said)
    scene = Scene(process, folder)
    shared: set[str] = set()
    broken_s = None
    deadline_s = time.monotonic() + 120
    while process.poll() is None and not (folder / "result.json").exists():
        # Unlike Path.glob, glob.glob passes over folders that are being removed meanwhile.
        for name in ("rank-*.json", "job.json"):
            for path in glob.glob(str(folder / "tmp" / "*" / name)):  # noqa: PTH207
                facts = _read(Path(path))
                shared |= set(facts.get("shm", ())) | set(facts.get("arenas", {}).values())
        started = glob.glob(str(folder / "disk" / "store" / "runs" / ".*" / "started"))  # noqa: PTH207
        if broken_s is None and started:
            broken_s = time.monotonic()
            if case.breaks is not None:
                case.breaks(scene)
        if time.monotonic() > deadline_s:
            wrong.append("hang: the caller has not ended within 120 s")
            process.kill()
        time.sleep(0.01)
    if case.caller_dies:
        process.wait()
        _until(lambda: not _alive(token, Path("/proc")), GONE_S, wrong, "leak: processes of the killed caller")
        with (folder / "caller.txt").open("ab") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "failure_cases", "-", str(folder)], env=environment, stdout=said, stderr=said
            )
    elif (folder / "result.json").exists():
        wrong += _message(case, _read(folder / "result.json"), broken_s, quick)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        wrong.append("hang: the next run has not ended within 60 s")
        process.kill()
    if not (folder / "next-works").exists():
        wrong.append(f"next run: {(folder / 'caller.txt').read_text()[-400:]}")
    _until(lambda: not _alive(token, Path("/proc")), GONE_S, wrong, "leak: processes")
    left = [name for name in shared if Path(name).exists()]
    wrong += [f"leak: shared memory {left}"] if left else []
    left = [p.name for p in (folder / "tmp").iterdir()]
    wrong += [f"leak: temporary files {left}"] if left else []
    return wrong + _store(case, folder / "disk" / "store")


def _message(case: Case, result: dict, broken_s: float | None, quick: bool) -> list[str]:
    message = result.get("message", "")
    wrong = [f"message: no {word!r} in {message!r}" for word in case.words if word not in message]
    if broken_s is not None:
        # Limits of the watchdogs: 5 s of silence or without progress; loaded machines get as much again.
        limit_s = GONE_S + (10.0 if case.hangs else 0.0)
        if result.get("ended_s", time.monotonic()) - broken_s > limit_s:
            wrong.append(f"slow: the error came after {result['ended_s'] - broken_s:.1f} s")
    return wrong


def _store(case: Case, root: Path) -> list[str]:
    from heterotask_core.store import Store
    from heterotask_core.tables import TRACE, read_table

    wrong = []
    store = Store(root)
    runs = [key for key in store.list("runs") if key != "next"]
    expected = 0 if case.name == "corrupted_program" else 1
    if len(runs) != expected:
        return [f"store: runs {runs}"]
    hidden = [p.name for p in (root / "runs").iterdir() if p.name.startswith(".")]
    wrong += [f"store: {hidden} left"] if hidden else []
    for key in runs:
        manifest = store.manifest("runs", key)
        folder = store.folder("runs", key)
        if manifest["status"] != "failed" or not manifest.get("error"):
            wrong.append(f"store: the failed run is {manifest['status']!r}")
        if case.starts and case.trace and not case.caller_dies:
            trace = read_table(folder / "trace.parquet", TRACE, remedy="-")
            if trace["task"].to_list()[:1] != ["fill0"] or trace["finish_s"].is_null().any():
                wrong.append(f"store: partial trace {trace.to_dicts()}")
        if case.caller_dies and case.trace and not (folder / "partial.npz").exists():
            wrong.append("store: the killed caller's times are lost")
    return wrong


def _read(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def _stat(process: Path) -> list[str]:
    return (process / "stat").read_text().rpartition(")")[2].split()


def _alive(token: str, proc: Path) -> list[str]:
    """Processes that have the token in their environment, this one's own children not yet collected left out."""
    found = []
    for process in proc.glob("[0-9]*"):
        try:
            if f"{TOKEN}={token}".encode() in (process / "environ").read_bytes() and _stat(process)[0] != "Z":
                found.append(f"{process.name} {(process / 'comm').read_text().strip()}")
        except OSError:
            continue
    return found


def _until(condition: Callable[[], bool], limit_s: float, wrong: list[str], what: str) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            wrong.append(f"{what} are left after {limit_s:.0f} s")
            return
        time.sleep(0.02)


if __name__ == "__main__":
    if sys.argv[1] == "-":
        run_sound(Path(sys.argv[2]))
    else:
        caller(CASES[sys.argv[1]], Path(sys.argv[2]))
