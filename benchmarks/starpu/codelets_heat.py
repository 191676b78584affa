"""Heat's CPU codelets: the jitted step of our Numba variant; input and output in C."""

from __future__ import annotations

import numba
import numpy as np
from codelets import Call, Host, compiled, native, output_name

from heterotask_core.graph import Task
from kernels.heat.cpu_variants import _step, edge
from kernels.heat.field import SIDES, initial_field

GRAPH = "kernels.heat.graph"


@compiled
def _heat_step(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    rows, columns, has = numbers[0], numbers[1], numbers[2]
    n, s, w, e = has & 1, has >> 1 & 1, has >> 2 & 1, has >> 3 & 1
    # Halo after the field, strips after the result; a side without a neighbour has an edge of no cells.
    result = 1 + n + s + w + e
    strip = result + 1
    _step(
        numba.carray(arrays[0], (rows, columns), np.float32),
        numba.carray(arrays[1 if n else 0], (n * columns,), np.float32),
        numba.carray(arrays[1 + n if s else 0], (s * columns,), np.float32),
        numba.carray(arrays[1 + n + s if w else 0], (w * rows,), np.float32),
        numba.carray(arrays[1 + n + s + w if e else 0], (e * rows,), np.float32),
        reals[0],
        numba.carray(arrays[result], (rows, columns), np.float32),
        numba.carray(arrays[strip if n else 0], (n * columns,), np.float32),
        numba.carray(arrays[strip + n if s else 0], (s * columns,), np.float32),
        numba.carray(arrays[strip + n + s if w else 0], (w * rows,), np.float32),
        numba.carray(arrays[strip + n + s + w if e else 0], (e * rows,), np.float32),
    )


@native(GRAPH, "load")
def load(task: Task, host: Host) -> Call:
    """A tile and its edges out of the whole initial field."""
    rows, columns = task.shapes()["field"]
    row, column = task.params["row"], task.params["column"]
    tile = initial_field(task.params["size"])[row : row + rows, column : column + columns]
    strips = [np.ascontiguousarray(edge(tile, side)) for side in task.params["sides"]]
    return host.load([tile, *strips])


@native(GRAPH, "step")
def step(task: Task, host: Host) -> Call:
    """One step of a tile."""
    rows, columns = task.shapes()["field"]
    has = sum(1 << SIDES.index(side) for side in task.params["sides"])
    return Call(_heat_step.address, [rows, columns, has], [task.params["alpha"]])


@native(GRAPH, "store")
def store(task: Task, host: Host) -> Call:
    """A ``.npy`` file."""
    shape = task.shapes()["field"]
    return host.store([(output_name(task.params["path"]), "float32", shape, 1, [4 * shape[0] * shape[1]])])
