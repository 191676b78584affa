"""What every rank of a job has: its program, its node's shared memory, counters, trace; failures on disk.

Files of a job's folder: ``program.npz`` and ``.json``, ``job.json`` (:class:`JobSpec`), ``counters-N`` of
node N (shared), ``rank-R.json`` (pid and shared-memory files of a started rank), ``error-R.json`` (a failure),
``trace-R`` (times so far), ``result.npz``.
"""

from __future__ import annotations

import functools
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from heterotask_core.program.model import I32, I64, LaneKind, OpKind, Program
from heterotask_core.runtime.arena import SHM, Counters, NodeMemory
from heterotask_core.runtime.clock import NodeClock
from heterotask_core.runtime.native import native
from heterotask_core.runtime.times import shared_times

if TYPE_CHECKING:
    from heterotask_core.platform.model import Platform

SPIN_S = 1e-3
"""Idle time after which a loop sleeps between polls: until then it yields its core only."""


LONG_SLEEP_S = 1e-3
MEET_SLEEP_S = 5e-5
LOOK_S = 0.01
"""How often an agent that has nothing to do looks whether another node has aborted."""


@dataclass(frozen=True)
class JobSpec:
    """What a job's ranks need beside the program."""

    output_dir: str
    repeats: int
    arenas: Mapping[str, str]
    """Node → file in shared memory."""
    devices: Mapping[str, Mapping[str, str]]
    """Device → kind, selector, memory, slab_bytes (see :func:`describe_devices`)."""
    verify: float = 0.0
    """Share of the tasks that are recomputed with their reference variants and compared."""
    dilate: float = 0.0
    """Seconds on the host that emulated devices give a logical second, at least; 0: they do not wait."""
    sources: Mapping[str, Any] = field(default_factory=dict)
    """What the caller knows of the hashes of sources (:func:`known_digests`), so that ranks need not parse them."""

    def save(self, folder: Path) -> None:
        """Write ``job.json``."""
        (folder / "job.json").write_text(json.dumps(asdict(self)))

    @staticmethod
    def load(folder: Path) -> JobSpec:
        """Read ``job.json``."""
        return JobSpec(**json.loads((folder / "job.json").read_text()))


def describe_devices(platform: Platform) -> dict[str, dict[str, str]]:
    """Return device → what its rank has to know of it; ``slab_bytes``: as :class:`Memory` has it."""
    slabs = {memory.name: memory.slab_bytes for memory in platform.memories}
    return {
        d.name: {"kind": d.kind, "selector": d.selector, "memory": d.memory, "slab_bytes": str(slabs[d.memory])}
        for d in platform.devices
    }


class Idle:
    """Waiting that yields first and sleeps later, the longer it lasts; :meth:`reset` after every progress."""

    def __init__(self, sleep_s: float) -> None:
        """Sleep between polls once idle for ``SPIN_S``: ``sleep_s``, or 5 % of the time waited, 1 ms at most.

        Who sleeps 1 ms or more does so from the start: it must not disturb those that work.
        """
        self._sleep_s = sleep_s
        self._yield_s = SPIN_S if sleep_s < LONG_SLEEP_S else 0.0
        self._since_s = time.monotonic()

    def reset(self) -> None:
        """Start anew with yielding."""
        self._since_s = time.monotonic()

    def wait(self) -> None:
        """Give the core away for a moment."""
        waited_s = time.monotonic() - self._since_s
        if waited_s < self._yield_s:
            os.sched_yield()
        else:
            time.sleep(max(self._sleep_s, min(LONG_SLEEP_S, 0.05 * waited_s)))


def settle(request: Any, *, poll: Callable[[], None] | None = None, sleep_s: float = 2e-4) -> None:
    """Wait for a request without spinning: ranks may share cores. ``poll`` is called meanwhile."""
    idle = Idle(sleep_s)
    while not request.Test():
        if poll is not None:
            poll()
        idle.wait()


