"""The initial field, from a real photograph, and the step on the whole grid that tiles are compared with."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from kernels.samples import photograph

Array = np.ndarray[Any, Any]

SIDES = "NSWE"
"""Sides of a tile, in the order in which halos and strips are bound."""


@functools.lru_cache(maxsize=1)
def initial_field(size: int) -> Array:
    """Return scikit-image's camera (512×512), mirrored up to ``size``², float32 in 1 to 256, read-only."""
    picture = photograph("skimage", "camera.png").astype(np.float32) + np.float32(1.0)
    missing = max(0, size - min(picture.shape))
    field = np.ascontiguousarray(np.pad(picture, (0, missing), mode="symmetric")[:size, :size])
    field.setflags(write=False)
    return field


def step_whole(field: Array, alpha: float) -> Array:
    """Return the whole field one step later; borders are insulated (each cell beyond repeats the last one)."""
    around = np.pad(field, 1, mode="edge")
    vertical = around[:-2, 1:-1] + around[2:, 1:-1]
    horizontal = around[1:-1, :-2] + around[1:-1, 2:]
    return np.asarray(field + np.float32(alpha) * ((vertical + horizontal) - np.float32(4.0) * field))
