"""Tangent-plane (gnomonic) geometry: pixels, directions on the sky, and polygons on the common grid.

A pixel of a TAN image is a direction on the sky up to its length: ray = M · (x, y, 1), with x and y counted from 0 at
the first pixel's centre (Calabretta & Greisen 2002, §5.1.3; LONPOLE 180°). So one TAN image's pixels map to another's
by a 3×3 matrix and a division, without trigonometry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Point = tuple[float, float]


@dataclass(frozen=True)
class Tangent:
    """A TAN projection: direction (degrees) and pixel (FITS, from 1) of the tangent point, degrees a pixel."""

    crval: Point
    crpix: Point
    cd: tuple[Point, Point]

    @property
    def scale(self) -> float:
        """Side of a pixel, degrees."""
        (a, b), (c, d) = self.cd
        return math.sqrt(abs(a * d - b * c))

    def to_rays(self) -> Array:
        """Return the matrix from (x, y, 1) to a direction; its third axis in the tangent frame has length 1."""
        return self._frame() @ self._affine()

    def from_rays(self) -> Array:
        """Return the matrix from a direction to (x·w, y·w, w); w > 0 on the tangent point's side of the sky."""
        return np.asarray(np.linalg.inv(self._affine()) @ self._frame().T)

    def moved(self, columns: int, rows: int) -> Tangent:
        """Return the projection of the grid that begins at pixel (``rows``, ``columns``) of this one."""
        return Tangent(self.crval, (self.crpix[0] - columns, self.crpix[1] - rows), self.cd)

    def _affine(self) -> Array:
        matrix = np.eye(3)
        matrix[:2, :2] = np.radians(self.cd)
        matrix[:2, 2] = -matrix[:2, :2] @ (np.array(self.crpix) - 1.0)
        return matrix

    def _frame(self) -> Array:
        """Return east, north and the tangent point's direction as columns."""
        lon, lat = map(math.radians, self.crval)
        east = (-math.sin(lon), math.cos(lon), 0.0)
        north = (-math.sin(lat) * math.cos(lon), -math.sin(lat) * math.sin(lon), math.cos(lat))
        return np.array([east, north, direction(*self.crval)]).T


def direction(lon_deg: float, lat_deg: float) -> tuple[float, float, float]:
    """Return the unit vector towards a place on the sky."""
    lon, lat = math.radians(lon_deg), math.radians(lat_deg)
    return math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat)


def place(ray: Array) -> Point:
    """Return longitude (0 to 360) and latitude of a direction, degrees."""
    x, y, z = (float(value) for value in ray)
    return math.degrees(math.atan2(y, x)) % 360.0, math.degrees(math.atan2(z, math.hypot(x, y)))


def pixel_map(source: Tangent, target: Tangent) -> Array:
    """Return the matrix that takes a pixel of ``target`` to (x·w, y·w, w) in ``source``."""
    return np.asarray(source.from_rays() @ target.to_rays())


def outline(matrix: Array, rows: int, columns: int) -> list[Point] | None:
    """Return where the corners of an image's outermost pixels come to lie; None when one is on the sky's far side."""
    right, top = columns - 0.5, rows - 0.5
    corners = np.array([[-0.5, right, right, -0.5], [-0.5, -0.5, top, top], [1.0, 1.0, 1.0, 1.0]])
    x, y, w = matrix @ corners
    if w.min() <= 0.0:
        return None
    return list(zip((x / w).tolist(), (y / w).tolist(), strict=True))


def signed_area(polygon: Sequence[Point]) -> float:
    """Return the area, positive when the corners run from the x axis to the y axis."""
    return sum(a[0] * b[1] - b[0] * a[1] for a, b in zip(polygon, [*polygon[1:], *polygon[:1]], strict=True)) / 2.0


def common_part(first: Sequence[Point], second: Sequence[Point]) -> list[Point]:
    """Return the intersection of two convex polygons (Sutherland & Hodgman 1974), empty when there is none."""
    turn = 1.0 if signed_area(second) > 0.0 else -1.0
    found = list(first)
    for a, b in zip(second, [*second[1:], second[0]], strict=True):
        side = [turn * ((b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0])) for p in found]
        kept: list[Point] = []
        for k, p in enumerate(found):
            before, q = side[k - 1], found[k - 1]
            if (side[k] < 0.0) != (before < 0.0):
                t = before / (before - side[k])
                kept.append((q[0] + t * (p[0] - q[0]), q[1] + t * (p[1] - q[1])))
            if side[k] >= 0.0:
                kept.append(p)
        found = kept
        if not found:
            break
    return found
