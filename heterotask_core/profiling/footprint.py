"""How much data pass through a device between two uses of the same data, as far as the graph alone tells.

What a task finds in a cache depends on what its device touched since the data were used last. A graph that keeps N
bytes alive and whose K devices share the work evenly touches about N / K on each before it comes back to the same
data. So a class is timed on arrays that rotate through as much (:mod:`~heterotask_core.profiling.memory`): all caches
then answer for themselves, whatever their sizes, private or shared. (``/sys`` tells the sizes of a whole socket, of
which a virtual machine may have a tenth.)
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import numpy.typing as npt

from heterotask_core.graph import TaskGraph, class_key

SMALLEST_BYTES = 256 << 10
"""Footprints up to this are one: any second-level cache holds them."""
LARGEST_BYTES = 64 << 20
"""Footprints from this on are one: of larger ones a core's share of the caches holds next to nothing."""


def live_bytes(graph: TaskGraph) -> npt.NDArray[np.int64]:
    """Return for each task the bytes of all versions that are alive while it runs, in program order: shape (tasks,).

    A version lives from the task that makes it (without one, from the first reader) to its last reader. An update
    writes into the bytes of the version that it reads, if nobody reads that one later.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for task in graph:
        for version in (*task.inputs, *task.outputs):
            first.setdefault(version.index, task.index)
            last[version.index] = task.index
    change = np.zeros(len(graph) + 1, np.int64)
    for index, start in first.items():
        change[start] += graph.versions[index].item.size_bytes
        change[last[index] + 1] -= graph.versions[index].item.size_bytes
    live = np.cumsum(change)[:-1]
    for task in graph:
        for a in task.arguments:
            if a.makes is not None and a.reads is not None and last[a.reads.index] == task.index:
                live[task.index] -= a.item.size_bytes
    return live


def class_footprints(graph: TaskGraph, devices: int) -> dict[str, int]:
    """Return class key → bytes that one of ``devices`` walks through between two uses of a task's data.

    The median over the tasks of the class of what is alive beside them, shared out. Tasks that read nothing count
    with all of the graph's data: they write where nobody wrote since the run before. Rounded to powers of two from
    ``SMALLEST_BYTES`` to ``LARGEST_BYTES``, so that graphs alike share their timings; sinks, which run once, have the
    smallest.
    """
    live = live_bytes(graph)
    whole = sum(item.size_bytes for item in graph.items)
    by_class: dict[str, list[float]] = defaultdict(list)
    for task in graph:
        size_bytes = live[task.index] / devices if task.inputs else whole
        by_class[class_key(task)].append(0.0 if task.kernel.sink else float(size_bytes))
    return {key: _rounded(float(np.median(sizes))) for key, sizes in by_class.items()}


def _rounded(size_bytes: float) -> int:
    nearest: int = 1 << round(math.log2(max(size_bytes, SMALLEST_BYTES)))
    return min(LARGEST_BYTES, nearest)
