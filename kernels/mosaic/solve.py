"""The background model: one small sparse system. A module of its own: only its rank imports SciPy's sparse matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import linalg

from heterotask_core.errors import ApplicationError
from kernels.mosaic.layout import disconnected, groups

Array = np.ndarray[Any, Any]


def solve(
    *, sums: Sequence[Array], planes: Array, pairs: Sequence[Sequence[int]], origins: Sequence[Sequence[int]],
    names: Sequence[str],
) -> None:  # fmt: skip
    """Write the background plane of each image: offset, rise by column, rise by row, from the mosaic's centre.

    Least squares over all pixels of all overlaps: p_i - p_j is to be d. What all images have in common cannot be told,
    so the mean of the planes is zero. ``origins`` are the middles of the overlaps' boxes, row and column from the
    mosaic's centre.

    Raises:
        ApplicationError: overlaps that hold no common finite pixel leave images unconnected.
    """
    count = len(planes)
    values = np.stack(sums)
    used = values[:, 0] >= 3.0
    found = groups(count, [(i, j) for (i, j), use in zip(pairs, used.tolist(), strict=True) if use])
    if len(found) > 1:
        raise ApplicationError(disconnected(names, found))
    centres = np.array(origins, np.float64).reshape(-1, 2)
    scale = 1.0 + float(np.abs(centres).max())
    i, j = np.array(pairs).T
    n, x, y, xx, xy, yy, d, xd, yd = values.T
    v, u = centres.T
    moved_x, moved_y = x + u * n, y + v * n
    matrices = np.stack(
        [
            np.stack([n, moved_x, moved_y], axis=1),
            np.stack([moved_x, xx + 2.0 * u * x + u * u * n, xy + u * y + v * x + u * v * n], axis=1),
            np.stack([moved_y, xy + u * y + v * x + u * v * n, yy + 2.0 * v * y + v * v * n], axis=1),
        ],
        axis=1,
    )
    right = np.stack([d, xd + u * d, yd + v * d], axis=1)
    basis = np.array([1.0, scale, scale])
    matrices /= np.outer(basis, basis)
    right /= basis
    g = np.zeros((count, 3))
    np.add.at(g, i, right)
    np.add.at(g, j, -right)
    block = np.arange(3)
    data, at_row, at_column = [], [], []
    for rows, columns, sign in ((i, i, 1.0), (j, j, 1.0), (i, j, -1.0), (j, i, -1.0)):
        data.append(sign * matrices)
        at_row.append(np.broadcast_to(3 * rows[:, None, None] + block[:, None], matrices.shape))
        at_column.append(np.broadcast_to(3 * columns[:, None, None] + block, matrices.shape))
    flat = (np.concatenate([np.ravel(part) for part in parts]) for parts in (data, at_row, at_column))
    entries, entry_rows, entry_columns = flat
    system = sparse.csc_matrix((entries, (entry_rows, entry_columns)), shape=(3 * count, 3 * count))
    solution = np.zeros((count, 3))
    # The first plane is held at zero, then the mean is taken off.
    try:
        solution[1:] = linalg.splu(system[3:, 3:]).solve(g.ravel()[3:]).reshape(-1, 3)
    except RuntimeError as error:
        raise ApplicationError(
            f"the overlaps do not determine all background planes ({error}); leave images out"
        ) from error
    planes[...] = (solution - solution.mean(axis=0)) / basis
