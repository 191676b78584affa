"""One rank from start to end: map the node's memory, run the role, gather the trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from heterotask_core.program.io import load_program
from heterotask_core.runtime.agent import run_agent
from heterotask_core.runtime.arena import NodeMemory
from heterotask_core.runtime.context import Context, JobSpec, record_rank, write_error
from heterotask_core.runtime.device_rank import run_device


def run_rank(folder: Path, comm: Any) -> None:
    """Run rank ``comm.rank`` of the job in ``folder``; rank 0 writes ``result.npz``."""
    from mpi4py import MPI

    recorded = record_rank(folder, comm.rank)
    program = load_program(folder)
    spec = JobSpec.load(folder)
    role = program.ranks[comm.rank]
    arena_bytes = int(program.memory_size_bytes[program.memory_names.index(role.node)])
    path = Path(spec.arenas[role.node])
    memory = None
    if role.device is None:
        try:
            memory = NodeMemory(path, arena_bytes, program.n_ops, create=True)
        except Exception as error:
            write_error(folder, comm.rank, f"{error} (rank {comm.rank}, node {role.node!r})")
            raise
    comm.Barrier()
    if memory is None:
        memory = NodeMemory(path, arena_bytes, program.n_ops, create=False)
    comm.Barrier()
    if role.device is None:
        # Every rank of the node has it mapped: without a name it is freed with the last of them, however it ends.
        path.unlink()
        # So is MPICH's own segment, to which every local rank is attached since MPI_Init.
        for name in recorded:
            if Path(name).name.startswith("mpich_shm_"):
                Path(name).unlink(missing_ok=True)
    context = Context(folder, program, spec, comm, memory)
    if role.device is None:
        run_agent(context)
    else:
        run_device(context)
    start_s, finish_s = np.empty_like(context.start_s), np.empty_like(context.finish_s)
    peak_bytes = np.empty_like(context.peak_bytes)
    for own, whole in (
        (context.start_s, start_s),
        (context.finish_s, finish_s),
        (context.peak_bytes, peak_bytes),
    ):
        # The latest of both ends: a transfer starts when both have posted it.
        comm.Reduce(own, whole, op=MPI.MAX, root=0)
    if comm.rank == 0:
        np.savez(folder / "result.npz", start_s=start_s, finish_s=finish_s, peak_bytes=peak_bytes)
    # From here on the end of this process is no failure.
    (folder / f"done-{comm.rank}").touch()
