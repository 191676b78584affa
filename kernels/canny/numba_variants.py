"""Numba variants: the NumPy variants' arithmetic in fused loops, compiled without fastmath and without FMA.

Numba (LLVM) contracts products and sums only under fastmath, so the results are NumPy's bit for bit. Intermediate
arrays lie in the planned scratch buffer; the inner loops have no branches, so that they become vector instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np

from kernels.canny.numpy_variants import cut_strips, gaussian_taps, halo_start, side_offsets

Array = np.ndarray[Any, Any]

_jit = numba.njit(cache=True, nogil=True, fastmath=False, error_model="numpy")


@_jit
def _mask(taps, mask):  # type: ignore[no-untyped-def]
    extent = len(mask)
    for i in range(extent):
        total = taps[0]
        for k in range(len(taps) - 1, 0, -1):
            total += np.float32((i >= k) + (i + k < extent)) * taps[k]
        mask[i] = total


@_jit
def _add_pairs(line, a, b, c, d, e, f, g, h, taps, k):  # type: ignore[no-untyped-def]
    """Add four pairs at once: the line is loaded and stored a quarter as often."""
    t, u, v, w = taps[k], taps[k - 1], taps[k - 2], taps[k - 3]
    for j in range(len(line)):
        total = line[j] + (a[j] + b[j]) * t
        total += (c[j] + d[j]) * u
        total += (e[j] + f[j]) * v
        line[j] = total + (g[j] + h[j]) * w


@_jit
def _gaussian(whole, taps, row_mask, column_mask, row, column, line, blurred):  # type: ignore[no-untyped-def]
    radius = len(taps) - 1
    rows, columns = blurred.shape
    width = whole.shape[1]
    eps = np.finfo(np.float32).eps
    for i in range(rows):
        m = i + radius
        centre = whole[m]
        for j in range(width):
            line[j] = centre[j] * taps[0]
        k = radius
        while k >= 4:
            _add_pairs(
                line,
                whole[m - k],
                whole[m + k],
                whole[m - k + 1],
                whole[m + k - 1],
                whole[m - k + 2],
                whole[m + k - 2],
                whole[m - k + 3],
                whole[m + k - 3],
                taps,
                k,
            )
            k -= 4
        while k > 0:
            above, below, tap = whole[m - k], whole[m + k], taps[k]
            for j in range(width):
                line[j] += (above[j] + below[j]) * tap
            k -= 1
        out = blurred[i]
        for j in range(columns):
            out[j] = line[j + radius] * taps[0]
        k = radius
        while k >= 4:
            _add_pairs(
                out,
                line[radius - k :],
                line[radius + k :],
                line[radius - k + 1 :],
                line[radius + k - 1 :],
                line[radius - k + 2 :],
                line[radius + k - 2 :],
                line[radius - k + 3 :],
                line[radius + k - 3 :],
                taps,
                k,
            )
            k -= 4
        while k > 0:
            before, behind, tap = line[radius - k :], line[radius + k :], taps[k]
            for j in range(columns):
                out[j] += (before[j] + behind[j]) * tap
            k -= 1
        down, across = row_mask[row + i], column_mask[column:]
        for j in range(columns):
            out[j] = out[j] / (down * across[j] + eps)


@_jit
def _fill(line, i, tile, top, bottom, left, right):  # type: ignore[no-untyped-def]
    """Copy row ``i`` of the tile, with a pixel of its neighbours at both ends."""
    rows, columns = tile.shape
    if i < 0:
        line[:] = top
    elif i == rows:
        line[:] = bottom
    else:
        line[1 : columns + 1] = tile[i]
        line[0] = left[i]
        line[columns + 1] = right[i]


@_jit
def _sobel(tile, top, bottom, left, right, lines, down, across, magnitude):  # type: ignore[no-untyped-def]
    two = np.float32(2.0)
    rows, columns = tile.shape
    _fill(lines[0], -1, tile, top, bottom, left, right)
    _fill(lines[1], 0, tile, top, bottom, left, right)
    for i in range(rows):
        _fill(lines[(i + 2) % 3], i + 1, tile, top, bottom, left, right)
        a, b, c = lines[i % 3], lines[(i + 1) % 3], lines[(i + 2) % 3]
        for j in range(columns):
            y = (c[j + 1] - a[j + 1]) * two + ((c[j] - a[j]) + (c[j + 2] - a[j + 2]))
            x = (b[j + 2] - b[j]) * two + ((a[j + 2] - a[j]) + (c[j + 2] - c[j]))
            down[i, j] = y
            across[i, j] = x
            magnitude[i, j] = np.sqrt(y * y + x * x)


@_jit
def _suppress(tile, top, bottom, left, right, lines, down, across, thin):  # type: ignore[no-untyped-def]
    one, zero = np.float32(1.0), np.float32(0.0)
    rows, columns = tile.shape
    _fill(lines[0], -1, tile, top, bottom, left, right)
    _fill(lines[1], 0, tile, top, bottom, left, right)
    for i in range(rows):
        _fill(lines[(i + 2) % 3], i + 1, tile, top, bottom, left, right)
        a, b, c = lines[i % 3], lines[(i + 1) % 3], lines[(i + 2) % 3]
        for j in range(columns):
            m, y, x = b[j + 1], down[i, j], across[i, j]
            above, below, before, behind = a[j + 1], c[j + 1], b[j], b[j + 2]
            nw, ne, sw, se = a[j], a[j + 2], c[j], c[j + 2]
            ay, ax = abs(y), abs(x)
            same = ((y >= zero) & (x >= zero)) | ((y <= zero) & (x <= zero))
            steep = (ay > ax) | ((ay == ax) & (not same))
            longer = ay if steep else ax
            weight = (ax if steep else ay) / longer
            rest = one - weight
            plus = se if same else ne
            minus = nw if same else sw
            straight = below if same else above
            opposite = above if same else below
            straight = straight if steep else behind
            opposite = opposite if steep else before
            keep = (m > zero) & (plus * weight + straight * rest <= m) & (minus * weight + opposite * rest <= m)
            thin[i, j] = m if keep else zero


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
def _unite(parent, a, b):  # type: ignore[no-untyped-def]
    a, b = _root(parent, a), _root(parent, b)
    parent[max(a, b)] = min(a, b)


@_jit
def _frame_pixel(p, rows, columns):  # type: ignore[no-untyped-def]
    """Return the flat index of the pixel at a position of the frame."""
    if p < columns:
        return p
    if p < 2 * columns:
        return (rows - 2) * columns + p
    if p < 2 * columns + rows:
        return (p - 2 * columns) * columns
    return (p - 2 * columns - rows + 1) * columns - 1


@_jit
def _label(grade, labels, frame, parent, mark):  # type: ignore[no-untyped-def]
    rows, columns = grade.shape
    for i in range(rows):
        for j in range(columns):
            if grade[i, j] == 0:
                continue
            here = i * columns + j
            parent[here] = here
            if j > 0 and grade[i, j - 1] != 0:
                _unite(parent, here, here - 1)
            if i == 0:
                continue
            above = here - columns
            if grade[i - 1, j] != 0:
                # Its neighbours left and right are joined to it already.
                _unite(parent, here, above)
                continue
            if j > 0 and grade[i - 1, j - 1] != 0:
                _unite(parent, here, above - 1)
            if j + 1 < columns and grade[i - 1, j + 1] != 0:
                _unite(parent, here, above + 1)
    for i in range(rows):
        for j in range(columns):
            if grade[i, j] == 0:
                continue
            # Parents come earlier, so this pass has already put them at their roots.
            here = i * columns + j
            root = parent[parent[here]]
            parent[here] = root
            if root == here:
                mark[root] = 0
            if grade[i, j] == 2:
                mark[root] = 1
    for i in range(rows):
        for j in range(columns):
            value = 0
            if grade[i, j] != 0:
                root = parent[i * columns + j]
                value = -(root + 1) if mark[root] == 1 else root + 1
            labels[i, j] = value
    flat = labels.reshape(rows * columns)
    for p in range(len(frame) - 1, -1, -1):
        value = flat[_frame_pixel(p, rows, columns)]
        if value != 0:
            mark[abs(value) - 1] = p + 1
    for p in range(len(frame)):
        value = flat[_frame_pixel(p, rows, columns)]
        frame[p] = 0 if value == 0 else mark[value - 1] if value > 0 else -mark[-value - 1]


@_jit
def _join(first, second, shape, parent, strong):  # type: ignore[no-untyped-def]
    """Unite the components of two frames that touch; ``shape``: rows and columns of both, and whether stacked."""
    n = len(first)
    for p in range(n):
        parent[p] = p if first[p] == 0 else abs(first[p]) - 1
    for p in range(len(second)):
        parent[n + p] = n + (p if second[p] == 0 else abs(second[p]) - 1)
    rows, columns, _, second_columns, stacked = shape
    length = columns if stacked else rows
    one = columns if stacked else 2 * columns + rows
    other = 0 if stacked else 2 * second_columns
    for i in range(length):
        if first[one + i] == 0:
            continue
        for k in range(max(i - 1, 0), min(i + 2, length)):
            if second[other + k] != 0:
                _unite(parent, one + i, n + other + k)
    strong[: len(parent)] = 0
    for p in range(n):
        if first[p] < 0:
            strong[_root(parent, p)] = 1
    for p in range(len(second)):
        if second[p] < 0:
            strong[_root(parent, n + p)] = 1


@_jit
def _outer(o, shape):  # type: ignore[no-untyped-def]
    """Return the position, in the first frame followed by the second, that position ``o`` of the union is."""
    rows, columns, second_rows, second_columns, stacked = shape
    n = 2 * (rows + columns)
    if stacked:
        if o < 2 * columns:
            return o if o < columns else n + o
        o -= 2 * columns
        height = rows + second_rows
        right = o >= height
        o -= height if right else 0
        if o < rows:
            return 2 * columns + o + (rows if right else 0)
        return n + 2 * columns + o - rows + (second_rows if right else 0)
    width = columns + second_columns
    if o >= 2 * width:
        o -= 2 * width
        return 2 * columns + o if o < rows else n + 2 * second_columns + o
    bottom = o >= width
    o -= width if bottom else 0
    if o < columns:
        return o + (columns if bottom else 0)
    return n + o - columns + (second_columns if bottom else 0)


@_jit
def _merge(first, second, union, shape, parent, strong, seat):  # type: ignore[no-untyped-def]
    _join(first, second, shape, parent, strong)
    n = len(first)
    for o in range(len(union) - 1, -1, -1):
        seat[_root(parent, _outer(o, shape))] = o + 1
    for o in range(len(union)):
        p = _outer(o, shape)
        root = _root(parent, p)
        present = (first[p] if p < n else second[p - n]) != 0
        union[o] = 0 if not present else -seat[root] if strong[root] == 1 else seat[root]


@_jit
def _spread(whole, first, second, first_final, second_final, shape, parent, strong):  # type: ignore[no-untyped-def]
    _join(first, second, shape, parent, strong)
    n = len(first)
    for o in range(len(whole)):
        if whole[o] < 0:
            strong[_root(parent, _outer(o, shape))] = 1
    for p in range(n):
        first_final[p] = -abs(first[p]) if strong[_root(parent, p)] == 1 else abs(first[p])
    for p in range(len(second)):
        second_final[p] = -abs(second[p]) if strong[_root(parent, n + p)] == 1 else abs(second[p])


@_jit
def _apply(labels, frame, edges, chosen):  # type: ignore[no-untyped-def]
    rows, columns = labels.shape
    chosen[:] = 0
    flat = labels.reshape(rows * columns)
    for p in range(len(frame)):
        if frame[p] < 0:
            chosen[abs(flat[_frame_pixel(p, rows, columns)])] = 255
    for i in range(rows):
        for j in range(columns):
            value = labels[i, j]
            edges[i, j] = 255 if value < 0 else chosen[value]


def weights(taps: Array, row_mask: Array, column_mask: Array, *, sigma: float) -> None:
    """Write the Gaussian's taps and the blurred mask along both axes."""
    taps[...] = gaussian_taps(sigma)
    _mask(taps, row_mask)
    _mask(taps, column_mask)


