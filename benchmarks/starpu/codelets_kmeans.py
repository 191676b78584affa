"""k-means' CPU codelets: the jitted cores of our Numba variants; the mean of a few numbers likewise.

The first centres are chosen through a callback: that takes tens of milliseconds, which must count on both sides.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from codelets import Call, Host, compiled, native, output_name

from heterotask_core.graph import Task
from kernels.kmeans.cpu_variants import _accumulate, _add, _assign
from kernels.kmeans.pixels import pixels

GRAPH = "kernels.kmeans.graph"


@compiled
def _accumulate32(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    _accumulate(
        numba.carray(arrays[0], (numbers[0], 3), np.uint8),
        numba.carray(arrays[1], (numbers[1], 3), np.float32),
        numba.carray(arrays[2], (numbers[1], 4), np.int64),
    )


@compiled
def _accumulate64(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    _accumulate(
        numba.carray(arrays[0], (numbers[0], 3), np.uint8),
        numba.carray(arrays[1], (numbers[1], 3), np.float64),
        numba.carray(arrays[2], (numbers[1], 4), np.int64),
    )


@compiled
def _assign32(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    _assign(
        numba.carray(arrays[0], (numbers[0], 3), np.uint8),
        numba.carray(arrays[1], (numbers[1], 3), np.float32),
        numba.carray(arrays[2], (numbers[0],), np.int32),
    )


@compiled
def _assign64(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    _assign(
        numba.carray(arrays[0], (numbers[0], 3), np.uint8),
        numba.carray(arrays[1], (numbers[1], 3), np.float64),
        numba.carray(arrays[2], (numbers[0],), np.int32),
    )


@compiled
def _reduce(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    total = numba.carray(arrays[numbers[1]], (numbers[0], 4), np.int64)
    total[:] = 0
    for part in range(numbers[1]):
        _add(numba.carray(arrays[part], (numbers[0], 4), np.int64), total)


@compiled
def _update32(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    total = numba.carray(arrays[0], (numbers[0], 4), np.int64)
    centres = numba.carray(arrays[1], (numbers[0], 3), np.float32)
    for k in range(numbers[0]):
        for channel in range(3):
            centres[k, channel] = np.float32(np.float64(total[k, channel]) / np.float64(total[k, 3]))


@compiled
def _update64(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    total = numba.carray(arrays[0], (numbers[0], 4), np.int64)
    centres = numba.carray(arrays[1], (numbers[0], 3), np.float64)
    for k in range(numbers[0]):
        for channel in range(3):
            centres[k, channel] = np.float64(total[k, channel]) / np.float64(total[k, 3])


TYPED: dict[str, dict[str, Any]] = {
    "accumulate": {"float32": _accumulate32, "float64": _accumulate64},
    "assign": {"float32": _assign32, "float64": _assign64},
    "update": {"float32": _update32, "float64": _update64},
}


@native(GRAPH, "load")
def load(task: Task, host: Host) -> Call:
    """A block of pixels."""
    start, count = task.params["start"], task.shapes()["block"][0]
    return host.load([pixels(task.params["picture"])[start : start + count]])


@native(GRAPH, "accumulate", "assign", "update")
def step(task: Task, host: Host) -> Call:
    """Sums of a block, labels of a block, or means."""
    shapes = task.shapes()
    numbers = [shapes["block"][0], shapes["centres"][0]] if "block" in shapes else [shapes["centres"][0]]
    return Call(TYPED[task.kernel.name][task.params["dtype"]].address, numbers)


@native(GRAPH, "reduce")
def reduce(task: Task, host: Host) -> Call:
    """The sum of a few partial sums."""
    return Call(_reduce.address, [task.shapes()["total"][0], len(task.arguments) - 1])


@native(GRAPH, "store")
def store(task: Task, host: Host) -> Call:
    """Labels and centres as ``.npy`` files."""
    items = [a.item for a in task.arguments]
    labels, centres = items[:-1], items[-1]
    count = sum(item.shape[0] for item in labels)
    return host.store(
        [
            (output_name(task.params["labels_path"]), "int32", (count,), 1, [item.size_bytes for item in labels]),
            (output_name(task.params["centres_path"]), centres.dtype, centres.shape, 1, [centres.size_bytes]),
        ]
    )
