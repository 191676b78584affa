"""Read the input picture as one grey float32 image in [0, 1], decoded once per process.

PNG, JPEG and TIFF, told apart by their first bytes, with 1 to 16 bits a sample: grey, colour, palette. An alpha
channel is ignored, and so is an orientation that a camera recorded beside the pixels. A file of several pictures
(pages of a TIFF, frames of an animation) is refused, because one result has room for one; previews inside a TIFF or
a camera's JPEG do not count.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from heterotask_core.errors import ApplicationError, MissingExtraError
from kernels.canny.deep_png import PNG_SIGNATURE, bits_a_sample, read_deep_png
from kernels.samples import photograph

Array = np.ndarray[Any, Any]

GREY_WEIGHTS = (0.2125, 0.7154, 0.0721)
"""Luminance of linear red, green, blue (ITU-R BT.709), as in skimage.color.rgb2gray."""

TIFF_SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
FORMATS = "a PNG, JPEG or TIFF"


def picture_content(image: str) -> str:
    """Return a hash of the file's bytes, empty for the built-in picture; raises :class:`ApplicationError`."""
    return hashlib.sha256(_bytes(image)).hexdigest()[:16] if image else ""


def picture_shape(image: str, size: int, content: str) -> tuple[int, int]:
    """Return rows and columns of the picture; raises :class:`ApplicationError` when it is unusable."""
    if image:
        rows, columns = grey_image(image, size, content).shape
        return rows, columns
    if importlib.util.find_spec("skimage") is None:
        raise MissingExtraError("the built-in picture needs scikit-image: pip install 'heterotask[apps]'")
    return size, size


@functools.lru_cache(maxsize=1)
def grey_image(image: str, size: int, content: str) -> Array:
    """Return the picture in file ``image``, or skimage's retina mirrored up to ``size`` when empty; read-only.

    ``content`` is what :func:`picture_content` had returned for it. Raises :class:`ApplicationError` for a file that is
    missing, unreadable, smaller than 3×3, or another one than it was.
    """
    if not image:
        pixels = _mirrored(size)
    else:
        data = _bytes(image)
        if hashlib.sha256(data).hexdigest()[:16] != content:
            raise ApplicationError(f"image {image!r} has changed since the task graph was built; run again")
        pixels = decoded(data, image)
    pixels.setflags(write=False)
    return pixels


def decoded(data: bytes, image: str) -> Array:
    """Return the grey float32 image that a file's bytes hold; raises :class:`ApplicationError` naming ``image``."""
    try:
        samples, top = _samples(data)
    except ImportError as error:
        raise MissingExtraError(f"reading {image!r} needs {error.name}: pip install 'heterotask[apps]'") from error
    except _RefusedError as error:
        raise ApplicationError(f"image {image!r} {error}") from error
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ApplicationError(f"image {image!r} cannot be read: {reason}; give {FORMATS}") from error
    grey = _grey(samples, top)
    if min(grey.shape) < 3:
        rows, columns = grey.shape
        raise ApplicationError(f"image {image!r} has {rows}×{columns} pixels; edges need at least 3×3")
    return grey


class _RefusedError(Exception):
    """A readable file that is not one picture of up to 16 bits; the message follows the file's name."""


