"""One rank from start to end: map the node's memory, open the role, run programs, gather the trace."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from heterotask_core.emulation import is_emulated
from heterotask_core.program.io import load_program
from heterotask_core.program.model import RankRole
from heterotask_core.runtime.arena import NodeMemory
from heterotask_core.runtime.clock import align, exchange
from heterotask_core.runtime.context import Context, JobSpec, record_rank, settle, write_error
from heterotask_core.runtime.flags import no_fence
from heterotask_core.runtime.lookout import Lookout
from heterotask_core.runtime.native import native

SPIN_S = 20e-6
"""How long a waiting rank keeps its core where every rank has one."""


class Role(Protocol):
    """What a rank does with program after program."""

    barrier_sleep_s: float
    survives: bool
    """Whether an exception of a task leaves the rank sound."""

    @property
    def op(self) -> int | None:
        """The op that was started last."""

    def load(self, context: Context) -> None:
        """Prepare a program: import, compile, bind; failures are left for the launcher."""

    def run(self, repeat: int) -> bool:
        """Run the own lanes of one repeat; return False where it was aborted."""

    def watch(self) -> None:
        """Called now and then while the rank waits."""

    def drain(self) -> None:
        """After an abort: complete everything issued, together with all other ranks."""

    def finish(self) -> None:
        """Free what the program took."""

    def close(self) -> None:
        """Free the rest."""


def run_rank(folder: Path, comm: Any, *, cores: int) -> None:
    """Run rank ``comm.rank`` of the job in ``folder``; rank 0 writes ``result.npz``.

    ``cores``: how many cores the ranks of this host may use, together.
    """
    recorded = record_rank(folder, comm.rank)
    program = load_program(folder)
    spec = JobSpec.load(folder)
    sizes = dict(zip(program.memory_names, program.memory_size_bytes.tolist(), strict=True))
    spin_s = spin_allowed_s(comm, cores)
    role_of = program.ranks[comm.rank]
    if not spin_s:
        share_cores(role_of, program.ranks)
    lookout = Lookout(folder, comm.rank, program.ranks)
    arena_bytes = sizes[role_of.node]
    memory = map_memory(folder, spec, program.ranks, comm, recorded, arena_bytes=arena_bytes, n_ops=program.n_ops)
    role = open_role(folder, spec, role_of, comm, memory, sizes)
    # A communicator of its own: what agents tell each other through ``comm`` never matches a transfer.
    own = comm.Dup()
    context = Context(folder, program, spec, own, memory, spin_s=spin_s)
    lookout.follow(context)
    role.load(context)
    run_program(context, role)
    lookout.follow(None)
    role.finish()
    role.close()
    measured = gather(context)
    own.Free()
    if comm.rank == 0:
        np.savez(folder / "result.npz", **measured)  # type: ignore[arg-type]
    # From here on the end of this process is no failure.
    (folder / f"done-{comm.rank}").touch()
    lookout.close()


def spin_allowed_s(comm: Any, cores: int) -> float:
    """Return how long a waiting rank may keep its core: not at all where ranks outnumber cores."""
    from mpi4py import MPI

    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    ranks = host.size
    host.Free()
    return SPIN_S if ranks <= cores else 0.0


def share_cores(own: RankRole, ranks: Sequence[RankRole]) -> None:
    """Put an agent that has no core of its own on those of its node's devices, where ranks outnumber cores.

    They give their core away whenever they have made what it is to send; on another one that would not help it.
    """
    near = {core for role in ranks if role.node == own.node for core in role.core_ids} & os.sched_getaffinity(0)
    if own.device is None and not own.core_ids and near:
        os.sched_setaffinity(0, near)


def map_memory(
    folder: Path,
    spec: JobSpec,
    ranks: Sequence[RankRole],
    comm: Any,
    recorded: list[str],
    *,
    arena_bytes: int,
    n_ops: int,
) -> NodeMemory:
    """Map the node's memory, made by its first rank; all ranks call this."""
    role = ranks[comm.rank]
    first = next(rank for rank, other in enumerate(ranks) if other.node == role.node) == comm.rank
    path = Path(spec.arenas[role.node])
    fence = mpi_fence() if native() is None else no_fence
    memory = None
    if first:
        try:
            memory = NodeMemory(path, arena_bytes, n_ops, create=True, fence=fence)
        except Exception as error:
            write_error(folder, comm.rank, f"{error} (rank {comm.rank}, node {role.node!r})")
            raise
    settle(comm.Ibarrier())
    if memory is None:
        memory = NodeMemory(path, arena_bytes, n_ops, create=False, fence=fence)
    settle(comm.Ibarrier())
    if first:
        # Every rank of the node has it mapped: without a name it is freed with the last of them, however it ends.
        path.unlink()
        # So is MPICH's own segment, to which every local rank is attached since MPI_Init.
        for name in recorded:
            if Path(name).name.startswith("mpich_shm_"):
                Path(name).unlink(missing_ok=True)
    return memory


