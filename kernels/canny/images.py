"""Read the input picture as one grey float32 image in [0, 1], decoded once per process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from heterotask_core.errors import ApplicationError, MissingExtraError

GREY_WEIGHTS = (0.2125, 0.7154, 0.0721)
"""Luminance of linear red, green, blue (ITU-R BT.709), as in skimage.color.rgb2gray."""


def image_shape(image: str, size: int) -> tuple[int, int]:
    """Return rows and columns of the picture; raises :class:`ApplicationError` when it is unusable."""
    rows, columns = grey_image(image, size).shape
    return rows, columns


@functools.lru_cache(maxsize=1)
def grey_image(image: str, size: int) -> np.ndarray[Any, Any]:
    """Return the picture in file ``image``, or skimage's retina mirrored up to ``size`` when empty; read-only.

    Raises :class:`ApplicationError` for a file that is missing, unreadable or smaller than 3×3.
    """
    pixels = _to_grey(_read(image), image) if image else _mirrored(size)
    if min(pixels.shape) < 3:
        raise ApplicationError(f"image {image or 'retina'!r} is {pixels.shape}; edges need at least 3×3 pixels")
    pixels.setflags(write=False)
    return pixels


def _mirrored(size: int) -> np.ndarray[Any, Any]:
    try:
        from skimage import data

        retina: Callable[[], object] = data.retina
    except ImportError as error:
        raise MissingExtraError("the built-in picture needs scikit-image: pip install 'heterotask[apps]'") from error
    grey = _to_grey(np.asarray(retina()), "retina")
    rows, columns = grey.shape
    return np.ascontiguousarray(
        np.pad(grey, ((0, max(0, size - rows)), (0, max(0, size - columns))), mode="symmetric")[:size, :size]
    )


def _read(image: str) -> np.ndarray[Any, Any]:
    path = Path(image)
    if not path.is_file():
        raise ApplicationError(f"image {image!r} is not a file; give the path of a PNG, JPEG or TIFF")
    try:
        if path.suffix.lower() in (".tif", ".tiff"):
            import tifffile

            return np.asarray(tifffile.imread(path))
        from PIL import Image

        with Image.open(path) as picture:
            if picture.mode in ("1", "LA"):
                return np.asarray(picture.convert("L"))
            if picture.mode in ("P", "PA", "CMYK", "YCbCr"):
                return np.asarray(picture.convert("RGB"))
            return np.asarray(picture)
    except ImportError as error:
        raise MissingExtraError(f"reading {image!r} needs {error.name}: pip install 'heterotask[apps]'") from error
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ApplicationError(f"image {image!r} cannot be read: {reason}; give a PNG, JPEG or TIFF") from error


def _to_grey(pixels: np.ndarray[Any, Any], image: str) -> np.ndarray[Any, Any]:
    kind = pixels.dtype
    if kind == np.int32 and pixels.size and pixels.min() >= 0 and pixels.max() <= 65535:
        # Pillow opens 16-bit grey PNGs as 32-bit integers in its older versions.
        kind = np.dtype(np.uint16)
    if kind == np.uint8 or kind == np.uint16:
        scale = float(np.iinfo(kind).max)
    else:
        raise ApplicationError(f"image {image!r} has pixels of {kind}; convert it to 8 or 16 bits")
    if pixels.ndim == 3 and pixels.shape[2] in (3, 4):
        red, green, blue = (pixels[..., k].astype(np.float64) for k in range(3))
        grey = red * GREY_WEIGHTS[0] + green * GREY_WEIGHTS[1] + blue * GREY_WEIGHTS[2]
    elif pixels.ndim == 2:
        grey = pixels.astype(np.float64)
    else:
        raise ApplicationError(f"image {image!r} has shape {pixels.shape}; one grey or RGB picture is needed")
    return np.ascontiguousarray((grey / scale).astype(np.float32))
