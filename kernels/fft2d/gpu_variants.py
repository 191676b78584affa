"""OpenCL and CUDA variants: launches of ``fft2d.cl``, for lengths that are powers of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heterotask_core.kernel import ArrayArg, Launch

PLANE = (32, 4)
SQUARE = (16, 16)
COMPLEX_BYTES = 8


def _copy(
    source: ArrayArg | None,
    source_length: int,
    source_at: int,
    target: ArrayArg | None,
    target_length: int,
    target_at: int,
    shape: tuple[int, int],
) -> Launch:
    height, width = shape
    args = (
        source,
        np.int32(source_length),
        np.int32(source_at),
        target,
        np.int32(target_length),
        np.int32(target_at),
        np.int32(height),
        np.int32(width),
    )
    return Launch("copy_complex", (width, height), PLANE, args)


def _stages(height: int, length: int) -> list[Launch]:
    """Return the stages on the two bands in scratch; they start with the first."""
    return [
        Launch(
            "stage",
            (max(1, length // 2), height),
            PLANE,
            (None, np.int32(k % 2), np.int32(height), np.int32(length), np.int32(1 << k)),
        )
        for k in range(length.bit_length() - 1)
    ]


def _result_at(height: int, length: int) -> int:
    """Return where in scratch the stages leave their result, in complex numbers."""
    return height * length * ((length.bit_length() - 1) % 2)


def rows(band: ArrayArg, blocks: Sequence[ArrayArg]) -> list[Launch]:
    """Transform the rows of a real band and cut the spectrum into blocks of columns."""
    height, length = band.shape
    launches = [
        Launch("from_real", (length, height), PLANE, (band, None, np.int32(height), np.int32(length))),
        *_stages(height, length),
    ]
    at = _result_at(height, length)
    for block in blocks:
        width = block.shape[1]
        launches.append(_copy(None, length, at, block, width, 0, (height, width)))
        at += width
    return launches


def transpose(block: ArrayArg, turned: ArrayArg) -> list[Launch]:
    """Write a block's transpose."""
    height, width = block.shape
    return [Launch("transpose", (width, height), SQUARE, (block, turned, np.int32(height), np.int32(width)))]


def columns(blocks: Sequence[ArrayArg], band: ArrayArg) -> list[Launch]:
    """Put blocks side by side and transform the rows of the whole."""
    height, length = band.shape
    launches, at = [], 0
    for block in blocks:
        width = block.shape[1]
        launches.append(_copy(block, width, 0, None, length, at, (height, width)))
        at += width
    result = _copy(None, length, _result_at(height, length), band, length, 0, (height, length))
    return [*launches, *_stages(height, length), result]


def scratch_bytes(params: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Bytes of two bands of complex numbers."""
    height, length = shapes["band"]
    return 2 * COMPLEX_BYTES * height * length
