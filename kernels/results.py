"""Write result files over what an earlier run has left, as fast as the page cache takes them.

``np.save`` truncates a file that is there: its pages go and come again, and ext4 starts writing such a file to the disk
when it is closed. Here the old pages are overwritten, and only a longer file is cut. A file that a crash leaves half
written cannot be mistaken for a result: its first bytes are zero until all others are written.
"""

from __future__ import annotations

import errno
import functools
import io
import math
import os
import stat
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BLOCK_BYTES = 1 << 18
"""Rows of tiles are joined in a buffer of about this size, which stays in a core's cache."""


def write_array(path: Path, array: Array) -> None:
    """Write an array as ``.npy``, the bytes of :func:`numpy.save`: dtype with field names, shape and order come back.

    Raises :class:`ValueError` for arrays of Python objects, and :class:`OSError` naming the file.
    """
    array = np.asanyarray(array)
    turned = array.flags.f_contiguous and not array.flags.c_contiguous
    head = _header(array.dtype, array.shape, turned)
    # Unlike ascontiguousarray, this leaves 0-d arrays as they are.
    _write_over(path, head, [np.asarray(array.T if turned else array, order="C")])


def write_behind(path: Path, arrays: Sequence[Array]) -> None:
    """Write arrays one behind the other (along the first axis) as one ``.npy`` file, in C order.

    Types that differ become one, as in :func:`numpy.concatenate`. Raises :class:`ValueError` where other axes differ.
    """
    dtype = _common_type(path, arrays, axis=0)
    parts = [np.asarray(a, dtype, order="C") for a in arrays]
    shape = (sum(len(a) for a in parts), *parts[0].shape[1:])
    _write_over(path, _header(dtype, shape, False), parts)


def write_beside(path: Path, tiles: Sequence[Array]) -> None:
    """Write arrays of equally many rows side by side (along the second axis) as one ``.npy`` file, in C order.

    Types that differ become one, as in :func:`numpy.concatenate`. Raises :class:`ValueError` where other axes differ.
    """
    dtype = _common_type(path, tiles, axis=1)
    shape = (len(tiles[0]), sum(tile.shape[1] for tile in tiles), *tiles[0].shape[2:])
    _write_over(path, _header(dtype, shape, False), _joined_rows(tiles, dtype, shape))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file of any format."""
    _write_over(path, content[:16], [np.frombuffer(content, np.uint8)[16:]])


def _common_type(path: Path, arrays: Sequence[Array], *, axis: int) -> np.dtype[Any]:
    """Return the type that holds all of ``arrays``, whose shapes may differ along ``axis`` only."""
    shapes = [a.shape for a in arrays]
    if len({(*s[:axis], *s[axis + 1 :]) for s in shapes}) != 1 or len(shapes[0]) <= axis:
        raise ValueError(f"{path}: arrays of shapes {shapes} do not fit together along axis {axis}")
    return arrays[0].dtype if len({a.dtype for a in arrays}) == 1 else np.result_type(*arrays)


def _joined_rows(tiles: Sequence[Array], dtype: np.dtype[Any], shape: tuple[int, ...]) -> Iterable[Array]:
    if len(tiles) == 1:
        yield np.asarray(tiles[0], order="C")
        return
    row_bytes = dtype.itemsize * math.prod(shape[1:])
    count = max(1, BLOCK_BYTES // max(1, row_bytes))
    block = np.empty((min(count, shape[0]), *shape[1:]), dtype)
    for first in range(0, shape[0], count):
        rows = block[: min(count, shape[0] - first)]
        np.concatenate([tile[first : first + count] for tile in tiles], axis=1, out=rows)
        yield rows


@functools.lru_cache(maxsize=256)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...], turned: bool) -> bytes:
    """Return the head of a ``.npy`` file in the oldest version of the format that can hold it, as NumPy does."""
    if dtype.hasobject:
        raise ValueError(f"arrays of {dtype} hold Python objects, which no result file keeps; write plain numbers")
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": turned, "shape": shape}
    for write in (np.lib.format.write_array_header_1_0, np.lib.format.write_array_header_2_0):
        stream = io.BytesIO()
        try:
            write(stream, facts)
            return stream.getvalue()
        except ValueError:
            """Too long for the first version, or field names that are not Latin."""
    text = repr(facts).encode()
    fill = -(len(text) + 13) % np.lib.format.ARRAY_ALIGN
    text += b" " * fill + b"\n"
    return bytes(np.lib.format.magic(3, 0)) + struct.pack("<I", len(text)) + text


def _write_over(path: Path, head: bytes, parts: Iterable[Array]) -> None:
    """Write ``head`` and contiguous arrays; ``head`` last."""
    try:
        # Without O_NONBLOCK this would wait for whoever reads a FIFO that stands there.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o666)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.ENXIO, "No such file")
            before = found.st_size
            if before:
                _put(file, bytes(len(head)), 0)
            at = len(head)
            for part in parts:
                if part.nbytes:
                    at = _put(file, part.reshape(-1).view(np.uint8), at)
            if at < before:
                os.ftruncate(file, at)
            _put(file, head, 0)
        finally:
            os.close(file)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.EISDIR):
            reason = "something that is no file stands in the result's place; remove it"
            raise OSError(error.errno, reason, os.fspath(path)) from None
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _put(file: int, content: Any, at: int) -> int:
    """Write all of ``content`` (bytes, or bytes as an array) at an offset; return where it ends."""
    while len(content):
        written = os.pwrite(file, content, at)
        content, at = content[written:], at + written
    return at
