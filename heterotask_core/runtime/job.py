"""Executing a program: starts an MPI job of one rank a device and one agent a node, and brings back its trace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heterotask_core.errors import ExecutionError, LaunchError, ProgramError
from heterotask_core.platform.model import Platform
from heterotask_core.program.io import save_program
from heterotask_core.program.model import F64, LaneKind, OpKind, Program
from heterotask_core.runtime.arena import SHM, Counters, check_free, node_bytes
from heterotask_core.runtime.context import JobSpec
from heterotask_core.runtime.launch.base import Launcher, clean_environment
from heterotask_core.runtime.launch.local import LocalLauncher
from heterotask_core.runtime.watch import RankWatch

STALL_MIN_S = 5.0
STALL_FACTOR = 5.0
STALL_GRACE_S = 20.0
"""A job ends when nothing moves for max(minimum, factor × longest planned op) + grace (first calls compile)."""
_POLL_S = 0.02
_DRAIN_S = 2.0
"""How long the job may take to end by itself after a rank has failed or died."""


@dataclass(frozen=True)
class RunResult:
    """What was measured. Seconds count from each repeat's first kernel start; (repeats, N), N ops of the program."""

    start_s: F64
    finish_s: F64
    makespan_s: tuple[float, ...]
    """First kernel start to last kernel end, one a repeat."""
    completion_s: float
    """Start of the MPI job to its end: loading, warm-up, all repeats, gathering."""
    arena_peak_bytes: dict[str, int]
    """Memory → end of the highest byte that any executed op used."""
    output_dir: Path


def execute(
    program: Program,
    platform: Platform,
    *,
    output_dir: Path,
    repeats: int = 1,
    progress: Callable[[int, int], None] | None = None,
    timeout_s: float | None = None,
    warm_up: bool = False,
) -> RunResult:
    """Run ``program`` ``repeats`` times, separated by barriers, in one MPI job on this host.

    With ``warm_up`` it is run once more before, and that pass is not in the result. Without it, host variants
    that declare ``warm_up`` have been called once before the start barrier.
    Result files go to ``output_dir``. ``progress(done, total)`` counts ops on lanes over all passes and is
    called from this thread.

    Raises:
        ProgramError: the program was made for another platform.
        LaunchError: the job did not start (mpiexec missing, devices of a kind that cannot be executed).
        ArenaTooSmallError: the arenas do not fit into the host's shared memory.
        ExecutionError: a task or a rank failed, nothing moved any more, or ``timeout_s`` passed.
    """
    _check(program, platform)
    launcher: Launcher = LocalLauncher()
    output_dir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="heterotask-job-"))
    token = f"heterotask-{uuid.uuid4().hex[:12]}"
    nodes = list(dict.fromkeys(role.node for role in program.ranks))
    longest_s = float(np.max(program.op_duration_s, initial=0.0))
    passes = repeats + warm_up
    spec = JobSpec(
        output_dir=str(output_dir.resolve()),
        repeats=passes,
        stall_s=max(STALL_MIN_S, STALL_FACTOR * longest_s) + STALL_GRACE_S,
        arenas={node: str(SHM / f"{token}-{i}") for i, node in enumerate(nodes)},
        devices={d.name: {"kind": d.kind, "selector": d.selector, "memory": d.memory} for d in platform.devices},
    )
    try:
        save_program(program, folder)
        spec.save(folder)
        counters = Counters(folder / "counters", len(program.lane_names), create=True)
        worker = [sys.executable, "-m", "mpi4py", "-m", "heterotask_core.runtime.worker", str(folder)]
        command = launcher.command(n_ranks=len(program.ranks), argv=worker)
        start_s = time.monotonic()
        _run(command, folder, program, counters, passes, progress, timeout_s)
        completion_s = time.monotonic() - start_s
        return _result(folder, program, completion_s, output_dir, skip=passes - repeats)
    finally:
        _clean(folder, spec)


def _check(program: Program, platform: Platform) -> None:
    """Refuse what cannot run here before anything is started."""
    if program.platform_fingerprint != platform.fingerprint():
        raise ProgramError(f"program {program.name!r} was made for another platform; plan again")
    hosts = {node.host for node in platform.nodes}
    if len(hosts) > 1:
        raise LaunchError(f"the platform has hosts {sorted(hosts)}; the local launcher runs ranks on one host only")
    used = {role.device for role in program.ranks}
    for device in platform.devices:
        if device.name in used and device.kind == "emulated":
            raise LaunchError(f"device {device.name!r} is emulated and cannot be executed; simulate the plan instead")
    arenas = {role.node for role in program.ranks}
    sizes = zip(program.memory_names, program.memory_size_bytes.tolist(), strict=True)
    check_free(sum(node_bytes(size, program.n_ops) for name, size in sizes if name in arenas))


