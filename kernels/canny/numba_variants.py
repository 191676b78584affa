"""Numba variants: the NumPy variants' arithmetic in fused loops, compiled without fastmath and without FMA.

Numba (LLVM) contracts products and sums only under fastmath, so the results are NumPy's bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np

from kernels.canny.numpy_variants import cut_strips, padded, replicate_border

Array = np.ndarray[Any, Any]

_jit = numba.njit(cache=True, nogil=True, fastmath=False, error_model="numpy")


@_jit
def _gaussian(whole, taps, row_mask, column_mask, row, column, blurred):  # type: ignore[no-untyped-def]
    radius = len(taps) - 1
    rows, columns = blurred.shape
    width = whole.shape[1]
    eps = np.finfo(np.float32).eps
    line = np.empty(width, np.float32)
    for i in range(rows):
        centre = whole[i + radius]
        for j in range(width):
            line[j] = centre[j] * taps[0]
        for k in range(radius, 0, -1):
            above, below, tap = whole[i + radius - k], whole[i + radius + k], taps[k]
            for j in range(width):
                line[j] += (above[j] + below[j]) * tap
        out = blurred[i]
        for j in range(columns):
            out[j] = line[j + radius] * taps[0]
        for k in range(radius, 0, -1):
            tap = taps[k]
            for j in range(columns):
                out[j] += (line[j + radius - k] + line[j + radius + k]) * tap
        for j in range(columns):
            out[j] = out[j] / (row_mask[row + i] * column_mask[column + j] + eps)


@_jit
def _sobel(whole, down, across, magnitude):  # type: ignore[no-untyped-def]
    two = np.float32(2.0)
    rows, columns = down.shape
    for i in range(rows):
        a, b, c = whole[i], whole[i + 1], whole[i + 2]
        for j in range(columns):
            y = (c[j + 1] - a[j + 1]) * two + ((c[j] - a[j]) + (c[j + 2] - a[j + 2]))
            x = (b[j + 2] - b[j]) * two + ((a[j + 2] - a[j]) + (c[j + 2] - c[j]))
            down[i, j] = y
            across[i, j] = x
            magnitude[i, j] = np.sqrt(y * y + x * x)


@_jit
def _suppress(whole, down, across, magnitude, thin, first_row, last_row, first_column, last_column):  # type: ignore[no-untyped-def]
    one = np.float32(1.0)
    thin[...] = 0
    for i in range(first_row, last_row):
        for j in range(first_column, last_column):
            m = magnitude[i, j]
            if not m > 0:
                continue
            y, x = down[i, j], across[i, j]
            same = (y >= 0 and x >= 0) or (y <= 0 and x <= 0)
            ay, ax = abs(y), abs(x)
            steep = ay > ax if same else ay >= ax
            weight = ax / ay if steep else ay / ax
            flip = 1 if same else -1
            keep = True
            for sign in (1, -1):
                diagonal = whole[1 + i + flip * sign, 1 + j + sign]
                straight = whole[1 + i + flip * sign, 1 + j] if steep else whole[1 + i, 1 + j + sign]
                if not diagonal * weight + straight * (one - weight) <= m:
                    keep = False
            if keep:
                thin[i, j] = m


@_jit
def _threshold(thin, grade, low, high):  # type: ignore[no-untyped-def]
    rows, columns = thin.shape
    for i in range(rows):
        for j in range(columns):
            grade[i, j] = np.uint8(thin[i, j] >= low) + np.uint8(thin[i, j] >= high)


@_jit
def _root(parent, i):  # type: ignore[no-untyped-def]
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@_jit
def _label(grade, labels):  # type: ignore[no-untyped-def]
    rows, columns = grade.shape
    parent = np.empty(rows * columns, np.int32)
    strong = np.zeros(rows * columns, np.bool_)
    for i in range(rows):
        for j in range(columns):
            if grade[i, j] == 0:
                continue
            here = i * columns + j
            parent[here] = here
            for di, dj in ((0, -1), (-1, -1), (-1, 0), (-1, 1)):
                a, b = i + di, j + dj
                if a < 0 or b < 0 or b >= columns or grade[a, b] == 0:
                    continue
                one, two = _root(parent, here), _root(parent, a * columns + b)
                parent[max(one, two)] = min(one, two)
    for i in range(rows):
        for j in range(columns):
            if grade[i, j] == 2:
                strong[_root(parent, i * columns + j)] = True
    for i in range(rows):
        for j in range(columns):
            if grade[i, j] == 0:
                labels[i, j] = 0
            else:
                root = _root(parent, i * columns + j)
                labels[i, j] = -(root + 1) if strong[root] else root + 1


@_jit
def _frame(labels, frame):  # type: ignore[no-untyped-def]
    rows, columns = labels.shape
    for j in range(columns):
        frame[j] = labels[0, j]
        frame[columns + j] = labels[rows - 1, j]
    for i in range(rows):
        frame[2 * columns + i] = labels[i, 0]
        frame[2 * columns + rows + i] = labels[i, columns - 1]


@_jit
def _apply(labels, frame, edges):  # type: ignore[no-untyped-def]
    chosen = np.zeros(labels.size + 1, np.bool_)
    for value in frame:
        if value < 0:
            chosen[-value] = True
    rows, columns = labels.shape
    for i in range(rows):
        for j in range(columns):
            value = labels[i, j]
            edges[i, j] = 255 if value < 0 or chosen[value] else 0


def gaussian(
    tile: Array,
    taps: Array,
    row_mask: Array,
    column_mask: Array,
    blurred: Array,
    halo: Sequence[Array] = (),
    strips: Sequence[Array] = (),
    *,
    row: int,
    column: int,
    sides: str,
) -> None:
    """Blur and divide by the blurred mask."""
    _gaussian(padded(tile, halo, sides, len(taps) - 1), taps, row_mask, column_mask, row, column, blurred)
    cut_strips(blurred, strips, sides)


def sobel(
    blurred: Array,
    down: Array,
    across: Array,
    magnitude: Array,
    halo: Sequence[Array] = (),
    strips: Sequence[Array] = (),
    *,
    sides: str,
) -> None:
    """Gradient along rows and columns, and its length."""
    whole = padded(blurred, halo, sides, 1)
    replicate_border(whole, sides)
    _sobel(whole, down, across, magnitude)
    cut_strips(magnitude, strips, sides)


def suppress(
    down: Array, across: Array, magnitude: Array, thin: Array, halo: Sequence[Array] = (), *, sides: str
) -> None:
    """Keep a magnitude that no interpolated neighbour along the gradient exceeds."""
    names = sides.split(",")
    rows, columns = magnitude.shape
    whole = padded(magnitude, halo, sides, 1)
    first_row, last_row = int("N" not in names), rows - int("S" not in names)
    first_column, last_column = int("W" not in names), columns - int("E" not in names)
    _suppress(whole, down, across, magnitude, thin, first_row, last_row, first_column, last_column)


def threshold(thin: Array, grade: Array, *, low: float, high: float) -> None:
    """Grade 0 below ``low``, 1 from ``low``, 2 from ``high``."""
    _threshold(thin, grade, np.float32(low), np.float32(high))


def label(grade: Array, labels: Array, frame: Array) -> None:
    """Label 8-connected components by 1 + their first flat index; negative where one holds a grade 2."""
    _label(grade, labels)
    _frame(labels, frame)


def apply(labels: Array, frame: Array, edges: Array) -> None:
    """Mark (255) the pixels of strong components."""
    _apply(labels, frame, edges)
