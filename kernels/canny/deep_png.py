"""Read PNG files of 16 bits a sample at full depth: common readers keep eight of them when there is colour.

W3C Portable Network Graphics (Third Edition): chunks, scanline filters (§9), Adam7 interlacing (§8).
"""

from __future__ import annotations

import functools
import struct
import zlib
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
"""Samples a pixel by colour type: grey, colour, grey and alpha, colour and alpha."""

ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
"""First row, first column, row step, column step of each pass."""


def bits_a_sample(data: bytes) -> int:
    """Return the bit depth in the header of a PNG file; 0 where the header is torn."""
    return data[24] if len(data) > 24 and data[12:16] == b"IHDR" else 0


def read_deep_png(data: bytes) -> Array:
    """Return the samples of a PNG of 16 bits as uint16, (rows, columns, channels).

    Raises :class:`ValueError` for a file that is torn, damaged or animated.
    """
    header: tuple[int, ...] = ()
    packed = bytearray()
    position, name = len(PNG_SIGNATURE), b""
    while name != b"IEND":
        if len(data) < position + 12:
            raise ValueError("the file is truncated")
        size, name = struct.unpack_from(">I4s", data, position)
        content = data[position + 8 : position + 8 + size]
        check = data[position + 8 + size : position + 12 + size]
        if len(check) < 4:
            raise ValueError("the file is truncated")
        if zlib.crc32(content, zlib.crc32(name)) != int.from_bytes(check, "big"):
            raise ValueError(f"chunk {name!r} is damaged")
        if name == b"IHDR":
            header = struct.unpack(">IIBBBBB", content)
        elif name == b"acTL":
            raise ValueError("it is animated")
        elif name == b"IDAT":
            packed += content
        position += 12 + size
    columns, rows, _, colour, _, _, interlaced = header
    if colour not in CHANNELS or not rows or not columns:
        raise ValueError("the header is damaged")
    channels = CHANNELS[colour]
    passes = [
        (slice(i, None, di), slice(j, None, dj), -(-(rows - i) // di), -(-(columns - j) // dj))
        for i, j, di, dj in (ADAM7 if interlaced else ((0, 0, 1, 1),))
        if i < rows and j < columns
    ]
    expected = sum(height * (1 + 2 * channels * width) for *_, height, width in passes)
    lines = zlib.decompressobj().decompress(bytes(packed), expected + 1)
    if len(lines) != expected:
        raise ValueError("the file is truncated")
    pixels = np.empty((rows, columns, channels), dtype=np.uint16)
    start = 0
    for down, across, height, width in passes:
        end = start + height * (1 + 2 * channels * width)
        block = np.frombuffer(lines[start:end], dtype=np.uint8).reshape(height, -1).copy()
        _undo_filters(block, 2 * channels)
        pixels[down, across] = block[:, 1:].copy().view(">u2").reshape(height, width, channels)
        start = end
    return pixels


def _undo_filters(lines: Array, step: int) -> None:
    """Undo the filter that the first byte of each line names, in place; ``step`` bytes a pixel."""
    if int(lines[:, 0].max()) > 4:
        raise ValueError("a line has an unknown filter")
    _compiled()(lines, step)


@functools.cache
def _compiled() -> Any:
    """Compile at first use: most pictures need none of this."""
    from numba import njit

    return njit(cache=True)(_undo)


def _undo(lines, step):  # type: ignore[no-untyped-def]
    rows, width = lines.shape
    for i in range(rows):
        kind = lines[i, 0]
        for j in range(1, width):
            left = int(lines[i, j - step]) if j > step else 0
            above = int(lines[i - 1, j]) if i > 0 else 0
            corner = int(lines[i - 1, j - step]) if i > 0 and j > step else 0
            if kind == 0:
                guess = 0
            elif kind == 1:
                guess = left
            elif kind == 2:
                guess = above
            elif kind == 3:
                guess = (left + above) // 2
            else:
                estimate = left + above - corner
                to_left, to_above, to_corner = abs(estimate - left), abs(estimate - above), abs(estimate - corner)
                if to_left <= to_above and to_left <= to_corner:
                    guess = left
                elif to_above <= to_corner:
                    guess = above
                else:
                    guess = corner
            lines[i, j] = (int(lines[i, j]) + guess) & 255
