"""Write a black and white picture as PNG in bands that are compressed independently of each other.

One bit a pixel and run lengths only: five times faster than a general encoder. The bands' compressed lines join to one
stream, because each ends at a byte and refers to nothing before it; so what is left to the last task, which nothing
overlaps, is to write the file. Formats: W3C Portable Network Graphics (Third Edition), colour type 0, bit depth 1,
filter 0 on every line; RFC 1950 (the checksum of joined lines from those of the parts) and RFC 1951.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernels.results import write_bytes

Array = np.ndarray[Any, Any]

HEADER = struct.Struct("<QII")
"""Before a band's compressed lines: their bytes, the lines' checksum (Adler-32), and 0."""

ADLER_BASE = 65521


def line_bytes(columns: int) -> int:
    """Return the bytes of a line: the filter's number, then eight pixels a byte."""
    return 1 + (columns + 7) // 8


def band_bytes(rows: int, columns: int) -> int:
    """Return the bytes that a compressed band has at most."""
    size = rows * line_bytes(columns)
    return HEADER.size + size + size // 4 + 64


def compress_band(tiles: Sequence[Array], band: Array) -> None:
    """Compress the lines of tiles that lie side by side into ``band``; a pixel is white where a tile is not 0.

    ``band``: uint8, of :func:`band_bytes`; what is left over is zero.
    """
    columns = sum(tile.shape[1] for tile in tiles)
    lines = np.zeros((len(tiles[0]), line_bytes(columns)), dtype=np.uint8)
    if any(tile.shape[1] % 8 for tile in tiles[:-1]):
        lines[:, 1:] = np.packbits(np.concatenate(tiles, axis=1), axis=1)
    else:
        first = 1
        for tile in tiles:
            bits = np.packbits(tile, axis=1)
            lines[:, first : first + bits.shape[1]] = bits
            first += bits.shape[1]
    compressor = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_RLE)
    data = compressor.compress(lines.data) + compressor.flush(zlib.Z_FULL_FLUSH)
    whole = HEADER.pack(len(data), zlib.adler32(lines.data), 0) + data
    band[: len(whole)] = np.frombuffer(whole, dtype=np.uint8)
    band[len(whole) :] = 0


def joined_checksum(first: int, second: int, second_bytes: int) -> int:
    """Return the Adler-32 of two byte strings, one behind the other, from those of both."""
    a, b = first & 0xFFFF, first >> 16
    c, d = second & 0xFFFF, second >> 16
    low = (a + c - 1) % ADLER_BASE
    high = (b + d + second_bytes * (a - 1)) % ADLER_BASE
    return high << 16 | low


def write_png(path: Path, bands: Sequence[Array], heights: Sequence[int], columns: int) -> None:
    """Write bands of ``heights`` lines, top first; the file has no signature before it is complete."""
    checksum = 1
    # 32 KiB window, fastest; an empty last block ends the stream.
    parts = [b"\x78\x01"]
    for band, height in zip(bands, heights, strict=True):
        size, part, _ = HEADER.unpack_from(band.data)
        parts.append(band[HEADER.size : HEADER.size + size].tobytes())
        checksum = joined_checksum(checksum, part, height * line_bytes(columns))
    parts += [b"\x03\x00", struct.pack(">I", checksum)]
    header = struct.pack(">IIBBBBB", columns, sum(heights), 1, 0, 0, 0, 0)
    content = [b"\x89PNG\r\n\x1a\n"]
    for name, data in ((b"IHDR", header), (b"IDAT", b"".join(parts)), (b"IEND", b"")):
        content += [struct.pack(">I", len(data)), name, data, struct.pack(">I", zlib.crc32(data, zlib.crc32(name)))]
    write_bytes(path, b"".join(content))
