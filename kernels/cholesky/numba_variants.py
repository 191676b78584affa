"""Host variants as Numba loops."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from kernels.cholesky.host_variants import not_definite

Array = np.ndarray[Any, Any]

_jit = numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"}, error_model="numpy")


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


def gram(*, left: Array, right: Array, tile: Array, gamma: float, dtype: str) -> None:
    """Fill a tile of the kernel matrix without a temporary."""
    _gram(left, right, tile, left.dtype.type(gamma))


def gram_diagonal(*, left: Array, tile: Array, gamma: float, jitter: float, dtype: str) -> None:
    """Fill a diagonal tile of the kernel matrix, with ``jitter`` added on its diagonal."""
    _gram(left, left, tile, left.dtype.type(gamma))
    np.einsum("ii->i", tile)[...] += tile.dtype.type(jitter)


def potrf(*, tile: Array, name: str, dtype: str) -> None:
    """Factorise a diagonal tile in place."""
    if not _potrf(tile):
        raise np.linalg.LinAlgError(not_definite(name))


def trsm(*, triangle: Array, tile: Array, dtype: str) -> None:
    """Solve X Lᵀ = tile in place."""
    _trsm(triangle, tile)


def syrk(*, panel: Array, tile: Array, dtype: str) -> None:
    """Subtract panel · panelᵀ from a diagonal tile's lower triangle."""
    _gemm(panel, panel, tile, True)


def gemm(*, left: Array, right: Array, tile: Array, dtype: str) -> None:
    """Subtract left · rightᵀ from a tile."""
    _gemm(left, right, tile, False)
