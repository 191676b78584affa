"""Host variants of the kernel matrix with SciPy's distances, in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

Array = np.ndarray[Any, Any]


def gram(*, left: Array, right: Array, tile: Array, gamma: float, dtype: str) -> None:
    """Fill a tile of the kernel matrix: exp(−gamma · squared distance)."""
    distance = cdist(left, right, "sqeuclidean")
    np.multiply(distance, -gamma, out=distance)
    np.exp(distance, out=distance)
    tile[...] = distance


def gram_diagonal(*, left: Array, tile: Array, gamma: float, jitter: float, dtype: str) -> None:
    """Fill a diagonal tile of the kernel matrix, with ``jitter`` added on its diagonal."""
    gram(left=left, right=left, tile=tile, gamma=gamma, dtype=dtype)
    np.einsum("ii->i", tile)[...] += tile.dtype.type(jitter)
