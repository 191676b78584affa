"""Canny's CPU codelets: the jitted cores of our Numba variants; PNG compression through a callback.

The glue that those variants have in Python (borders, strips) is compiled here, with offsets worked out beforehand.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from codelets import Call, Host, compiled, native

from heterotask_core.graph import Task
from kernels.canny.images import grey_image
from kernels.canny.numba_variants import _apply, _gaussian, _label, _merge, _sobel, _spread, _suppress, _threshold
from kernels.canny.numpy_variants import halo_start, side_offsets, strip_start

GRAPH = "kernels.canny.graph"
SIDES = ("N", "S", "W", "E", "NW", "NE", "SW", "SE")

_jit: Any = numba.njit(cache=True, nogil=True, fastmath=False, error_model="numpy")


@_jit
def _cut(tile, arrays, numbers, first, at, count):  # type: ignore[no-untyped-def]
    """Copy the tile's borders into ``count`` strips: rows, columns, top, left of each in ``numbers`` from ``at``."""
    for k in range(count):
        rows, columns, top, left = numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3]
        numba.carray(arrays[first + k], (rows, columns), np.float32)[:] = tile[top : top + rows, left : left + columns]
        at += 4


@compiled
def _canny_gaussian(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    rows, columns, depth, n = numbers[0], numbers[1], numbers[2], numbers[3]
    width, height = columns + 2 * depth, rows + 2 * depth
    tile = numba.carray(arrays[0], (rows, columns), np.float32)
    blurred = numba.carray(arrays[4 + n], (rows, columns), np.float32)
    floats = numba.carray(arrays[5 + 2 * n], (width * (height + 1),), np.float32)
    line, whole = floats[:width], floats[width:].reshape((height, width))
    whole[:depth] = 0.0
    whole[depth + rows :] = 0.0
    whole[:, :depth] = 0.0
    whole[:, depth + columns :] = 0.0
    whole[depth : depth + rows, depth : depth + columns] = tile
    at = 8
    for k in range(n):
        high, wide, top, left = numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3]
        whole[top : top + high, left : left + wide] = numba.carray(arrays[4 + k], (high, wide), np.float32)
        at += 4
    taps = numba.carray(arrays[1], (depth + 1,), np.float32)
    row_mask = numba.carray(arrays[2], (numbers[4],), np.float32)
    column_mask = numba.carray(arrays[3], (numbers[5],), np.float32)
    _gaussian(whole, taps, row_mask, column_mask, numbers[6], numbers[7], line, blurred)
    _cut(blurred, arrays, numbers, 5 + n, at, n)


@_jit
def _side(arrays, index, count):  # type: ignore[no-untyped-def]
    return numba.carray(arrays[index], (count,), np.float32)


@_jit
def _ends(arrays, numbers, tile, line, row, side, left, right, repeat):  # type: ignore[no-untyped-def]
    """Fill the line above (``side`` 0) or below (1) a tile with its corners; numbers[3 + side] is a strip or -1."""
    columns = tile.shape[1]
    middle = line[1 : columns + 1]
    if numbers[3 + side] >= 0:
        middle[:] = _side(arrays, numbers[3 + side], columns)
    elif repeat:
        middle[:] = tile[row]
    else:
        middle[:] = 0.0
    for end in range(2):
        corner = numbers[3 + 4 + 2 * side + end]
        place = 0 if end == 0 else columns + 1
        if corner >= 0:
            line[place] = _side(arrays, corner, 1)[0]
        elif not repeat:
            line[place] = 0.0
        elif numbers[3 + side] >= 0:
            line[place] = middle[0] if end == 0 else middle[columns - 1]
        else:
            line[place] = left[row] if end == 0 else right[row]


@_jit
def _ring(arrays, numbers, tile, floats, repeat):  # type: ignore[no-untyped-def]
    rows, columns = tile.shape
    width = columns + 2
    lines = floats[: 3 * width].reshape((3, width))
    top, bottom = floats[3 * width : 4 * width], floats[4 * width : 5 * width]
    left, right = floats[5 * width : 5 * width + rows], floats[5 * width + rows : 5 * width + 2 * rows]
    if numbers[5] >= 0:
        left[:] = _side(arrays, numbers[5], rows)
    elif repeat:
        left[:] = tile[:, 0]
    else:
        left[:] = 0.0
    if numbers[6] >= 0:
        right[:] = _side(arrays, numbers[6], rows)
    elif repeat:
        right[:] = tile[:, columns - 1]
    else:
        right[:] = 0.0
    _ends(arrays, numbers, tile, top, 0, 0, left, right, repeat)
    _ends(arrays, numbers, tile, bottom, rows - 1, 1, left, right, repeat)
    return top, bottom, left, right, lines


