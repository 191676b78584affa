"""Executing a program: one MPI job of a rank a device and an agent a node (see nearby.py), from start to trace."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heterotask_core.emulation import OpTimes, is_emulated, write_times
from heterotask_core.errors import ExecutionError, LaunchError, ProgramError
from heterotask_core.platform.model import Platform
from heterotask_core.program.io import save_program
from heterotask_core.program.model import F64, LaneKind, OpKind, Program
from heterotask_core.runtime.arena import SHM, Counters, check_free, node_bytes
from heterotask_core.runtime.cleanup import remove_job
from heterotask_core.runtime.clock import NodeClock
from heterotask_core.runtime.context import JobSpec, counters_file, describe_devices
from heterotask_core.runtime.launch.base import Launcher, is_here
from heterotask_core.runtime.launch.choose import choose_launcher
from heterotask_core.runtime.mpijob import MpiJob, make_folder
from heterotask_core.runtime.nearby import for_launcher
from heterotask_core.runtime.outputs import Outputs
from heterotask_core.runtime.partial import drop_partial, keep_partial
from heterotask_core.sources import known_digests

STALL_MIN_S = 5.0
STALL_FACTOR = 5.0
"""A job ends when nothing moves for max(minimum, factor × longest planned op)."""
FIRST_PASS_S = 20.0
"""What is added in the first pass of a program, while a rank uses its core: variants without warm-up may compile."""
EMULATED_STALL_S = 300.0
"""The limit of emulated devices, whose planned times say nothing about the time that this host needs."""


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
    clocks: dict[str, NodeClock] = field(default_factory=dict)
    """Node → its clock beside the first node's, which all times are on, and the error of that."""
    lag: tuple[float, ...] = ()
    """Of paced emulated devices, by repeat: how late an op was on the host, at most, as a share of the makespan."""


def execute(
    program: Program,
    platform: Platform,
    *,
    output_dir: Path,
    repeats: int = 1,
    progress: Callable[[int, int], None] | None = None,
    timeout_s: float | None = None,
    warm_up: bool = False,
    emulation: OpTimes | None = None,
    dilate: float = 0.0,
    launcher: Launcher | None = None,
    verify: float = 0.0,
) -> RunResult:
    """Run ``program`` ``repeats`` times, separated by barriers, in one MPI job on the platform's hosts.

    With ``warm_up`` it is run once more before, and that pass is not in the result. Without it, host variants
    that declare ``warm_up`` have been called once before the start barrier.
    Result files go to ``output_dir``; with several hosts that must be a folder that all of them share. When the run
    fails, what the ranks printed and the times measured so far are there as well (see partial.py), until the next run
    there starts.
    ``progress(done, total)`` counts ops on lanes over all passes and is called from this thread. Of emulated devices
    all times are logical: ``emulation`` says what every op takes in each of the ``repeats`` runs (default: as planned).
    ``dilate``, if not 0, makes them wait until the host's clock has gone so many seconds for a logical one.
    ``launcher``: see :func:`~heterotask_core.runtime.launch.choose.choose_launcher`, which finds the default.
    ``verify`` is the share of tasks that are recomputed with their reference variants and compared (real devices).

    Raises:
        ProgramError: the program was made for another platform.
        LaunchError: the job did not start (mpiexec missing, devices of a kind that cannot be executed, something else
            than a file in the place of a result).
        ArenaTooSmallError: the arenas do not fit into the host's shared memory.
        ExecutionError: a task or a rank failed, nothing moved any more, or ``timeout_s`` passed.
    """
    host_of = {node.name: node.host for node in platform.nodes}
    _check(program, platform, host_of)
    if launcher is None:
        launcher = choose_launcher(hosts=[host_of[role.node] for role in program.ranks])
    program = for_launcher(program, launcher)
    hosts = [host_of[role.node] for role in program.ranks]
    outputs = Outputs.of(program, output_dir)
    token = f"heterotask-{uuid.uuid4().hex[:12]}"
    nodes = list(dict.fromkeys(role.node for role in program.ranks))
    passes = repeats + warm_up
    emulated = is_emulated(program.device_kinds)
    if emulated:
        emulation = emulation or OpTimes.planned(program, runs=repeats)
    spec = JobSpec(
        output_dir=str(output_dir.resolve()),
        repeats=passes,
        arenas={node: str(SHM / f"{token}-{i}") for i, node in enumerate(nodes)},
        devices=describe_devices(platform),
        verify=verify,
        dilate=dilate,
        sources=known_digests(),
    )
    folder = make_folder(output_dir, hosts)
    try:
        save_program(program, folder)
        spec.save(folder)
        outputs.save(folder)
        if emulation is not None:
            write_times(folder, program, emulation.padded(passes))
        for node in nodes:
            Counters(counters_file(folder, program, node), len(program.lane_names), create=True)
    except OSError as error:
        remove_job(folder)
        raise LaunchError(f"cannot write the job to {folder}: {error}; free space there, or set TMPDIR") from error
    except BaseException:
        remove_job(folder)
        raise
    start_s = time.monotonic()
    try:
        drop_partial(output_dir)
        job = MpiJob(folder, ranks=program.ranks, hosts=hosts, launcher=launcher)
    except BaseException:
        remove_job(folder)
        raise
    try:
        job.stall_s = stall_limit_s(program, dilate)
        job.follow(program, folder)
        _run(job, program, passes, progress, timeout_s)
        completion_s = time.monotonic() - start_s
        with np.load(folder / "result.npz", allow_pickle=False) as stored:
            return run_result(
                program, stored, skip=passes - repeats, dilate=dilate, completion_s=completion_s, output_dir=output_dir
            )
    except ExecutionError:
        keep_partial(folder)
        raise
    finally:
        job.close()