def gaussian(
    tile: Array,
    taps: Array,
    row_mask: Array,
    column_mask: Array,
    blurred: Array,
    scratch: Array,
    halo: Sequence[Array] = (),
    strips: Sequence[Array] = (),
    *,
    row: int,
    column: int,
    sides: str,
) -> None:
    """Blur and divide by the blurred mask."""
    rows, columns = tile.shape
    depth = len(taps) - 1
    floats = scratch.view(np.float32)
    line, whole = floats[: columns + 2 * depth], floats[columns + 2 * depth :].reshape(rows + 2 * depth, -1)
    whole[:depth] = whole[depth + rows :] = whole[:, :depth] = whole[:, depth + columns :] = 0.0
    whole[depth : depth + rows, depth : depth + columns] = tile
    for (down, right), strip in zip(side_offsets(sides), halo, strict=True):
        top, left = halo_start(down, rows, depth, strip.shape[0]), halo_start(right, columns, depth, strip.shape[1])
        whole[top : top + strip.shape[0], left : left + strip.shape[1]] = strip
    _gaussian(whole, taps, row_mask, column_mask, row, column, line, blurred)
    cut_strips(blurred, strips, sides)


def _ring(
    scratch: Array, tile: Array, halo: Sequence[Array], sides: str, repeat: bool
) -> tuple[Array, Array, Array, Array, Array]:
    """Return top, bottom (with corners), left and right of the pixels around a tile, and three lines.

    Beyond the image, pixels are 0 or ``repeat`` the nearest.
    """
    rows, columns = tile.shape
    floats, width = scratch.view(np.float32), columns + 2
    lines = floats[: 3 * width].reshape(3, width)
    top, bottom = floats[3 * width : 4 * width], floats[4 * width : 5 * width]
    left, right = floats[5 * width : 5 * width + rows], floats[5 * width + rows : 5 * width + 2 * rows]
    strips = dict(zip(sides.split(","), halo, strict=True)) if sides else {}
    left[...] = strips["W"][:, 0] if "W" in strips else tile[:, 0] if repeat else 0.0
    right[...] = strips["E"][:, 0] if "E" in strips else tile[:, -1] if repeat else 0.0
    for line, row, side in ((top, 0, "N"), (bottom, -1, "S")):
        middle = line[1:-1]
        if side in strips:
            middle[...] = strips[side][0]
        else:
            middle[...] = tile[row] if repeat else 0.0
        for end, column, corner in ((0, left, f"{side}W"), (-1, right, f"{side}E")):
            if corner in strips:
                line[end] = strips[corner][0, 0]
            elif not repeat:
                line[end] = 0.0
            else:
                # One of the two sides is the image's: its pixels repeat, those of the other side included.
                line[end] = middle[end] if side in strips else column[row]
    return top, bottom, left, right, lines


