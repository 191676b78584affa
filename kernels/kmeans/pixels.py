"""The pixels that are clustered, and where the centres start."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from kernels.samples import photograph

Array = np.ndarray[Any, Any]


@functools.lru_cache(maxsize=1)
def pixels(picture: str) -> Array:
    """Return the colours of ``retina`` (scikit-image) or ``china`` (scikit-learn): (pixels, 3), uint8, read-only."""
    package = "skimage" if picture == "retina" else "sklearn"
    colours = np.ascontiguousarray(photograph(package, f"{picture}.jpg").reshape(-1, 3))
    colours.setflags(write=False)
    return colours


@functools.lru_cache(maxsize=1)
def start_centres(picture: str, clusters: int, seed: int) -> Array:
    """Return the first centres, float64 of shape (clusters, 3): distinct colours of the picture, moved off the grid.

    Off the integer grid no pixel lies exactly between two centres, so labels do not hang on rounding.
    """
    rng = np.random.default_rng(seed)
    # Packed into one integer each: sorting rows would take seconds.
    packed = np.unique(pixels(picture).astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32))
    drawn = packed[rng.choice(len(packed), clusters, replace=False)]
    chosen = np.stack([drawn >> 16, drawn >> 8 & 255, drawn & 255], axis=1)
    centres = np.asarray(chosen + rng.uniform(-0.4, 0.4, chosen.shape))
    centres.setflags(write=False)
    return centres
