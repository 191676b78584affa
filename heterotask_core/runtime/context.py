"""What every rank of a job has: its program, its node's shared memory, counters, trace; failures on disk.

Files of a job's folder: ``program.npz`` and ``.json``, ``job.json`` (:class:`JobSpec`), ``counters`` (shared),
``rank-R.json`` (pid and shared-memory files of a started rank), ``error-R.json`` (a failure), ``result.npz``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heterotask_core.program.model import LaneKind, OpKind, Program
from heterotask_core.runtime.arena import SHM, Counters, NodeMemory

SPIN_S = 1e-3
"""Idle time after which a loop sleeps between polls: until then it yields its core only."""


@dataclass(frozen=True)
class JobSpec:
    """What a job's ranks need beside the program."""

    output_dir: str
    repeats: int
    stall_s: float
    """Seconds without progress anywhere after which the agents end the job."""
    arenas: Mapping[str, str]
    """Node → file in shared memory."""
    devices: Mapping[str, Mapping[str, str]]
    """Device → kind, selector, memory."""

    def save(self, folder: Path) -> None:
        """Write ``job.json``."""
        (folder / "job.json").write_text(json.dumps(asdict(self)))

    @staticmethod
    def load(folder: Path) -> JobSpec:
        """Read ``job.json``."""
        return JobSpec(**json.loads((folder / "job.json").read_text()))


class Idle:
    """Waiting that yields first and sleeps later; :meth:`reset` after every progress."""

    def __init__(self, sleep_s: float) -> None:
        """Sleep ``sleep_s`` between polls once idle for ``SPIN_S``."""
        self._sleep_s = sleep_s
        self._since_s = time.monotonic()

    def reset(self) -> None:
        """Start anew with yielding."""
        self._since_s = time.monotonic()

    def wait(self) -> None:
        """Give the core away for a moment."""
        if time.monotonic() - self._since_s < SPIN_S:
            os.sched_yield()
        else:
            time.sleep(self._sleep_s)


class Context:
    """The state of one rank; arrays of times are (repeats, N), −inf where another rank measures."""

    def __init__(self, folder: Path, program: Program, spec: JobSpec, comm: Any, memory: NodeMemory) -> None:
        """Find this rank's lanes and what its node can see."""
        self.folder = folder
        self.program = program
        self.spec = spec
        self.comm = comm
        self.rank: int = comm.rank
        self.role = program.ranks[self.rank]
        self.memory = memory
        self.counters = Counters(folder / "counters", len(program.lane_names))
        self.start_s = np.full((spec.repeats, program.n_ops), -np.inf)
        self.finish_s = np.full((spec.repeats, program.n_ops), -np.inf)
        self.peak_bytes = np.zeros(len(program.memory_names), np.int64)
        self.epoch = 0
        self.lanes = [lane for lane, owner in enumerate(program.lane_rank.tolist()) if owner == self.rank]
        on_node = np.zeros(program.n_ops, bool)
        for lane in self.node_lanes():
            on_node[self.lane_ops(lane)] = True
        # A transfer is one op on two nodes: each side waits for what its own node can see.
        self.dependencies = [
            [dep for dep in program.dep_ops[start:end].tolist() if on_node[dep]]
            for start, end in zip(program.dep_ptr[:-1].tolist(), program.dep_ptr[1:].tolist(), strict=True)
        ]
        self.version_bytes = [
            int(np.prod(program.item_shapes[item], dtype=np.int64)) * np.dtype(program.item_dtypes[item]).itemsize
            for item in program.version_item.tolist()
        ]

    def node_lanes(self) -> list[int]:
        """Return the issue lanes of all ranks of this node."""
        return [
            lane
            for lane, owner in enumerate(self.program.lane_rank.tolist())
            if owner >= 0 and self.program.ranks[owner].node == self.role.node
        ]

    def lane_ops(self, lane: int) -> list[int]:
        """Return the ops of a lane, in order."""
        ptr = self.program.lane_ptr
        ops: list[int] = self.program.lane_ops[ptr[lane] : ptr[lane + 1]].tolist()
        return ops

    def place(self, residency: int) -> tuple[int, int, int]:
        """Return (memory, offset, bytes of the data) of a residency, and count it as memory in use."""
        program = self.program
        memory = int(program.residency_memory[residency])
        offset = int(program.residency_offset_bytes[residency])
        size_bytes = self.version_bytes[program.residency_version[residency]]
        self.peak_bytes[memory] = max(self.peak_bytes[memory], offset + size_bytes)
        return memory, offset, size_bytes

    def barrier(self, poll: Callable[[], None], sleep_s: float) -> None:
        """Wait for all ranks without spinning; ``poll`` is called while waiting."""
        request = self.comm.Ibarrier()
        idle = Idle(sleep_s)
        while not request.Test():
            poll()
            idle.wait()

    def describe(self, op: int) -> str:
        """Return an op in words."""
        return describe_op(self.program, op)

    def fail(self, op: int | None, error: BaseException, *, doing: str = "") -> None:
        """Leave a failure for the launcher; the caller raises afterwards."""
        program = self.program
        where = f"rank {self.rank}, node {self.role.node!r}"
        what = doing or "the runtime"
        if op is not None and program.op_kind[op] == OpKind.KERNEL:
            task = int(program.op_task[op])
            call = program.calls[program.task_call[task]]
            what = f"task {program.task_names[task]!r}"
            where = f"variant {call.variant!r} of kernel {call.kernel!r}, {where}, device {self.role.device!r}"
        elif op is not None:
            what = self.describe(op)
        write_error(self.folder, self.rank, f"{what} failed ({where}): {type(error).__name__}: {error}")


def describe_op(program: Program, op: int) -> str:
    """Return an op in words: its task, or what is copied from where to where."""
    if program.op_kind[op] == OpKind.KERNEL:
        return f"task {program.task_names[program.op_task[op]]!r}"
    source, target = int(program.op_source[op]), int(program.op_target[op])
    version = int(program.residency_version[source])
    names = program.memory_names
    kind = OpKind(int(program.op_kind[op])).name.lower()
    return (
        f"{kind} of {program.item_names[program.version_item[version]]!r} version {program.version_number[version]} "
        f"from {names[program.residency_memory[source]]!r} to {names[program.residency_memory[target]]!r}"
    )


def write_error(folder: Path, rank: int, message: str) -> None:
    """Write ``error-RANK.json``, whole or not at all."""
    part = folder / f"error-{rank}.part"
    part.write_text(json.dumps({"rank": rank, "message": message}))
    part.replace(folder / f"error-{rank}.json")


def record_rank(folder: Path, rank: int) -> list[str]:
    """Write ``rank-RANK.json``: the process, and the shared-memory files that MPI has made for it; return these."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = {line[line.index(f"{SHM}/") :] for line in lines if f" {SHM}/" in line}
    files = sorted(name for name in mapped if not name.endswith(" (deleted)"))
    part = folder / f"rank-{rank}.part"
    part.write_text(json.dumps({"pid": os.getpid(), "shm": files}))
    part.replace(folder / f"rank-{rank}.json")
    return files


LANE_QUEUE = {LaneKind.COMPUTE: 0, LaneKind.HOST_TO_DEVICE: 1, LaneKind.DEVICE_TO_HOST: 2}
"""Which queue of its device an issue lane is."""
