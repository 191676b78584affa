"""Two-dimensional Fourier transform of a picture: parameters, graph and the outside check."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from heterotask_core.app import CheckResult
from heterotask_core.errors import ApplicationError
from heterotask_core.graph import TaskGraph
from kernels.fft2d.field import field
from kernels.fft2d.graph import build_graph

TOLERANCE = 1e-6
"""Relative error (2-norm) allowed for each doubling of the size."""
MAX_BLOCKS = 1_000_000


class Fft2dParams(BaseModel):
    """What the user may choose."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = Field(2048, ge=2, le=32768, description="rows and columns of the field; on GPUs a power of two")
    band: int = Field(256, ge=1, le=32768, description="rows of a band, and columns of a block")


class Fft2d:
    """The application ``fft2d``; its results are bands of columns of the spectrum, transposed."""

    name: ClassVar[str] = "fft2d"
    summary: ClassVar[str] = "2-D Fourier transform of a photograph: rows, all-to-all transpose, columns"
    Params: ClassVar[type[BaseModel]] = Fft2dParams

    def build(self, params: Any) -> TaskGraph:
        """Return the graph; raises :class:`ApplicationError` for more blocks than a program should have."""
        if (-(-params.size // params.band)) ** 2 > MAX_BLOCKS:
            raise ApplicationError(
                f"band={params.band} cuts {params.size}² into over a million blocks; choose more rows"
            )
        return build_graph(params.size, band=params.band)

    def check(self, params: Any, output_dir: Path) -> CheckResult:
        """Compare the spectrum with ``scipy.fft.fft2`` in float64."""
        from scipy import fft

        parts = []
        for j, start in enumerate(range(0, params.size, params.band)):
            path = output_dir / f"columns-{j:04d}.npy"
            if not path.is_file():
                return CheckResult(False, f"{path} is missing: the run wrote no result")
            part = np.load(path, allow_pickle=False)
            shape = (min(params.band, params.size - start), params.size)
            if part.shape != shape:
                return CheckResult(False, f"{path.name} is {part.shape}, not {shape}")
            parts.append(part)
        expected = fft.fft2(field(params.size).astype(np.float64)).T
        error = float(np.linalg.norm(np.concatenate(parts) - expected) / np.linalg.norm(expected))
        allowed = TOLERANCE * math.log2(params.size)
        passed = error <= allowed
        details = (f"relative error against scipy.fft is {error:.1e} ({allowed:.1e} allowed)",)
        return CheckResult(passed, "the spectrum is correct" if passed else "the spectrum is wrong", details)


FFT2D = Fft2d()
