"""OpenCL and CUDA variants: launches of ``mosaic.cl``, one source for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heterotask_core.kernel import ArrayArg, Launch

RUN, LANES = 32, 128
"""As in the C source: rows a work item sums, columns a work group sums at once."""
PLANE = (64, 4)
PIECES = 8
"""Pieces that one launch adds."""


def _numbers(*values: int) -> tuple[np.int32, ...]:
    return tuple(np.int32(value) for value in values)


def _packed(row: int, column: int) -> np.uint32:
    return np.uint32(row << 16 | column)


def reproject(pixels: ArrayArg, area: ArrayArg, weight: ArrayArg, *, matrix: Sequence[float]) -> list[Launch]:
    """Interpolate an image bilinearly at the pixels of its box on the common grid."""
    rows, columns = area.shape
    numbers = _numbers(*pixels.shape, rows, columns)
    args = (pixels, area, weight, *numbers, *(np.float64(v) for v in matrix))
    return [Launch("reproject", (columns, rows), PLANE, args)]


def fit(
    first: ArrayArg,
    first_weight: ArrayArg,
    second: ArrayArg,
    second_weight: ArrayArg,
    sums: ArrayArg,
    *,
    first_start: Sequence[int],
    second_start: Sequence[int],
    extent: Sequence[int],
) -> list[Launch]:
    """Write the normal equations of the plane through two images' difference."""
    rows, columns = extent
    runs = -(-rows // RUN)
    where = _numbers(rows, columns, runs, *first_start, first.shape[1], *second_start, second.shape[1])
    return [
        Launch("fit_runs", (columns, runs), PLANE, (first, first_weight, second, second_weight, None, *where)),
        Launch("fit_columns", (LANES,), (LANES,), (None, sums, *_numbers(columns, runs))),
    ]


def fit_scratch(params: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Bytes of five float64 sums a column and run."""
    rows, columns = params["extent"]
    return 5 * 8 * int(-(-rows // RUN) * columns)


def correct(
    area: ArrayArg,
    weight: ArrayArg,
    planes: ArrayArg,
    pieces: Sequence[ArrayArg],
    piece_weights: Sequence[ArrayArg],
    *,
    index: int,
    start: Sequence[int],
    cuts: Sequence[Sequence[int]],
) -> list[Launch]:
    """Take an image's background plane off and cut the image at the borders of tiles, a launch a piece."""
    launches = []
    for piece, piece_weight, (top, left) in zip(pieces, piece_weights, cuts, strict=True):
        rows, columns = piece.shape
        numbers = _numbers(index, area.shape[1], top, left, rows, columns, start[0] + top, start[1] + left)
        args = (area, weight, planes, piece, piece_weight, *numbers)
        launches.append(Launch("correct", (columns, rows), PLANE, args))
    return launches


def coadd(
    pieces: Sequence[ArrayArg],
    piece_weights: Sequence[ArrayArg],
    tile: ArrayArg,
    covered: ArrayArg,
    *,
    places: Sequence[Sequence[int]],
) -> list[Launch]:
    """Write the weighted mean of the pieces of a tile, eight pieces a launch."""
    rows, columns = tile.shape
    every = list(zip(pieces, piece_weights, places, strict=True))
    launches = []
    for start in range(0, len(every), PIECES):
        args: list[Any] = [tile, covered, None]
        args += _numbers(rows, columns, start == 0, start + PIECES >= len(every))
        for piece, weight, place in every[start : start + PIECES]:
            args += [piece, weight, _packed(*place), _packed(*piece.shape)]
        # A slot without piece has no extent, so its pointers are not touched.
        for _ in range(start + PIECES - len(every)):
            args += [pieces[0], piece_weights[0], _packed(0, 0), _packed(0, 0)]
        launches.append(Launch("coadd", (columns, rows), PLANE, tuple(args)))
    return launches


def coadd_scratch(params: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Bytes of the sums that launches hand on, where there is more than one."""
    rows, columns = shapes["tile"]
    return 2 * 8 * rows * columns if len(params["places"]) > PIECES else 16


def shrink(tile: ArrayArg, covered: ArrayArg, small: ArrayArg, small_covered: ArrayArg, *, factor: int) -> list[Launch]:
    """Write the mean of the covered pixels of each square of ``factor`` pixels a side."""
    numbers = _numbers(*tile.shape, factor, *small.shape)
    return [Launch("shrink", small.shape[::-1], PLANE, (tile, covered, small, small_covered, *numbers))]
