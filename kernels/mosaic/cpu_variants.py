"""Host variants in NumPy, the reference of all others, which give the same bits.

Coordinates are float64 without contraction, values float32; sums of many pixels are float64 in one order: runs of
``RUN`` rows a column, then the runs of a column, then columns in ``LANES`` lanes, then halves of the lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heterotask_core.errors import ApplicationError
from kernels.mosaic.files import fits_bytes, preview_png, read_pixels
from kernels.mosaic.sky import Recipe, image_file
from kernels.results import write_array, write_bytes

Array = np.ndarray[Any, Any]

RUN, LANES = 32, 128
BLOCK_ROWS = 64
"""Rows that the reprojection computes at once: its temporaries stay in the cache."""
MAX_WEIGHT = 255.0


def load(*, pixels: Array, file: str, content: str, made: Sequence[int]) -> None:
    """Read an image; ``made`` is the recipe and index of a built-in one, whose cache folder ``file`` is then."""
    if made:
        size, count, seed, index = made
        path = image_file(file, Recipe(size, count, seed), index)
    else:
        path = Path(file)
    found = read_pixels(path, content)
    if found.shape != pixels.shape:
        raise ApplicationError(f"image {str(path)!r} is {found.shape}, not {pixels.shape}; run again")
    pixels[...] = found


def reproject(*, pixels: Array, area: Array, weight: Array, matrix: Sequence[float]) -> None:
    """Interpolate an image bilinearly at the pixels of its box on the common grid.

    ``weight`` is the distance to the image's border in its pixels, rounded up, 255 at most; 0 where the image has no
    finite value, and ``area`` is 0 there. Up to half a pixel outside the outermost centres their values go on.
    """
    rows, columns = pixels.shape
    h = [np.float64(v) for v in matrix]
    x = np.arange(area.shape[1], dtype=np.float64)
    for top in range(0, area.shape[0], BLOCK_ROWS):
        out, weights = area[top : top + BLOCK_ROWS], weight[top : top + BLOCK_ROWS]
        y = np.arange(top, top + len(out), dtype=np.float64)[:, None]
        w = (h[6] * x + h[7] * y) + h[8]
        with np.errstate(all="ignore"):
            sx = ((h[0] * x + h[1] * y) + h[2]) / w
            sy = ((h[3] * x + h[4] * y) + h[5]) / w
            across = np.minimum(sx, (columns - 1) - sx)
            up = np.minimum(sy, (rows - 1) - sy)
            distance = np.minimum(across, up) + 0.5
            inside = (w > 0.0) & (distance > 0.0)
        cx = np.clip(np.where(inside, sx, 0.0), 0.0, columns - 1)
        cy = np.clip(np.where(inside, sy, 0.0), 0.0, rows - 1)
        x0 = np.minimum(cx.astype(np.int64), columns - 2)
        y0 = np.minimum(cy.astype(np.int64), rows - 2)
        fx, fy = (cx - x0).astype(np.float32), (cy - y0).astype(np.float32)
        gx, gy = np.float32(1.0) - fx, np.float32(1.0) - fy
        with np.errstate(invalid="ignore", over="ignore"):
            below = pixels[y0, x0] * gx + pixels[y0, x0 + 1] * fx
            above = pixels[y0 + 1, x0] * gx + pixels[y0 + 1, x0 + 1] * fx
            value = below * gy + above * fy
        inside &= np.isfinite(value)
        out[...] = np.where(inside, value, np.float32(0.0))
        weights[...] = np.where(inside, np.minimum(np.ceil(distance), MAX_WEIGHT), 0.0)


def fit(
    *,
    first: Array,
    first_weight: Array,
    second: Array,
    second_weight: Array,
    sums: Array,
    first_start: Sequence[int],
    second_start: Sequence[int],
    extent: Sequence[int],
) -> None:
    """Write the normal equations of the plane through two images' difference d, over the pixels that both have.

    Nine sums: 1, x, y, x², xy, y², d, xd, yd, with x and y counted from the middle of the overlap's box.
    """
    rows, columns = extent
    (i, j), (k, m) = first_start, second_start
    both = (first_weight[i : i + rows, j : j + columns] > 0) & (second_weight[k : k + rows, m : m + columns] > 0)
    difference = first[i : i + rows, j : j + columns].astype(np.float64) - second[k : k + rows, m : m + columns]
    runs = -(-rows // RUN)
    one, d = np.zeros((2, runs * RUN, columns))
    one[:rows] = both
    d[:rows] = np.where(both, difference, 0.0)
    y = (np.arange(runs * RUN, dtype=np.float64) - rows // 2)[:, None]
    parts = np.zeros((5, runs, columns))
    for term, part in zip((one, y * one, (y * y) * one, d, y * d), parts, strict=True):
        by_run = term.reshape(runs, RUN, columns)
        for row in range(RUN):
            part += by_run[:, row]
    of_column = np.zeros((5, columns))
    for run in range(runs):
        of_column += parts[:, run]
    n, sum_y, sum_yy, sum_d, sum_yd = of_column
    x = np.arange(columns, dtype=np.float64) - columns // 2
    lanes = np.zeros((9, LANES))
    terms = np.stack([n, x * n, sum_y, (x * x) * n, x * sum_y, sum_yy, sum_d, x * sum_d, sum_yd])
    for start in range(0, columns, LANES):
        part = terms[:, start : start + LANES]
        lanes[:, : part.shape[1]] += part
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    sums[...] = lanes[:, 0]


def correct(
    *,
    area: Array,
    weight: Array,
    planes: Array,
    pieces: Sequence[Array],
    piece_weights: Sequence[Array],
    index: int,
    start: Sequence[int],
    cuts: Sequence[Sequence[int]],
) -> None:
    """Take an image's background plane off and cut the image at the borders of tiles.

    ``start`` is the area's first row and column from the mosaic's centre; ``cuts`` the same of the pieces in the area.
    """
    a, b, c = planes[index]
    for piece, piece_weight, (top, left) in zip(pieces, piece_weights, cuts, strict=True):
        rows, columns = piece.shape
        y = np.arange(start[0] + top, start[0] + top + rows, dtype=np.float64)[:, None]
        x = np.arange(start[1] + left, start[1] + left + columns, dtype=np.float64)
        weights = weight[top : top + rows, left : left + columns]
        level = area[top : top + rows, left : left + columns] - ((a + b * x) + c * y)
        piece[...] = np.where(weights > 0, level, 0.0)
        piece_weight[...] = weights


def coadd(
    *, pieces: Sequence[Array], piece_weights: Sequence[Array], tile: Array, covered: Array,
    places: Sequence[Sequence[int]],
) -> None:  # fmt: skip
    """Write the weighted mean of the pieces of a tile, in their order, and 1 where there is any; 0 elsewhere."""
    total, weights = np.zeros((2, *tile.shape))
    for piece, weight, (top, left) in zip(pieces, piece_weights, places, strict=True):
        here = np.s_[top : top + piece.shape[0], left : left + piece.shape[1]]
        total[here] += piece.astype(np.float64) * weight
        weights[here] += weight
    seen = weights > 0.0
    tile[...] = np.where(seen, total / np.where(seen, weights, 1.0), 0.0)
    covered[...] = seen


def shrink(*, tile: Array, covered: Array, small: Array, small_covered: Array, factor: int) -> None:
    """Write the mean of the covered pixels of each square of ``factor`` pixels a side, and 1 where there is any."""
    rows, columns = small.shape
    total, count = np.zeros((2, rows, columns))
    for i in range(factor):
        for j in range(factor):
            value, seen = tile[i::factor, j::factor], covered[i::factor, j::factor]
            here = np.s_[: value.shape[0], : value.shape[1]]
            total[here] += np.where(seen > 0, value, np.float32(0.0))
            count[here] += seen
    some = count > 0.0
    small[...] = np.where(some, total / np.where(some, count, 1.0), 0.0)
    small_covered[...] = some


def store_tile(*, tile: Array, covered: Array, path: Path, cards: Mapping[str, Any]) -> None:
    """Write a tile as FITS, not a number where no image is."""
    write_bytes(path, fits_bytes(np.where(covered > 0, tile, np.float32(np.nan)), cards))


def store_preview(
    *,
    smalls: Sequence[Array],
    small_covered: Sequence[Array],
    planes: Array,
    places: Sequence[Sequence[int]],
    shape: Sequence[int],
    fits_path: Path,
    png_path: Path,
    planes_path: Path,
    cards: Mapping[str, Any],
) -> None:
    """Write the shrunken mosaic as FITS and PNG, and the background planes as ``.npy``."""
    whole, seen = np.zeros(shape, np.float32), np.zeros(shape, np.uint8)
    for small, covered, (top, left) in zip(smalls, small_covered, places, strict=True):
        here = np.s_[top : top + small.shape[0], left : left + small.shape[1]]
        whole[here], seen[here] = small, covered
    write_bytes(fits_path, fits_bytes(np.where(seen > 0, whole, np.float32(np.nan)), cards))
    write_bytes(png_path, preview_png(whole, seen))
    write_array(planes_path, planes)
