"""Two processes that pass messages through plain memory and a flag; run by the litmus test."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import numpy as np

from heterotask_core.runtime.flags import LINE_WORDS, Flags
from heterotask_core.runtime.native import native
from heterotask_core.runtime.rank import mpi_fence


def main() -> None:
    """``litmus.py FILE ROUNDS SIDE``: side 0 writes data and publishes; side 1 sees, counts stale data, answers."""
    path, rounds, side = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with Path(path).open("r+b") as file:
        words = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint64)
    flags = Flags(words[: 2 * LINE_WORDS], fence=mpi_fence())
    print(native() is not None, file=sys.stderr)
    data = words[2 * LINE_WORDS :].data
    last, stale = len(data) - 1, 0
    for value in range(1, rounds + 1):
        if side == 0:
            data[last] = data[0] = value
            flags.publish(0, value)
        while not flags.seen(1 - side, value):
            os.sched_yield()
        if side == 1:
            stale += data[0] != value or data[last] != value
            flags.publish(1, value)
    print(stale)


if __name__ == "__main__":
    main()
