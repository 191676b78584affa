"""Time messages between two ranks: ``python -m mpi4py -m heterotask_core.profiling.pingpong CORES0 CORES1 OUT``.

CORES are comma-separated core ids (or ``-``) to which rank 0 and 1 are pinned; OUT is the JSON file that rank 0
writes: ``samples`` as a list of [bytes, [seconds one way, …]] (half a round trip counts as one way), and of
``PAIR_BYTES`` the medians ``one_way_s`` and ``both_ways_s`` (both ranks send at the same time).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

SIZES_BYTES = tuple(4096 * 4**i for i in range(9))
SAMPLES = 9
LARGE_BYTES = 64 << 20
LARGE_SAMPLES = 4
PAIR_BYTES = 4 << 20
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
        for _ in range(WARM_UPS + (LARGE_SAMPLES if size >= LARGE_BYTES else SAMPLES)):
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
    coming = np.zeros(PAIR_BYTES, np.uint8)
    both: list[float] = []
    for _ in range(WARM_UPS + SAMPLES):
        world.Barrier()
        started = time.monotonic()
        requests = [world.Irecv(coming, 1 - rank), world.Isend(buffer[:PAIR_BYTES], 1 - rank)]
        for request in requests:
            _finish(request)
        both.append(time.monotonic() - started)
    if rank == 0:
        one_way_s = float(np.median(dict(found)[PAIR_BYTES]))
        both_ways_s = float(np.median(both[WARM_UPS:]))
        out.write_text(json.dumps({"samples": found, "one_way_s": one_way_s, "both_ways_s": both_ways_s}))


def _finish(request: object) -> None:
    # Both ranks may share a core: spinning inside MPI would keep the other from answering.
    while not request.Test():  # type: ignore[attr-defined]
        os.sched_yield()


if __name__ == "__main__":
    main(sys.argv[1:3], Path(sys.argv[3]))