def stall_limit_s(program: Program, dilate: float) -> float:
    """Return how long nothing may move while ``program`` runs."""
    longest_s = float(np.max(program.op_duration_s, initial=0.0))
    if is_emulated(program.device_kinds):
        return EMULATED_STALL_S + STALL_FACTOR * dilate * longest_s
    return max(STALL_MIN_S, STALL_FACTOR * longest_s)


def _check(program: Program, platform: Platform, host_of: dict[str, str]) -> None:
    """Refuse what cannot run here before anything is started."""
    if program.platform_fingerprint != platform.fingerprint():
        raise ProgramError(f"program {program.name!r} was made for another platform; plan again")
    # Other hosts' agents check their own.
    arenas = {role.node for role in program.ranks if is_here(host_of[role.node])}
    sizes = zip(program.memory_names, program.memory_size_bytes.tolist(), strict=True)
    check_free(sum(node_bytes(size, program.n_ops) for name, size in sizes if name in arenas))


def _run(
    job: MpiJob,
    program: Program,
    passes: int,
    progress: Callable[[int, int], None] | None,
    timeout_s: float | None,
) -> None:
    """Look after the job until its end; raises what went wrong."""
    owned = [lane for lane in range(len(program.lane_names)) if program.lane_kinds[lane] != LaneKind.CAPACITY]
    total = passes * sum(int(program.lane_ptr[lane + 1] - program.lane_ptr[lane]) for lane in owned)
    start_s = time.monotonic()
    shown = -1
    while True:
        job.compiling_s = FIRST_PASS_S if job.repeat <= 0 else 0.0
        runs = job.step()
        if progress is not None and job.done_ops != shown and job.done_ops:
            shown = job.done_ops
            progress(shown, total)
        if not runs:
            break
        if timeout_s is not None and time.monotonic() - start_s > timeout_s:
            raise ExecutionError(
                f"program {program.name!r} did not end within {timeout_s:g} s ({job.done_ops} of {total} ops done)"
            )
    job.stop()
    error = job.error()
    if error is not None:
        raise error
    if not (job.folder / "result.npz").exists():
        raise ExecutionError(f"program {program.name!r} ended without a result; see the output of its ranks")
    if progress is not None and shown != total:
        progress(total, total)


def run_result(
    program: Program,
    measured: Mapping[str, npt.NDArray[Any]],
    *,
    skip: int,
    dilate: float,
    completion_s: float,
    output_dir: Path,
) -> RunResult:
    """Return what was ``measured`` on the first node's clock, each repeat counted from its first kernel start.

    ``measured``: as ranks gather it (see rank.py), of which the first ``skip`` repeats are left out.
    """
    start_s, finish_s = measured["start_s"][skip:], measured["finish_s"][skip:]
    nodes = dict.fromkeys(role.node for role in program.ranks)
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
        arena_peak_bytes=dict(zip(program.memory_names, measured["peak_bytes"].tolist(), strict=True)),
        output_dir=output_dir,
        clocks={node: NodeClock(*row) for node, row in zip(nodes, measured["clocks"].tolist(), strict=True)},
        lag=tuple(
            late_s / (dilate * whole_s) if whole_s else 0.0
            for late_s, whole_s in zip(measured["lag_s"][skip:].tolist(), makespan_s, strict=True)
        )
        if dilate
        else (),
    )
