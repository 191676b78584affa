"""Where profiled arrays lie: memory like a node's arena, and enough copies of the arrays that caches forget them.

A task of a real run finds its inputs where another task, often of another core, left them a while ago. Timing one
set of arrays again and again measures a cache instead (Canny's Sobel on a 1024² tile: 1.15 ms on one set of 16 MiB,
2.0 ms on four, 2.1 ms in a run). So samples rotate through several sets, and small sets are pushed out of the core's
own caches between samples.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from heterotask_core.kernel import find_kernel
from heterotask_core.runtime.devices.base import Argument

ALIGNMENT_BYTES = 4096
MAX_SETS = 16
SWEEP_BYTES = 4 << 20
"""At most this is written between samples of small arrays: twice a usual second-level cache."""
_POPULATE_WRITE = 23


@dataclass(frozen=True)
class Placed:
    """Sets of one task's arguments in the arena: ``sets[k]`` lie ``stride_bytes`` behind ``sets[k - 1]``."""

    sets: list[list[Argument]]
    scratch: tuple[int, int] | None
    stride_bytes: int
    end_bytes: int
    sweep_bytes: int = 0
    """Written between two calls, so that a set is used again after its footprint has passed."""


def open_arena(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Return zeroed shared memory, page-aligned, every page present: as the arena of a running node is."""
    mapped = mmap.mmap(-1, max(size_bytes, ALIGNMENT_BYTES))
    arena = np.frombuffer(mapped, np.uint8)
    try:
        mapped.madvise(_POPULATE_WRITE)
    except (OSError, ValueError):
        # Kernels before 5.14: fault the pages in one by one.
        arena[::ALIGNMENT_BYTES] = 0
    return arena


def place(item: Mapping[str, Any]) -> Placed:
    """Return where the arrays of a job's item lie; the scratch buffer comes last and is shared by all sets."""
    end, rotate_bytes = 0, int(item["rotate_bytes"])
    first = []
    kernel = find_kernel(item["module"], item["kernel"])
    for a in item["arguments"]:
        access = kernel.access(a["role"])
        argument = Argument(a["role"], a["index"], tuple(a["shape"]), a["dtype"], end, a["is_list"], access)
        first.append(argument)
        end += -(-argument.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    count = 1 if item["sink"] or end == 0 else min(MAX_SETS, max(1, -(-rotate_bytes // end)))
    sets = [[replace(a, offset_bytes=a.offset_bytes + k * end) for a in first] for k in range(count)]
    sweep = min(SWEEP_BYTES, max(0, rotate_bytes - count * end) // count)
    variant = kernel.variant(item["variant"])
    if variant.scratch_bytes is None:
        return Placed(sets, None, end, count * end, sweep)
    shapes = {a["role"]: tuple(a["shape"]) for a in reversed(item["arguments"])}
    scratch = variant.scratch_bytes(item["params"], shapes)
    return Placed(sets, (count * end, scratch), end, count * end + scratch, sweep)


class Sweep:
    """Lets as much memory pass through the core's caches as rotation alone leaves out."""

    def __init__(self, placed: Sequence[Placed]) -> None:
        """Allocate what the largest of ``placed`` needs."""
        self._buffer = np.zeros(max((p.sweep_bytes for p in placed), default=0), np.uint8)

    def __call__(self, placed: Placed) -> None:
        """Write ``placed.sweep_bytes``."""
        self._buffer[: placed.sweep_bytes].fill(1)
