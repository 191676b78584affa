"""OpenCL and CUDA variants: launches of ``canny.cl``, one source for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heterotask_core.kernel import ArrayArg, Launch
from kernels.canny.numpy_variants import halo_start, side_offsets, strip_start

LINE = (128,)
PLANE = (32, 4)
Shape = tuple[int, ...]


def _line(entry: str, count: int, *args: Any) -> Launch:
    return Launch(entry, (count,), LINE, args)


def _plane(entry: str, rows: int, columns: int, *args: Any) -> Launch:
    return Launch(entry, (columns, rows), PLANE, args)


def _i(value: int) -> np.int32:
    return np.int32(value)


def _copy(
    source: ArrayArg, source_width: int, source_at: Shape, target: ArrayArg | None, width: int, at: Shape, extent: Shape
) -> Launch:
    numbers = [_i(n) for n in (source_width, *source_at)], [_i(n) for n in (width, *at, *extent)]
    return _plane("copy_block", *extent, source, *numbers[0], target, *numbers[1])


def _padded(tile: ArrayArg, halo: Sequence[ArrayArg], sides: str, depth: int) -> list[Launch]:
    """Fill the scratch with the tile and its neighbours' strips, zero beyond the image."""
    rows, columns = tile.shape
    width = columns + 2 * depth
    count = (rows + 2 * depth) * width
    launches = [
        _line("clear_floats", count, None, _i(count)),
        _copy(tile, columns, (0, 0), None, width, (depth, depth), tile.shape),
    ]
    for (down, right), strip in zip(side_offsets(sides), halo, strict=True):
        at = halo_start(down, rows, depth, strip.shape[0]), halo_start(right, columns, depth, strip.shape[1])
        launches.append(_copy(strip, strip.shape[1], (0, 0), None, width, at, strip.shape))
    return launches


def _strips(tile: ArrayArg, strips: Sequence[ArrayArg], sides: str) -> list[Launch]:
    launches = []
    for (down, right), strip in zip(side_offsets(sides), strips, strict=True):
        at = (
            strip_start(down, tile.shape[0], strip.shape[0]),
            strip_start(right, tile.shape[1], strip.shape[1]),
        )
        launches.append(_copy(tile, tile.shape[1], at, strip, strip.shape[1], (0, 0), strip.shape))
    return launches


def gaussian(
    tile: ArrayArg,
    taps: ArrayArg,
    row_mask: ArrayArg,
    column_mask: ArrayArg,
    blurred: ArrayArg,
    halo: Sequence[ArrayArg] = (),
    strips: Sequence[ArrayArg] = (),
    *,
    row: int,
    column: int,
    sides: str,
) -> list[Launch]:
    """Blur and divide by the blurred mask."""
    rows, columns = tile.shape
    radius = taps.shape[0] - 1
    width = columns + 2 * radius
    offset = _i((rows + 2 * radius) * width)
    extent = _i(rows), _i(columns), _i(radius)
    eps = np.finfo(np.float32).eps
    return [
        *_padded(tile, halo, sides, radius),
        _plane("blur_down", rows, width, None, taps, None, offset, _i(rows), _i(width), _i(radius)),
        _plane(
            "blur_across",
            rows,
            columns,
            *(None, offset, taps, row_mask, column_mask, blurred, *extent, _i(row), _i(column), eps),
        ),
        *_strips(blurred, strips, sides),
    ]


def gaussian_scratch(params: Mapping[str, Any], shapes: Mapping[str, Shape]) -> int:
    """Bytes of the padded tile and of its vertically blurred lines."""
    rows, columns = shapes["tile"]
    radius = shapes["taps"][0] - 1
    return 4 * (columns + 2 * radius) * (2 * rows + 2 * radius)


def sobel(
    blurred: ArrayArg,
    down: ArrayArg,
    across: ArrayArg,
    magnitude: ArrayArg,
    halo: Sequence[ArrayArg] = (),
    strips: Sequence[ArrayArg] = (),
    *,
    sides: str,
) -> list[Launch]:
    """Gradient along rows and columns, and its length."""
    rows, columns = blurred.shape
    names = sides.split(",")
    first_row, first_column = int("N" not in names), int("W" not in names)
    last_row, last_column = rows + int("S" in names), columns + int("E" in names)
    numbers = [_i(n) for n in (rows, columns, first_row, last_row, first_column, last_column)]
    return [
        *_padded(blurred, halo, sides, 1),
        _plane("gradient", rows, columns, None, down, across, magnitude, *numbers),
        *_strips(magnitude, strips, sides),
    ]


def suppress(
    down: ArrayArg, across: ArrayArg, magnitude: ArrayArg, thin: ArrayArg, halo: Sequence[ArrayArg] = (), *, sides: str
) -> list[Launch]:
    """Keep a magnitude that no interpolated neighbour along the gradient exceeds."""
    rows, columns = magnitude.shape
    names = sides.split(",")
    first_row, last_row = int("N" not in names), rows - int("S" not in names)
    first_column, last_column = int("W" not in names), columns - int("E" not in names)
    numbers = [_i(n) for n in (rows, columns, first_row, last_row, first_column, last_column)]
    return [
        *_padded(magnitude, halo, sides, 1),
        _plane("thin_out", rows, columns, None, down, across, thin, *numbers),
    ]


def sobel_scratch(params: Mapping[str, Any], shapes: Mapping[str, Shape]) -> int:
    """Bytes of a tile padded by one."""
    return _ring_bytes(shapes["blurred"])


def suppress_scratch(params: Mapping[str, Any], shapes: Mapping[str, Shape]) -> int:
    """Bytes of a tile padded by one."""
    return _ring_bytes(shapes["magnitude"])


def _ring_bytes(shape: Shape) -> int:
    rows, columns = shape
    return 4 * (rows + 2) * (columns + 2)


def threshold(thin: ArrayArg, grade: ArrayArg, *, low: float, high: float) -> list[Launch]:
    """Grade 0 below ``low``, 1 from ``low``, 2 from ``high``."""
    count = thin.shape[0] * thin.shape[1]
    return [_line("grade_pixels", count, thin, grade, _i(count), np.float32(low), np.float32(high))]


def label(grade: ArrayArg, labels: ArrayArg, frame: ArrayArg) -> list[Launch]:
    """Label 8-connected components by 1 + their first flat index (lock-free union-find by atomic minimum)."""
    rows, columns = grade.shape
    count = rows * columns
    return [
        _line("label_start", count, None, _i(count)),
        _plane("label_link", rows, columns, grade, None, _i(rows), _i(columns)),
        _line("label_mark", count, grade, None, _i(count)),
        _plane("label_write", rows, columns, grade, None, labels, frame, _i(rows), _i(columns)),
    ]


def label_scratch(params: Mapping[str, Any], shapes: Mapping[str, Shape]) -> int:
    """Bytes of parents and flags."""
    return 8 * shapes["grade"][0] * shapes["grade"][1]


def apply(labels: ArrayArg, frame: ArrayArg, edges: ArrayArg) -> list[Launch]:
    """Mark (255) the pixels of strong components."""
    count = labels.shape[0] * labels.shape[1]
    border = frame.shape[0]
    return [
        _line("clear_bytes", count + 1, None, _i(count + 1)),
        _line("apply_mark", border, frame, None, _i(border)),
        _line("apply_write", count, labels, None, edges, _i(count)),
    ]


def apply_scratch(params: Mapping[str, Any], shapes: Mapping[str, Shape]) -> int:
    """Bytes of a flag a label."""
    return shapes["labels"][0] * shapes["labels"][1] + 1
