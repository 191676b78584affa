"""Write result files over what an earlier run has left, as fast as the page cache takes them.

``np.save`` truncates a file that is there: its pages go and come again, and ext4 starts writing such a file to the disk
when it is closed. Here the old pages are overwritten, and only a longer file is cut. A file that a crash leaves half
written cannot be mistaken for a result: its first bytes are zero until all others are written.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BLOCK_BYTES = 1 << 18
"""Rows of tiles are joined in a buffer of about this size, which stays in a core's cache."""


def write_array(path: Path, array: Array) -> None:
    """Write an array as ``.npy``, the bytes of :func:`numpy.save`; raises :class:`OSError` naming the file."""
    array = np.ascontiguousarray(array)
    _write_over(path, _header(array.dtype.str, array.shape), [array])


def write_behind(path: Path, arrays: Sequence[Array]) -> None:
    """Write arrays one behind the other (along the first axis) as one ``.npy`` file."""
    parts = [np.ascontiguousarray(a) for a in arrays]
    shape = (sum(len(a) for a in parts), *parts[0].shape[1:])
    _write_over(path, _header(parts[0].dtype.str, shape), parts)


def write_beside(path: Path, tiles: Sequence[Array]) -> None:
    """Write matrices of equally many rows side by side as one ``.npy`` file."""
    shape = (len(tiles[0]), sum(tile.shape[1] for tile in tiles))
    _write_over(path, _header(tiles[0].dtype.str, shape), _joined_rows(tiles, shape))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file of any format."""
    _write_over(path, content[:16], [np.frombuffer(content, np.uint8)[16:]])


def _joined_rows(tiles: Sequence[Array], shape: tuple[int, int]) -> Iterable[Array]:
    if len(tiles) == 1:
        yield np.ascontiguousarray(tiles[0])
        return
    count = max(1, BLOCK_BYTES // max(1, shape[1] * tiles[0].itemsize))
    block = np.empty((min(count, shape[0]), shape[1]), tiles[0].dtype)
    for first in range(0, shape[0], count):
        rows = block[: min(count, shape[0] - first)]
        np.concatenate([tile[first : first + count] for tile in tiles], axis=1, out=rows)
        yield rows


@functools.lru_cache(maxsize=256)
def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def _write_over(path: Path, head: bytes, parts: Iterable[Array]) -> None:
    """Write ``head`` and contiguous arrays; ``head`` last."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            before = os.fstat(file).st_size
            if before:
                _put(file, bytes(len(head)), 0)
            at = len(head)
            for part in parts:
                at = _put(file, part.reshape(-1).view(np.uint8), at)
            if at < before:
                os.ftruncate(file, at)
            _put(file, head, 0)
        finally:
            os.close(file)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _put(file: int, content: Any, at: int) -> int:
    """Write all of ``content`` (bytes, or bytes as an array) at an offset; return where it ends."""
    while len(content):
        written = os.pwrite(file, content, at)
        content, at = content[written:], at + written
    return at
