"""OpenCL and CUDA variants: launches of ``canny.cl``, one source for both.

Every pixel kernel reads the tile and its neighbours' strips where they lie and writes the own strips itself, so a
task is one or two launches. The Gaussian's taps need ``exp``, which no device rounds correctly: the host computes them
once, when the task is bound, and they travel as arguments of the launches (DESIGN §4); the masks need only sums and
products, which are exact everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from heterotask_core.kernel import ArrayArg, Launch
from kernels.canny.numpy_variants import gaussian_taps

LINE = (128,)
PLANE = (64, 4)
RUN = 64
"""Pixels a work item of the kernels that are called _runs."""
RUNS = (1, 8)
SIDES = ("N", "S", "W", "E", "NW", "NE", "SW", "SE")
"""In the order of the source's arguments; side k has bit k."""


def _line(entry: str, count: int, *args: Any) -> Launch:
    return Launch(entry, (count,), LINE, _numbers(args))


def _plane(entry: str, rows: int, columns: int, *args: Any) -> Launch:
    return Launch(entry, (columns, rows), PLANE, _numbers(args))


def _runs(entry: str, rows: int, runs: int, *args: Any) -> Launch:
    return Launch(f"{entry}_runs", (runs, rows), RUNS, _numbers(args))


def _run_count(pixels: int) -> int:
    return -(-pixels // RUN)


def _numbers(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(np.int32(a) if isinstance(a, int) else a for a in args)


def _sides(strips: Sequence[ArrayArg], sides: str, absent: ArrayArg) -> tuple[list[ArrayArg], int]:
    """Return an argument for each of the eight sides, ``absent`` standing in, and the bits of those present."""
    present = dict(zip(sides.split(","), strips, strict=True)) if sides else {}
    return [present.get(side, absent) for side in SIDES], sum(1 << SIDES.index(side) for side in present)


def _around(tile: ArrayArg, halo: Sequence[ArrayArg], sides: str, depth: int) -> list[Any]:
    """Return the arguments that the source calls AROUND."""
    strips, present = _sides(halo, sides, tile)
    below = strips[1].shape[0] if present & 2 else 0
    right = strips[3].shape[1] if present & 8 else 0
    return [*strips, present, depth, below, right]


def weights(taps: ArrayArg, row_mask: ArrayArg, column_mask: ArrayArg, *, sigma: float) -> list[Launch]:
    """Write the Gaussian's taps, computed here, and blur ones along both axes."""
    values = gaussian_taps(sigma)
    radius = len(values) - 1
    return [
        *(_line("place_float", 1, taps, k, value) for k, value in enumerate(values)),
        *(_line("blur_ones", mask.shape[0], taps, mask, mask.shape[0], radius) for mask in (row_mask, column_mask)),
    ]


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
    depth = taps.shape[0] - 1
    own, give = _sides(strips, sides, blurred)
    numbers = give, rows, columns, depth, row, column, np.finfo(np.float32).eps
    around = _around(tile, halo, sides, depth)
    return [
        _plane("blur_down", rows, columns + 2 * depth, tile, *around, taps, None, rows, columns),
        _plane("blur_across", rows, columns, None, taps, row_mask, column_mask, blurred, *own, *numbers),
    ]


def gaussian_runs(
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
    """Blur and divide by the blurred mask, in runs of pixels."""
    rows, columns = tile.shape
    depth = taps.shape[0] - 1
    own, give = _sides(strips, sides, blurred)
    numbers = give, rows, columns, depth, row, column, np.finfo(np.float32).eps
    around = _around(tile, halo, sides, depth)
    return [
        _runs("blur_down", rows, _run_count(columns) + 2 * _run_count(depth), tile, *around, taps, None, rows, columns),
        _runs("blur_across", rows, _run_count(columns), None, taps, row_mask, column_mask, blurred, *own, *numbers),
    ]


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
    own, _ = _sides(strips, sides, magnitude)
    around = _around(blurred, halo, sides, 1)
    return [_plane("gradient", rows, columns, blurred, *around, down, across, magnitude, *own, rows, columns)]


def sobel_runs(
    blurred: ArrayArg,
    down: ArrayArg,
    across: ArrayArg,
    magnitude: ArrayArg,
    halo: Sequence[ArrayArg] = (),
    strips: Sequence[ArrayArg] = (),
    *,
    sides: str,
) -> list[Launch]:
    """Gradient along rows and columns, and its length, in runs of pixels."""
    rows, columns = blurred.shape
    own, _ = _sides(strips, sides, magnitude)
    around = _around(blurred, halo, sides, 1)
    return [
        _runs("gradient", rows, _run_count(columns), blurred, *around, down, across, magnitude, *own, rows, columns)
    ]


def suppress(
    down: ArrayArg, across: ArrayArg, magnitude: ArrayArg, thin: ArrayArg, halo: Sequence[ArrayArg] = (), *, sides: str
) -> list[Launch]:
    """Keep a magnitude that no interpolated neighbour along the gradient exceeds; else, and at the border, 0."""
    rows, columns = magnitude.shape
    around = _around(magnitude, halo, sides, 1)
    return [_plane("thin_out", rows, columns, magnitude, *around, down, across, thin, rows, columns)]


def suppress_runs(
    down: ArrayArg, across: ArrayArg, magnitude: ArrayArg, thin: ArrayArg, halo: Sequence[ArrayArg] = (), *, sides: str
) -> list[Launch]:
    """Keep a magnitude that no interpolated neighbour along the gradient exceeds; in runs of pixels."""
    rows, columns = magnitude.shape
    around = _around(magnitude, halo, sides, 1)
    return [_runs("thin_out", rows, _run_count(columns), magnitude, *around, down, across, thin, rows, columns)]


def threshold(thin: ArrayArg, grade: ArrayArg, *, low: float, high: float) -> list[Launch]:
    """Grade 0 below ``low``, 1 from ``low``, 2 from ``high``."""
    count = thin.shape[0] * thin.shape[1]
    return [_line("grade_pixels", count, thin, grade, count, np.float32(low), np.float32(high))]


def label(grade: ArrayArg, labels: ArrayArg, frame: ArrayArg) -> list[Launch]:
    """Label 8-connected components by 1 + their first flat index (lock-free union-find by atomic minimum)."""
    rows, columns = grade.shape
    count, border = rows * columns, frame.shape[0]
    return [
        _line("label_start", count, None, count),
        _plane("label_link", rows, columns, grade, None, rows, columns),
        # The strong bit turns a mark negative, so the minimum comes first.
        _line("label_seat", border, grade, None, border, rows, columns),
        _line("label_mark", count, grade, None, count),
        _plane("label_write", rows, columns, grade, None, labels, frame, rows, columns),
    ]


def _join(
    first: ArrayArg, second: ArrayArg, first_shape: Sequence[int], second_shape: Sequence[int], stacked: bool
) -> tuple[list[Launch], int, list[int]]:
    """Return the launches that unite what touches, the positions of both frames, and the shapes as numbers."""
    rows, columns = first_shape
    n = first.shape[0]
    count = n + second.shape[0]
    one, other, length = (columns, 0, columns) if stacked else (2 * columns + rows, 2 * second_shape[1], rows)
    launches = [
        _line("join_start", count, first, second, None, n, count),
        _line("join_link", length, first, second, None, n, one, other, length),
    ]
    return launches, count, [*first_shape, *second_shape, int(stacked)]


def merge(
    first: ArrayArg,
    second: ArrayArg,
    union: ArrayArg,
    *,
    first_shape: list[int],
    second_shape: list[int],
    stacked: bool,
) -> list[Launch]:
    """Join the frames of two blocks, side by side or ``stacked``, into the frame of their union."""
    launches, count, shapes = _join(first, second, first_shape, second_shape, stacked)
    numbers = first.shape[0], count, union.shape[0], *shapes
    return [
        *launches,
        _line("merge_mark", count, first, second, None, *numbers),
        _line("merge_write", union.shape[0], first, second, None, union, *numbers),
    ]


def spread(
    whole: ArrayArg,
    first: ArrayArg,
    second: ArrayArg,
    first_final: ArrayArg,
    second_final: ArrayArg,
    *,
    first_shape: list[int],
    second_shape: list[int],
    stacked: bool,
) -> list[Launch]:
    """Tell both blocks which of their components are strong, knowing so of the union's frame."""
    launches, count, shapes = _join(first, second, first_shape, second_shape, stacked)
    n = first.shape[0]
    return [
        *launches,
        _line("spread_mark", count, whole, first, second, None, n, count, whole.shape[0], *shapes),
        _line("spread_write", count, first, second, None, first_final, second_final, n, count),
    ]


def apply(labels: ArrayArg, frame: ArrayArg, edges: ArrayArg) -> list[Launch]:
    """Mark (255) the pixels of strong components."""
    rows, columns = labels.shape
    count, border = rows * columns, frame.shape[0]
    return [
        _line("apply_start", count + 1, None, count + 1),
        _line("apply_mark", border, labels, frame, None, border, rows, columns),
        _line("apply_write", count, labels, None, edges, count),
    ]
