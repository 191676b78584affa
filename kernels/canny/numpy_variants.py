"""NumPy variants of the Canny kernels; every other exact variant equals them bit for bit.

All arithmetic is float32 with the operations in the order written here. ``sides`` names the neighbours
whose strips are bound to ``halo`` (or the own strips in ``strips``), for example ``"N,S,NE"``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernels.canny.images import grey_image
from kernels.canny.png import compress_band, write_png

Array = np.ndarray[Any, Any]

OFFSETS = {
    "N": (-1, 0),
    "S": (1, 0),
    "W": (0, -1),
    "E": (0, 1),
    "NW": (-1, -1),
    "NE": (-1, 1),
    "SW": (1, -1),
    "SE": (1, 1),
}


def side_offsets(sides: str) -> list[tuple[int, int]]:
    """Return (row, column) steps of the named sides, in their order."""
    return [OFFSETS[side] for side in sides.split(",") if side]


def strip_start(step: int, extent: int, depth: int) -> int:
    """Return where a strip of ``depth`` begins inside a tile of ``extent``, along one axis."""
    return extent - depth if step > 0 else 0


def halo_start(step: int, extent: int, depth: int, strip_extent: int) -> int:
    """Return where a neighbour's strip begins inside the padded tile, along one axis."""
    if step == 0:
        return depth
    return depth + extent if step > 0 else depth - strip_extent


def cut_strips(tile: Array, strips: Sequence[Array], sides: str) -> None:
    """Copy the border of ``tile`` at each side into its strip."""
    for (down, right), strip in zip(side_offsets(sides), strips, strict=True):
        row = strip_start(down, tile.shape[0], strip.shape[0])
        column = strip_start(right, tile.shape[1], strip.shape[1])
        strip[...] = tile[row : row + strip.shape[0], column : column + strip.shape[1]]


def padded(tile: Array, halo: Sequence[Array], sides: str, depth: int) -> Array:
    """Return ``tile`` with ``depth`` pixels of its neighbours around it, zero beyond the image."""
    rows, columns = tile.shape
    whole = np.zeros((rows + 2 * depth, columns + 2 * depth), dtype=tile.dtype)
    whole[depth : depth + rows, depth : depth + columns] = tile
    for (down, right), strip in zip(side_offsets(sides), halo, strict=True):
        row = halo_start(down, rows, depth, strip.shape[0])
        column = halo_start(right, columns, depth, strip.shape[1])
        whole[row : row + strip.shape[0], column : column + strip.shape[1]] = strip
    return whole


def replicate_border(whole: Array, sides: str) -> None:
    """Repeat the outermost pixels of a tile padded by one where it ends with the image."""
    names = sides.split(",")
    if "N" not in names:
        whole[0] = whole[1]
    if "S" not in names:
        whole[-1] = whole[-2]
    if "W" not in names:
        whole[:, 0] = whole[:, 1]
    if "E" not in names:
        whole[:, -1] = whole[:, -2]


def gaussian_taps(sigma: float) -> Array:
    """Return the right half of the normalised Gaussian, truncated at 4 sigma, centre first; float32."""
    radius = int(4.0 * sigma + 0.5)
    half = np.exp(-0.5 * (np.arange(radius + 1) / sigma) ** 2)
    return np.asarray(half / (half[0] + 2.0 * half[1:].sum()), dtype=np.float32)


def blurred_mask(extent: int, taps: Array) -> Array:
    """Return what a blurred line of ``extent`` ones is where zeros surround it; float32."""
    radius = len(taps) - 1
    line = np.zeros(extent + 2 * radius, dtype=np.float32)
    line[radius : radius + extent] = 1.0
    return blur_axis(line[:, None], taps)[:, 0]


def blur_axis(whole: Array, taps: Array) -> Array:
    """Convolve along axis 0: centre first, then from the farthest pair to the nearest."""
    radius = len(taps) - 1
    rows = whole.shape[0] - 2 * radius
    total = whole[radius : radius + rows] * taps[0]
    for k in range(radius, 0, -1):
        total += (whole[radius - k : radius - k + rows] + whole[radius + k : radius + k + rows]) * taps[k]
    return np.asarray(total)


