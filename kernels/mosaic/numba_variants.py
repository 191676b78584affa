"""Host variants in Numba: each one pass over its pixels, without temporaries of their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np

from kernels.mosaic.cpu_variants import LANES, MAX_WEIGHT, RUN

Array = np.ndarray[Any, Any]

_jit: Any = numba.njit(cache=True, nogil=True, fastmath=False, error_model="numpy")

BAND = 64
"""Rows of a tile whose sums stay in the cache while the pieces are added."""


@_jit
def _reproject(pixels, h, area, weight):  # type: ignore[no-untyped-def]
    rows, columns = pixels.shape
    last_x, last_y = np.float64(columns - 1), np.float64(rows - 1)
    one = np.float32(1.0)
    for i in range(area.shape[0]):
        y = np.float64(i)
        for j in range(area.shape[1]):
            x = np.float64(j)
            value, found = np.float32(0.0), 0.0
            w = (h[6] * x + h[7] * y) + h[8]
            sx = ((h[0] * x + h[1] * y) + h[2]) / w
            sy = ((h[3] * x + h[4] * y) + h[5]) / w
            distance = min(min(sx, last_x - sx), min(sy, last_y - sy)) + 0.5
            if w > 0.0 and distance > 0.0:
                cx, cy = min(max(sx, 0.0), last_x), min(max(sy, 0.0), last_y)
                x0, y0 = min(np.int64(cx), columns - 2), min(np.int64(cy), rows - 2)
                fx, fy = np.float32(cx - x0), np.float32(cy - y0)
                gx, gy = one - fx, one - fy
                below = pixels[y0, x0] * gx + pixels[y0, x0 + 1] * fx
                above = pixels[y0 + 1, x0] * gx + pixels[y0 + 1, x0 + 1] * fx
                value = below * gy + above * fy
                if np.isfinite(value):
                    found = min(np.ceil(distance), MAX_WEIGHT)
                else:
                    value = np.float32(0.0)
            area[i, j] = value
            weight[i, j] = np.uint8(found)


def reproject(*, pixels: Array, area: Array, weight: Array, matrix: Sequence[float]) -> None:
    """Interpolate an image bilinearly at the pixels of its box on the common grid."""
    _reproject(pixels, np.array(matrix), area, weight)


@_jit
def _fit(first, first_weight, second, second_weight, i0, j0, k0, m0, rows, columns, sums):  # type: ignore[no-untyped-def]
    whole = np.zeros((5, columns))
    part = np.empty((5, columns))
    for top in range(0, rows, RUN):
        part[...] = 0.0
        for i in range(top, min(top + RUN, rows)):
            y = np.float64(i - rows // 2)
            yy = y * y
            a, b = first[i0 + i, j0 : j0 + columns], second[k0 + i, m0 : m0 + columns]
            p, q = first_weight[i0 + i, j0 : j0 + columns], second_weight[k0 + i, m0 : m0 + columns]
            for j in range(columns):
                both = p[j] > 0 and q[j] > 0
                one = 1.0 if both else 0.0
                d = np.float64(a[j]) - np.float64(b[j]) if both else 0.0
                part[0, j] += one
                part[1, j] += y * one
                part[2, j] += yy * one
                part[3, j] += d
                part[4, j] += y * d
        for k in range(5):
            for j in range(columns):
                whole[k, j] += part[k, j]
    lanes = np.zeros((9, LANES))
    for j in range(columns):
        x, lane = np.float64(j - columns // 2), j % LANES
        n, sum_y, sum_d = whole[0, j], whole[1, j], whole[3, j]
        lanes[0, lane] += n
        lanes[1, lane] += x * n
        lanes[2, lane] += sum_y
        lanes[3, lane] += (x * x) * n
        lanes[4, lane] += x * sum_y
        lanes[5, lane] += whole[2, j]
        lanes[6, lane] += sum_d
        lanes[7, lane] += x * sum_d
        lanes[8, lane] += whole[4, j]
    for k in range(9):
        half = LANES // 2
        while half > 0:
            for lane in range(half):
                lanes[k, lane] += lanes[k, lane + half]
            half //= 2
        sums[k] = lanes[k, 0]


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
    """Write the normal equations of the plane through two images' difference."""
    _fit(first, first_weight, second, second_weight, *first_start, *second_start, *extent, sums)


@_jit
def _correct(area, weight, plane, piece, piece_weight, top, left, row, column):  # type: ignore[no-untyped-def]
    a, b, c = plane[0], plane[1], plane[2]
    for i in range(piece.shape[0]):
        rise = c * np.float64(row + i)
        for j in range(piece.shape[1]):
            found = weight[top + i, left + j]
            level = np.float64(area[top + i, left + j]) - ((a + b * np.float64(column + j)) + rise)
            piece[i, j] = np.float32(level if found > 0 else 0.0)
            piece_weight[i, j] = found


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
    """Take an image's background plane off and cut the image at the borders of tiles."""
    for piece, piece_weight, (top, left) in zip(pieces, piece_weights, cuts, strict=True):
        _correct(area, weight, planes[index], piece, piece_weight, top, left, start[0] + top, start[1] + left)


@_jit
def _add(piece, weight, top, left, band, total, weights):  # type: ignore[no-untyped-def]
    for i in range(max(top, band), min(top + piece.shape[0], band + total.shape[0])):
        for j in range(piece.shape[1]):
            w = np.float64(weight[i - top, j])
            total[i - band, left + j] += np.float64(piece[i - top, j]) * w
            weights[i - band, left + j] += w


@_jit
def _divide(total, weights, tile, covered):  # type: ignore[no-untyped-def]
    for i in range(tile.shape[0]):
        for j in range(tile.shape[1]):
            seen = weights[i, j] > 0.0
            tile[i, j] = np.float32(total[i, j] / weights[i, j]) if seen else np.float32(0.0)
            covered[i, j] = seen


def coadd(
    *,
    pieces: Sequence[Array],
    piece_weights: Sequence[Array],
    tile: Array,
    covered: Array,
    places: Sequence[Sequence[int]],
) -> None:
    """Write the weighted mean of the pieces of a tile, band by band."""
    sums = np.empty((2, BAND, tile.shape[1]))
    for band in range(0, tile.shape[0], BAND):
        rows = min(BAND, tile.shape[0] - band)
        total, weights = sums[0, :rows], sums[1, :rows]
        sums[...] = 0.0
        for piece, weight, (top, left) in zip(pieces, piece_weights, places, strict=True):
            _add(piece, weight, top, left, band, total, weights)
        _divide(total, weights, tile[band : band + rows], covered[band : band + rows])


@_jit
def _shrink(tile, covered, factor, small, small_covered):  # type: ignore[no-untyped-def]
    for i in range(small.shape[0]):
        for j in range(small.shape[1]):
            total, count = 0.0, 0
            for y in range(i * factor, min((i + 1) * factor, tile.shape[0])):
                for x in range(j * factor, min((j + 1) * factor, tile.shape[1])):
                    if covered[y, x] > 0:
                        total += np.float64(tile[y, x])
                        count += 1
            small[i, j] = np.float32(total / count) if count > 0 else np.float32(0.0)
            small_covered[i, j] = count > 0


def shrink(*, tile: Array, covered: Array, small: Array, small_covered: Array, factor: int) -> None:
    """Write the mean of the covered pixels of each square of ``factor`` pixels a side."""
    _shrink(tile, covered, factor, small, small_covered)
