"""Cholesky factorisation of an RBF kernel matrix: parameters, graph and the outside check."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from heterotask_core.app import CheckResult
from heterotask_core.graph import TaskGraph
from kernels.cholesky.graph import build_graph
from kernels.cholesky.points import points

BACKWARD_FLOAT32 = 2e-6
"""Largest ‖A − LLᵀ‖ / ‖A‖ in float32; in float64 1e-14 · √size."""
FORWARD_FACTOR = 10.0
"""‖L − L_scipy‖ / ‖L_scipy‖ may be this times machine precision times ‖A‖ / jitter, which bounds the condition."""


class CholeskyParams(BaseModel):
    """What the user may choose."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = Field(4096, ge=1, le=65536, description="rows and columns of the matrix")
    tile: int = Field(512, ge=1, le=8192, description="rows and columns of a tile")
    dtype: Literal["float32", "float64"] = Field("float32", description="precision")
    gamma: float = Field(0.001, gt=0.0, le=1.0, description="the kernel is exp(-gamma * squared distance)")
    jitter: float = Field(0.1, ge=0.0, le=1000.0, description="added to the diagonal")


class Cholesky:
    """The application ``cholesky``; its results are the block rows of L, ``L-0000.npy`` and so on."""

    name: ClassVar[str] = "cholesky"
    summary: ClassVar[str] = "Cholesky factor of a kernel matrix of handwritten digits, tiled, right-looking"
    Params: ClassVar[type[BaseModel]] = CholeskyParams

    def build(self, params: Any) -> TaskGraph:
        """Return the graph."""
        return build_graph(params.size, tile=params.tile, dtype=params.dtype, gamma=params.gamma, jitter=params.jitter)

    def check(self, params: Any, output_dir: Path) -> CheckResult:
        """Compare L with the matrix (backward error) and with ``scipy.linalg.cholesky`` (forward error), in float64."""
        from scipy.linalg import cholesky
        from scipy.spatial.distance import cdist

        n = params.size
        factor = np.zeros((n, n))
        for i, start in enumerate(range(0, n, params.tile)):
            path = output_dir / f"L-{i:04d}.npy"
            if not path.is_file():
                return CheckResult(False, f"{path} is missing: the run wrote no result")
            rows = np.load(path, allow_pickle=False)
            expected = min(params.tile, n - start)
            if rows.shape != (expected, start + expected):
                return CheckResult(False, f"{path.name} is {rows.shape}, not {(expected, start + expected)}")
            factor[start : start + expected, : start + expected] = rows
        x = points(n)
        matrix = np.exp(-params.gamma * cdist(x, x, "sqeuclidean"))
        matrix[np.diag_indices(n)] += params.jitter
        size = float(np.linalg.norm(matrix))
        backward = float(np.linalg.norm(matrix - factor @ factor.T)) / size
        allowed = BACKWARD_FLOAT32 if params.dtype == "float32" else 1e-14 * np.sqrt(n)
        reference = cholesky(matrix, lower=True)
        forward = float(np.linalg.norm(factor - reference) / np.linalg.norm(reference))
        condition = size / params.jitter if params.jitter else np.inf
        forward_allowed = FORWARD_FACTOR * float(np.finfo(params.dtype).eps) * condition
        passed = backward <= allowed and forward <= forward_allowed and bool((np.triu(factor, 1) == 0).all())
        details = (
            f"|A - LL'| / |A| is {backward:.2e} ({allowed:.2e} allowed)",
            f"|L - L_scipy| / |L_scipy| is {forward:.2e} ({forward_allowed:.2e} allowed)",
        )
        return CheckResult(passed, "L is correct" if passed else "L is wrong", details)


CHOLESKY = Cholesky()