def weights(taps: Array, row_mask: Array, column_mask: Array, *, sigma: float) -> None:
    """Write the Gaussian's taps and the blurred mask along both axes."""
    taps[...] = gaussian_taps(sigma)
    row_mask[...] = blurred_mask(len(row_mask), taps)
    column_mask[...] = blurred_mask(len(column_mask), taps)


def load(
    tile: Array,
    strips: Sequence[Array] = (),
    *,
    image: str,
    content: str,
    size: int,
    row: int,
    column: int,
    sides: str,
) -> None:
    """Copy one tile of the picture, which must be the one that the graph was built for."""
    rows, columns = tile.shape
    tile[...] = grey_image(image, size, content)[row : row + rows, column : column + columns]
    cut_strips(tile, strips, sides)


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
    rows, columns = tile.shape
    whole = padded(tile, halo, sides, len(taps) - 1)
    total = blur_axis(blur_axis(whole, taps).T, taps).T
    mask = row_mask[row : row + rows, None] * column_mask[None, column : column + columns]
    mask += np.finfo(np.float32).eps
    np.divide(total, mask, out=blurred)
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
    """Gradient along rows (``down``) and columns (``across``), and its length."""
    whole = padded(blurred, halo, sides, 1)
    replicate_border(whole, sides)
    two = np.float32(2.0)
    step = whole[2:] - whole[:-2]
    down[...] = (step[:, 1:-1] * two) + (step[:, :-2] + step[:, 2:])
    step = whole[:, 2:] - whole[:, :-2]
    across[...] = (step[1:-1] * two) + (step[:-2] + step[2:])
    np.sqrt(down * down + across * across, out=magnitude)
    cut_strips(magnitude, strips, sides)


def suppress(
    down: Array, across: Array, magnitude: Array, thin: Array, halo: Sequence[Array] = (), *, sides: str
) -> None:
    """Keep a magnitude that no interpolated neighbour along the gradient exceeds; else, and at the border, 0."""
    rows, columns = magnitude.shape
    whole = padded(magnitude, halo, sides, 1)

    def shifted(by_row: int, by_column: int) -> Array:
        return whole[1 + by_row : 1 + by_row + rows, 1 + by_column : 1 + by_column + columns]

    one = np.float32(1.0)
    size_down, size_across = np.abs(down), np.abs(across)
    same = ((down >= 0) & (across >= 0)) | ((down <= 0) & (across <= 0))
    steep = np.where(same, size_down > size_across, size_down >= size_across)
    longer = np.where(steep, size_down, size_across)
    shorter = np.where(steep, size_across, size_down)
    weight = shorter / np.where(longer > 0, longer, one)
    keep = magnitude > 0
    for sign in (1, -1):
        vertical = np.where(same, shifted(sign, 0), shifted(-sign, 0))
        straight = np.where(steep, vertical, shifted(0, sign))
        diagonal = np.where(same, shifted(sign, sign), shifted(-sign, sign))
        keep &= diagonal * weight + straight * (one - weight) <= magnitude
    names = sides.split(",")
    keep[0] &= "N" in names
    keep[-1] &= "S" in names
    keep[:, 0] &= "W" in names
    keep[:, -1] &= "E" in names
    thin[...] = np.where(keep, magnitude, np.float32(0.0))


def threshold(thin: Array, grade: Array, *, low: float, high: float) -> None:
    """Grade 0 below ``low``, 1 from ``low``, 2 from ``high``."""
    grade[...] = (thin >= np.float32(low)).astype(np.uint8) + (thin >= np.float32(high)).astype(np.uint8)


def frame_index(rows: int, columns: int) -> Array:
    """Return the flat indices of a block's border: top row, bottom row, left column, right column."""
    across, down = np.arange(columns), np.arange(rows) * columns
    return np.concatenate([across, across + (rows - 1) * columns, down, down + columns - 1])


