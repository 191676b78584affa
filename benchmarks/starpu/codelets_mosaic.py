"""The mosaic's CPU codelets: the jitted cores of our Numba variants; files and the small solve through a callback."""

from __future__ import annotations

import numba
import numpy as np
from codelets import Call, Host, compiled, native

from heterotask_core.graph import Task
from kernels.mosaic.numba_variants import BAND, _add, _correct, _divide, _fit, _reproject, _shrink

GRAPH = "kernels.mosaic.graph"


@compiled
def _mosaic_reproject(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    box = (numbers[2], numbers[3])
    pixels = numba.carray(arrays[0], (numbers[0], numbers[1]), np.float32)
    matrix = numba.carray(reals, (9,), np.float64)
    _reproject(pixels, matrix, numba.carray(arrays[1], box, np.float32), numba.carray(arrays[2], box, np.uint8))


@compiled
def _mosaic_fit(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    one, other = (numbers[0], numbers[1]), (numbers[2], numbers[3])
    _fit(
        numba.carray(arrays[0], one, np.float32),
        numba.carray(arrays[1], one, np.uint8),
        numba.carray(arrays[2], other, np.float32),
        numba.carray(arrays[3], other, np.uint8),
        numbers[4],
        numbers[5],
        numbers[6],
        numbers[7],
        numbers[8],
        numbers[9],
        numba.carray(arrays[4], (9,), np.float64),
    )


@compiled
def _mosaic_correct(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    box, n = (numbers[0], numbers[1]), numbers[4]
    area, weight = numba.carray(arrays[0], box, np.float32), numba.carray(arrays[1], box, np.uint8)
    plane = numba.carray(arrays[2], (numbers[2], 3), np.float64)[numbers[3]]
    for k in range(n):
        at = 7 + 4 * k
        shape, top, left = (numbers[at], numbers[at + 1]), numbers[at + 2], numbers[at + 3]
        piece = numba.carray(arrays[3 + k], shape, np.float32)
        piece_weight = numba.carray(arrays[3 + n + k], shape, np.uint8)
        _correct(area, weight, plane, piece, piece_weight, top, left, numbers[5] + top, numbers[6] + left)


@compiled
def _mosaic_coadd(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    rows, columns, n = numbers[0], numbers[1], numbers[2]
    tile = numba.carray(arrays[2 * n], (rows, columns), np.float32)
    covered = numba.carray(arrays[2 * n + 1], (rows, columns), np.uint8)
    sums = np.empty((2, BAND, columns))
    for band in range(0, rows, BAND):
        high = min(BAND, rows - band)
        total, weights = sums[0, :high], sums[1, :high]
        sums[:] = 0.0
        for k in range(n):
            at = 3 + 4 * k
            shape = (numbers[at], numbers[at + 1])
            piece = numba.carray(arrays[k], shape, np.float32)
            weight = numba.carray(arrays[n + k], shape, np.uint8)
            _add(piece, weight, numbers[at + 2], numbers[at + 3], band, total, weights)
        _divide(total, weights, tile[band : band + high], covered[band : band + high])


@compiled
def _mosaic_shrink(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    whole, small = (numbers[0], numbers[1]), (numbers[2], numbers[3])
    _shrink(
        numba.carray(arrays[0], whole, np.float32),
        numba.carray(arrays[1], whole, np.uint8),
        numbers[4],
        numba.carray(arrays[2], small, np.float32),
        numba.carray(arrays[3], small, np.uint8),
    )


def _shapes(task: Task, role: str) -> list[tuple[int, ...]]:
    return [a.item.shape for a in task.arguments if a.role == role]


@native(GRAPH, "reproject")
def reproject(task: Task, host: Host) -> Call:
    """An image on the common grid."""
    shapes = task.shapes()
    return Call(_mosaic_reproject.address, [*shapes["pixels"], *shapes["area"]], task.params["matrix"])


@native(GRAPH, "fit")
def fit(task: Task, host: Host) -> Call:
    """The normal equations of a pair."""
    shapes, p = task.shapes(), task.params
    numbers = [*shapes["first"], *shapes["second"], *p["first_start"], *p["second_start"], *p["extent"]]
    return Call(_mosaic_fit.address, numbers)


@native(GRAPH, "correct")
def correct(task: Task, host: Host) -> Call:
    """An image without its background, cut into pieces."""
    shapes, p = task.shapes(), task.params
    pieces = _shapes(task, "pieces")
    numbers = [*shapes["area"], shapes["planes"][0], p["index"], len(pieces), *p["start"]]
    for shape, cut in zip(pieces, p["cuts"], strict=True):
        numbers += [*shape, *cut]
    return Call(_mosaic_correct.address, numbers)


@native(GRAPH, "coadd")
def coadd(task: Task, host: Host) -> Call:
    """A tile of the mosaic."""
    pieces = _shapes(task, "pieces")
    numbers = [*task.shapes()["tile"], len(pieces)]
    for shape, place in zip(pieces, task.params["places"], strict=True):
        numbers += [*shape, *place]
    return Call(_mosaic_coadd.address, numbers)


@native(GRAPH, "shrink")
def shrink(task: Task, host: Host) -> Call:
    """A tile of the preview."""
    shapes = task.shapes()
    return Call(_mosaic_shrink.address, [*shapes["tile"], *shapes["small"], task.params["factor"]])
