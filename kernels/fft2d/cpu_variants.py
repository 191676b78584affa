"""Host variants: SciPy's FFT (pocketfft, any length), and a Numba Stockham FFT for powers of two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
from scipy import fft

from kernels.fft2d.field import field
from kernels.results import write_array

Array = np.ndarray[Any, Any]

_jit: Any = numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"}, error_model="numpy")


def load(*, band: Array, size: int, row: int) -> None:
    """Fill a band of rows of the field, from ``row`` on."""
    band[...] = field(size)[row : row + len(band)]


def _scatter(spectrum: Array, blocks: Sequence[Array]) -> None:
    start = 0
    for block in blocks:
        block[...] = spectrum[:, start : start + block.shape[1]]
        start += block.shape[1]


def rows(*, band: Array, blocks: Sequence[Array]) -> None:
    """Transform the rows of a real band and cut the spectrum into blocks of columns."""
    _scatter(fft.fft(band, axis=1), blocks)


def transpose(*, block: Array, turned: Array) -> None:
    """Write a block's transpose."""
    turned[...] = block.T


def columns(*, blocks: Sequence[Array], band: Array) -> None:
    """Put blocks side by side and transform the rows of the whole."""
    band[...] = fft.fft(np.concatenate(blocks, axis=1), axis=1, overwrite_x=True)


def store(*, band: Array, path: Path) -> None:
    """Write a band of the transposed spectrum to a ``.npy`` file."""
    write_array(path, band)


@_jit
def _stockham(signal, other, twiddles):  # type: ignore[no-untyped-def]
    """Transform one row; return whether the result is in ``other``."""
    n = len(signal)
    half = n // 2
    stride, in_other = 1, False
    while stride < n:
        source, target = (other, signal) if in_other else (signal, other)
        for p in range(half // stride):
            w = twiddles[p * stride]
            for q in range(stride):
                a = source[q + stride * p]
                b = source[q + stride * p + half]
                target[q + stride * 2 * p] = a + b
                target[q + stride * (2 * p + 1)] = (a - b) * w
        in_other = not in_other
        stride *= 2
    return in_other


@_jit
def _transform(band, twiddles):  # type: ignore[no-untyped-def]
    other = np.empty(band.shape[1], band.dtype)
    for i in range(len(band)):
        if _stockham(band[i], other, twiddles):
            band[i] = other


@_jit
def _transpose(block, turned):  # type: ignore[no-untyped-def]
    tile = 32
    for top in range(0, block.shape[0], tile):
        for left in range(0, block.shape[1], tile):
            for j in range(left, min(left + tile, block.shape[1])):
                for i in range(top, min(top + tile, block.shape[0])):
                    turned[j, i] = block[i, j]


def _twiddles(n: int) -> Array:
    return np.asarray(np.exp(np.arange(max(1, n // 2)) * (-2j * math.pi / n)), np.complex64)


def rows_numba(*, band: Array, blocks: Sequence[Array]) -> None:
    """Transform the rows of a real band (a power of two long) and cut the spectrum into blocks of columns."""
    spectrum = band.astype(np.complex64)
    _transform(spectrum, _twiddles(band.shape[1]))
    _scatter(spectrum, blocks)


def transpose_numba(*, block: Array, turned: Array) -> None:
    """Write a block's transpose, tile by tile for the cache."""
    _transpose(block, turned)


def columns_numba(*, blocks: Sequence[Array], band: Array) -> None:
    """Put blocks side by side and transform the rows (a power of two long) of the whole."""
    np.concatenate(blocks, axis=1, out=band)
    _transform(band, _twiddles(band.shape[1]))
