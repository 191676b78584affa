"""Time messages between two ranks: ``python -m mpi4py -m heterotask_core.profiling.pingpong CORES0 CORES1 OUT``.

CORES are comma-separated core ids (or ``-``) to which rank 0 and 1 are pinned; OUT is the JSON file that rank 0
writes: a list of [bytes, [seconds one way, …]]. Half a round trip counts as one way.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

SIZES_BYTES = tuple(4096 * 4**i for i in range(7))
SAMPLES = 9
WARM_UPS = 3


def main(cores: list[str], out: Path) -> None:
    """Run on both ranks; rank 0 keeps the times."""
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank = world.Get_rank()
    if cores[rank] != "-":
        os.sched_setaffinity(0, [int(c) for c in cores[rank].split(",")])
    buffer = np.zeros(max(SIZES_BYTES), np.uint8)
    found: list[tuple[int, list[float]]] = []
    for size in SIZES_BYTES:
        part = buffer[:size]
        samples: list[float] = []
        for _ in range(WARM_UPS + SAMPLES):
            world.Barrier()
            started = time.monotonic()
            if rank == 0:
                _finish(world.Isend(part, 1))
                _finish(world.Irecv(part, 1))
            else:
                _finish(world.Irecv(part, 0))
                _finish(world.Isend(part, 0))
            samples.append((time.monotonic() - started) / 2)
        found.append((size, samples[WARM_UPS:]))
    if rank == 0:
        out.write_text(json.dumps(found))


def _finish(request: object) -> None:
    # Both ranks may share a core: spinning inside MPI would keep the other from answering.
    while not request.Test():  # type: ignore[attr-defined]
        os.sched_yield()


if __name__ == "__main__":
    main(sys.argv[1:3], Path(sys.argv[3]))
