"""Heat diffusion: parameters, graph and the outside check."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from heterotask_core.app import CheckResult
from heterotask_core.graph import TaskGraph
from kernels.heat.field import initial_field, step_whole
from kernels.heat.graph import build_graph, cells, tile_path

SUM_TOLERANCE = 1e-6
"""Largest relative change of the field's sum (float64): insulated borders lose no heat."""


class HeatParams(BaseModel):
    """What the user may choose."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = Field(2048, ge=1, le=65536, description="rows and columns of the grid, cells")
    tile: int = Field(512, ge=2, le=16384, description="rows and columns of a tile, cells")
    steps: int = Field(50, ge=0, le=100_000, description="time steps")
    alpha: float = Field(0.2, gt=0.0, le=0.25, description="diffusivity times time step over cell area (stable to 1/4)")


class Heat:
    """The application ``heat``; its result is a ``.npy`` file a tile."""

    name: ClassVar[str] = "heat"
    summary: ClassVar[str] = "Heat diffusion from a photograph (2-D Jacobi), tiles × steps, insulated borders"
    Params: ClassVar[type[BaseModel]] = HeatParams

    def build(self, params: Any) -> TaskGraph:
        """Return the graph."""
        return build_graph(params.size, tile=params.tile, steps=params.steps, alpha=params.alpha)

    def check(self, params: Any, output_dir: Path) -> CheckResult:
        """Compare the field with NumPy's on the whole grid (equal bits) and its sum with the initial one."""
        field = np.empty((params.size, params.size), np.float32)
        for cell, (top, left, rows, columns) in cells(params.size, params.tile).items():
            path = output_dir / tile_path(cell)
            if not path.is_file():
                return CheckResult(False, f"{path} is missing: the run wrote no result")
            part = np.load(path, allow_pickle=False)
            if part.shape != (rows, columns):
                return CheckResult(False, f"{path.name} is {part.shape}, not {(rows, columns)}")
            field[top : top + rows, left : left + columns] = part
        start = initial_field(params.size)
        expected = start
        for _ in range(params.steps):
            expected = step_whole(expected, params.alpha)
        wrong = int(np.count_nonzero(field != expected))
        before = float(start.sum(dtype=np.float64))
        drift = abs(float(field.sum(dtype=np.float64)) - before) / before
        passed = wrong == 0 and drift <= SUM_TOLERANCE
        details = (
            f"{wrong} of {field.size} cells differ from NumPy on the whole grid (0 allowed)",
            f"the sum changed by {drift:.1e} of itself ({SUM_TOLERANCE:.0e} allowed)",
        )
        return CheckResult(passed, "the field is correct" if passed else "the field is wrong", details)


HEAT = Heat()