def _bytes(image: str) -> bytes:
    path = Path(image)
    if not path.is_file():
        raise ApplicationError(f"image {image!r} is not a file; give the path of {FORMATS}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ApplicationError(f"image {image!r} cannot be read: {error.strerror}; give {FORMATS}") from error


def _mirrored(size: int) -> Array:
    grey = _grey(photograph("skimage", "retina.jpg"), 255)
    rows, columns = grey.shape
    return np.ascontiguousarray(
        np.pad(grey, ((0, max(0, size - rows)), (0, max(0, size - columns))), mode="symmetric")[:size, :size]
    )


def _samples(data: bytes) -> tuple[Array, int]:
    """Return the samples, (rows, columns) or (rows, columns, 3), and the value of white."""
    if data[:4] in TIFF_SIGNATURES:
        return _tiff(data)
    if data[:8] == PNG_SIGNATURE and bits_a_sample(data) == 16:
        # Pillow would halve the depth of colour.
        pixels = read_deep_png(data)
        return pixels[..., 0] if pixels.shape[2] < 3 else pixels[..., :3], 65535
    return _with_pillow(data, ("PNG", "JPEG"))


def _with_pillow(data: bytes, formats: tuple[str, ...]) -> tuple[Array, int]:
    from PIL import Image, UnidentifiedImageError

    with any_size():
        try:
            picture = Image.open(io.BytesIO(data), formats=formats)
        except UnidentifiedImageError:
            raise _RefusedError(f"is no PNG, JPEG or TIFF; give {FORMATS}") from None
        with picture:
            # A camera's MPO is a JPEG with previews behind it.
            frames = 1 if picture.format == "MPO" else getattr(picture, "n_frames", 1)
            if frames > 1:
                raise _RefusedError(f"holds {frames} pictures; give one of them as a file of its own")
            if picture.mode.startswith("I;16"):
                return np.asarray(picture).astype(np.uint16), 65535
            if picture.mode in ("1", "L", "LA", "La"):
                return np.asarray(picture.convert("L")), 255
            if picture.mode in ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"):
                return np.asarray(picture.convert("RGB")), 255
            raise _RefusedError(f"has pixels of a kind ({picture.mode}) that is not read; convert it to 8 or 16 bits")


def _tiff(data: bytes) -> tuple[Array, int]:
    import tifffile

    with tifffile.TiffFile(io.BytesIO(data)) as file:
        every: Any = file.pages
        pages = [page for page in every if not (page.is_reduced or page.is_mask)]
        if len(pages) != 1:
            raise _RefusedError(f"holds {len(pages)} pictures; give one of them as a file of its own")
        page = pages[0]
        kind, bits = np.dtype(page.dtype or "V"), page.bitspersample
        if kind.kind not in "bu" or not isinstance(bits, int) or bits > 16 or page.imagedepth > 1:
            raise _RefusedError(f"has pixels of {kind.name}; convert it to 8 or 16 bits")
        photometric = page.photometric
        simple = photometric in (
            tifffile.PHOTOMETRIC.MINISWHITE,
            tifffile.PHOTOMETRIC.MINISBLACK,
            tifffile.PHOTOMETRIC.RGB,
            tifffile.PHOTOMETRIC.PALETTE,
        )
        try:
            pixels = page.asarray() if simple else None
        except ValueError as error:
            if "imagecodecs" not in str(error):
                raise
            pixels = None
        if pixels is None:
            # Another colour space or a compression that tifffile leaves to a further package: libtiff knows many.
            if bits > 8 and page.samplesperpixel > 1:
                raise _RefusedError(
                    f"is deep colour compressed as {page.compression.name}; save it uncompressed or as PNG"
                )
            return _with_pillow(data, ("TIFF",))
        top = (1 << bits) - 1
        pixels = np.moveaxis(pixels, 0, -1) if page.axes == "SYX" else pixels
        if photometric == tifffile.PHOTOMETRIC.PALETTE:
            # Writers scale 8 bits by 256 or 257.
            return np.moveaxis(page.colormap[:, pixels] >> 8, 0, -1), 255
        if photometric == tifffile.PHOTOMETRIC.RGB:
            return pixels[..., :3], top
        grey = pixels[..., 0] if pixels.ndim == 3 else pixels
        return top - grey.astype(np.uint16) if photometric == tifffile.PHOTOMETRIC.MINISWHITE else grey, top


@contextmanager
def any_size() -> Iterator[None]:
    """Let Pillow open pictures of any size: the user's own, and our result, are no attack."""
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def _grey(samples: Array, top: int) -> Array:
    if samples.ndim == 3:
        red, green, blue = (samples[..., k].astype(np.float64) for k in range(3))
        grey = red * GREY_WEIGHTS[0] + green * GREY_WEIGHTS[1] + blue * GREY_WEIGHTS[2]
    else:
        grey = samples.astype(np.float64)
    return np.ascontiguousarray((grey / top).astype(np.float32))
