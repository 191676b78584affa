"""The untiled NumPy reference: the whole picture as one tile."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.canny import numpy_variants as variants

Array = np.ndarray[Any, Any]


def canny_reference(image: Array, *, sigma: float, low: float, high: float) -> Array:
    """Return the edges (255) of a grey float32 image as uint8, computed without tiles."""
    rows, columns = image.shape
    taps = variants.gaussian_taps(sigma)
    blurred, down, across, magnitude, thin = (np.empty_like(image) for _ in range(5))
    row_mask, column_mask = variants.blurred_mask(rows, taps), variants.blurred_mask(columns, taps)
    variants.gaussian(image, taps, row_mask, column_mask, blurred, row=0, column=0, sides="")
    variants.sobel(blurred, down, across, magnitude, sides="")
    variants.suppress(down, across, magnitude, thin, sides="")
    grade, edges = np.empty(image.shape, dtype=np.uint8), np.empty(image.shape, dtype=np.uint8)
    variants.threshold(thin, grade, low=low, high=high)
    labels = np.empty(image.shape, dtype=np.int32)
    frame = np.empty(2 * (rows + columns), dtype=np.int32)
    variants.label(grade, labels, frame)
    variants.apply(labels, frame, edges)
    return edges
