"""OpenCL and CUDA variants: launches of ``cholesky.cl``, one source for both and for both precisions."""

from __future__ import annotations

from typing import Any

import numpy as np

from heterotask_core.kernel import ArrayArg, Launch

BLOCK, SIDE, PANEL = 64, 16, 32
"""As in the C source."""

Block = tuple[ArrayArg, int, int]
"""A block of a matrix: array, length of its rows, flat index of the block's first element."""


def _gemm(a: Block, b: Block, c: Block, m: int, n: int, k: int, *, lower: bool = False) -> Launch:
    size = tuple(-(-extent // BLOCK) * SIDE for extent in (n, m))
    numbers = [np.int32(value) for value in (m, n, k, lower)]
    return Launch("gemm", size, (SIDE, SIDE), (*_block(a), *_block(b), *_block(c), *numbers))


def _solve(triangle: Block, a: Block, rows: int, count: int) -> Launch:
    return Launch("solve", (rows,), (PANEL,), (*_block(triangle), *_block(a), np.int32(rows), np.int32(count)))


def _block(block: Block) -> tuple[Any, ...]:
    array, row_length, at = block
    return array, np.int32(row_length), np.int32(at)


def gram(left: ArrayArg, right: ArrayArg, tile: ArrayArg, *, gamma: float, dtype: str) -> list[Launch]:
    """Fill a tile of the kernel matrix."""
    return _gram(left, right, tile, gamma, 0.0, dtype)


def gram_diagonal(left: ArrayArg, tile: ArrayArg, *, gamma: float, jitter: float, dtype: str) -> list[Launch]:
    """Fill a diagonal tile of the kernel matrix, with ``jitter`` added on its diagonal."""
    return _gram(left, left, tile, gamma, jitter, dtype)


def _gram(left: ArrayArg, right: ArrayArg, tile: ArrayArg, gamma: float, jitter: float, dtype: str) -> list[Launch]:
    rows, columns = tile.shape
    real = np.dtype(dtype).type
    args = (left, right, tile, np.int32(rows), np.int32(columns), np.int32(left.shape[1]), real(gamma), real(jitter))
    return [Launch("gram", (columns, rows), (SIDE, SIDE), args)]


def potrf(tile: ArrayArg, *, name: str, dtype: str) -> list[Launch]:
    """Factorise a diagonal tile in place, panel by panel; a pivot that is not positive leaves NaN."""
    n = tile.shape[0]
    launches = []
    for start in range(0, n, PANEL):
        count = min(PANEL, n - start)
        diagonal = (tile, n, start * n + start)
        launches.append(Launch("factor", (PANEL,), (PANEL,), (*_block(diagonal), np.int32(count))))
        end = start + count
        if end < n:
            below, rest = (tile, n, end * n + start), (tile, n, end * n + end)
            launches.append(_solve(diagonal, below, n - end, count))
            launches.append(_gemm(below, below, rest, n - end, n - end, count, lower=True))
    return [*launches, Launch("clear_upper", (n, n), (SIDE, SIDE), (tile, np.int32(n)))]


def trsm(triangle: ArrayArg, tile: ArrayArg, *, dtype: str) -> list[Launch]:
    """Solve X Lᵀ = tile in place, panel by panel."""
    rows, n = tile.shape
    launches = []
    for start in range(0, n, PANEL):
        count = min(PANEL, n - start)
        if start:
            launches.append(
                _gemm((tile, n, 0), (triangle, n, start * n), (tile, n, start), rows, count, start),
            )
        launches.append(_solve((triangle, n, start * n + start), (tile, n, start), rows, count))
    return launches


def syrk(panel: ArrayArg, tile: ArrayArg, *, dtype: str) -> list[Launch]:
    """Subtract panel · panelᵀ from a diagonal tile's lower triangle."""
    n, k = panel.shape
    return [_gemm((panel, k, 0), (panel, k, 0), (tile, n, 0), n, n, k, lower=True)]


def gemm(left: ArrayArg, right: ArrayArg, tile: ArrayArg, *, dtype: str) -> list[Launch]:
    """Subtract left · rightᵀ from a tile."""
    (m, k), n = left.shape, right.shape[0]
    return [_gemm((left, k, 0), (right, k, 0), (tile, n, 0), m, n, k)]
