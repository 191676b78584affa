"""How much data pass through a device between two uses of the same memory, as far as the graph alone tells.

What a task finds in a cache depends on what its device touched since the same memory was used last:

- What it reads was used when its device last went through what is alive. A graph that keeps N bytes alive, on K
  devices that share the work evenly, lets N / K pass.
- What it writes lies where data of the same size were that have just been read for the last time, if there are such:
  only the task itself lies between. The rest is written where nobody wrote since the run before: all data of the
  graph / K.

The mean of these, weighted by bytes, is the task's *footprint*. A class is timed on arrays that rotate through as much
(:mod:`~heterotask_core.profiling.memory`): all caches then answer for themselves, whatever their sizes, private or
shared. (``/sys`` tells the sizes of a whole socket, of which a virtual machine may have a small part.)
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import numpy as np
import numpy.typing as npt

from heterotask_core.graph import TaskGraph, class_key

SMALLEST_BYTES = 256 << 10
"""Footprints up to this are one: any second-level cache holds them."""
LARGEST_BYTES = 64 << 20
"""Footprints from this on are one: of larger ones a core's share of the caches holds next to nothing."""


def task_footprints(graph: TaskGraph, devices: int) -> npt.NDArray[np.float64]:
    """Return the footprint in bytes of each task on one of ``devices``, in program order: shape (tasks,).

    A version is alive from the task that makes it (without one, from the first reader) to its last reader. An update
    writes into the memory of the version that it reads, if nobody reads that one later: no other memory is touched.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for task in graph:
        for version in (*task.inputs, *task.outputs):
            first.setdefault(version.index, task.index)
            last[version.index] = task.index
    change = np.zeros(len(graph) + 1, np.int64)
    freed: dict[int, Counter[int]] = defaultdict(Counter)
    for index, start in first.items():
        size_bytes = graph.versions[index].item.size_bytes
        change[start] += size_bytes
        change[last[index] + 1] -= size_bytes
        freed[last[index]][size_bytes] += 1
    alive = np.cumsum(change)[:-1]
    whole = sum(item.size_bytes for item in graph.items)
    found = np.zeros(len(graph))
    for task in graph:
        updated = Counter(
            a.item.size_bytes
            for a in task.arguments
            if a.makes is not None and a.reads is not None and last[a.reads.index] == task.index
        )
        new = Counter(version.item.size_bytes for version in task.outputs) - updated
        kept, made = _bytes(updated), _bytes(new)
        recycled = _bytes(new & (freed[task.index] - updated))
        read = sum(version.item.size_bytes for version in task.inputs)
        passed = read * (int(alive[task.index]) - kept) / devices
        passed += recycled * (read + made) + (made - recycled) * whole / devices
        found[task.index] = passed / max(1, read + made)
    return found


def class_footprints(graph: TaskGraph, devices: int) -> dict[str, int]:
    """Return class key → the median of its tasks' footprints in bytes on one of ``devices``.

    Rounded to powers of two from ``SMALLEST_BYTES`` to ``LARGEST_BYTES``, so that graphs alike share their timings;
    sinks, which run once, have the smallest.
    """
    footprints = task_footprints(graph, devices)
    by_class: dict[str, list[float]] = defaultdict(list)
    for task in graph:
        by_class[class_key(task)].append(0.0 if task.kernel.sink else float(footprints[task.index]))
    return {key: _rounded(float(np.median(values))) for key, values in by_class.items()}


def _bytes(sizes: Counter[int]) -> int:
    return sum(size_bytes * count for size_bytes, count in sizes.items())


def _rounded(size_bytes: float) -> int:
    nearest: int = 1 << round(math.log2(max(size_bytes, SMALLEST_BYTES)))
    return min(LARGEST_BYTES, nearest)