@compiled
def _canny_sobel(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    rows, columns, n = numbers[0], numbers[1], numbers[2]
    tile = numba.carray(arrays[0], (rows, columns), np.float32)
    floats = numba.carray(arrays[4 + 2 * n], (5 * (columns + 2) + 2 * rows,), np.float32)
    down = numba.carray(arrays[1 + n], (rows, columns), np.float32)
    across = numba.carray(arrays[2 + n], (rows, columns), np.float32)
    magnitude = numba.carray(arrays[3 + n], (rows, columns), np.float32)
    top, bottom, left, right, lines = _ring(arrays, numbers, tile, floats, True)
    _sobel(tile, top, bottom, left, right, lines, down, across, magnitude)
    _cut(magnitude, arrays, numbers, 4 + n, 11, n)


@compiled
def _canny_suppress(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    rows, columns, n = numbers[0], numbers[1], numbers[2]
    down = numba.carray(arrays[0], (rows, columns), np.float32)
    across = numba.carray(arrays[1], (rows, columns), np.float32)
    tile = numba.carray(arrays[2], (rows, columns), np.float32)
    thin = numba.carray(arrays[3 + n], (rows, columns), np.float32)
    floats = numba.carray(arrays[4 + n], (5 * (columns + 2) + 2 * rows,), np.float32)
    top, bottom, left, right, lines = _ring(arrays, numbers, tile, floats, False)
    _suppress(tile, top, bottom, left, right, lines, down, across, thin)
    if numbers[3] < 0:
        thin[0] = 0.0
    if numbers[4] < 0:
        thin[rows - 1] = 0.0
    if numbers[5] < 0:
        thin[:, 0] = 0.0
    if numbers[6] < 0:
        thin[:, columns - 1] = 0.0


@compiled
def _canny_threshold(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    shape = (numbers[0], numbers[1])
    thin, grade = numba.carray(arrays[0], shape, np.float32), numba.carray(arrays[1], shape, np.uint8)
    _threshold(thin, grade, np.float32(reals[0]), np.float32(reals[1]))


@compiled
def _canny_label(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    shape, count = (numbers[0], numbers[1]), numbers[0] * numbers[1]
    scratch = numba.carray(arrays[3], (2, count), np.int32)
    _label(
        numba.carray(arrays[0], shape, np.uint8),
        numba.carray(arrays[1], shape, np.int32),
        numba.carray(arrays[2], (numbers[2],), np.int32),
        scratch[0],
        scratch[1],
    )


@compiled
def _canny_merge(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    n, m = numbers[5], numbers[6]
    scratch = numba.carray(arrays[3], (3, n + m), np.int32)
    shape = (numbers[0], numbers[1], numbers[2], numbers[3], numbers[4] != 0)
    first, second = numba.carray(arrays[0], (n,), np.int32), numba.carray(arrays[1], (m,), np.int32)
    union = numba.carray(arrays[2], (numbers[7],), np.int32)
    _merge(first, second, union, shape, scratch[0], scratch[1], scratch[2])


@compiled
def _canny_spread(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    n, m = numbers[5], numbers[6]
    scratch = numba.carray(arrays[5], (3, n + m), np.int32)
    shape = (numbers[0], numbers[1], numbers[2], numbers[3], numbers[4] != 0)
    whole = numba.carray(arrays[0], (numbers[7],), np.int32)
    first, second = numba.carray(arrays[1], (n,), np.int32), numba.carray(arrays[2], (m,), np.int32)
    first_final, second_final = numba.carray(arrays[3], (n,), np.int32), numba.carray(arrays[4], (m,), np.int32)
    _spread(whole, first, second, first_final, second_final, shape, scratch[0], scratch[1])


@compiled
def _canny_apply(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    shape = (numbers[0], numbers[1])
    labels, frame = numba.carray(arrays[0], shape, np.int32), numba.carray(arrays[1], (numbers[2],), np.int32)
    edges = numba.carray(arrays[2], shape, np.uint8)
    _apply(labels, frame, edges, numba.carray(arrays[3], (numbers[0] * numbers[1] + 1,), np.uint8))


def _shapes(task: Task, role: str) -> list[tuple[int, ...]]:
    return [a.item.shape for a in task.arguments if a.role == role]


def _scratch(task: Task) -> int:
    variant = task.kernel.variant("numba")
    return variant.scratch_bytes(task.params, task.shapes()) if variant.scratch_bytes else 0


def _strip_places(task: Task, rows: int, columns: int) -> list[int]:
    numbers: list[int] = []
    for (down, right), shape in zip(side_offsets(task.params["sides"]), _shapes(task, "strips"), strict=True):
        numbers += [*shape, strip_start(down, rows, shape[0]), strip_start(right, columns, shape[1])]
    return numbers


@native(GRAPH, "load")
def load(task: Task, host: Host) -> Call:
    """A tile and its strips out of the picture."""
    p = task.params
    rows, columns = task.shapes()["tile"]
    picture = grey_image(p["image"], p["size"], p["content"])
    tile = picture[p["row"] : p["row"] + rows, p["column"] : p["column"] + columns]
    places = iter(_strip_places(task, rows, columns))
    blocks = [tile]
    for high, wide, top, left in zip(places, places, places, places, strict=True):
        blocks.append(tile[top : top + high, left : left + wide])
    return host.load(blocks)


@native(GRAPH, "gaussian")
def gaussian(task: Task, host: Host) -> Call:
    """The blurred tile."""
    shapes = task.shapes()
    rows, columns = shapes["tile"]
    depth = shapes["taps"][0] - 1
    halo = _shapes(task, "halo")
    numbers = [rows, columns, depth, len(halo), shapes["row_mask"][0], shapes["column_mask"][0]]
    numbers += [task.params["row"], task.params["column"]]
    for (down, right), shape in zip(side_offsets(task.params["sides"]), halo, strict=True):
        numbers += [*shape, halo_start(down, rows, depth, shape[0]), halo_start(right, columns, depth, shape[1])]
    return Call(_canny_gaussian.address, [*numbers, *_strip_places(task, rows, columns)], (), _scratch(task))


def _around(task: Task, rows: int, columns: int, first: int) -> list[int]:
    names = task.params["sides"].split(",") if task.params["sides"] else []
    return [rows, columns, len(names), *(first + names.index(side) if side in names else -1 for side in SIDES)]


@native(GRAPH, "sobel")
def sobel(task: Task, host: Host) -> Call:
    """Gradient and its length."""
    rows, columns = task.shapes()["blurred"]
    numbers = [*_around(task, rows, columns, 1), *_strip_places(task, rows, columns)]
    return Call(_canny_sobel.address, numbers, (), _scratch(task))


@native(GRAPH, "suppress")
def suppress(task: Task, host: Host) -> Call:
    """Maxima along the gradient."""
    rows, columns = task.shapes()["magnitude"]
    return Call(_canny_suppress.address, _around(task, rows, columns, 3), (), _scratch(task))


@native(GRAPH, "threshold")
def threshold(task: Task, host: Host) -> Call:
    """Grades."""
    return Call(_canny_threshold.address, task.shapes()["thin"], [task.params["low"], task.params["high"]])


@native(GRAPH, "label")
def label(task: Task, host: Host) -> Call:
    """Components of a tile."""
    shapes = task.shapes()
    return Call(_canny_label.address, [*shapes["grade"], shapes["frame"][0]], (), _scratch(task))


@native(GRAPH, "merge", "spread")
def join(task: Task, host: Host) -> Call:
    """Components across two blocks, upwards or downwards."""
    shapes, p = task.shapes(), task.params
    whole = shapes["union"] if task.kernel.name == "merge" else shapes["whole"]
    function = _canny_merge if task.kernel.name == "merge" else _canny_spread
    numbers = [*p["first_shape"], *p["second_shape"], int(p["stacked"])]
    numbers += [shapes["first"][0], shapes["second"][0], whole[0]]
    return Call(function.address, numbers, (), _scratch(task))


@native(GRAPH, "apply")
def apply(task: Task, host: Host) -> Call:
    """Pixels of strong components."""
    shapes = task.shapes()
    return Call(_canny_apply.address, [*shapes["labels"], shapes["frame"][0]], (), _scratch(task))