class Context:
    """One program on one rank; arrays of times are (repeats, N), −inf where another rank measures."""

    def __init__(
        self,
        folder: Path,
        program: Program,
        spec: JobSpec,
        comm: Any,
        memory: NodeMemory,
        *,
        epochs_before: int = 0,
        spin_s: float = 0.0,
        files: Path | None = None,
        survive: bool = False,
    ) -> None:
        """Find this rank's lanes and what its node can see.

        ``epochs_before``: epochs that the flags have seen already. ``spin_s``: how long a waiting rank may keep its
        core before it yields it; 0 where ranks share cores. ``files``: folder of the program's counters and times, if
        it is not the job's. ``survive``: a failure ends the program, not the job: it stays in ``failures``.
        """
        self.folder = folder
        self.survive = survive
        self.failures: list[str] = []
        self.files = files = files or folder
        self.program = program
        self.spec = spec
        self.comm = comm
        self.rank: int = comm.rank
        self.role = program.ranks[self.rank]
        self.memory = memory
        self.spin_s = spin_s
        self.counters = Counters(counters_file(files, program, self.role.node), len(program.lane_names))
        self.start_s, self.finish_s = shared_times(files, self.rank, spec.repeats, program.n_ops)
        self.peak_bytes = np.zeros(len(program.memory_names), np.int64)
        self.lag_s = np.zeros(spec.repeats)
        """By repeat, seconds on the host that emulated ops were late, at most (see ``JobSpec.dilate``)."""
        self.epoch = epochs_before
        """The epoch that runs: one more with every repeat, over all programs of a job."""
        self.repeat = -1
        self.clocks: tuple[NodeClock, ...] = ()
        """Of all nodes, once the program has ended; the times are on the first node's then."""
        self.failed = False
        self._agreed = np.zeros(2, np.int32)
        self._neighbours = [rank for rank, role in enumerate(program.ranks) if role.node == self.role.node]
        self.lanes = [lane for lane, owner in enumerate(program.lane_rank.tolist()) if owner == self.rank]
        # A transfer is one op on two nodes: each side waits for what its own node can see.
        visible, own = np.zeros(program.n_ops, bool), np.zeros(program.n_ops, bool)
        for lane in self.node_lanes():
            visible[self.lane_ops(lane)] = True
        for lane in self.lanes:
            own[self.lane_ops(lane)] = True
        self._visible, self._own = visible, own
        item_bytes = [
            math.prod(shape) * _itemsize(dtype)
            for shape, dtype in zip(program.item_shapes, program.item_dtypes, strict=True)
        ]
        self._places = list(
            zip(
                program.residency_memory.tolist(),
                program.residency_offset_bytes.tolist(),
                [item_bytes[item] for item in program.version_item[program.residency_version].tolist()],
                strict=True,
            )
        )

    def node_lanes(self) -> list[int]:
        """Return the issue lanes of all ranks of this node."""
        return node_lanes(self.program, self.role.node)

    def computing_lanes(self) -> list[int]:
        """Return the lanes of this node's CPU devices."""
        kinds, owners = self.program.lane_kinds.tolist(), self.program.lane_rank.tolist()
        return [
            lane
            for lane in self.node_lanes()
            if kinds[lane] == LaneKind.COMPUTE
            and (device := self.program.ranks[owners[lane]].device) is not None
            and self.spec.devices[device]["kind"] == "cpu"
        ]

    def lane_ops(self, lane: int) -> list[int]:
        """Return the ops of a lane, in order."""
        ptr = self.program.lane_ptr
        ops: list[int] = self.program.lane_ops[ptr[lane] : ptr[lane + 1]].tolist()
        return ops

    def waits_for(self, op: int) -> list[int]:
        """Return the dependencies of an op that this node can see."""
        deps = self.program.dep_ops[self.program.dep_ptr[op] : self.program.dep_ptr[op + 1]]
        seen: list[int] = deps[self._visible[deps]].tolist()
        return seen

    def own_waits(self, op: int) -> tuple[int, ...]:
        """Return the dependencies of an op that this very rank issues."""
        deps = self.program.dep_ops[self.program.dep_ptr[op] : self.program.dep_ptr[op + 1]]
        return tuple(deps[self._own[deps]].tolist())

    def wait_lists(self, ops: Sequence[int], *, own: bool) -> tuple[I64, I32]:
        """Return CSR over ``ops``: dependencies that this node can see, ``own`` ones of this rank with them or not."""
        wanted = self._visible if own else self._visible & ~self._own
        chosen = np.asarray(ops, np.int64)
        begin = self.program.dep_ptr[chosen]
        counts = self.program.dep_ptr[chosen + 1] - begin
        ends = np.cumsum(counts)
        row = np.repeat(np.arange(len(ops)), counts)
        deps = self.program.dep_ops[np.arange(len(row)) + np.repeat(begin - (ends - counts), counts)]
        kept = wanted[deps]
        ptr = np.zeros(len(ops) + 1, np.int64)
        np.cumsum(np.bincount(row[kept], minlength=len(ops)), out=ptr[1:])
        return ptr, deps[kept].astype(np.int32)

    def sent(self, ops: Sequence[int]) -> npt.NDArray[np.uint8]:
        """Return which of ``ops`` a network transfer waits for, 0 or 1 each."""
        program = self.program
        waited = np.zeros(program.n_ops, np.uint8)
        moves = np.repeat(program.op_kind == OpKind.TRANSFER, np.diff(program.dep_ptr))
        waited[program.dep_ops[moves]] = 1
        return waited[np.asarray(ops, np.int64)]

    def place(self, residency: int) -> tuple[int, int, int]:
        """Return (memory, offset, bytes of the data) of a residency, and count it as memory in use."""
        memory, offset, size_bytes = self._places[residency]
        self.peak_bytes[memory] = max(self.peak_bytes[memory], offset + size_bytes)
        return memory, offset, size_bytes

    def begin(self, repeat: int) -> None:
        """Enter the next epoch, whose times go to row ``repeat``."""
        self.repeat = repeat
        self.epoch += 1
        if self.rank == self._neighbours[0]:
            self.counters.enter(repeat)

    def leave(self) -> None:
        """The program has come to its end."""
        if self.rank == self._neighbours[0]:
            self.counters.leave()

    def abort(self) -> None:
        """Make every rank of this node leave the epoch at its next poll, and all ranks at the next barrier."""
        self.failed = True
        self.memory.abort(self.epoch)

    def barrier(self, poll: Callable[[], None], sleep_s: float) -> bool:
        """Wait for all ranks, ``poll`` called meanwhile; return whether none has aborted."""
        from mpi4py import MPI

        self._gather_here(poll)
        self._agreed[0] = self.failed
        request = self.comm.Iallreduce(self._agreed[:1], self._agreed[1:], op=MPI.MAX)
        settle(request, poll=poll, sleep_s=sleep_s)
        # MPI lets ranks go one by one, as each of them polls; those of a node start together.
        idle = Idle(MEET_SLEEP_S)
        all_here = self.memory.meet(self._neighbours.index(self.rank), len(self._neighbours))
        while not all_here():
            idle.wait()
        return not self._agreed[1]

    def _gather_here(self, poll: Callable[[], None]) -> None:
        """As an agent, sleep until the node's devices have come; as one of them, wake it.

        An agent that asked MPI now and then instead would take a core from them a thousand times a second.
        """
        if native() is None:
            return
        self.memory.meet(self._neighbours.index(self.rank), len(self._neighbours))
        if self.role.device is not None:
            self.memory.ring()
            return
        while not self.memory.rest(len(self._neighbours), LOOK_S):
            poll()

    def describe(self, op: int) -> str:
        """Return an op in words."""
        return describe_op(self.program, op)

    def fail(self, op: int | None, error: BaseException, *, doing: str = "") -> None:
        """Leave a failure for the launcher, or for the session; the caller raises afterwards."""
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
        message = f"{what} failed ({where}): {type(error).__name__}: {error}"
        if self.survive:
            self.failures.append(message)
        else:
            write_error(self.folder, self.rank, message)


