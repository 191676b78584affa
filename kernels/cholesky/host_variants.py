"""Host variants of input and output, and what a matrix that cannot be factorised is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernels.cholesky.points import points
from kernels.results import write_beside

Array = np.ndarray[Any, Any]


def load(*, points_block: Array, size: int, start: int) -> None:
    """Fill a block of the points, from row ``start`` on."""
    points_block[...] = points(size)[start : start + len(points_block)]


def store(*, tiles: Sequence[Array], path: Path, row: int) -> None:
    """Write a block row of L to a ``.npy`` file.

    Raises:
        LinAlgError: a pivot was not positive (device variants leave NaN there), naming the diagonal tile.
    """
    if not np.isfinite(np.diagonal(tiles[-1])).all():
        raise np.linalg.LinAlgError(not_definite(f"A[{row},{row}]"))
    write_beside(path, tiles)


def not_definite(name: str) -> str:
    """Return what is said of a matrix whose pivot is not positive."""
    return f"the matrix is not positive definite: pivot <= 0 at or before tile {name}; raise jitter"
