"""The real field that is transformed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from heterotask_core.errors import MissingExtraError

Array = np.ndarray[Any, Any]


@functools.lru_cache(maxsize=1)
def field(size: int) -> Array:
    """Return scikit-image's moon (512×512), mirrored up to ``size``², float32 in 0 to 1, read-only."""
    try:
        from skimage import data

        moon: Callable[[], Any] = data.moon
    except ImportError as error:
        raise MissingExtraError("fft2d's picture needs scikit-image: pip install 'heterotask[apps]'") from error
    picture = moon().astype(np.float32) / np.float32(255.0)
    missing = max(0, size - min(picture.shape))
    whole = np.ascontiguousarray(np.pad(picture, (0, missing), mode="symmetric")[:size, :size])
    whole.setflags(write=False)
    return whole
