"""Host variants: BLAS and LAPACK in place on row-major tiles.

A row-major matrix is the transpose of a column-major one, which BLAS takes without a copy; so each call below solves
the transposed problem, with the upper triangle where the row-major tile has its lower one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.blas import extension
from kernels.cholesky.host_variants import not_definite

Array = np.ndarray[Any, Any]

_blas, _lapack = extension("_fblas"), extension("_flapack")


def potrf(*, tile: Array, name: str, dtype: str) -> None:
    """Factorise a diagonal tile in place: tile = L Lᵀ, upper triangle cleared."""
    function = _lapack.spotrf if dtype == "float32" else _lapack.dpotrf
    _, info = function(tile.T, lower=0, overwrite_a=1, clean=1)
    if info:
        raise np.linalg.LinAlgError(not_definite(name))


def trsm(*, triangle: Array, tile: Array, dtype: str) -> None:
    """Solve X Lᵀ = tile in place, L the factorised diagonal tile above."""
    function = _blas.strsm if dtype == "float32" else _blas.dtrsm
    function(1.0, triangle.T, tile.T, side=0, lower=0, trans_a=1, overwrite_b=1)


def syrk(*, panel: Array, tile: Array, dtype: str) -> None:
    """Subtract panel · panelᵀ from a diagonal tile's lower triangle."""
    function = _blas.ssyrk if dtype == "float32" else _blas.dsyrk
    function(-1.0, panel.T, beta=1.0, c=tile.T, trans=1, lower=0, overwrite_c=1)


def gemm(*, left: Array, right: Array, tile: Array, dtype: str) -> None:
    """Subtract left · rightᵀ from a tile."""
    function = _blas.sgemm if dtype == "float32" else _blas.dgemm
    function(-1.0, right.T, left.T, beta=1.0, c=tile.T, trans_a=1, overwrite_c=1)