def _run(
    command: list[str],
    folder: Path,
    program: Program,
    counters: Counters,
    repeats: int,
    progress: Callable[[int, int], None] | None,
    timeout_s: float | None,
) -> None:
    """Start the job and wait for its end. The parent-death guard belongs to the thread that starts it: this one."""
    owned = [lane for lane in range(len(program.lane_names)) if program.lane_kinds[lane] != LaneKind.CAPACITY]
    total = repeats * sum(int(program.lane_ptr[lane + 1] - program.lane_ptr[lane]) for lane in owned)
    environment = clean_environment(os.environ, python_path=[str(Path(p).resolve()) for p in sys.path])
    start_s = time.monotonic()
    failed_s: float | None = None
    shown = -1
    watch = RankWatch(folder, len(program.ranks))
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while process.poll() is None:
                now_s = time.monotonic()
                done = sum(counters.done(lane) for lane in owned)
                if progress is not None and done != shown:
                    progress(done, total)
                    shown = done
                if failed_s is None and (watch.first_dead or any(folder.glob("error-*.json"))):
                    failed_s = now_s
                if failed_s is not None and now_s - failed_s > _DRAIN_S:
                    break
                if timeout_s is not None and now_s - start_s > timeout_s:
                    raise ExecutionError(
                        f"program {program.name!r} did not end within {timeout_s:g} s ({done} of {total} ops done)"
                    )
                watch.wait(_POLL_S)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            watch.end(_DRAIN_S)
    if process.returncode != 0 or failed_s is not None or not (folder / "result.npz").exists():
        raise _failure(folder, program, process.returncode, watch)
    if progress is not None and shown != total:
        progress(total, total)


def _failure(folder: Path, program: Program, code: int, watch: RankWatch) -> ExecutionError:
    """Return what went wrong: what ranks have left, else which rank ended first."""
    messages = [json.loads(path.read_text())["message"] for path in sorted(folder.glob("error-*.json"))]
    if messages:
        return ExecutionError("\n".join(messages))
    output = (folder / "output.txt").read_text(errors="replace")
    if not watch.started:
        return LaunchError(f"the MPI job did not start (exit code {code}); mpiexec says: {_tail(output)}")
    ranks = []
    for rank in watch.first_dead:
        role = program.ranks[rank]
        what = "agent" if role.device is None else f"device {role.device!r}"
        ranks.append(f"rank {rank} ({what}, node {role.node!r})")
    return ExecutionError(
        f"{' or '.join(ranks) or 'a rank'} was killed or crashed (killed: often by the kernel for lack of memory, see "
        f"dmesg); the job was ended. Output: {_tail(output.split('=====')[0])}"
    )


def _tail(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-4:]) or "(nothing)"


def _result(folder: Path, program: Program, completion_s: float, output_dir: Path, *, skip: int) -> RunResult:
    """Return the gathered trace, each repeat counted from its first kernel start."""
    with np.load(folder / "result.npz", allow_pickle=False) as stored:
        start_s, finish_s, peaks = stored["start_s"][skip:], stored["finish_s"][skip:], stored["peak_bytes"]
    kernels = program.op_kind == OpKind.KERNEL
    if kernels.any():
        zero_s = start_s[:, kernels].min(axis=1, keepdims=True)
        start_s, finish_s = start_s - zero_s, finish_s - zero_s
        makespan_s = tuple(float(m) for m in finish_s[:, kernels].max(axis=1))
    else:
        makespan_s = (0.0,) * len(start_s)
    return RunResult(
        start_s=start_s,
        finish_s=finish_s,
        makespan_s=makespan_s,
        completion_s=completion_s,
        arena_peak_bytes=dict(zip(program.memory_names, peaks.tolist(), strict=True)),
        output_dir=output_dir,
    )


def _clean(folder: Path, spec: JobSpec) -> None:
    """Remove the job's folder and exactly the shared-memory files that its ranks had."""
    files = set(spec.arenas.values())
    for path in folder.glob("rank-*.json"):
        files.update(json.loads(path.read_text())["shm"])
    for name in files:
        Path(name).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
