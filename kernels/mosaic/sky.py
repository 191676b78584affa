"""The built-in images: rotated, overlapping fields cut from one photograph, each with a background plane of its own.

Image k of a recipe depends on the recipe alone, so a process that does not find its file makes it anew.
"""

from __future__ import annotations

import functools
import math
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heterotask_core.errors import ApplicationError
from heterotask_core.sources import source_digest
from kernels.mosaic.geometry import Tangent, pixel_map, place
from kernels.mosaic.layout import Field
from kernels.samples import photograph

Array = np.ndarray[Any, Any]

GREY_WEIGHTS = (0.2125, 0.7154, 0.0721)
"""Luminance of linear red, green, blue (ITU-R BT.709)."""
SCALE = 2.0 / 3600.0
"""Degrees a pixel: the fields' tangent planes then differ by up to a pixel, so a flat mapping would be noticed."""
CENTRE = (189.2, 62.2)
"""Where on the sky the middle of the photograph lies, degrees."""
PITCH, JITTER = 0.7, 0.05
"""Distance of neighbouring fields, and their largest shift in each direction, in sides of a field.

A field holds the circle around its centre whatever its rotation, and circles closer than their diameter overlap.
"""
LEAST_ENLARGEMENT = 4.0
"""Pixels of a field to a pixel of the photograph: bilinear interpolation must see a smooth picture."""
OFFSET, RISE = 50.0, 20.0
"""Largest offset of a background and largest change of it across a field, grey values (the photograph has 0 to 255)."""
PHOTO = (872, 1000)


@dataclass(frozen=True)
class Recipe:
    """A set of images: rows and columns of each, how many, and the seed of rotations, shifts and backgrounds."""

    size: int
    count: int
    seed: int


@dataclass(frozen=True)
class Made:
    """One image: its geometry and its background, offset at the middle and rise by column and row."""

    field: Field
    plane: tuple[float, float, float]


@functools.lru_cache(maxsize=2)
def all_made(recipe: Recipe) -> tuple[Made, ...]:
    """Return geometry and backgrounds of a recipe's images."""
    rng = np.random.default_rng(recipe.seed)
    columns, rows = _raster(recipe.count)
    size, sky = recipe.size, _sky()
    middle = (size - 1) / 2
    found = []
    for k in range(recipe.count):
        row, column = divmod(k, columns)
        shift = rng.uniform(-JITTER, JITTER, 2)
        x = ((column - (columns - 1) / 2) * PITCH + shift[0]) * size
        y = ((row - (rows - 1) / 2) * PITCH + shift[1]) * size
        angle = rng.uniform(0.0, 2.0 * math.pi)
        across, up = SCALE * math.cos(angle), SCALE * math.sin(angle)
        tangent = Tangent(place(sky.to_rays() @ [x, y, 1.0]), (middle + 1, middle + 1), ((-across, up), (up, across)))
        offset, right, down = rng.uniform(-1.0, 1.0, 3) * (OFFSET, RISE / size, RISE / size)
        field = Field(f"field-{k:05d}.fits", tangent, size, size)
        found.append(Made(field, (float(offset), float(right), float(down))))
    return tuple(found)


def background(plane: tuple[float, float, float], x: Array, y: Array, size: int) -> Array:
    """Return a background at pixels (``x``, ``y``) of its image of ``size``² pixels."""
    middle = (size - 1) / 2
    return np.asarray(plane[0] + plane[1] * (x - middle) + plane[2] * (y - middle))


def folder(cache: str, recipe: Recipe) -> Path:
    """Return where a recipe's files lie: in ``cache``, or in the user's cache folder when that is empty."""
    own = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heterotask" / "mosaic"
    version = source_digest(__name__)[:8]
    return (Path(cache) if cache else own) / f"{recipe.count}x{recipe.size}-{recipe.seed}-{version}"


def image_file(cache: str, recipe: Recipe, index: int) -> Path:
    """Return the file of image ``index``, made if it is not there.

    Raises:
        ApplicationError: the folder cannot be written.
        MissingExtraError: scikit-image or Astropy is not installed.
    """
    made = all_made(recipe)[index]
    path = folder(cache, recipe) / made.field.name
    if not path.is_file():
        from kernels.mosaic.files import fits_bytes, wcs_cards

        cards = {**wcs_cards(made.field.tangent), "BUNIT": "count"}
        data = fits_bytes(_pixels(recipe, made), cards)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Several processes may make the same file: each writes its own and renames it.
            with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
                file.write(data)
            Path(file.name).replace(path)
        except OSError as error:
            raise ApplicationError(
                f"cannot write the generated image {str(path)!r}: {error.strerror}; give a folder with -p cache=FOLDER"
            ) from error
    return path


def _raster(count: int) -> tuple[int, int]:
    columns = math.ceil(math.sqrt(count * PHOTO[1] / PHOTO[0]))
    return columns, -(-count // columns)


def _sky() -> Tangent:
    """The plane that the photograph lies in: pixels of the fields' scale, counted from the middle."""
    return Tangent(CENTRE, (1.0, 1.0), ((-SCALE, 0.0), (0.0, SCALE)))


def _pixels(recipe: Recipe, made: Made) -> Array:
    from scipy import ndimage

    columns, rows = _raster(recipe.count)
    extents = [((n - 1) * PITCH + math.sqrt(2.0) + 2 * JITTER) * recipe.size for n in (rows, columns)]
    enlargement = max(LEAST_ENLARGEMENT, *(e / (n - 1) for e, n in zip(extents, PHOTO, strict=True)))
    matrix = pixel_map(_sky(), made.field.tangent)
    y, x = np.mgrid[0 : recipe.size, 0 : recipe.size].astype(np.float64)
    across, up, w = (m[0] * x + m[1] * y + m[2] for m in matrix)
    places = [up / w / enlargement + (PHOTO[0] - 1) / 2, across / w / enlargement + (PHOTO[1] - 1) / 2]
    picture = ndimage.map_coordinates(_photograph(), places, order=3, mode="mirror", prefilter=False)
    return np.asarray(picture + background(made.plane, x, y, recipe.size)).astype(np.float32)


@functools.lru_cache(maxsize=1)
def _photograph() -> Array:
    """Return the spline coefficients of scikit-image's hubble_deep_field in grey, 0 to 255, first row at the bottom."""
    from scipy import ndimage

    grey = photograph("skimage", "hubble_deep_field.jpg")[::-1].astype(np.float64) @ np.array(GREY_WEIGHTS)
    return np.asarray(ndimage.spline_filter(grey, order=3, mode="mirror"))