def label(grade: Array, labels: Array, frame: Array) -> None:
    """Label 8-connected components by 1 + their first flat index; negative where one holds a grade 2.

    ``frame`` holds, at each position of the border, 1 + the first position of the same component, signed alike.
    """
    # Imported by those who run it: ranks that read, write or run compiled variants do without SciPy's images.
    from scipy import ndimage

    numbers, count = ndimage.label(grade, structure=np.ones((3, 3), dtype=bool))
    flat = numbers.ravel()
    positions = np.flatnonzero(flat)
    value = np.zeros(count + 1, dtype=np.int32)
    value[flat[positions[::-1]]] = positions[::-1] + 1
    strong = np.unique(flat[grade.ravel() == 2])
    value[strong] = -value[strong]
    labels[...] = value[numbers]
    border = labels.ravel()[frame_index(*labels.shape)]
    _, first, inverse = np.unique(np.abs(border), return_index=True, return_inverse=True)
    frame[...] = np.sign(border) * (first[inverse] + 1)


def _sides_of(places: Array, rows: int, columns: int) -> tuple[Array, Array, Array, Array]:
    top, bottom, left, right = np.split(places, np.cumsum([columns, columns, rows]))
    return top, bottom, left, right


def _joined(first: Array, second: Array, shapes: Sequence[Sequence[int]], stacked: bool) -> tuple[Array, Array, Array]:
    """Return component by position of both frames, strength by component, and where the union's frame takes from."""
    values = np.concatenate([first, second])
    place = np.arange(len(values))
    start = np.where(place < len(first), 0, len(first))
    node = np.where(values != 0, np.abs(values) - 1 + start, place)
    a, b = _sides_of(place[: len(first)], *shapes[0]), _sides_of(place[len(first) :], *shapes[1])
    one, other = (a[1], b[0]) if stacked else (a[3], b[2])
    left = np.concatenate([one, one[1:], one[:-1]])
    right = np.concatenate([other, other[:-1], other[1:]])
    both = (values[left] != 0) & (values[right] != 0)
    from scipy import sparse

    links = sparse.coo_matrix(
        (np.ones(both.sum(), dtype=np.int8), (node[left[both]], node[right[both]])), shape=(len(place),) * 2
    )
    component = sparse.csgraph.connected_components(links, directed=False)[1][node]
    strong = np.zeros(len(place), dtype=bool)
    strong[component[values < 0]] = True
    outer = [a[0], b[1], a[2], b[2], a[3], b[3]] if stacked else [a[0], b[0], a[1], b[1], a[2], b[3]]
    return component, strong, np.concatenate(outer)


def merge(
    first: Array, second: Array, union: Array, *, first_shape: list[int], second_shape: list[int], stacked: bool
) -> None:
    """Join the frames of two blocks, side by side or ``stacked``, into the frame of their union."""
    component, strong, outer = _joined(first, second, (first_shape, second_shape), stacked)
    present = np.concatenate([first, second])[outer] != 0
    chosen = component[outer]
    value = np.zeros(len(strong), dtype=np.int32)
    value[chosen[::-1]] = np.arange(len(outer), 0, -1)
    union[...] = np.where(present, np.where(strong[chosen], -value[chosen], value[chosen]), 0)


def spread(
    whole: Array,
    first: Array,
    second: Array,
    first_final: Array,
    second_final: Array,
    *,
    first_shape: list[int],
    second_shape: list[int],
    stacked: bool,
) -> None:
    """Tell both blocks which of their components are strong, knowing so of the union's frame."""
    component, strong, outer = _joined(first, second, (first_shape, second_shape), stacked)
    strong[component[outer[whole < 0]]] = True
    signs = np.where(strong[component], -1, 1)
    first_final[...] = np.abs(first) * signs[: len(first)]
    second_final[...] = np.abs(second) * signs[len(first) :]


def apply(labels: Array, frame: Array, edges: Array) -> None:
    """Mark (255) the pixels of strong components."""
    chosen = np.zeros(labels.size + 1, dtype=bool)
    chosen[np.abs(labels.ravel()[frame_index(*labels.shape)[frame < 0]])] = True
    edges[...] = ((labels < 0) | chosen[np.abs(labels)]) * np.uint8(255)


def encode(tiles: Sequence[Array], band: Array) -> None:
    """Compress a row of tiles as lines of a PNG."""
    compress_band(tiles, band)


def store(bands: Sequence[Array], *, heights: list[int], columns: int, path: str) -> None:
    """Write the whole picture as a PNG of one bit a pixel; it appears under its name when complete."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_png(target, bands, heights, columns)
