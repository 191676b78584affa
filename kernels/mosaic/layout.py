"""The common grid, and what follows from where the images lie on it: boxes, overlapping pairs, tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heterotask_core.errors import ApplicationError
from kernels.mosaic.geometry import Point, Tangent, common_part, outline, pixel_map, place, signed_area

Array = np.ndarray[Any, Any]

LEAST_OVERLAP = 16.0
"""Smallest area that two images share to be a pair, pixels of the common grid."""
MAX_SIDE = 1 << 17
"""Longest side of the common grid, pixels."""
MAX_ALIGNMENT = 128


@dataclass(frozen=True)
class Field:
    """One image as the layout sees it."""

    name: str
    tangent: Tangent
    rows: int
    columns: int


@dataclass(frozen=True)
class Box:
    """A rectangle of pixels of the common grid."""

    top: int
    left: int
    rows: int
    columns: int

    def common(self, other: Box) -> Box:
        """Return the intersection; its extents are 0 when there is none."""
        top, left = max(self.top, other.top), max(self.left, other.left)
        bottom = min(self.top + self.rows, other.top + other.rows)
        right = min(self.left + self.columns, other.left + other.columns)
        return Box(top, left, max(0, bottom - top), max(0, right - left))

    def __bool__(self) -> bool:
        return self.rows > 0 and self.columns > 0

    def within(self, other: Box) -> list[int]:
        """Return the first row and column, counted inside ``other``."""
        return [self.top - other.top, self.left - other.left]


@dataclass(frozen=True)
class Layout:
    """Where everything lies on the common grid; boxes by image, pairs with the box that holds their overlap."""

    grid: Tangent
    rows: int
    columns: int
    boxes: tuple[Box, ...]
    pairs: tuple[tuple[int, int, Box], ...]

    @property
    def centre(self) -> tuple[int, int]:
        """Row and column from which background planes count."""
        return self.rows // 2, self.columns // 2


def lay_out(fields: Sequence[Field]) -> Layout:
    """Return the layout of images on a grid of the finest image's scale, north up, around their common centre.

    Boxes begin and end on multiples of an eighth of the smallest image (128 pixels at most), so that few shapes occur.
    Raises :class:`ApplicationError`: images too far apart, or that overlaps do not connect with each other.
    """
    scale = min(f.tangent.scale for f in fields)
    rays = [f.tangent.to_rays() @ [(f.columns - 1) / 2, (f.rows - 1) / 2, 1.0] for f in fields]
    middle = np.sum([ray / np.linalg.norm(ray) for ray in rays], axis=0)
    free = Tangent(place(middle), (1.0, 1.0), ((-scale, 0.0), (0.0, scale)))
    outlines = [_outline(f, free) for f in fields]
    align = max(1, min(MAX_ALIGNMENT, min(min(f.rows, f.columns) for f in fields) // 8))
    corners = np.array(outlines)
    least = np.floor(corners.min(axis=(0, 1))).astype(int)
    extent = np.ceil(corners.max(axis=(0, 1))).astype(int) + 1 - least
    columns, rows = (-(-int(n) // align) * align for n in extent)
    if max(rows, columns) > MAX_SIDE:
        raise ApplicationError(
            f"the images span {rows}×{columns} pixels of {scale * 3600:.3g} arc seconds, more than {MAX_SIDE} a side; "
            "give images that lie closer together"
        )
    corners = corners - least
    boxes = tuple(_box(c, align) for c in corners)
    pairs = _pairs(corners, boxes, align)
    _connected(fields, pairs)
    return Layout(free.moved(int(least[0]), int(least[1])), rows, columns, boxes, pairs)


def source_matrix(field: Field, layout: Layout, box: Box) -> list[float]:
    """Return the nine numbers that map a pixel of ``box`` to a pixel of the image, row by row."""
    return [float(v) for v in pixel_map(field.tangent, layout.grid.moved(box.left, box.top)).ravel()]


def _outline(field: Field, grid: Tangent) -> list[Point]:
    found = outline(pixel_map(grid, field.tangent), field.rows, field.columns)
    if found is None:
        raise ApplicationError(
            f"image {field.name!r} lies more than 90° from the middle of all images; one tangent plane cannot hold them"
        )
    return found


def _box(corners: Any, align: int) -> Box:
    left, top = (math.floor(v) // align * align for v in np.min(corners, axis=0))
    right, bottom = (-(-(math.ceil(v) + 1) // align) * align for v in np.max(corners, axis=0))
    return Box(top, left, bottom - top, right - left)


def _pairs(corners: Array, boxes: Sequence[Box], align: int) -> tuple[tuple[int, int, Box], ...]:
    low, high = corners.min(axis=1), corners.max(axis=1)
    outlines: list[list[Point]] = corners.tolist()
    found = []
    for i in range(len(boxes)):
        near = (low[i + 1 :] < high[i]).all(axis=1) & (high[i + 1 :] > low[i]).all(axis=1)
        for j in (np.flatnonzero(near) + i + 1).tolist():
            part = common_part(outlines[i], outlines[j])
            if len(part) > 2 and abs(signed_area(part)) >= LEAST_OVERLAP:
                found.append((i, j, _box(part, align).common(boxes[i]).common(boxes[j])))
    return tuple(found)


def groups(count: int, pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the images that overlaps connect, group by group, in order of their first."""
    leader = list(range(count))

    def find(k: int) -> int:
        while leader[k] != k:
            leader[k] = leader[leader[k]]
            k = leader[k]
        return k

    for i, j in pairs:
        first, second = sorted((find(i), find(j)))
        leader[second] = first
    members: dict[int, list[int]] = {}
    for k in range(count):
        members.setdefault(find(k), []).append(k)
    return list(members.values())


def disconnected(names: Sequence[str], found: Sequence[Sequence[int]]) -> str:
    """Return a line that names the images that stand apart."""
    apart = min(found, key=len)
    listed = ", ".join(repr(names[k]) for k in apart[:3]) + (f" and {len(apart) - 3} more" if len(apart) > 3 else "")
    overlap = "overlaps" if len(apart) == 1 else "overlap"
    return (
        f"the images fall into {len(found)} groups without overlap: {listed} {overlap} none of the other "
        f"{sum(map(len, found)) - len(apart)}; backgrounds cannot be matched, leave a group out"
    )


def _connected(fields: Sequence[Field], pairs: Sequence[tuple[int, int, Box]]) -> None:
    found = groups(len(fields), [(i, j) for i, j, _ in pairs])
    if len(found) > 1:
        raise ApplicationError(disconnected([f.name for f in fields], found))