def sobel(
    blurred: Array,
    down: Array,
    across: Array,
    magnitude: Array,
    scratch: Array,
    halo: Sequence[Array] = (),
    strips: Sequence[Array] = (),
    *,
    sides: str,
) -> None:
    """Gradient along rows and columns, and its length."""
    _sobel(blurred, *_ring(scratch, blurred, halo, sides, True), down, across, magnitude)
    cut_strips(magnitude, strips, sides)


def suppress(
    down: Array,
    across: Array,
    magnitude: Array,
    thin: Array,
    scratch: Array,
    halo: Sequence[Array] = (),
    *,
    sides: str,
) -> None:
    """Keep a magnitude that no interpolated neighbour along the gradient exceeds; else, and at the border, 0."""
    _suppress(magnitude, *_ring(scratch, magnitude, halo, sides, False), down, across, thin)
    names = sides.split(",")
    for side, border in (("N", thin[0]), ("S", thin[-1]), ("W", thin[:, 0]), ("E", thin[:, -1])):
        if side not in names:
            border[...] = 0.0


def threshold(thin: Array, grade: Array, *, low: float, high: float) -> None:
    """Grade 0 below ``low``, 1 from ``low``, 2 from ``high``."""
    _threshold(thin, grade, np.float32(low), np.float32(high))


