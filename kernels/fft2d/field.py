"""The real field that is transformed."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from kernels.samples import photograph

Array = np.ndarray[Any, Any]


@functools.lru_cache(maxsize=1)
def field(size: int) -> Array:
    """Return scikit-image's moon (512×512), mirrored up to ``size``², float32 in 0 to 1, read-only."""
    picture = photograph("skimage", "moon.png").astype(np.float32) / np.float32(255.0)
    missing = max(0, size - min(picture.shape))
    whole = np.ascontiguousarray(np.pad(picture, (0, missing), mode="symmetric")[:size, :size])
    whole.setflags(write=False)
    return whole