@functools.cache
def _itemsize(dtype: str) -> int:
    return np.dtype(dtype).itemsize


def node_lanes(program: Program, node: str) -> list[int]:
    """Return the issue lanes of all ranks of a node."""
    owners = enumerate(program.lane_rank.tolist())
    return [lane for lane, owner in owners if owner >= 0 and program.ranks[owner].node == node]


def counters_file(folder: Path, program: Program, node: str) -> Path:
    """Return the file of a node's counters; one each, because hosts may see the folder through a network."""
    nodes = list(dict.fromkeys(role.node for role in program.ranks))
    return folder / f"counters-{nodes.index(node)}"


def describe_op(program: Program, op: int, *, variant: bool = False) -> str:
    """Return an op in words: its task (with its ``variant``), or what is copied from where to where."""
    if program.op_kind[op] == OpKind.KERNEL:
        task = int(program.op_task[op])
        call = program.calls[program.task_call[task]]
        how = f" (variant {call.variant!r} of kernel {call.kernel!r})" if variant else ""
        return f"task {program.task_names[task]!r}{how}"
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


def write_missing_error(folder: Path, rank: int, error: BaseException) -> None:
    """Leave ``error`` for the launcher unless the rank has said already what failed."""
    if not (folder / f"error-{rank}.json").exists():
        write_error(folder, rank, f"the runtime failed (rank {rank}): {type(error).__name__}: {error}")


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
