"""Host variants: BLAS and LAPACK in place on row-major tiles, and Numba loops.

A row-major matrix is the transpose of a column-major one, which BLAS takes without a copy; so each call below solves
the transposed problem, with the upper triangle where the row-major tile has its lower one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
from scipy.linalg import blas, lapack
from scipy.spatial.distance import cdist

from kernels.cholesky.points import points
from kernels.results import write_beside

Array = np.ndarray[Any, Any]

_jit = numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"}, error_model="numpy")


def load(*, points_block: Array, size: int, start: int) -> None:
    """Fill a block of the points, from row ``start`` on."""
    points_block[...] = points(size)[start : start + len(points_block)]


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


def potrf(*, tile: Array, name: str, dtype: str) -> None:
    """Factorise a diagonal tile in place: tile = L Lᵀ, upper triangle cleared."""
    function = lapack.spotrf if dtype == "float32" else lapack.dpotrf
    _, info = function(tile.T, lower=0, overwrite_a=1, clean=1)
    if info:
        raise np.linalg.LinAlgError(_not_definite(name))


def trsm(*, triangle: Array, tile: Array, dtype: str) -> None:
    """Solve X Lᵀ = tile in place, L the factorised diagonal tile above."""
    function = blas.strsm if dtype == "float32" else blas.dtrsm
    function(1.0, triangle.T, tile.T, side=0, lower=0, trans_a=1, overwrite_b=1)


def syrk(*, panel: Array, tile: Array, dtype: str) -> None:
    """Subtract panel · panelᵀ from a diagonal tile's lower triangle."""
    function = blas.ssyrk if dtype == "float32" else blas.dsyrk
    function(-1.0, panel.T, beta=1.0, c=tile.T, trans=1, lower=0, overwrite_c=1)


def gemm(*, left: Array, right: Array, tile: Array, dtype: str) -> None:
    """Subtract left · rightᵀ from a tile."""
    function = blas.sgemm if dtype == "float32" else blas.dgemm
    function(-1.0, right.T, left.T, beta=1.0, c=tile.T, trans_a=1, overwrite_c=1)


def store(*, tiles: Sequence[Array], path: Path, row: int) -> None:
    """Write a block row of L to a ``.npy`` file.

    Raises:
        LinAlgError: a pivot was not positive (device variants leave NaN there), naming the diagonal tile.
    """
    if not np.isfinite(np.diagonal(tiles[-1])).all():
        raise np.linalg.LinAlgError(_not_definite(f"A[{row},{row}]"))
    write_beside(path, tiles)


def _not_definite(name: str) -> str:
    return f"the matrix is not positive definite: pivot <= 0 at or before tile {name}; raise jitter"


@_jit
def _gram(left, right, tile, gamma):  # type: ignore[no-untyped-def]
    for i in range(len(left)):
        for j in range(len(right)):
            total = left.dtype.type(0)
            for k in range(left.shape[1]):
                difference = left[i, k] - right[j, k]
                total += difference * difference
            tile[i, j] = math.exp(-gamma * total)


@_jit
def _potrf(a):  # type: ignore[no-untyped-def]
    n = len(a)
    for j in range(n):
        for k in range(j + 1):
            total = a[j, k]
            for m in range(k):
                total -= a[j, m] * a[k, m]
            if k < j:
                a[j, k] = total / a[k, k]
            elif total > 0:
                a[j, j] = np.sqrt(total)
            else:
                return False
        a[j, j + 1 :] = 0
    return True


@_jit
def _trsm(t, a):  # type: ignore[no-untyped-def]
    for i in range(len(a)):
        for j in range(a.shape[1]):
            total = a[i, j]
            for k in range(j):
                total -= a[i, k] * t[j, k]
            a[i, j] = total / t[j, j]


@_jit
def _gemm(a, b, c, lower):  # type: ignore[no-untyped-def]
    for i in range(len(a)):
        for j in range(i + 1 if lower else len(b)):
            total = a.dtype.type(0)
            for k in range(a.shape[1]):
                total += a[i, k] * b[j, k]
            c[i, j] -= total


def gram_numba(*, left: Array, right: Array, tile: Array, gamma: float, dtype: str) -> None:
    """Fill a tile of the kernel matrix without a temporary."""
    _gram(left, right, tile, left.dtype.type(gamma))


def gram_diagonal_numba(*, left: Array, tile: Array, gamma: float, jitter: float, dtype: str) -> None:
    """Fill a diagonal tile of the kernel matrix, with ``jitter`` added on its diagonal."""
    _gram(left, left, tile, left.dtype.type(gamma))
    np.einsum("ii->i", tile)[...] += tile.dtype.type(jitter)


def potrf_numba(*, tile: Array, name: str, dtype: str) -> None:
    """Factorise a diagonal tile in place."""
    if not _potrf(tile):
        raise np.linalg.LinAlgError(_not_definite(name))


def trsm_numba(*, triangle: Array, tile: Array, dtype: str) -> None:
    """Solve X Lᵀ = tile in place."""
    _trsm(triangle, tile)


def syrk_numba(*, panel: Array, tile: Array, dtype: str) -> None:
    """Subtract panel · panelᵀ from a diagonal tile's lower triangle."""
    _gemm(panel, panel, tile, True)


def gemm_numba(*, left: Array, right: Array, tile: Array, dtype: str) -> None:
    """Subtract left · rightᵀ from a tile."""
    _gemm(left, right, tile, False)