def label(grade: Array, labels: Array, frame: Array, scratch: Array) -> None:
    """Label 8-connected components as the NumPy variant does."""
    parent, mark = scratch.view(np.int32).reshape(2, -1)
    _label(grade, labels, frame, parent, mark)


def _shape(first: Sequence[int], second: Sequence[int], stacked: bool) -> tuple[int, int, int, int, bool]:
    return first[0], first[1], second[0], second[1], stacked


def merge(
    first: Array,
    second: Array,
    union: Array,
    scratch: Array,
    *,
    first_shape: list[int],
    second_shape: list[int],
    stacked: bool,
) -> None:
    """Join the frames of two blocks, side by side or ``stacked``, into the frame of their union."""
    parent, strong, seat = scratch.view(np.int32).reshape(3, -1)
    _merge(first, second, union, _shape(first_shape, second_shape, stacked), parent, strong, seat)


def spread(
    whole: Array,
    first: Array,
    second: Array,
    first_final: Array,
    second_final: Array,
    scratch: Array,
    *,
    first_shape: list[int],
    second_shape: list[int],
    stacked: bool,
) -> None:
    """Tell both blocks which of their components are strong, knowing so of the union's frame."""
    parent, strong, _ = scratch.view(np.int32).reshape(3, -1)
    _spread(whole, first, second, first_final, second_final, _shape(first_shape, second_shape, stacked), parent, strong)


def apply(labels: Array, frame: Array, edges: Array, scratch: Array) -> None:
    """Mark (255) the pixels of strong components."""
    _apply(labels, frame, edges, scratch)