def mpi_fence() -> Callable[[], None]:
    """Return ``MPI_Win_sync`` of a window that stays locked until the process ends: a barrier for plain Python."""
    from mpi4py import MPI

    window = MPI.Win.Allocate(8, comm=MPI.COMM_SELF)
    window.Lock_all(MPI.MODE_NOCHECK)

    def end() -> None:
        window.Unlock_all()
        window.Free()

    # Runs before mpi4py finalizes MPI.
    atexit.register(end)
    sync: Callable[[], None] = window.Sync
    return sync


def open_role(
    folder: Path, spec: JobSpec, role: RankRole, comm: Any, memory: NodeMemory, sizes: dict[str, int]
) -> Role:
    """Return the agent's or the device's role; a device that does not open is left for the launcher."""
    if is_emulated(device["kind"] for device in spec.devices.values()):
        # Imported here because it brings the simulator's compiler, which other ranks can do without.
        from heterotask_core.runtime.devices.emulated import EmulatedRole

        return EmulatedRole()
    if role.device is None:
        # Imported here because devices' ranks can do without.
        from heterotask_core.runtime.agent import AgentRole

        return AgentRole(comm)
    memory_bytes = sizes[spec.devices[role.device]["memory"]]
    # Imported here because agents, which start on the devices' cores, can do without kernels and backends.
    from heterotask_core.runtime.device_rank import DeviceRole

    try:
        return DeviceRole(
            spec, role.device, arena=memory.arena, memory_bytes=memory_bytes, cores=max(1, len(role.core_ids))
        )
    except Exception as error:
        where = f"rank {comm.rank}, node {role.node!r}"
        message = f"opening device {role.device!r} failed ({where}): {type(error).__name__}: {error}"
        write_error(folder, comm.rank, message)
        raise


def run_program(context: Context, role: Role) -> bool:
    """Run all repeats of a loaded program, each between two barriers; return whether none was aborted.

    A task's exception aborts the program on all ranks, where context and role survive that; else it is raised.
    """
    # What is loaded stays until the program ends: the collector need not look at it between two tasks.
    gc.freeze()
    gc.enable()
    try:
        before = exchange(context)
        sound = context.barrier(role.watch, role.barrier_sleep_s)
        for repeat in range(context.spec.repeats):
            if not sound:
                break
            context.begin(repeat)
            try:
                role.run(repeat)
            except Exception as error:
                context.survive = context.survive and role.survives
                context.fail(role.op, error)
                if not context.survive:
                    raise
                context.abort()
            sound = context.barrier(role.watch, role.barrier_sleep_s)
    finally:
        gc.unfreeze()
    if not sound:
        role.drain()
    context.clocks = align(context, before, exchange(context))
    context.leave()
    return sound


def gather(context: Context) -> dict[str, npt.NDArray[Any]]:
    """Return, on rank 0, what all ranks have measured.

    ``start_s``, ``finish_s`` (repeats, N); ``peak_bytes`` (M,); ``lag_s`` (repeats,) behind the pace of emulated
    devices; ``clocks`` (nodes, 4), the fields of :class:`NodeClock`.
    """
    from mpi4py import MPI

    whole = {"clocks": np.array([astuple(clock) for clock in context.clocks])}
    for name in ("start_s", "finish_s", "peak_bytes", "lag_s"):
        own = getattr(context, name)
        whole[name] = np.empty_like(own)
        # The latest of both ends: a transfer starts when both have posted it.
        settle(context.comm.Ireduce(own, whole[name], op=MPI.MAX, root=0))
    return whole
