"""Host variants: the initial field, one Jacobi step (NumPy and Numba), the result.

Everything is float32 with one order of operations, without contraction, so that all variants give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np

from kernels.heat.field import SIDES, initial_field
from kernels.results import write_array

Array = np.ndarray[Any, Any]

_jit: Any = numba.njit(cache=True, nogil=True, fastmath=False, error_model="numpy")


def edge(field: Array, side: str) -> Array:
    """Return the row or column of a tile that lies on ``side``, as a view."""
    edges: dict[str, Array] = {"N": field[0], "S": field[-1], "W": field[:, 0], "E": field[:, -1]}
    return edges[side]


def _give(field: Array, strips: Sequence[Array], sides: str) -> None:
    for side, strip in zip(sides, strips, strict=True):
        strip[...] = edge(field, side)


def load(*, field: Array, strips: Sequence[Array] = (), size: int, row: int, column: int, sides: str) -> None:
    """Fill a tile of the initial field whose first cell is (``row``, ``column``)."""
    rows, columns = field.shape
    field[...] = initial_field(size)[row : row + rows, column : column + columns]
    _give(field, strips, sides)


def step(
    *,
    field: Array,
    next: Array,
    halo: Sequence[Array] = (),
    strips: Sequence[Array] = (),
    sides: str,
    alpha: float,
) -> None:
    """Write the field one step later; ``halo`` and ``strips`` hold the neighbours' and the own edges, as ``sides``."""
    around = dict(zip(sides, halo, strict=True))
    north, south, west, east = (np.empty_like(field) for _ in SIDES)
    north[1:], north[0] = field[:-1], around.get("N", field[0])
    south[:-1], south[-1] = field[1:], around.get("S", field[-1])
    west[:, 1:], west[:, 0] = field[:, :-1], around.get("W", field[:, 0])
    east[:, :-1], east[:, -1] = field[:, 1:], around.get("E", field[:, -1])
    next[...] = field + np.float32(alpha) * (((north + south) + (west + east)) - np.float32(4.0) * field)
    _give(next, strips, sides)


@_jit
def _step(field, north, south, west, east, alpha, next, to_north, to_south, to_west, to_east):  # type: ignore[no-untyped-def]
    """Step a tile; edges to read or to write have no cells on sides without a neighbour."""
    rows, columns = field.shape
    four, alpha = np.float32(4.0), np.float32(alpha)
    if len(north) == 0:
        north = field[0]
    if len(south) == 0:
        south = field[rows - 1]
    for i in range(rows):
        own, out = field[i], next[i]
        above = field[i - 1] if i > 0 else north
        below = field[i + 1] if i + 1 < rows else south
        # The inner cells have no condition, so the loop is vectorised.
        for j in range(1, columns - 1):
            out[j] = own[j] + alpha * (((above[j] + below[j]) + (own[j - 1] + own[j + 1])) - four * own[j])
        first = west[i] if len(west) else own[0]
        last = east[i] if len(east) else own[columns - 1]
        for j in (0, columns - 1):
            left = own[j - 1] if j > 0 else first
            right = own[j + 1] if j + 1 < columns else last
            out[j] = own[j] + alpha * (((above[j] + below[j]) + (left + right)) - four * own[j])
        if len(to_west):
            to_west[i] = out[0]
        if len(to_east):
            to_east[i] = out[columns - 1]
    if len(to_north):
        to_north[:] = next[0]
    if len(to_south):
        to_south[:] = next[rows - 1]


def step_numba(
    *,
    field: Array,
    next: Array,
    halo: Sequence[Array] = (),
    strips: Sequence[Array] = (),
    sides: str,
    alpha: float,
) -> None:
    """Write the field one step later, in one pass without temporaries."""
    # Views, so that an edge that is not there has the type of one that is: one compiled function serves all tiles.
    nothing, nowhere = field[0, :0], next[0, :0]
    around, to = dict(zip(sides, halo, strict=True)), dict(zip(sides, strips, strict=True))
    borders = [around.get(side, nothing) for side in SIDES]
    _step(field, *borders, alpha, next, *[to.get(side, nowhere) for side in SIDES])


def store(*, field: Array, path: Path) -> None:
    """Write a tile of the final field to a ``.npy`` file."""
    write_array(path, field)
