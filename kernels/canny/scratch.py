"""Bytes of the scratch buffers, from parameters and shapes; read by the planner, which imports no variant for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Shapes = Mapping[str, tuple[int, ...]]


def padded_tile(params: Mapping[str, Any], shapes: Shapes) -> int:
    """A padded line and the padded tile, float32 (Numba's Gaussian)."""
    rows, columns = shapes["tile"]
    depth = shapes["taps"][0] - 1
    return 4 * (columns + 2 * depth) * (rows + 2 * depth + 1)


def blurred_lines(params: Mapping[str, Any], shapes: Shapes) -> int:
    """The vertically blurred lines, padded left and right, float32 (the devices' Gaussian)."""
    rows, columns = shapes["tile"]
    return 4 * rows * (columns + 2 * (shapes["taps"][0] - 1))


def ring(params: Mapping[str, Any], shapes: Shapes) -> int:
    """Three padded lines and the pixels around a tile, float32 (Numba's Sobel and suppression)."""
    rows, columns = shapes["magnitude"]
    return 4 * (5 * (columns + 2) + 2 * rows)


def labels(params: Mapping[str, Any], shapes: Shapes) -> int:
    """A parent and a mark a pixel, int32."""
    return 8 * shapes["grade"][0] * shapes["grade"][1]


def frames(params: Mapping[str, Any], shapes: Shapes) -> int:
    """A parent, a strength and a first position for each position of two frames, int32."""
    return 12 * (shapes["first"][0] + shapes["second"][0])


def flags(params: Mapping[str, Any], shapes: Shapes) -> int:
    """A byte a label."""
    return shapes["labels"][0] * shapes["labels"][1] + 1
