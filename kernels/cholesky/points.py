"""The points whose kernel matrix is factorised: handwritten digits, augmented to any number."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from kernels.samples import digits

Array = np.ndarray[Any, Any]

FEATURES = 64
SEED = 11
"""Of the augmentation."""


@functools.lru_cache(maxsize=2)
def points(size: int) -> Array:
    """Return ``size`` points of shape (size, 64), float64, read-only; grey values 0 to 16.

    The first 1797 are scikit-learn's digits (8×8 pixels) in an order shuffled by a fixed seed; every further round
    is the same digits shifted by up to one pixel, with Gaussian noise of half a grey step, so that no two points
    are equal.
    """
    images = digits()
    rng = np.random.default_rng(SEED)
    images = images[rng.permutation(len(images))]
    parts = []
    for start in range(0, size, len(images)):
        part = images[: size - start]
        if start:
            down, right = rng.integers(-1, 2, 2)
            part = np.roll(part, (down, right), axis=(1, 2)) + 0.5 * rng.standard_normal(part.shape)
        parts.append(part.reshape(len(part), FEATURES))
    whole = np.concatenate(parts)
    whole.setflags(write=False)
    return whole
